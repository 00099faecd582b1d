"""Old names that still work: each warns with the new one, and is removed after two minor versions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

KEPT = 2
"""Minor versions for which a deprecated name works: one that is deprecated since 1.0 is removed in 1.2."""


@dataclass(frozen=True)
class Renamed:
    """A public name that has another one now."""

    new: str
    since: str
    """Version in which it was renamed, such as 1.0."""


RENAMED: Mapping[str, Renamed] = {}
"""Names of `import anaphor` that were renamed, by the old one."""


class AnaphorDeprecationWarning(FutureWarning):
    """A name or a form that will be removed. Python shows it to users, too, unlike its own `DeprecationWarning`."""


def removed_in(since: str) -> str:
    """The version in which a name that is deprecated since another one is gone."""
    major, minor = since.split(".")[:2]
    return f"{major}.{int(minor) + KEPT}"


def warn_deprecated(old: str, new: str, *, since: str) -> None:
    """Warn, at the line that uses it, that a name or a form is an old one."""
    warnings.warn(
        f"{old} is now {new}; the old form is removed in anaphor {removed_in(since)}",
        AnaphorDeprecationWarning,
        stacklevel=3,
    )


def find_renamed(name: str, renamed: Mapping[str, Renamed] | None = None) -> str | None:
    """The new name of an old one, with a warning; None for a name that was not renamed."""
    entry = (RENAMED if renamed is None else renamed).get(name)
    if entry is None:
        return None
    warnings.warn(
        f"anaphor.{name} is now anaphor.{entry.new}; the old name is removed in anaphor {removed_in(entry.since)}",
        AnaphorDeprecationWarning,
        stacklevel=3,
    )
    return entry.new

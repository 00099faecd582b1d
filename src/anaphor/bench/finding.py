"""One line of a benchmark: a ratio against a named peer, and the promise it is held to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was measured, against what, and whether the promise is kept."""

    what: str
    """What was timed."""
    peer: str
    """What it was compared with, in the same run."""
    value: float
    """The ratio, or the factor of growth."""
    low: float | None
    """Lower end of its 95 % interval, where there is one."""
    high: float | None
    """Upper end of its 95 % interval, where there is one."""
    promise: str
    """What is promised."""
    kept: bool
    """Whether it is kept."""
    detail: str = ""
    """The sizes, and the times behind the ratio."""

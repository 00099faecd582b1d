"""A kind of fault, and how a try of it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "anaphor: "


@dataclass(frozen=True)
class Outcome:
    """How one try ended."""

    survived: bool
    how: str
    """In a few words that are the same for all tries that ended so."""
    count: int = 1
    """How many faults there were, where a try has several."""
    seen: str = ""
    """Of a try that failed: what was seen."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """How many of the faults were of a kind that is counted by itself."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    promise: str
    """What holds whatever the fault hits."""
    count: int
    """How many faults an hour has room for."""
    prepare: Callable[[Path], None]
    """Makes in a folder what all tries need."""
    attempt: Callable[[Path, Path, int], Outcome]
    """One try: the folder that was prepared, an empty one of its own, and the seed that decides everything."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be tried on this machine."""
    each: int = 1
    """How many faults one try has, at most."""


def failed(how: str, seen: str) -> Outcome:
    return Outcome(False, how, seen=seen[-2000:])


def judge_refusal(code: int, errors: str) -> Outcome | None:
    """The failure of a command that should have ended in one line with code 2 or 3; None if it did."""
    if "Traceback" in errors:
        return failed("traceback", errors)
    if code not in (2, 3):
        return failed(f"exit code {code}", errors)
    lines = [line for line in errors.splitlines() if line.startswith(PREFIX)]
    if not lines:
        return failed("no message", errors)
    return None

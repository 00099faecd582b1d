"""What grading a submission gave: a row for each exercise, as it is kept in a file and put into tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anaphor.errors import DataError

TO_READ = "to be read"
"""Begins the comment of what only a person can judge. It has no points."""
FORMAT = 1


@dataclass(frozen=True)
class Mark:
    """One exercise of a submission."""

    exercise: str
    max_points: float
    points: float | None
    """None where a person has to read it."""
    comment: str
    flags: tuple[str, ...] = ()
    """What a teacher should look at, in a word each: `forged-result`, `same-code`, …"""
    handed_in: str = ""
    """An answer in words, or numbers, as the student wrote them."""
    figure: str = ""
    """An image, as a `data:` address."""
    feedback: str | None = None
    """The comment for the student; that for the teacher where it is None."""
    code: str = ""
    """The student's code, where it is not right."""
    expected: str = ""
    """The right values of numbers that are wrong."""

    @property
    def for_student(self) -> str:
        """The comment that the student may read; empty as long as a person has to read the exercise."""
        if self.points is None:
            return ""
        return self.comment if self.feedback is None else self.feedback


@dataclass(frozen=True)
class Record:
    """A graded submission."""

    folder: str
    student: str
    sheet: str
    digest: str
    """Of the submission, the sheet and the grader: where it is the same, nothing is graded again."""
    marks: tuple[Mark, ...]
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out or cannot be read, a line each."""
    warnings: tuple[str, ...] = ()
    """What the teacher should see before anything else, a line each: a file that cannot be imported."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests of the classes and functions of the exercises, by "exercise::name"."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Digests of the weights of runs, by "exercise::folder"."""
    problem: str = ""
    """Why it cannot be graded, without its folder; empty where it is."""
    seconds: float = 0.0

    @property
    def problem_line(self) -> str:
        """Why it cannot be graded, with its folder."""
        return f"{self.folder}: {self.problem}"

    @property
    def points(self) -> float:
        return sum(mark.points or 0 for mark in self.marks)

    @property
    def to_read(self) -> int:
        """How many exercises a person has to read."""
        return sum(mark.points is None for mark in self.marks)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def read(cls, path: Path) -> Record:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values.pop("format") != FORMAT:
                raise DataError(f"{path} is of another version")
            marks = tuple(Mark(**{**one, "flags": tuple(one["flags"])}) for one in values.pop("marks"))
            lists: dict[str, Any] = {name: tuple(values.pop(name)) for name in ("flags", "notes", "warnings")}
            return cls(marks=marks, **lists, **values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{path} is no record of a graded submission") from None

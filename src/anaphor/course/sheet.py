"""The sheets of the course as data: exercises, hints and rubrics, read from `sheets/NNN/sheet.yaml`.

    number: "002"
    version: 1
    title: RNNs and transformers
    exercises:
      - id: 002.2a
        title: One head of attention
        kind: code                      # code, number, answer, run or figure
        points: 4
        file: attention.py              # where the student's own is
        checks: [AttentionHead]         # names in the file; `NAME as REFERENCE` where they differ
        text: what is to be done, Markdown; {{name}} is a value of the student's
        hints: [one step after another]
        rubric: [{points: 4, text: what they are given for}]
        solution: for the teacher

Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from anaphor.config import check_fields, look_up, nearest
from anaphor.errors import ConfigError, UnknownName
from anaphor.yaml_files import read_mapping

SHEETS = Path(__file__).with_name("sheets")
ANSWERS = "answers.md"
"""File of a handout with the answers in words: below a heading `## 002.1d …`, one for each exercise."""
NUMBERS = "numbers.yaml"
"""File of a handout with the numbers that students find: `002.3a: {patches: 64}`."""

Kind = Literal["code", "number", "answer", "run", "figure"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Criterion:
    """A line of a rubric."""

    points: float
    text: str
    mistakes: tuple[str, ...] = ()
    """Of code: names of the mistakes that cost these points and no others, `mask*` for all that begin so. One line
    without any stands for all other known mistakes."""
    checks: tuple[str, ...] = ()
    """Of code: the classes or functions that these points are given for."""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Criterion:
        lists = {name: tuple(values[name]) for name in ("mistakes", "checks") if name in values}
        return cls(**{**values, **lists})


@dataclass(frozen=True)
class CodeCheck:
    """A name in the student's file, and what `anaphor check` compares it with."""

    name: str
    reference: str

    @classmethod
    def parse(cls, line: str) -> CodeCheck:
        """`NAME`, or `NAME as REFERENCE`."""
        name, _, reference = line.partition(" as ")
        return cls(name, reference or name)

    def command(self, file: str) -> str:
        as_reference = "" if self.reference == self.name else f" --as {self.reference}"
        return f"anaphor check {file}::{self.name}{as_reference}"


@dataclass(frozen=True)
class ExpectedRun:
    """A training of an exercise, whose run folder is handed in."""

    folder: str
    """Of the run, in the handout: `runs/lstm`."""
    command: str
    """What the student types; {{name}} is a value of the student's."""
    metric: str
    """Metric of the validation split, as the task calls it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the run must have, and their values."""
    at_most: float | None = None
    """Largest value of the metric that gets the points."""
    at_least: float | None = None
    """Smallest value of the metric that gets the points."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One thing to hand in. A question of a sheet that asks for two has two, `002.3c` and `002.3c-why`."""

    id: str
    title: str
    kind: Kind
    points: float
    text: str
    file: str = ""
    """Of code, the student's file; of a figure, the image; else where the answer is."""
    checks: tuple[CodeCheck, ...] = ()
    """Of code: what `anaphor check` compares."""
    runs: tuple[ExpectedRun, ...] = ()
    commands: tuple[str, ...] = ()
    """What else is typed; the commands of runs and checks are not repeated here."""
    hints: tuple[str, ...] = ()
    """In steps: each says more than the one before."""
    rubric: tuple[Criterion, ...] = ()
    solution: str = ""
    """For the teacher: the answer in words, or where the right code is."""
    bonus: bool = False
    """Whether its points count beyond the total of the sheet."""
    seconds: float | None = None
    """Measured time of its commands on one thread of a CPU; None where it has none."""
    gpu_seconds: float | None = None
    """The same on a GPU; None where it was not measured."""

    @property
    def sheet(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A sheet of exercises."""

    number: str
    version: int
    title: str
    about: str
    exercises: tuple[Exercise, ...]

    @property
    def folder(self) -> Path:
        """Where its stubs and solutions are."""
        return SHEETS / self.number

    @property
    def points(self) -> float:
        return sum(exercise.points for exercise in self.exercises if not exercise.bonus)

    @property
    def code_files(self) -> tuple[str, ...]:
        """Names of the Python files in which students write."""
        return tuple(dict.fromkeys(one.file for one in self.exercises if one.kind == "code"))

    def find(self, name: str) -> Exercise:
        """The exercise of that id, or an error that lists some."""
        return look_up({exercise.id: exercise for exercise in self.exercises}, name, "exercise")


@cache
def sheet_numbers() -> tuple[str, ...]:
    """Numbers of all sheets: "000", "001", …"""
    return tuple(sorted(path.parent.name for path in SHEETS.glob("*/sheet.yaml")))


@cache
def read_sheet(number: str) -> Sheet:
    """The sheet of that number."""
    look_up(dict.fromkeys(sheet_numbers()), number, "sheet")
    path = SHEETS / number / "sheet.yaml"
    values = read_mapping(path)
    check_fields(Sheet, values, str(path))
    exercises = tuple(_read_exercise(one, path) for one in values.pop("exercises"))
    names = [exercise.id for exercise in exercises]
    for name in names:
        if names.count(name) > 1 or not name.startswith(f"{number}."):
            raise ConfigError(f"{path} has the exercise {name} twice, or of another sheet")
    return Sheet(exercises=exercises, **values)


def _read_exercise(values: dict[str, Any], path: Path) -> Exercise:
    check_fields(Exercise, values, str(path))
    if not isinstance(values.get("id"), str) or values.get("kind") not in KINDS:
        raise ConfigError(f"{path} has an exercise without an id in quotes or without a kind: {values.get('id')!r}")
    where = {"answer": ANSWERS, "number": NUMBERS}.get(values["kind"], "")
    lists: dict[str, Any] = {
        "checks": tuple(map(CodeCheck.parse, values.get("checks", ()))),
        "runs": tuple(ExpectedRun(**one) for one in values.get("runs", ())),
        "rubric": tuple(map(Criterion.parse, values.get("rubric", ()))),
        "hints": tuple(values.get("hints", ())),
        "commands": tuple(values.get("commands", ())),
    }
    exercise = Exercise(**{"file": where, **values, **lists})
    return dataclasses.replace(exercise, text=exercise.text.strip(), solution=exercise.solution.strip())


def find_exercise(name: str) -> Exercise:
    """The exercise of that id, in any sheet: `002.3b`."""
    number, dot, _ = name.partition(".")
    if not dot or number not in sheet_numbers():
        known = [exercise.id for one in sheet_numbers() for exercise in read_sheet(one).exercises]
        listed = ", ".join(sheet_numbers())
        raise UnknownName(
            f"unknown exercise {name!r}{nearest(name, known)} (sheets: {listed}; for example 002.3b)", name
        )
    exercises = read_sheet(number).exercises
    same = [exercise for exercise in exercises if exercise.id.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else read_sheet(number).find(name)

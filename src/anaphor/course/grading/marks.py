"""Points and comments for every exercise of a submission.

Numbers are compared with those of the student, code and runs are judged by what the sandbox gives back, and what only a
person can judge is collected.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from anaphor.course.check_folder import IMAGES
from anaphor.course.grading.code import CodeGrader, describe_rubric
from anaphor.course.grading.record import TO_READ, Mark
from anaphor.course.grading.rescore import rescore
from anaphor.course.grading.sandbox import Sandbox
from anaphor.course.numbers.values import plain_fraction
from anaphor.course.sheet import Exercise, ExpectedRun
from anaphor.course.student_data import student_files
from anaphor.course.student_numbers import mark, student_numbers
from anaphor.course.student_text import fill, student_values
from anaphor.course.submission import Submission, read_answers, read_numbers
from anaphor.errors import AnaphorError, count_noun

MAX_FIGURE = 2_000_000
"""Bytes of an image that a report shows."""
FORGED = 0.01
"""Relative difference of a number in `result.json` from what the weights give, from which on it is flagged: other
machines and versions of torch change later digits."""
ROUNDING = 1e-3
"""Relative excess over a bound that still gets the points, likewise."""


@dataclass
class Grader:
    """Grades the exercises of one submission."""

    submission: Submission
    sandbox: Sandbox
    references: Mapping[str, Any]
    """What the sandbox needs of each reference, see `kit`."""
    scratch: Path
    seconds: float
    """That a call of a student's code may take."""
    weights: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Why files cannot be read."""

    def __post_init__(self) -> None:
        self.code = CodeGrader(self.submission, self.sandbox, self.references, self.scratch, self.seconds)

    def marks(self) -> list[Mark]:
        """A row for every exercise."""
        runs = rescore_submission(self.submission, self.sandbox, self.scratch, max(5 * self.seconds, 120))
        try:
            return [self._mark(exercise, runs) for exercise in self.submission.sheet.exercises]
        finally:
            self.code.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the teacher should see before anything else, a line each."""
        return (*dict.fromkeys(self.unreadable), *self.code.warnings)

    def _mark(self, exercise: Exercise, runs: Mapping[str, Mapping[str, Any]]) -> Mark:
        makers = {"number": self._numbers, "answer": self._answer, "figure": self._figure, "code": self.code.mark}
        try:
            return self._runs(exercise, runs) if exercise.kind == "run" else makers[exercise.kind](exercise)
        except AnaphorError as error:
            text = str(error).replace(f"{self.submission.folder}/", "")
            return Mark(exercise.id, exercise.points, 0.0, text[:500])

    def _numbers(self, exercise: Exercise) -> Mark:
        try:
            found = read_numbers(self.submission)[exercise.id]
        except (AnaphorError, OSError, UnicodeDecodeError) as error:
            reason = str(error).replace(f"{self.submission.folder}/", "")
            self.unreadable.append(reason)
            return Mark(exercise.id, exercise.points, None, f"{TO_READ}: {reason}", ("unreadable",))
        written = yaml.safe_dump(found, allow_unicode=True, sort_keys=False)[:2000] if found else ""
        try:
            marks = mark(exercise.id, self.submission.student, found)
        except Exception as error:  # noqa: BLE001 (a judge was given what no student should write)
            comment = f"{TO_READ}: the numbers cannot be compared ({type(error).__name__})"
            return Mark(exercise.id, exercise.points, None, comment, ("unreadable",), written)
        right = sum(one.is_right for one in marks)
        wrong = [f"{one.name}: {one.comment}" for one in marks if not one.is_right]
        points = exercise.points * right / max(len(marks), 1)
        comment = f"{right} of {count_noun(len(marks), 'number')} right" + (f"; {'; '.join(wrong)}" if wrong else "")
        results = student_numbers(exercise.id, self.submission.student).expected
        expected = {one.name: plain_fraction(results[one.name]) for one in marks if not one.is_right}
        return Mark(
            exercise.id, exercise.points, round(points, 2), comment[:500],
            ("misread-number",) if any(one.is_misread for one in marks) else (), written,
            expected="\n".join(f"{name}: {value}" for name, value in expected.items()),
        )  # fmt: skip

    def _answer(self, exercise: Exercise) -> Mark:
        text = read_answers(self.submission)[exercise.id]
        if not text:
            return Mark(exercise.id, exercise.points, 0.0, "empty")
        return Mark(exercise.id, exercise.points, None, f"{TO_READ}: {describe_rubric(exercise)}", (), text[:20_000])

    def _figure(self, exercise: Exercise) -> Mark:
        path = self.submission.folder / exercise.file
        if not path.is_file():
            return Mark(exercise.id, exercise.points, 0.0, f"no figure {exercise.file}")
        content = path.read_bytes()
        kind = next((kind for start, kind in IMAGES.items() if content.startswith(start)), None)
        if kind is None or len(content) > MAX_FIGURE:
            reason = "not an image that a report can show" if kind is None else f"{len(content):,} bytes"
            comment = f"{TO_READ} in the folder ({exercise.file} is {reason}): {describe_rubric(exercise)}"
            return Mark(exercise.id, exercise.points, None, comment)
        shown = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        return Mark(exercise.id, exercise.points, None, f"{TO_READ}: {describe_rubric(exercise)}", (), "", shown)

    def _runs(self, exercise: Exercise, found: Mapping[str, Mapping[str, Any]]) -> Mark:
        comments, doubts, flags, right = list[str](), list[str](), list[str](), 0
        for run in exercise.runs:
            answer = found.get(run.folder)
            if answer is None:
                comments.append(f"no run {run.folder}")
                continue
            if isinstance(answer.get("weights"), str):
                self.weights[f"{exercise.id}::{run.folder}"] = answer["weights"]
            comment, own_flags, is_right = judge_run(run, answer)
            comments.append(f"{run.folder}: {comment}")
            flags += own_flags
            right += is_right
            forged = find_forged(answer)
            if forged:
                doubts.append(f"{run.folder}: {forged}")
                flags.append("forged-result")
        points: float | None = round(exercise.points * right / max(len(exercise.runs), 1), 2)
        feedback = "; ".join(comments)[:1500]
        comment = "; ".join([feedback, *doubts])
        if "own-code" in flags:
            points, comment = None, f"{TO_READ}: {comment}"
        return Mark(exercise.id, exercise.points, points, comment, tuple(dict.fromkeys(flags)), feedback=feedback)


def rescore_submission(
    submission: Submission, sandbox: Sandbox, scratch: Path, seconds: float, *, losses: bool = False
) -> Mapping[str, Mapping[str, Any]]:
    """What the runs of a submission give, by their folders; with `losses` also those of each item."""
    wanted = []
    for exercise in submission.sheet.exercises:
        for run in exercise.runs:
            if (submission.folder / run.folder / "spec.yaml").is_file():
                command = fill(run.command, student_values(exercise, submission.student))
                settings = {"folder": run.folder, "command": command, "settings": {**run.settings}}
                wanted.append({**settings, "metric": run.metric, "losses": losses})
    if not wanted:
        return {}
    data = scratch / "sheet-data"
    for name, text in student_files(submission.sheet.number, submission.student).items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text, encoding="utf-8")
    _copy_sheet_data(submission.sheet.folder / "data", data / "data")
    return rescore(sandbox, submission.folder, wanted, data, scratch, seconds)


def _copy_sheet_data(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def judge_run(run: ExpectedRun, answer: Mapping[str, Any]) -> tuple[str, list[str], bool]:
    """Comment, flags, and whether a run gets its points: by what its weights give on the data of the sheet."""
    if "problem" in answer:
        return str(answer["problem"]), [answer["flag"]] if "flag" in answer else [], False
    value = answer["metrics"].get(run.metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return f"it has no {run.metric}", [], False
    parts, flags, is_right = [f"{run.metric} {value:.4g}, scored again"], list[str](), True
    if run.at_most is not None and value > run.at_most * (1 + ROUNDING):
        parts.append(f"at most {run.at_most:g} was asked for")
        is_right = False
    if run.at_least is not None and value < run.at_least * (1 - ROUNDING):
        parts.append(f"at least {run.at_least:g} was asked for")
        is_right = False
    changed = answer.get("changed", [])
    if any(not name.startswith("data of") for name in changed):
        parts.append(f"not made from the data of the sheet: {', '.join(changed)}")
        flags.append("other-preprocessing")
        is_right = False
    elif changed:
        parts.append(f"trained on another text: {', '.join(changed)}")
        flags.append("other-data")
        is_right = False
    for is_decisive, name, found, wanted in answer.get("differences", []):
        parts.append(f"trained with {name} {_plain(found)}, the sheet asks for {_plain(wanted)}")
        if is_decisive:
            flags.append("other-settings")
            is_right = False
    return "; ".join(parts), flags, is_right


def find_forged(answer: Mapping[str, Any]) -> str:
    """How `result.json` differs from what the weights give; empty if it does not."""
    for name, claimed in answer.get("claimed", {}).items():
        actual = answer["metrics"].get(name)
        if actual is not None and not math.isclose(claimed, actual, rel_tol=FORGED, abs_tol=1e-4):
            return f"result.json says {name} {claimed:.4g}, the weights give {actual:.4g}"
    return ""


def _plain(value: str) -> str:
    """A setting as a command has it: 6, not 6.0."""
    return value.removesuffix(".0")

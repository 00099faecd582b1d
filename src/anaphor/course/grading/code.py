"""Grading of code: each class or function of a submission runs in the sandbox and is compared with its reference.

One mistake costs once. What is built on a part that is wrong, or imports a file that cannot be imported, is graded
again with the solution of that part in its place; and where a mistake belongs to one line of the rubric, the points of
the other lines are given.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from anaphor.course.catalog import find_reference
from anaphor.course.check import check_implementation
from anaphor.course.check_report import CheckReport, Finding
from anaphor.course.grading.parts import Part, Written, as_message, solutions_of
from anaphor.course.grading.record import TO_READ, Mark
from anaphor.course.grading.remote import Remote, RemoteError, RemoteImplementation, SandboxEnded
from anaphor.course.grading.sandbox import Sandbox
from anaphor.course.sheet import CodeCheck, Exercise
from anaphor.course.student import NotWritten
from anaphor.course.submission import Submission
from anaphor.errors import AnaphorError
from anaphor.imported_files import ImportFailed

REMARKS = ("makes-cpu-tensors", "makes-float32", "other-dtype")
"""Mistakes beside right values and gradients: they cost points where the rubric names them, and are told elsewhere."""
MAX_SHOWN = 20_000
"""Characters of code that a report shows."""


@dataclass(frozen=True)
class Outcome:
    """What grading a class or function gave."""

    is_right: bool
    text: str
    flags: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    is_open: bool = False
    """Whether a person has to read it."""
    is_final: bool = False
    """Whether it would be the same with other parts in place of those that it is built on."""


@dataclass
class CodeGrader:
    """Grades the code of one submission."""

    submission: Submission
    sandbox: Sandbox
    references: Mapping[str, Any]
    """What the sandbox needs of each reference, see `kit`."""
    scratch: Path
    seconds: float
    """That a call of a student's code may take."""
    digests: dict[str, str] = field(default_factory=dict)
    """Of classes and functions, by "exercise::name"."""
    unusable: dict[str, Outcome] = field(default_factory=dict)
    """Files that cannot be imported, and why."""
    _outcomes: dict[Part, Outcome] = field(default_factory=dict)
    _processes: dict[bool, tuple[dict[str, Written], Remote]] = field(default_factory=dict)
    """The process with the submission as it is, and the one with parts of the solution in it."""

    def close(self) -> None:
        for _, remote in self._processes.values():
            remote.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Files that cannot be imported, a line each."""
        found = []
        for file, outcome in self.unusable.items():
            if "broken-file" in outcome.flags:
                exercises = self.submission.sheet.exercises
                listed = ", ".join(one.id for one in exercises if one.kind == "code" and one.file == file)
                found.append(f"{outcome.text.removeprefix('check ')}; no points for {listed}")
        return tuple(found)

    def mark(self, exercise: Exercise) -> Mark:
        """The row of an exercise."""
        if not (self.submission.folder / exercise.file).is_file():
            return Mark(exercise.id, exercise.points, 0.0, f"no file {exercise.file}")
        known = [check for check in exercise.checks if check.reference in self.references]
        outcomes = {check: self.outcome(Part(exercise.file, check.name)) for check in known}
        parts = [outcomes[one].text if one in outcomes else _no_reference(one) for one in exercise.checks]
        flags = tuple(dict.fromkeys(flag for one in outcomes.values() for flag in one.flags))
        text = "; ".join(dict.fromkeys(parts))[:1500]
        is_open = any(one.is_open for one in outcomes.values()) or not known
        points = None if is_open else self._points(exercise, outcomes)
        if points is not None and points == exercise.points:
            return Mark(exercise.id, exercise.points, points, text, flags)
        comment = text if not is_open or text.startswith(TO_READ) else f"{TO_READ}: {text}"
        if exercise.rubric:
            comment += f" (rubric: {describe_rubric(exercise)})"
        shown = "\n\n".join(self._source(exercise.file, check.name) for check in exercise.checks)[:MAX_SHOWN]
        return Mark(exercise.id, exercise.points, points, comment, flags, feedback=text, code=shown)

    def _points(self, exercise: Exercise, outcomes: Mapping[CodeCheck, Outcome]) -> float:
        """By the rubric where each mistake belongs to a line of it, otherwise each check has the same share."""
        wrong = {check: outcome for check, outcome in outcomes.items() if not outcome.is_right}
        remarks = [finding for one in outcomes.values() for finding in one.findings if finding.name in REMARKS]
        lost = lost_criteria(exercise, wrong, remarks)
        if lost is not None:
            return round(exercise.points - sum(exercise.rubric[number].points for number in lost), 2)
        return round(exercise.points * (len(outcomes) - len(wrong)) / max(len(exercise.checks), 1), 2)

    def outcome(self, part: Part) -> Outcome:
        """What grading a class or function gives: as it was handed in, else with right parts where it is built on
        wrong ones."""
        if part not in self._outcomes:
            self._outcomes[part] = self._grade(part)
        return self._outcomes[part]

    def _grade(self, part: Part) -> Outcome:
        solutions = solutions_of(self.submission.sheet.number)
        for file in sorted(solutions.files_below(part.file)):
            self._try_import(file)
        whole = [file for file in sorted(solutions.files_below(part.file)) if file in self.unusable]
        wrong = [
            one for one in sorted(solutions.built_on(part)) if self._is_known(one) and not self.outcome(one).is_right
        ]
        errors = [*(self.outcome(one) for one in wrong), *(self.unusable[file] for file in whole)]
        first = Outcome(False, f"{part.name}: what it is built on ends the process")
        if not any({"ended", "time-limit"} & {*one.flags} for one in errors):
            first = self._attempt(part, {})
        is_lost = part.file in self.unusable and all(one.file == part.file for one in wrong) and not whole
        if first.is_right or first.is_final or is_lost or not errors:
            return first
        stub = self._find_stub(part)
        if stub is not None:
            return stub
        broken = self.unusable.pop(part.file, None)
        second = self._attempt(part, solutions.replace(wrong, whole))
        if part.file in self.unusable:  # as it cannot be imported with right parts, it is its own fault
            return second if broken is None else first
        files = [file for file in whole if all(one.file != file for one in wrong)]
        return _merge(part, first, second, [*(one.name for one in wrong), *files])

    def _try_import(self, file: str) -> None:
        """Grade something of a file, which tells whether the file can be imported."""
        for part in sorted(solutions_of(self.submission.sheet.number).checked):
            if part.file == file and self._is_known(part):
                self.outcome(part)
                return

    def _find_stub(self, part: Part) -> Outcome | None:
        """What it is where it waits for code; None where it is written."""
        if not (self.submission.folder / part.file).is_file():
            return None
        try:
            remote = self._process({})
            found = remote.request("placeholder", file=f"{remote.folder}/{part.file}", name=part.name).get("found")
        except (SandboxEnded, RemoteError, AnaphorError):
            return None
        if not isinstance(found, str):
            return None
        return Outcome(False, f"{part.name} did not pass: {NotWritten.name}: {found[:300]}", is_final=True)

    def _is_known(self, part: Part) -> bool:
        return self._check_of(part).reference in self.references

    def _check_of(self, part: Part) -> CodeCheck:
        exercises = [one for one in self.submission.sheet.exercises if one.file == part.file]
        return next(check for one in exercises for check in one.checks if check.name == part.name)

    def _attempt(self, part: Part, files: dict[str, Written]) -> Outcome:
        """Compare it, with files of the submission replaced."""
        if not (self.submission.folder / part.file).is_file():
            missing = Outcome(False, f"no file {part.file}", is_final=True)
            self.unusable.setdefault(part.file, missing)
            return missing
        try:
            report = self._compare(part, files)
        except SandboxEnded as error:
            return Outcome(False, f"{part.name}: {error.text}", (error.name,))
        except ImportFailed as error:
            text = self._clean(str(error))
            if error.file != part.file:
                return Outcome(False, f"{part.name}: {text}", ("broken-file",))
            self.unusable[part.file] = Outcome(False, text, ("broken-file",))
            return self.unusable[part.file]
        except (RemoteError, AnaphorError) as error:
            return Outcome(False, f"{part.name}: {self._clean(str(error))}", is_final=True)
        findings = report.mistakes
        costly = [one for one in findings if one.name not in REMARKS]
        return Outcome(
            not costly, describe_report(part.name, report), (), findings, is_open=not report.is_compared,
            is_final=any(one.name == NotWritten.name for one in findings),
        )  # fmt: skip

    def _clean(self, text: str) -> str:
        """An error without the folder of the sandbox."""
        for _, remote in self._processes.values():
            text = text.replace(f"{remote.folder}/", "")
        return text

    def _compare(self, part: Part, files: dict[str, Written]) -> CheckReport:
        remote = self._process(files)
        target, check = f"{remote.folder}/{part.file}", self._check_of(part)
        if not files:
            self._note_digest(remote, part)
        known, reference = self.references[check.reference], find_reference(check.reference)
        try:
            remote.request("load", target=f"{target}::{part.name}", place=known["place"])
        except SandboxEnded as error:
            if not files:
                flags = (error.name,)
                self.unusable.setdefault(part.file, Outcome(False, f"{part.name}: {error.text}", flags, is_final=True))
            raise
        implementation = RemoteImplementation(reference, remote, part.name, sends_inputs=known["sends_inputs"])
        try:
            return check_implementation(reference, implementation, seed=secrets.randbits(62))
        except (SandboxEnded, AnaphorError, RemoteError):
            raise
        except Exception as error:  # noqa: BLE001 (values that no honest code returns)
            remote.end()
            raise SandboxEnded("unreadable", f"what it returns cannot be compared ({type(error).__name__})") from None

    def _process(self, files: dict[str, Written]) -> Remote:
        """The process with these files. One that has ended is replaced by a new one."""
        written, remote = self._processes.get(bool(files), ({}, None))
        if remote is None or remote.process.poll() is not None or written != files:
            if remote is not None:
                remote.close()
            remote = Remote(self.sandbox, self.submission.folder, self.scratch, self.seconds)
            self._processes[bool(files)] = files, remote
            if files:
                remote.request("write", files=as_message(files))
        return remote

    def _note_digest(self, remote: Remote, part: Part) -> None:
        found = remote.request("fingerprint", file=f"{remote.folder}/{part.file}").get("found")
        own = found.get(part.name) if isinstance(found, dict) else None
        if isinstance(own, str):
            for exercise in self.submission.sheet.exercises:
                if exercise.file == part.file and any(check.name == part.name for check in exercise.checks):
                    self.digests[f"{exercise.id}::{part.name}"] = own[:32]

    def _source(self, file: str, name: str) -> str:
        """The lines of a class or function, by their indentation; all of the file where it is not found."""
        path = self.submission.folder / file
        with path.open(encoding="utf-8", errors="replace") as text:
            lines = text.read(10 * MAX_SHOWN).splitlines()
        begins = [number for number, line in enumerate(lines) if line.startswith((f"class {name}", f"def {name}"))]
        if not begins:
            return "\n".join(lines)
        rest = lines[begins[0] + 1 :]
        length = next((at for at, line in enumerate(rest) if line[:1] not in ("", " ", "\t", ")", "#")), len(rest))
        return "\n".join(lines[begins[0] : begins[0] + 1 + length]).rstrip()


def _merge(part: Part, first: Outcome, second: Outcome, replaced: Sequence[str]) -> Outcome:
    """What a second attempt, with parts of the solution, says of code that did not pass as it was."""
    listed = ", ".join(replaced)
    if second.is_right:
        text = f"{second.text}, with the solution's {listed} in place of your own"
        return replace(second, text=text, flags=("part-replaced",))
    is_judged = second.is_final or (second.findings and not second.is_open and not _has_raised(second))
    if is_judged:
        return replace(second, text=f"{second.text} (with the solution's {listed} in place of your own)")
    text = f"{first.text}; error in {listed}, which it is built on; with the solution's in its place: {second.text}"
    return replace(second, text=text, is_open=True, flags=tuple(dict.fromkeys((*first.flags, *second.flags))))


def _has_raised(outcome: Outcome) -> bool:
    """Whether it raised an error, as it may where the solution's part has another form than the student's."""
    return any(one.name == RemoteError.name for one in outcome.findings)


def lost_criteria(
    exercise: Exercise, wrong: Mapping[CodeCheck, Outcome], remarks: Iterable[Finding] = ()
) -> set[int] | None:
    """The lines of the rubric whose points are lost; None where something that is wrong belongs to none of them."""
    named = {number: one for number, one in enumerate(exercise.rubric) if one.mistakes}
    others = [number for number, one in enumerate(exercise.rubric) if not (one.mistakes or one.checks)]

    def hit_by(name: str) -> set[int]:
        return {number for number, one in named.items() if any(fnmatchcase(name, own) for own in one.mistakes)}

    lost = {number for finding in remarks for number in hit_by(finding.name)}
    for check, outcome in wrong.items():
        of_check = {number for number, one in enumerate(exercise.rubric) if check.name in one.checks}
        if of_check:
            lost |= of_check
            continue
        known = {one.name for one in find_reference(check.reference).mistakes}
        costly = [one.name for one in outcome.findings if one.name not in REMARKS]
        for name in costly:
            found = hit_by(name)
            if not found and name in known and named and len(others) == 1:
                found = {*others}  # what explains the outputs leaves the rest right
            if not found:
                return None
            lost |= found
        if not costly:
            return None
    return lost


def describe_rubric(exercise: Exercise) -> str:
    return "; ".join(f"{one.points:g} for {one.text}" for one in exercise.rubric) or f"{exercise.points:g} points"


def describe_report(name: str, report: CheckReport) -> str:
    """What a check found, in a sentence."""
    found = [f"{one.name}{f' ({one.where})' if one.where else ''}: {one.text}" for one in report.mistakes]
    if not found:
        return f"{name} passed"
    if all(one.name in REMARKS for one in report.mistakes):
        return f"{name} has the right values and gradients; {'; '.join(found)}"
    return f"{name} did not pass: {'; '.join(found)}"


def _no_reference(check: CodeCheck) -> str:
    return f"{TO_READ}: {check.name} has no reference to be compared with"

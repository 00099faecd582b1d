"""The pages of a handout: exercises, a place for answers and one for numbers; for teachers solutions and rubrics."""

from __future__ import annotations

import json
from collections.abc import Iterator

from anaphor.course.numbers.values import DIGITS, TOLERANCE, describe_kind, plain_fraction
from anaphor.course.sheet import ANSWERS, NUMBERS, Exercise, ExpectedRun, Sheet
from anaphor.course.student_numbers import student_numbers
from anaphor.course.student_text import check_commands, fill, student_values, training_commands
from anaphor.course.submission import PLACEHOLDER
from anaphor.errors import count_noun

SOLUTIONS = "solutions.md"
"""File of a teacher's copy with expected results and rubrics."""
HOW_TO = f"""\
How to work:

1. Write code where a file has `...`. The check below the exercise compares it with a reference and names the mistake.
   It may import Python's standard library, torch, NumPy and the other files of this folder: where it is graded, other
   packages may be missing. Tensors that your code makes must have the device and the dtype of its input, as in
   `torch.ones(T, T, device=x.device, dtype=x.dtype)`.
2. Write numbers into `{NUMBERS}` and answers in words into `{ANSWERS}`, below their headings. Trainings and figures go
   where the exercise says. Whole numbers must be exact; others need {DIGITS} significant digits (17.4, 0.00124) and are
   right within {TOLERANCE:.0%}.
3. If you are stuck, `anaphor hint ID` shows the first hint of an exercise, and `--step 2` the next one.
4. `anaphor check .` in this folder says what is missing, and what cannot be read, such as a list where a number should
   be.
5. Hand in this folder as it is, with `course.yaml` and your runs.
"""


TIMES = """\
Times are those of the commands, on one thread of a CPU: two cores take less. On a GPU they were not measured, except
where a time is given; the commands are made for a CPU."""


def show_points(points: float) -> str:
    """'1 point', '0.5 points'."""
    return count_noun(int(points), "point") if points == int(points) else f"{points:g} points"


def show_seconds(seconds: float | None) -> str:
    """The time of an exercise's commands: '40 s', '3 min'; empty where it has none."""
    if seconds is None:
        return ""
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{round(seconds / 60, 1):g} min"


def title_line(sheet: Sheet, student: str) -> str:
    owner = f", for {student}" if student else ""
    return f"# Sheet {sheet.number}: {sheet.title}{owner}"


def heading(exercise: Exercise) -> str:
    bonus = ", bonus" if exercise.bonus else ""
    return f"## {exercise.id} {exercise.title} ({show_points(exercise.points)}{bonus})"


def exercise_text(exercise: Exercise, student: str) -> str:
    """What is to be done, and where it goes; without the commands."""
    text = fill(exercise.text, student_values(exercise, student))
    return f"{heading(exercise)}\n\n{text}\n\n{_where(exercise, student)}"


def _where(exercise: Exercise, student: str) -> str:
    """What is handed in, and the hints that there are."""
    names = ", ".join(f"`{name}`" for name in student_numbers(exercise.id, student).expected)
    places = {
        "code": f"Write in `{exercise.file}`.",
        "number": f"Write {names} into `{NUMBERS}`.",
        "answer": f"Write into `{ANSWERS}`.",
        "run": f"Hand in {', '.join(map(_describe_run, exercise.runs))}.",
        "figure": f"Hand in `{exercise.file}`.",
    }
    hints = f" {count_noun(len(exercise.hints), 'hint')}: `anaphor hint {exercise.id}`." if exercise.hints else ""
    return f"{places[exercise.kind]}{hints}"


def _describe_run(run: ExpectedRun) -> str:
    """A run's folder, and what it must reach."""
    bounds = describe_bounds(run)
    return f"`{run.folder}`" + (f" (validation {run.metric} {bounds})" if bounds else "")


def describe_bounds(run: ExpectedRun) -> str:
    """'at most 18'; empty where any value will do."""
    bounds = [f"at most {run.at_most:g}"] if run.at_most is not None else []
    bounds += [f"at least {run.at_least:g}"] if run.at_least is not None else []
    return " and ".join(bounds)


def exercise_table(sheet: Sheet) -> str:
    """All exercises with their points and the time of their commands."""
    lines = ["| exercise | hand in | points | time, CPU | time, GPU |", "| --- | --- | ---: | ---: | ---: |"]
    for one in sheet.exercises:
        points = f"+{one.points:g}" if one.bonus else f"{one.points:g}"
        times = f"{show_seconds(one.seconds)} | {show_seconds(one.gpu_seconds)}"
        lines.append(f"| {one.id} {one.title} | {one.kind} | {points} | {times} |")
    total = sum(one.seconds or 0 for one in sheet.exercises)
    lines.append(f"| together | | {sheet.points:g} | {show_seconds(total or None)} | |")
    return "\n".join(lines)


def readme(sheet: Sheet, student: str) -> str:
    """The exercises of a student."""
    parts = [title_line(sheet, student), sheet.about.strip(), HOW_TO.strip()]
    parts += [f"{exercise_table(sheet)}\n\n{TIMES}"]
    for exercise in sheet.exercises:
        parts.append(exercise_text(exercise, student))
        commands = [*training_commands(exercise, student), *check_commands(exercise)]
        parts += ["```sh\n" + "\n".join(commands) + "\n```"] if commands else []
    return "\n\n".join(parts) + "\n"


def answers_page(sheet: Sheet, student: str, *, solved: bool) -> str:
    """`answers.md`: a heading for each answer, with a placeholder or the solution below it."""
    parts = [f"{title_line(sheet, student)}: answers", "Write below each heading, in place of the line in italics."]
    for exercise in sheet.exercises:
        if exercise.kind == "answer":
            solution = fill(exercise.solution, student_values(exercise, student))
            parts += [f"## {exercise.id} {exercise.title}", solution if solved else PLACEHOLDER]
    return "\n\n".join(parts) + "\n"


def numbers_page(sheet: Sheet, student: str, *, solved: bool) -> str:
    """`numbers.yaml`: a name for each number, with the value left out or the result of the student."""
    lines = [
        "# A fraction is written 1/12, a list [1, 2], and a list of lists [[1, 2], [3, 4]]. A number has no comma",
        f"# and is computed: 18528, not 18,528 or 0.8**30. Unless it is whole, it has {DIGITS} significant digits.",
        "# `anaphor check .` says what cannot be read.",
    ]
    for exercise in sheet.exercises:
        numbers = student_numbers(exercise.id, student)
        if exercise.kind == "number" and numbers.expected:
            lines += ["", f"{json.dumps(exercise.id)}:  # {exercise.title}"]
            for name, value in numbers.expected.items():
                shown = f" {json.dumps(plain_fraction(value), ensure_ascii=False)}" if solved else ""
                lines.append(f"  {name}:{shown}  # {describe_kind(numbers, name).partition(', as in')[0]}")
    return "\n".join(lines) + "\n"


def solutions_page(sheet: Sheet, student: str) -> str:
    """What the teacher expects: results of this student, solutions in words, rubrics."""
    parts = [f"{title_line(sheet, student)}: solutions and rubric", "For teachers. Not for students' folders."]
    parts += ["\n\n".join((heading(exercise), *_solution(exercise, student))) for exercise in sheet.exercises]
    return "\n\n".join(parts) + "\n"


def _solution(exercise: Exercise, student: str) -> Iterator[str]:
    values = student_values(exercise, student)
    numbers = student_numbers(exercise.id, student)
    if exercise.kind == "number":
        shown = {
            name: json.dumps(plain_fraction(value), ensure_ascii=False) for name, value in numbers.expected.items()
        }
        is_open = numbers.judge is not None and not numbers.are_letters
        others = " Other values may be right, too." if is_open else ""
        yield "Expected: " + ", ".join(f"{name} = {value}" for name, value in shown.items()) + f".{others}"
    if exercise.kind == "code":
        names = ", ".join(f"`{check.name}`" for check in exercise.checks)
        yield f"{names} in `{exercise.file}` of this folder; these checks must pass:"
    commands = [*training_commands(exercise, student), *check_commands(exercise)]
    if commands:
        yield "```sh\n" + "\n".join(commands) + "\n```"
    for run in exercise.runs:
        yield f"`{run.folder}`: validation {run.metric} {describe_bounds(run) or 'of any value'}."
    if exercise.solution:
        yield fill(exercise.solution, values)
    if exercise.rubric:
        rows = [f"| {one.points:g} | {fill(one.text, values)} |" for one in exercise.rubric]
        yield "\n".join(["| points | for |", "| ---: | --- |", *rows])

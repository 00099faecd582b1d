"""The sheets as data, the numbers of a student, and a handout folder as it comes back."""

import re
from fractions import Fraction

import pytest
import torch
import yaml

from anaphor.course.numbers.values import Numbers, mark_numbers
from anaphor.course.sheet import find_exercise, read_sheet, sheet_numbers
from anaphor.course.student_numbers import NUMBERS, mark, student_numbers
from anaphor.course.submission import PLACEHOLDER, read_answers, read_numbers, read_submission, write_manifest
from anaphor.errors import ConfigError, DataError

STUDENTS = ("", "ada", "bertrand", "chloe", "007")
EXERCISES = [exercise for number in sheet_numbers() for exercise in read_sheet(number).exercises]


def test_every_exercise_with_numbers_has_some():
    for exercise in EXERCISES:
        assert (exercise.kind == "number") == bool(student_numbers(exercise.id, "ada").expected), exercise.id


@pytest.mark.parametrize("exercise", [one.id for one in EXERCISES if one.kind == "number"])
def test_the_results_of_a_student_are_right_for_that_student(exercise):
    for student in STUDENTS:
        expected = student_numbers(exercise, student).expected
        assert all(one.is_right for one in mark(exercise, student, expected))


def test_numbers_are_marked_one_by_one_and_without_the_result():
    numbers = Numbers(expected={"half": 0.5, "pair": [1, 2], "word": "one two", "none": 3, "broken": 4})
    found = {"half": "1/2", "pair": [1, 3], "word": " One  TWO", "broken": {"a": 1}}
    marks = {one.name: (one.is_right, one.comment) for one in mark_numbers(numbers, found)}
    assert marks["half"] == marks["word"] == (True, "")
    assert marks["pair"] == (False, "not right")
    assert marks["none"] == (False, "empty")
    assert not marks["broken"][0]


def test_a_folder_comes_back_with_its_answers_and_numbers(tmp_path):
    sheet = read_sheet("001")
    write_manifest(tmp_path, sheet, "ada", ["answers.md", "numbers.yaml"])
    (tmp_path / "numbers.yaml").write_text("001.1.1b:\n  z5: 1/12\n", encoding="utf-8")
    submission = read_submission(tmp_path)
    assert (submission.sheet, submission.student, submission.version) == (sheet, "ada", sheet.version)
    assert read_numbers(submission)["001.1.1b"] == {"z5": "1/12"}
    answers = [exercise.id for exercise in sheet.exercises if exercise.kind == "answer"]
    parts = [f"## {name} Title\n\n{PLACEHOLDER}\n" for name in answers]
    if answers:
        parts[0] = f"## {answers[0]} Title\n\nBecause.\n\n# Next problem\n"
    (tmp_path / "answers.md").write_text("# Answers\n\n" + "\n".join(parts), encoding="utf-8")
    assert read_answers(submission) == dict.fromkeys(answers, "") | dict.fromkeys(answers[:1], "Because.")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "has no course.yaml"),
        ("sheet: '001'\n", "student=None"),
        ("sheet: '999'\nstudent: a\nversion: 1\nfiles: []\n", "unknown sheet '999'"),
        ("sheet: '001'\nstudent: ../b\nversion: 1\nfiles: []\n", "other characters"),
        ("sheet: '001'\nstudent: a\nversion: 1\nfiles: [../b]\n", "not inside the folder"),
    ],
)
def test_a_folder_without_a_sound_manifest_is_refused(tmp_path, manifest, message):
    if manifest is not None:
        (tmp_path / "course.yaml").write_text(manifest, encoding="utf-8")
    with pytest.raises((ConfigError, DataError), match=message):
        read_submission(tmp_path)


@pytest.mark.parametrize("name", ["nothing", "005.1", "002.9z", "002"])
def test_an_unknown_exercise_is_refused(name):
    with pytest.raises(ConfigError, match="unknown exercise"):
        find_exercise(name)


def test_numbers_belong_to_exercises():
    assert {*NUMBERS} <= {exercise.id for exercise in EXERCISES}


def value_of(exercise, student, name):
    """A value that the text of an exercise shows, as numbers."""
    return yaml.safe_load(student_numbers(exercise, student).given[name])


@pytest.mark.parametrize("student", STUDENTS)
def test_gradients_by_the_formulas_of_the_sheet_are_those_of_autograd(student):
    W_hh, W_hx, W_yh, x1, x2, y1, y2 = (
        torch.tensor(value_of("003.2.2-numbers", student, name), dtype=torch.float64, requires_grad=name == "W_hh")
        for name in ("W_hh", "W_hx", "W_yh", "x1", "x2", "y1", "y2")
    )
    h1 = W_hx * x1
    h1.requires_grad_()
    h2 = W_hh @ h1 + W_hx * x2
    o1, o2 = W_yh @ h1, W_yh @ h2
    J1, J2 = (-(y * torch.log_softmax(o, 0)).sum() for o, y in ((o1, y1), (o2, y2)))
    expected = {
        "g_o1": torch.autograd.grad(J1, o1, retain_graph=True)[0],
        "g_o2": torch.autograd.grad(J2, o2, retain_graph=True)[0],
        "g_h2": torch.autograd.grad(J2, h2, retain_graph=True)[0],
        "g_h1": torch.autograd.grad(J2, h1, retain_graph=True)[0],
        "g_W_hh": torch.autograd.grad(J1 + J2, W_hh)[0],
    }
    found = student_numbers("003.2.2-numbers", student).expected
    for name, value in expected.items():
        assert torch.allclose(torch.tensor(found[name], dtype=torch.float64), value), name


@pytest.mark.parametrize("student", STUDENTS)
def test_the_matrix_of_sheet_000_is_the_kronecker_product(student):
    shown = student_numbers("000.1.1-numbers", student).given
    A, X = (torch.tensor([[float(Fraction(one)) for one in row] for row in rows]) for rows in (
        [re.findall(r"-?[0-9/]+", row) for row in re.findall(r"\[([^][]+)\]", shown[name])] for name in ("A", "X")
    ))  # fmt: skip
    found = student_numbers("000.1.1-numbers", student).expected
    assert torch.equal(torch.tensor([[float(one) for one in row] for row in found["M"]]), torch.kron(torch.eye(2), A))
    assert torch.allclose(torch.tensor([float(one) for one in found["vecY"]]), (A @ X).T.flatten())


@pytest.mark.parametrize("student", STUDENTS)
def test_letters_are_marked_in_any_order_and_options_have_an_order_of_their_own(student):
    expected = student_numbers("003.1.15", student).expected["answer"]
    assert len(expected) == 3
    for found in (expected[::-1], ", ".join(expected).upper(), [*expected]):
        assert mark("003.1.15", student, {"answer": found})[0].is_right
    for found in (expected[:2], "abcd", "z", 3):
        assert not mark("003.1.15", student, {"answer": found})[0].is_right
    options = {student_numbers("003.1.15", one).given["options"] for one in STUDENTS}
    assert len(options) > 1

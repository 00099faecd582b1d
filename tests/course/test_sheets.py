"""The sheets as data, the numbers of a student, and a handout folder as it comes back."""

import pytest

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

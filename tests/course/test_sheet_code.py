"""The stubs of the sheets fail every check with a line that helps; the teacher's code passes all of them."""

import pytest

from anaphor.course.catalog import find_reference, has_reference
from anaphor.course.check import check
from anaphor.course.handout import make_handout
from anaphor.course.placeholder import find_placeholder
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.course.student import load_subject

CHECKS = [
    pytest.param(number, exercise.file, one, id=f"{exercise.id}-{one.name}")
    for number in sheet_numbers()
    for exercise in read_sheet(number).exercises
    for one in exercise.checks
    if has_reference(one.reference)
]


@pytest.fixture(scope="session")
def copies(tmp_path_factory):
    """A student's and a teacher's copy of each sheet, made once."""
    folder = tmp_path_factory.mktemp("copies")
    for number in sheet_numbers():
        make_handout(number, folder / number / "student", student="ada")
        make_handout(number, folder / number / "teacher", student="ada", teacher=True)
    return folder


def report_on(path, one):
    return check(find_reference(one.reference), load_subject(f"{path}::{one.name}"))


@pytest.mark.parametrize(("number", "file", "one"), CHECKS)
def test_a_stub_fails_its_check_and_the_line_says_where_code_is_missing(number, file, one, copies):
    path = copies / number / "student" / file
    report = report_on(path, one)
    assert not report.passed
    (mistake,) = [found for found in report.mistakes if found.name == "not-written"]
    name, _, line = mistake.where.partition(":")
    assert name == file
    source = path.read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert "..." in source
    assert " ".join(source.split()) in mistake.text


@pytest.mark.parametrize(("number", "file", "one"), CHECKS)
def test_the_code_of_the_teacher_passes(number, file, one, copies):
    report = report_on(copies / number / "teacher" / file, one)
    assert report.passed, report.mistakes
    assert find_placeholder(copies / number / "teacher" / file, one.name) is None


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def f(x):\n    return ...\n", 2),
        ("def f(x):\n    y = ...\n    return y\n", 2),
        ("def f(x):\n    return x, ...\n", 2),
        ("class f:\n    def g(self): ...\n", 2),
        ("def f(x):\n    return x[..., 0]\n", None),
        ("def f(x):\n    return g(...)\n", None),
        ("def g(x):\n    return ...\n", None),
        ("def f(x:\n", None),
    ],
)
def test_a_placeholder_is_three_dots_in_place_of_code(source, line, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(source, encoding="utf-8")
    found = find_placeholder(path, "f")
    assert (None if found is None else found.line) == line


def test_three_dots_that_are_left_over_do_not_make_right_code_wrong(tmp_path):
    path = tmp_path / "batches.py"
    lines = [
        "def batchify(data, bsz):",
        "    n = ...",
        "    n = len(data) // bsz",
        "    return data[: n * bsz].view(bsz, n).T",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert check(find_reference("batchify"), load_subject(f"{path}::batchify")).passed
    path.write_text("\n".join(lines).replace("n * bsz].view(bsz, n).T", "n * bsz].view(bsz, n)"), encoding="utf-8")
    names = [one.name for one in check(find_reference("batchify"), load_subject(f"{path}::batchify")).mistakes]
    assert names == ["not-written", "batch-and-time-swapped"]

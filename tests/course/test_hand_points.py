"""Points given by hand: read from a table, merged into those of the program, and never taken for the program's."""

import pytest

from anaphor.course.grading.by_hand import (
    PROGRAM,
    HandPoints,
    merge_points,
    program_points,
    read_points,
    without_program,
)
from anaphor.course.grading.record import Mark, Record
from anaphor.course.grading.tables import write_table
from anaphor.errors import AnaphorError

CODE, ANSWER = "002.2a", "002.1c"


def record(student="ada", code=2.0, answer=None):
    marks = (
        Mark(CODE, 4, code, "AttentionHead did not pass", ("same-code",)),
        Mark(ANSWER, 1, answer, "to be read: 1 for it", (), "my answer"),
    )
    return Record(f"all/{student}", student, "002", "digest", marks)


def write(folder, text, name="points.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_points_by_hand_go_before_those_of_the_program_and_are_told(tmp_path):
    given = read_points(write(tmp_path, f"student,exercise,points,comment\nada,{ANSWER},0.5,Well put\nada,{CODE},3,\n"))
    assert given == {("ada", ANSWER): HandPoints(0.5, "Well put"), ("ada", CODE): HandPoints(3, "")}
    (merged,), lines = merge_points([record()], given)
    code, answer = merged.marks
    assert (answer.points, answer.for_student) == (0.5, "Well put")
    assert answer.comment == "Well put; by hand"
    assert (code.points, code.for_student) == (3, "AttentionHead did not pass")
    assert code.comment == "by hand, the program gave 2: AttentionHead did not pass"
    assert code.flags == ("same-code",)
    assert lines == [f"ada {CODE}: 3 by hand in place of 2"]


def test_a_table_that_was_filled_in_is_merged_any_number_of_times(tmp_path):
    """The program's points in it are told from the teacher's, even after the student has handed in something better."""
    table = write_table([record()], "anaphor")
    (tmp_path / PROGRAM).write_bytes(program_points([record()]))
    path = write(tmp_path, table.replace(f"ada,{ANSWER},,1,to be read: 1 for it", f"ada,{ANSWER},1,1,Well put"))
    for _ in range(3):
        given = without_program(read_points(path), tmp_path)
        assert given == {("ada", ANSWER): HandPoints(1, "Well put")}
        (merged,), lines = merge_points([record(code=4.0)], given)
        assert [mark.points for mark in merged.marks] == [4, 1]
        assert lines == []
        (tmp_path / PROGRAM).write_bytes(program_points([record(code=4.0)]))
        path.write_text(write_table([merged], "anaphor"), encoding="utf-8")
    assert path.read_text(encoding="utf-8").count("by hand") == 1


def test_a_comment_of_the_program_is_no_comment_by_hand(tmp_path):
    path = write(tmp_path, f"student,exercise,points,comment\nada,{ANSWER},1,to be read: 1 for it\n")
    (merged,), _ = merge_points([record()], read_points(path))
    assert (merged.marks[1].for_student, merged.marks[1].comment) == ("", "by hand")


@pytest.mark.parametrize(
    "text",
    [f"student;exercise;points\nada;{ANSWER};0,5\n", f"\ufeffStudent,Exercise,Points\n'ada,{ANSWER},0.5\n"],
    ids=["of-a-european-spreadsheet", "with-a-mark-at-the-start"],
)
def test_tables_of_spreadsheets_are_read(text, tmp_path):
    assert read_points(write(tmp_path, text)) == {("ada", ANSWER): HandPoints(0.5, "")}


def test_what_belongs_to_no_submission_is_told(tmp_path):
    path = write(tmp_path, f"student,exercise,points\nadda,{ANSWER},1\n")
    _, (line,) = merge_points([record("ada")], read_points(path))
    assert line == f"adda {ANSWER}: points by hand, and no such submission; did you mean 'ada'?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'student'"),
        ("student,exercise,point\n", r"no column 'points' .*; did you mean 'point'\?"),
        (f"student,exercise,points\nada,{ANSWER},x\n", "line 2 has points='x'"),
        (f"student,exercise,points\nada,{ANSWER},2\n", "002.1c has 0 to 1"),
        (f"student,exercise,points\nada,{ANSWER},-1\n", "002.1c has 0 to 1"),
        (f"student,exercise,points\nada,{ANSWER},nan\n", "002.1c has 0 to 1"),
        ("student,exercise,points\nada,002.9z,1\n", "unknown exercise '002.9z'"),
        (f"student,exercise,points\nada,{ANSWER},1\nada,{ANSWER},0\n", "line 3 gives points to ada"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_one_line(text, message, tmp_path):
    with pytest.raises(AnaphorError, match=message):
        read_points(write(tmp_path, text))


def test_a_table_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(AnaphorError, match="points="):
        read_points(tmp_path / "nothing.csv")

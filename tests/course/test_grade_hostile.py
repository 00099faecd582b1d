"""Made-up submissions, most of them hostile: all are graded as they should be, and none reaches outside."""

import json
import os
import shutil
import socket
import threading

import pytest

from anaphor.cli.main import main
from anaphor.course.grading.sandbox import why_not_safe
from anaphor.course.handout import make_handout
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.course.student_data import student_files
from course.submissions import ALL, CODE, EXERCISE, FOLDERS, RIGHT, Surroundings

REASON = why_not_safe()
needs_sandbox = pytest.mark.skipif(bool(REASON), reason=REASON)
FEW = ("speaks-for-the-grader", "writes-outside", "linked-manifest")
SECONDS = "60"
"""For a call: right code on a busy machine must not be taken for an endless loop."""


@pytest.fixture
def connections():
    """A server on this machine, and the connections that it has had."""
    found = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    found.append(server.accept())
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], found
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def around(tmp_path, connections):
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = tmp_path / "secret.py"
    secret.write_text(RIGHT, encoding="utf-8")
    return Surroundings(outside, secret, connections[0], tmp_path / "runs")


def train_run(folder, data):
    """A run of sheet 001 as ada trains it, but short."""
    here = os.getcwd()
    os.chdir(data)
    try:
        words = "train lm --data data/stories --model lstm --width 64 --layers 1 --lr 0.01 --steps 20 --device cpu"
        assert main([*words.split(), "--out", str(folder)]) == 0
    finally:
        os.chdir(here)


def grade(folder, out, capsys, *words):
    """The rows of a grading."""
    capsys.readouterr()
    assert main(["grade", str(folder), "--out", str(out), "--json", "--seconds", SECONDS, *words]) == 0
    return json.loads(capsys.readouterr().out)


def grade_all(submissions, tmp_path, around, capsys):
    folder = tmp_path / "submissions"
    for one in submissions:
        one.make(folder / one.name, around)
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if "many-files" not in str(path)}
    rows = grade(folder, tmp_path / "grades.csv", capsys)
    after = {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if "many-files" not in str(path)}
    assert before == after, "submissions stay as they were"
    return rows


def check_row(one, rows, records):
    """What is wrong with the rows of a submission; empty if nothing is."""
    expected = one.expected
    record = records[one.name]
    if expected.problem:
        return "" if expected.problem in record["problem"] else f"{one.name}: {record['problem']!r}"
    own = [row for row in rows if row["student"] == record["student"] and row["exercise"] == expected.exercise]
    if len(own) > 1:  # several folders of one student
        (mark,) = [mark for mark in record["marks"] if mark["exercise"] == expected.exercise]
        alike = [row for row in own if row["comment"].startswith(mark["comment"])]
        own = [row for row in alike if row["comment"] == mark["comment"]] or alike  # others may say more than this one
    (row, *_) = own
    is_right = row["points"] == expected.points and expected.words in row["comment"]
    is_right = is_right and {*expected.flags} <= {*row["flags"]}
    return "" if is_right else f"{one.name}: {row}"


def read_records(folder):
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / ".records").iterdir()]
    return {os.path.basename(record["folder"]): record for record in found}


@needs_sandbox
def test_a_few_of_them(tmp_path, around, connections, capsys):
    few = [one for one in (*CODE, *FOLDERS) if one.name in FEW]
    assert len(few) == len(FEW)
    rows = grade_all(few, tmp_path, around, capsys)
    records = read_records(tmp_path / "grades")
    assert "".join(check_row(one, rows, records) for one in few) == ""
    assert connections[1] == []
    assert {path.name for path in around.outside.iterdir()} == {"course.yaml"}, "what the test put there"

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "grades" / ".records").iterdir()}
    shutil.copy(around.secret, tmp_path / "submissions" / FEW[0] / "attention.py")
    again = grade(tmp_path / "submissions", tmp_path / "grades.csv", capsys)
    changed = {path for path, time in kept.items() if path.stat().st_mtime_ns != time}
    assert [json.loads(path.read_text(encoding="utf-8"))["student"] for path in changed] == [FEW[0]]
    assert {row["points"] for row in again if (row["student"], row["exercise"]) == (FEW[0], EXERCISE)} == {4}


@pytest.mark.slow
@needs_sandbox
def test_all_of_them(tmp_path, around, connections, capsys):
    data = tmp_path / "ada"
    for name, text in student_files("001", "ada").items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text, encoding="utf-8")
    train_run(around.runs / "lstm", data)
    assert len({one.name for one in ALL}) == len(ALL) >= 40
    rows = grade_all(ALL, tmp_path, around, capsys)
    records = read_records(tmp_path / "grades")
    assert "".join(check_row(one, rows, records) for one in ALL) == ""
    assert connections[1] == []
    assert {path.name for path in around.outside.iterdir()} == {"course.yaml"}, "what the test put there"
    page = (tmp_path / "grades" / "answers-in-html-001.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.slow
@needs_sandbox
def test_the_teachers_copy_of_every_sheet_has_all_points_for_code_and_numbers(tmp_path, capsys):
    for number in sheet_numbers():
        make_handout(number, tmp_path / "copies" / number, student="ada", teacher=True)
    rows = grade(tmp_path / "copies", tmp_path / "grades.csv", capsys)
    marked = [row for row in rows if read_sheet(row["sheet"]).find(row["exercise"]).kind in ("code", "number")]
    assert {row["sheet"] for row in marked} == {*sheet_numbers()}
    assert not [row for row in marked if row["points"] not in (row["max_points"], None)]
    assert not [row for row in marked if row["points"] is None and "no reference" not in row["comment"]]

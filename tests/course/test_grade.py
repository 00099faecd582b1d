"""Grading: tables, pages, similarity, messages, and one line for bad input. No code of students runs here."""

import csv
import io
import json
import os
import sys

import pytest
import torch

from anaphor.cli.main import main
from anaphor.course.catalog import CATALOG, find_reference
from anaphor.course.grade_verb import write_reports
from anaphor.course.grading.collect import find_submissions
from anaphor.course.grading.drivers import Slices
from anaphor.course.grading.fingerprint import fingerprints
from anaphor.course.grading.kit import add_to
from anaphor.course.grading.messages import MAX_HEADER, Channel, Closed
from anaphor.course.grading.record import Mark, Record
from anaphor.course.grading.similarity import flag_similar
from anaphor.course.grading.student_page import feedback_page, student_page
from anaphor.course.grading.tables import COLUMNS, LAYOUTS, gradescope_results, rows_as_plain, write_table
from anaphor.course.handout import make_handout
from course.test_check_command import refusal


def record(student="ada", *marks, **more):
    marks = marks or (
        Mark("002.2a", 4, 2.5, "AttentionHead did not pass", ("time-limit",)),
        Mark("002.9x", 3, None, "to be read: 3 points"),
    )
    return Record(f"submissions/{student}", student, "002", "digest", marks, **more)


@pytest.fixture
def sheet(monkeypatch):
    """A sheet of two exercises in place of 002."""
    from anaphor.course.grading import similarity, student_page, tables
    from anaphor.course.sheet import Criterion, Exercise, Sheet

    exercises = (
        Exercise(id="002.2a", title="One head", kind="code", points=4, text="", file="attention.py"),
        Exercise(id="002.9x", title="Why", kind="answer", points=3, text="", rubric=(Criterion(3, "because <b>"),)),
    )
    made = Sheet(number="002", version=1, title="Heads", about="", exercises=exercises)
    for module in (similarity, student_page, tables):
        monkeypatch.setattr(module, "read_sheet", lambda number: made)
    return made


def read_csv(text):
    return [*csv.reader(io.StringIO(text))]


def test_our_own_table_has_a_row_for_each_exercise(sheet):
    header, first, second = read_csv(write_table([record()], "anaphor"))
    assert tuple(header) == COLUMNS == ("student", "exercise", "points", "max_points", "comment")
    assert first == ["ada", "002.2a", "2.5", "4", "AttentionHead did not pass [time-limit]"]
    assert second == ["ada", "002.9x", "", "3", "to be read: 3 points"]


def test_moodle_has_a_column_for_points_and_one_for_feedback(sheet):
    header, row = read_csv(write_table([record()], "moodle"))
    names = ["ID number", "002.2a One head", "002.2a (feedback)", "002.9x Why", "002.9x (feedback)"]
    assert header == [*names, "Sheet 002 (total)"]
    assert row == ["ada", "2.5", "AttentionHead did not pass", "", "", ""]


def test_canvas_has_its_five_columns_and_the_points_that_are_possible(sheet):
    header, possible, row = read_csv(write_table([record()], "canvas"))
    names = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "002.2a One head", "002.9x Why"]
    assert header == [*names, "Sheet 002 (total)"]
    assert possible == ["    Points Possible", "", "", "", "", "4", "3", "7"]
    assert row == ["ada", "", "", "ada", "", "2.5", "", ""]


READ = Mark("002.2a", 4, 4, "passed"), Mark("002.9x", 3, 1.5, "by hand")


@pytest.mark.parametrize("layout", ["moodle", "canvas"])
def test_the_total_of_a_sheet_is_there_once_everything_is_read(layout, sheet):
    header, *rows = read_csv(write_table([record("ada", *READ), record("bob")], layout))
    assert header[-1] == "Sheet 002 (total)"
    assert [row[-1] for row in rows if row[0] in ("ada", "bob")] == ["5.5", ""]


def test_of_two_submissions_the_last_has_the_row(sheet):
    first, second = record("ada", Mark("002.2a", 4, 1, "first")), record("ada", Mark("002.2a", 4, 2, "second"))
    (row,) = read_csv(write_table([first, second], "moodle"))[1:]
    assert row[1:3] == ["2", "second"]


def test_reports_for_students_lie_apart_and_of_two_submissions_the_last_is_theirs(sheet, tmp_path):
    first, second = (Record(f"all/{name}", "ada", "002", name, (Mark("002.2a", 4, 1, name),)) for name in "ab")
    (line,) = write_reports([first, second, record("bob"), broken()], tmp_path, "gradescope")
    assert line.startswith("ada has 2 submissions of sheet 002")
    assert line.endswith("the last counts, all/b")
    teacher = {path.name for path in tmp_path.glob("*.html")}
    assert teacher == {"ada-002.html", "ada-002-2.html", "bob-002.html"}
    own = {path.name for path in (tmp_path / "for-students").iterdir()}
    assert own == {"ada-002.html", "bob-002.html", "ada-002-results.json", "bob-002-results.json"}
    assert json.loads((tmp_path / "for-students" / "ada-002-results.json").read_text())["tests"][0]["output"] == "b"


def broken(student="otto"):
    return Record(f"all/{student}", student, "", "", (), problem="course.yaml names the unknown sheet '009'")


def test_what_cannot_be_graded_has_a_row_in_every_table_and_says_where_it_is(sheet):
    (own,) = [row for row in read_csv(write_table([record(), broken()], "anaphor")) if row[0] == "otto"]
    assert own[4] == "not graded: all/otto: course.yaml names the unknown sheet '009' [not-graded]"
    for layout in ("moodle", "canvas", "gradescope"):
        rows = [row for row in read_csv(write_table([record(), broken()], layout)) if "otto" in row]
        assert len(rows) == 1, layout
        assert "all/otto" not in str(rows), "the student reads it"
    twice = write_table([record("otto"), broken()], "moodle")
    assert len(read_csv(twice)) == 2, "who has another submission has its row"
    assert rows_as_plain([broken()]) == [
        {"student": "otto", "sheet": "", "exercise": None, "points": None, "max_points": None, "flags": ["not-graded"],
         "comment": "not graded: all/otto: course.yaml names the unknown sheet '009'"}
    ]  # fmt: skip


@pytest.mark.parametrize("points", [None, 1.0])
def test_students_read_nothing_of_others_of_flags_and_of_the_rubric(points, sheet):
    text = "She was in the room when the letter came, and said nothing."
    answer = Mark("002.9x", 3, points, "to be read: 3 for because <b>" if points is None else "well", (), text)
    code = Mark(
        "002.2a", 4, 0.0, "AttentionHead did not pass (rubric: 4 for all)", feedback="AttentionHead did not pass"
    )
    digests = {"code": {"002.2a::AttentionHead": "a" * 32}, "weights": {"002.9x::runs/x": "b" * 32}}
    first, _ = flag_similar([record("ada", code, answer, **digests), record("zhao-w", code, answer, **digests)])
    assert "that of zhao-w" in first.marks[0].comment
    assert {"same-code", "same-weights", "same-answer"} <= {flag for mark in first.marks for flag in mark.flags}
    table = write_table([first], "moodle")
    seen = [table, feedback_page(first), json.dumps(gradescope_results(first)), write_table([first], "canvas")]
    for page in seen:
        for secret in ("zhao-w", "same", "rubric", "to be read", "because", "002.9x::"):
            assert secret not in page, secret
    assert "AttentionHead did not pass" in feedback_page(first)
    assert "zhao-w" in student_page(first)
    assert "zhao-w" in write_table([first], "anaphor")


def test_equal_answers_and_figures_are_flagged_and_short_ones_and_numbers_are_not(sheet):
    def of(student, text, figure="", exercise="002.9x"):
        return record(student, Mark(exercise, 3, None, "to be read", (), text, figure))

    long = "A transformer sees all tokens at once, and a network with a state does not."
    ada, bob, cleo, dora, emil = flag_similar([
        of("ada", long), of("bob", long.upper() + "\n"), of("cleo", "Yes.", "data:image/png;base64,AA=="),
        of("dora", "Yes.", "data:image/png;base64,AA=="), of("emil", long, exercise="002.2a"),
    ])  # fmt: skip
    assert ada.marks[0].flags == bob.marks[0].flags == ("same-answer",)
    assert "the answer is the same as that of bob" in ada.marks[0].comment
    assert cleo.marks[0].flags == dora.marks[0].flags == ("same-figure",)
    assert emil.marks[0].flags == ()


def test_the_report_has_right_numbers_and_the_code_beside_what_is_wrong(sheet):
    number = Mark("002.2a", 4, 0.0, "0 of 1 number right", (), "y2: 3", expected="y2: -10")
    page = student_page(record("ada", number, Mark("002.9x", 3, 0.0, "no", code="def loss(): ...")))
    assert "y2: -10" in page
    assert "def loss(): ..." in page
    assert "y2: -10" not in feedback_page(record("ada", number))


def test_gradescope_has_the_total_and_says_what_is_not_graded(sheet):
    header, row, graded = read_csv(
        write_table(
            [record(), record("bob@x.org", Mark("002.2a", 4, 4, "passed"), Mark("002.9x", 3, 1, ""))], "gradescope"
        )
    )
    assert header[:6] == ["Name", "SID", "Email", "Total Score", "Max Points", "Status"]
    assert row == ["ada", "ada", "", "2.5", "7", "Ungraded", "2.5", ""]
    assert graded == ["bob@x.org", "", "bob@x.org", "5", "7", "Graded", "4", "1"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_cell_is_a_formula(sheet, layout):
    hostile = Mark("002.2a", 4, 0.0, '=HYPERLINK("http://x")')
    cells = [cell for row in read_csv(write_table([record("+1+1", hostile)], layout)) for cell in row]
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "@", "-")]


def test_a_report_shows_what_students_wrote_as_text(sheet):
    mark = Mark("002.9x", 3, None, "to be read <i>", (), "<script>alert(1)</script>", "data:image/png;base64,AA==")
    page = student_page(record("ada", mark, notes=("<b>: a link",)))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "because &lt;b&gt;" in page
    assert "&lt;b&gt;: a link" in page
    assert "default-src 'none'; style-src 'sha256-" in page
    assert 'src="data:image/png;base64,AA=="' in page


LONG = """
class Head(nn.Module):
    '''My own.'''

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.queries, self.keys = nn.Linear(dim, size), nn.Linear(dim, size)

    def forward(self, x, mask=None):
        q, k = self.queries(x), self.keys(x)  # both
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return torch.softmax(scores, dim=-1)
"""


def renamed(source):
    for old, new in (("Head", "Kopf"), ("queries", "fragen"), ("scores", "punkte"), ("size", "weite"), ("q,", "f,"),
                     ("q @", "f @"), ("'''My own.'''", ""), (": int", ""), ("  # both", "")):  # fmt: skip
        assert old in source
        source = source.replace(old, new)
    return source


def test_code_up_to_names_has_the_same_fingerprint_and_other_code_has_not():
    first, second = fingerprints(LONG.encode()), fingerprints(renamed(LONG).encode())
    assert first.keys() == {"Head"}
    assert [*first.values()] == [*second.values()]
    for old, new in (("dim=-1", "dim=-2"), ("transpose(-1, -2)", "mT"), ("softmax", "sigmoid"), ("/ math", "* math")):
        assert [*fingerprints(LONG.replace(old, new).encode()).values()] != [*first.values()]
    assert fingerprints(b"def f(x):\n    return x + 1\n") == {}, "short code is written alike by many"
    assert fingerprints(b"def f(:") == fingerprints(b"(" * 10_000) == {}


def test_what_is_alike_is_flagged_for_both_and_keeps_its_points(sheet, tmp_path):
    same = {"002.2a::AttentionHead": "a" * 32}
    others = {"002.2a::AttentionHead": "b" * 32}
    runs = {"002.9x::runs/lstm": "c" * 32}
    first, second, third, again = flag_similar([
        record("ada", code=same, weights=runs), record("bob", code=same), record("cleo", code=others, weights=runs),
        record("cleo", code={}),
    ])  # fmt: skip
    assert first.marks[0].flags == ("time-limit", "same-code")
    assert first.marks[0].points == 2.5
    assert "the same code up to names as that of bob" in first.marks[0].comment
    assert "that of ada" in second.marks[0].comment
    assert third.marks[0].flags == ("time-limit",)
    assert "same weights as that of ada" in third.marks[1].comment
    assert third.flags == again.flags == ("same-student",)
    assert first.flags == ()


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "record.json"
    made = record("ada", code={"a::b": "c"}, notes=("x",), flags=("links",))
    path.write_bytes(made.to_bytes())
    assert Record.read(path) == made


@pytest.fixture
def pipe():
    """Two ends of a channel."""
    there, back = os.pipe(), os.pipe()
    ends = Channel(back[0], there[1]), Channel(there[0], back[1])
    yield ends
    for end in ends:
        end.close()


def test_a_message_arrives_as_it_was_sent(pipe):
    here, there = pipe
    values = {
        "x": torch.randn(2, 3, dtype=torch.float64).requires_grad_(), "ids": torch.arange(4), "none": torch.empty(0, 3),
        "half": torch.ones(2, dtype=torch.bfloat16), "scalar": torch.tensor(1.5), "mask": torch.tensor([True, False]),
        "plain": [1, 2.5, "ü\ud800", None, True, (1, ("a",)), {3: [4]}, {5}, b"6", float("inf")],
        "turned": torch.ones(2, 3).T,
    }  # fmt: skip
    here.send(values, 5)
    found = there.receive(5)
    assert found.keys() == values.keys()
    assert found["plain"] == values["plain"]
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value)
            assert (found[name].dtype, found[name].requires_grad) == (value.dtype, value.requires_grad)


def test_an_object_arrives_as_its_description(pipe):
    here, there = pipe

    class Own:
        def __repr__(self):
            return "own"

        def __reduce__(self):
            raise AssertionError("nothing is pickled")

    here.send({"own": Own()}, 5)
    assert repr(there.receive(5)["own"]) == "own"


@pytest.mark.parametrize(
    "content",
    [
        (MAX_HEADER + 1).to_bytes(8, "big") + bytes(8),
        b"\xff" * 16,
        (2).to_bytes(8, "big") + bytes(8) + b"[]",
        (50_000).to_bytes(8, "big") + bytes(8) + b"[" * 50_000,
        *(
            len(text).to_bytes(8, "big") + bytes(8) + text
            for text in (
                b'{"content": {"$tensor": 9}, "tensors": []}',
                b'{"content": {}, "tensors": []}',
                b'{"content": {"$dict": []}, "tensors": [["float64", [1000000], false]]}',
                b'{"content": {"$dict": []}, "tensors": [["float64", [-1], false]]}',
                b'{"content": {"$dict": []}, "tensors": [["object", [1], false]]}',
                b'{"content": {"$dict": [[{"$set": [[]]}, 1]]}, "tensors": []}',
            )
        ),
    ],
)
def test_what_is_no_message_is_refused(content, pipe):
    here, there = pipe
    os.write(here.writing, content)
    with pytest.raises(Closed):
        there.receive(5)


def test_a_wait_has_an_end(pipe):
    with pytest.raises(TimeoutError):
        pipe[0].receive(0.01)


def test_what_is_sent_into_the_sandbox_has_no_reference_and_no_mistake():
    slices = Slices()
    sent = {name: add_to(slices, find_reference(name))["sends_inputs"] for name in CATALOG}
    assert [name for name, is_sent in sent.items() if not is_sent] == ["beam_search"], "its model is a function"
    sources = slices.sources()
    for module, source in sources.items():
        compile(source, module, "exec")
        assert "Mistake(" not in source, module
        for name, function in vars(sys.modules[module]).items():
            if name.startswith("compute"):
                assert f"def {function.__name__}(" not in source
    slices.add_reference("anaphor.course.references.streams", "BATCHIFY", find_reference("batchify"), with_cases=True)
    assert "def batchify_cases" in slices.sources()["anaphor.course.references.streams"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grade", "nowhere"], "there is no folder nowhere"),
        (["grade", "a_file"], "a_file is not a folder"),
        (["grade", "nothing"], "nothing has no course.yaml, and no folder in it has one"),
        (["grade", "nothing", "--out", "nothing"], "out=nothing is a folder"),
        (["grade", "nothing", "--format", "modle"], "did you mean 'moodle'?"),
        (["grade", "nothing", "--seconds", "0"], "seconds"),
        (["grade"], "FOLDER"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anaphor.course.grade_verb.require_safe", lambda *, unsafe: True)
    (tmp_path / "a_file").write_text("", encoding="utf-8")
    (tmp_path / "nothing").mkdir()
    assert message in refusal(main(words), capsys)


def test_a_submission_that_was_not_unpacked_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("anaphor.course.grade_verb.require_safe", lambda *, unsafe: True)
    folder = tmp_path / "all" / "Ada_1_assignsubmission_file"
    folder.mkdir(parents=True)
    (folder / "sheet.zip").write_bytes(b"PK")
    line = refusal(main(["grade", str(tmp_path / "all"), "--out", str(tmp_path / "grades.csv")]), capsys)
    assert f"unpack {folder / 'sheet.zip'} first" in line
    make_handout("002", tmp_path / "all" / "bob", student="bob")
    found, notes = find_submissions([tmp_path / "all"])
    assert found == [tmp_path / "all" / "bob"]
    assert [note.endswith(f"unpack {folder / 'sheet.zip'} first") for note in notes] == [True]


def test_a_submission_that_lies_too_deep_is_told(tmp_path):
    make_handout("003", tmp_path / "all" / "bob", student="bob")
    make_handout("003", tmp_path / "all" / "1" / "2" / "3" / "4" / "5" / "ada", student="ada")
    found, (note,) = find_submissions([tmp_path / "all"])
    assert found == [tmp_path / "all" / "bob"]
    assert "6 folders deep" in note


def grade_all(folder, out, capsys, *words):
    """What grading prints, without the sandbox: sheets without code and runs."""
    code = main(["grade", str(folder), "--out", str(out), "--unsafe", "--jobs", "1", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_folders_that_cannot_be_graded_are_told_by_name_and_have_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("anaphor.course.grade_verb.require_safe", lambda *, unsafe: False)
    everything = tmp_path / "all"
    for name in ("nina", "otto"):
        make_handout("003", everything / f"{name} x" / "sheet-003", student=name)
        path = everything / f"{name} x" / "sheet-003" / "course.yaml"
        path.write_text(path.read_text(encoding="utf-8").replace("'003'", "'009'"), encoding="utf-8")
    (everything / "paul").mkdir()
    code, _, err = grade_all(everything, tmp_path / "bad.csv", capsys)
    assert code == 2
    for name in ("nina x", "otto x"):
        assert len([line for line in err.splitlines() if f"{name}/sheet-003" in line and "'009'" in line]) == 1
    make_handout("003", everything / "mia", student="1e5")
    code, out, err = grade_all(everything, tmp_path / "bad.csv", capsys, "--json")
    assert code == 0
    rows = [row for row in json.loads(out) if "not-graded" in row["flags"]]
    assert [row["student"] for row in rows] == ["nina", "otto", "paul"]
    assert {row["student"] for row in json.loads(out)} == {"1e5", "nina", "otto", "paul"}


def test_without_bubblewrap_nothing_is_graded(tmp_path, monkeypatch, capsys):
    make_handout("002", tmp_path / "ada", student="ada")
    monkeypatch.setattr("anaphor.course.grading.sandbox.shutil.which", lambda name: None)
    line = refusal(main(["grade", str(tmp_path / "ada"), "--out", str(tmp_path / "grades.csv")]), capsys)
    assert "bubblewrap is missing" in line
    assert "--unsafe" in line
    assert not (tmp_path / "grades.csv").exists()

"""Grading: tables, pages, similarity, messages, and one line for bad input. No code of students runs here."""

import csv
import io
import os
import sys

import pytest
import torch

from anaphor.cli.main import main
from anaphor.course.catalog import CATALOG, find_reference
from anaphor.course.grading.collect import find_submissions
from anaphor.course.grading.drivers import Slices
from anaphor.course.grading.fingerprint import fingerprints
from anaphor.course.grading.kit import add_to
from anaphor.course.grading.messages import MAX_HEADER, Channel, Closed
from anaphor.course.grading.record import Mark, Record
from anaphor.course.grading.similarity import flag_similar
from anaphor.course.grading.student_page import student_page
from anaphor.course.grading.tables import COLUMNS, LAYOUTS, write_table
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
    assert header == ["ID number", "002.2a One head", "002.2a (feedback)", "002.9x Why", "002.9x (feedback)"]
    assert row == ["ada", "2.5", "AttentionHead did not pass", "", "to be read: 3 points"]


def test_canvas_has_its_five_columns_and_the_points_that_are_possible(sheet):
    header, possible, row = read_csv(write_table([record()], "canvas"))
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "002.2a One head", "002.9x Why"]
    assert possible == ["    Points Possible", "", "", "", "", "4", "3"]
    assert row == ["ada", "", "", "ada", "", "2.5", ""]


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


def test_without_bubblewrap_nothing_is_graded(tmp_path, monkeypatch, capsys):
    make_handout("002", tmp_path / "ada", student="ada")
    monkeypatch.setattr("anaphor.course.grading.sandbox.shutil.which", lambda name: None)
    line = refusal(main(["grade", str(tmp_path / "ada"), "--out", str(tmp_path / "grades.csv")]), capsys)
    assert "bubblewrap is missing" in line
    assert "--unsafe" in line
    assert not (tmp_path / "grades.csv").exists()

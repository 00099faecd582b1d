"""Grading of code: one mistake costs once, a broken file costs its own exercises, and the lines of a rubric count."""

import json
import shutil
from fnmatch import fnmatchcase

import pytest

from anaphor.cli.main import main
from anaphor.course.catalog import find_reference
from anaphor.course.check_report import Finding
from anaphor.course.grading.code import Outcome, lost_criteria
from anaphor.course.grading.parts import Part, solutions_of
from anaphor.course.grading.sandbox import why_not_safe
from anaphor.course.handout import make_handout
from anaphor.course.sheet import read_sheet, sheet_numbers

REASON = why_not_safe()
CODE = ("002.1g", "002.2a", "002.2b", "002.2c", "002.3a", "002.3e", "002.4a", "002.4c", "002.4d")


def replace_in(name, old, new):
    def change(folder):
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text, (name, old)
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


def stub_of(name):
    def change(folder):
        shutil.copy(read_sheet("002").folder / "stubs" / name, folder / name)

    return change


MASK = "scores = scores.masked_fill(attn_mask == 0, -torch.inf)"
LOW_RANK = "self.query = nn.Sequential(nn.Linear(dim, 2), nn.Linear(2, n_hidden))"
CHANGES = {
    "mask": replace_in("attention.py", MASK, "scores = scores * attn_mask"),
    "bracket": replace_in("attention.py", "value = nn.Linear(dim, n_hidden)", "value = nn.Linear(dim, n_hidden"),
    "package": replace_in("images.py", "import torch\n", "import einops_of_nobody\nimport torch\n"),
    "unreadable": replace_in("attention.py", "self.query = nn.Linear(dim, n_hidden)", LOW_RANK),
    "cpu-mask": replace_in("dialogue.py", "(length, length, device=input_ids.device)", "(length, length)"),
    "only-blocks": stub_of("attention.py"),
    "other-form": lambda folder: [
        replace_in("attention.py", old, new)(folder) for old, new in (
            (MASK, "scores = scores * attn_mask"),
            ("(self, dim: int, n_hidden: int)", "(self, dim: int, n_hidden: int, own: bool = True)"),
            ("AttentionHead(dim, n_hidden)", "AttentionHead(dim, n_hidden, True)"),
        )
    ],
}  # fmt: skip
"""What is changed in the teacher's copy of sheet 002."""


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Rows by student and exercise, and what stderr says."""
    folder = tmp_path_factory.mktemp("graded")
    for name, change in CHANGES.items():
        make_handout("002", folder / "all" / name, student=name, teacher=True)
        change(folder / "all" / name)
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("anaphor.course.grade_verb.print_warning", lines.append)
        printed = []
        patch.setattr("builtins.print", lambda *words, **more: printed.append(" ".join(map(str, words))))
        assert main(["grade", str(folder / "all"), "--out", str(folder / "out.csv"), "--json", "--seconds", "300"]) == 0
    rows = json.loads(next(line for line in printed if line.startswith("[")))
    found = {(row["student"], row["exercise"]): row for row in rows}
    return found, lines, folder


def points(graded, student):
    rows = graded[0]
    return {name: rows[student, name]["points"] for name in CODE}


needs_sandbox = pytest.mark.skipif(bool(REASON), reason=REASON)
FULL = {name: read_sheet("002").find(name).points for name in CODE}


@pytest.mark.slow
@needs_sandbox
def test_a_mistake_in_one_head_costs_once_and_only_the_points_of_its_line(graded):
    assert points(graded, "mask") == {**FULL, "002.2a": 2}
    row = graded[0]["mask", "002.2b"]
    assert "MultiHeadAttention passed, with the solution's AttentionHead in place of your own" in row["comment"]
    assert "part-replaced" in row["flags"]
    assert "part-replaced" not in graded[0]["mask", "002.1g"]["flags"]


@pytest.mark.slow
@needs_sandbox
def test_a_syntax_error_costs_the_exercises_of_its_file_and_is_told_with_file_and_line(graded):
    assert points(graded, "bracket") == {**FULL, "002.2a": 0, "002.2b": 0}
    row = graded[0]["bracket", "002.2a"]
    assert "check attention.py: syntax error in line 15" in row["comment"]
    assert "broken-file" in row["flags"]
    told = [line for line in graded[1] if "bracket" in line]
    assert len(told) == 1
    assert "attention.py: syntax error in line 15" in told[0]
    assert told[0].endswith("no points for 002.2a, 002.2b")


@pytest.mark.slow
@needs_sandbox
def test_a_missing_package_costs_the_exercises_of_its_file(graded):
    assert points(graded, "package") == {**FULL, "002.3a": 0}
    assert "ModuleNotFoundError in line 3" in graded[0]["package", "002.3a"]["comment"]
    assert "solution's PatchEmbed" in graded[0]["package", "002.3e"]["comment"]


@pytest.mark.slow
@needs_sandbox
def test_what_cannot_be_compared_is_left_to_a_reader_and_what_is_built_on_it_is_graded(graded):
    assert points(graded, "unreadable") == {**FULL, "002.2a": None}
    assert graded[0]["unreadable", "002.2a"]["comment"].startswith("to be read: ")


@pytest.mark.slow
@needs_sandbox
def test_a_tensor_on_the_cpu_is_told_with_its_line_and_costs_nothing(graded):
    assert points(graded, "cpu-mask") == FULL
    source = (graded[2] / "all" / "cpu-mask" / "dialogue.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(source, start=1) if "torch.ones" in text)
    assert f"makes-cpu-tensors (dialogue.py:{line})" in graded[0]["cpu-mask", "002.4c"]["comment"]


@pytest.mark.slow
@needs_sandbox
def test_what_is_not_begun_costs_itself_alone(graded):
    assert points(graded, "only-blocks") == {**FULL, "002.2a": 0, "002.2b": 0}
    assert "not-written (attention.py:" in graded[0]["only-blocks", "002.2a"]["comment"]


@pytest.mark.slow
@needs_sandbox
def test_where_the_solution_does_not_fit_a_person_reads(graded):
    found = points(graded, "other-form")
    assert found["002.2a"] == 2
    assert found["002.2b"] is None
    comment = graded[0]["other-form", "002.2b"]["comment"]
    assert comment.startswith("to be read: ")
    assert "error in AttentionHead, which it is built on" in comment


@pytest.mark.parametrize("number", sheet_numbers())
def test_no_part_that_is_sent_has_the_solution_of_what_is_graded_with_it(number):
    solutions = solutions_of(number)
    for part in solutions.checked:
        whole = solutions.files_below(part.file)
        built_on = solutions.built_on(part)
        assert part not in built_on
        assert part.file not in whole
        files = solutions.replace(built_on, whole)
        sent = "\n".join(one.text for one in files.values())
        assert f"class {part.name}(" not in sent
        assert f"def {part.name}(" not in sent
        for name, one in files.items():
            compile(one.text, name, "exec")


def test_parts_are_what_a_solution_is_made_of_and_no_more():
    solutions = solutions_of("002")
    assert solutions.built_on(Part("attention.py", "MultiHeadAttention")) == {Part("attention.py", "AttentionHead")}
    assert solutions.files_below("dialogue.py") == {"attention.py", "transformer.py"}
    assert solutions.built_on(Part("dialogue.py", "DialogueLoss")) == set()
    files = solutions.replace([Part("transformer.py", "TransformerBlock")])
    assert files["transformer.py"].is_added
    block = files["anaphor_solution_transformer.py"].text
    assert "class FFN" in block
    assert "class Transformer(" not in block
    assert "from anaphor_solution_attention import MultiHeadAttention" in block


@pytest.mark.parametrize("number", sheet_numbers())
def test_every_line_of_a_rubric_names_mistakes_and_checks_that_there_are(number):
    others = {"raises", "makes-cpu-tensors", "makes-float32", "other-dtype", "lower-cased"}
    for exercise in read_sheet(number).exercises:
        names = {one.name for check in exercise.checks for one in find_reference(check.reference).mistakes} | others
        for line in exercise.rubric:
            assert {*line.checks} <= {check.name for check in exercise.checks}, exercise.id
            for pattern in line.mistakes:
                assert [name for name in names if fnmatchcase(name, pattern)], (exercise.id, pattern)
        if exercise.kind == "code":
            assert sum(line.points for line in exercise.rubric) == exercise.points, exercise.id


def test_a_mistake_costs_the_points_of_its_line_and_what_has_no_line_costs_all():
    exercise = read_sheet("002").find("002.2a")

    def lost(*names):
        findings = tuple(Finding(name, "", "") for name in names)
        return lost_criteria(exercise, {exercise.checks[0]: Outcome(False, "", (), findings)})

    assert lost("mask-ignored") == {1}
    assert lost("not-scaled") == {0}
    assert lost("not-scaled", "mask-added") == {0, 1}
    assert lost("unknown") is None
    assert lost("mask-ignored", "raises") is None
    assert lost_criteria(exercise, {}) == set()

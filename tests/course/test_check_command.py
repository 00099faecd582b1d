"""`anaphor check`: the list, the answer for people and for scripts, and one line for what cannot be checked."""

import json
import subprocess
import sys

import pytest

from anaphor.cli.main import main
from anaphor.course.catalog import CATALOG
from course.students import HEADER
from course.test_check_attention import HEAD


@pytest.fixture
def student(tmp_path):
    """Writes a student's file and returns its path."""

    def write(source, name="attention.py"):
        path = tmp_path / name
        path.write_text(HEADER + source, encoding="utf-8")
        return str(path)

    return write


def refusal(code, capsys):
    """The one line of a command that was refused."""
    assert code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def answer(capsys):
    return json.loads(capsys.readouterr().out)


def test_the_list_needs_no_torch_and_names_every_reference():
    script = (
        "import sys; from anaphor.cli.main import main;"
        "main(['check', 'list']); main(['check', '--help']); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in CATALOG)


def test_every_reference_of_the_list_is_there(capsys):
    assert main(["check", "list", "--json"]) == 0
    listed = answer(capsys)
    assert [entry["name"] for entry in listed] == [*CATALOG]
    from anaphor.course.catalog import find_reference

    assert [find_reference(entry["name"]).name for entry in listed] == [*CATALOG]


def test_every_mistake_has_a_name_a_text_and_rules_that_it_changes():
    from anaphor.course.catalog import find_reference
    from anaphor.course.reference import change_rules

    for name in CATALOG:
        reference = find_reference(name)
        named = {mistake.name for mistake in reference.mistakes}
        assert len(named) >= 6, name
        for mistake in reference.mistakes:
            assert any(change_rules(rules, mistake.change) != rules for rules in reference.designs), mistake
            assert mistake.text


def test_a_right_one_passes_with_exit_code_zero(student, capsys):
    assert main(["check", f"{student(HEAD)}::AttentionHead", "--json"]) == 0
    found = answer(capsys)
    assert found.keys() == {"name", "reference", "passed", "mistakes", "checked"}
    assert found["passed"] is True
    assert found["mistakes"] == []
    assert "gradients of all weights" in found["checked"]


def test_a_wrong_one_has_exit_code_one_and_its_mistake_by_name(student, capsys):
    target = f"{student(HEAD.replace('AttentionHead', 'Mine').replace('== 0', '== 1'))}::Mine"
    assert main(["check", target, "--as", "AttentionHead", "--json"]) == 1
    found = answer(capsys)
    assert (found["name"], found["reference"], found["passed"]) == ("Mine", "AttentionHead", False)
    assert [mistake.keys() for mistake in found["mistakes"]] == [{"name", "where", "text"}]
    assert found["mistakes"][0]["name"] == "mask-inverted"
    assert found["mistakes"][0]["where"] == "out with a mask"
    assert main(["check", target, "--as", "AttentionHead"]) == 1
    assert "mask-inverted (out with a mask): the mask hides the wrong side" in capsys.readouterr().out


def test_code_that_raises_is_told_by_file_and_line(student, capsys):
    path = student(HEAD.replace("/ math.sqrt(self.n_hidden)", "/ math.sqrt(self.none)"))
    assert main(["check", f"{path}::AttentionHead"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("raises (attention.py:17): AttributeError: ")
    assert "Traceback" not in printed.out + printed.err


def test_what_a_student_prints_is_no_part_of_the_answer(student, capsys):
    source = "print('at import')\n" + HEAD.replace("q, k, v =", "print('passed')\n        q, k, v =")
    assert main(["check", f"{student(source)}::AttentionHead", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["passed"] is True
    assert "at import" in printed.err


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (HEAD, "AttentionHaed", "has no class or function 'AttentionHaed'; did you mean 'AttentionHead'?"),
        ("AttentionHead = 3", "AttentionHead", "is neither a class nor a function, but int"),
        ("def AttentionHead(x):\n    return x", "AttentionHead", "must be a class derived from torch.nn.Module"),
        (HEAD.replace("(self, dim, n_hidden)", "(self, dim)"), "AttentionHead",
         "AttentionHead(dim) has other arguments than expected: AttentionHead(dim, n_hidden)"),
        (HEAD.replace("(self, x, attn_mask)", "(self, x, y, z)"), "AttentionHead",
         "AttentionHead(x, y, z) has other arguments than expected: AttentionHead(dim, n_hidden), forward(x"),
        ("class AttentionHead(:", "AttentionHead", "syntax error in line 6"),
        ("raise ValueError('no')", "AttentionHead", "ValueError in line 6: no"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_one_line(source, name, words, student, capsys):
    code = main(["check", f"{student(source)}::{name}", "--as", "AttentionHead"])
    assert words in refusal(code, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "is not of the form FILE.py::NAME"),
        (["lst"], "did you mean 'list'?"),
        (["missing.py::AttentionHead"], "there is no file missing.py"),
        (["missing.py::Nothing"], "no reference is called 'Nothing'"),
        (["missing.py::Mine", "--as", "AttentionHaed"], "did you mean 'AttentionHead'?"),
    ],
)
def test_a_wrong_target_is_one_line(words, message, capsys):
    assert message in refusal(main(["check", *words]), capsys)


def test_a_file_may_import_the_one_beside_it_and_each_folder_has_its_own(tmp_path, capsys):
    wrong = HEAD.replace("softmax(scores, dim=-1)", "softmax(scores, dim=-2)")
    assert wrong != HEAD
    for folder, source in (("right", HEAD), ("wrong", wrong), ("right", HEAD)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "heads.py").write_text(HEADER + source, encoding="utf-8")
        (tmp_path / folder / "attention.py").write_text("from heads import AttentionHead as Head\n", encoding="utf-8")
        code = main(["check", str(tmp_path / folder / "attention.py::Head"), "--as", "AttentionHead", "--json"])
        assert answer(capsys)["passed"] is (code == 0) is (folder == "right")
    assert "heads" not in sys.modules


def test_an_error_in_the_file_beside_it_is_shown_with_file_and_line(tmp_path, capsys):
    (tmp_path / "heads.py").write_text(
        HEADER + "def half(x):\n    raise NotImplementedError('half')\n", encoding="utf-8"
    )
    source = "from heads import half\n\ndef batchify(data, bsz):\n    return half(data)\n"
    (tmp_path / "batches.py").write_text(source, encoding="utf-8")
    assert main(["check", str(tmp_path / "batches.py::batchify"), "--json"]) == 1
    (mistake,) = answer(capsys)["mistakes"]
    assert (mistake["where"], mistake["text"]) == (
        f"heads.py:{len(HEADER.splitlines()) + 2}",
        "NotImplementedError: half",
    )

"""Links in the folder of a run lead to files of the user: nothing is written, truncated or deleted through them."""

import ast
import os
from pathlib import Path

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.errors import DataError
from anaphor.files import append_file, delete, make_folder, open_file, replace_file
from command_line import without_start_lines
from faults.planted import FILES, FOLDERS, plant

TRAIN = ["train", "lm", "--data", "text", "--model", "lstm", "--width", "8", "--batch-size", "2", "--bptt", "8",
         "--no-test", "--device", "cpu", "--out", "run"]  # fmt: skip
NAMES = (*FILES, *FOLDERS)

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture
def run(text, tmp_path, capsys):
    assert main([*TRAIN, "--steps", "3"]) == 0
    capsys.readouterr()
    return tmp_path / "run"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_resumed(run, tmp_path, name, capsys):
    check = plant(run, name, tmp_path / "victim")
    assert main([*TRAIN, "--steps", "5", "--resume", "--force"]) == 2
    (line,) = without_start_lines(capsys.readouterr().err)
    assert f"run/{name} is a link" in line
    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_overwritten(run, tmp_path, name):
    check = plant(run, name, tmp_path / "victim")
    is_set_aside = name not in (".lock", "spec.yaml")
    assert main([*TRAIN, "--steps", "3", "--overwrite"]) == (0 if is_set_aside else 2)
    check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("text")
def test_a_new_run(tmp_path, name, capsys):
    check = plant(tmp_path / "run", name, tmp_path / "victim")
    assert main([*TRAIN, "--steps", "3"]) == 2
    assert len(without_start_lines(capsys.readouterr().err)) == 1
    check()


def test_a_command_that_is_refused(run, tmp_path):
    check = plant(run, ".lock", tmp_path / "victim")
    assert main([*TRAIN, "--steps", "3"]) == 2
    check()


def test_checkpoints_and_their_leftovers(run, tmp_path):
    check = plant(run / "checkpoints", "step-1", tmp_path / "victim")
    for name in ("step-4.tmp", "step-5.tmp", "step-2.old"):
        (run / "checkpoints" / name).symlink_to(tmp_path / "victim" / "precious-step-1")
    assert main([*TRAIN, "--steps", "5", "--resume", "--force"]) == 0
    check()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-3", "step-5"]


def test_a_draft_of_a_file(run, tmp_path):
    check = plant(run, "result.json.tmp", tmp_path / "victim")
    assert main([*TRAIN, "--steps", "5", "--resume", "--force"]) == 0
    check()
    assert (run / "result.json").is_file()


def test_the_folder_itself_may_be_a_link(run, tmp_path):
    run.rename(tmp_path / "disk")
    run.symlink_to(tmp_path / "disk")
    assert main([*TRAIN, "--steps", "5", "--resume", "--force"]) == 0
    assert (tmp_path / "disk" / "checkpoints" / "step-5").is_dir()


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json"])
def test_figures_that_a_result_names_may_have_any_name(run, name):
    (run / "result.json").write_text('{"status": "finished", "figures": ["%s.png", "\\u0000.png"]}' % ("x" * 5000))
    assert main([*TRAIN, "--steps", "5", "--resume", "--force"]) == 0


def test_folders_between_are_no_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "cells").symlink_to(tmp_path / "elsewhere")
    below = tmp_path / "run" / "cells" / "one"
    for write in (
        lambda: make_folder(below, within=tmp_path / "run"),
        lambda: replace_file(below, b"x", within=tmp_path / "run"),
        lambda: append_file(below, b"x", within=tmp_path / "run"),
        lambda: delete(below, within=tmp_path / "run"),
    ):
        with pytest.raises(DataError, match=r"run/cells is a link"):
            write()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises((DataError, OSError)):
        append_file(tmp_path / "metrics.jsonl", b"x")
    with pytest.raises(DataError, match="is not a regular file"):
        open_file(tmp_path / "metrics.jsonl", os.O_RDWR)


WRITERS = {"write_text", "write_bytes", "unlink", "rmdir", "rename", "replace", "touch", "rmtree", "remove"}


def test_all_that_writes_to_such_folders_does_it_by_one_module():
    """Caches, downloads, figures for a user, and records of what was trained here, are written elsewhere."""
    package = Path(anaphor.__file__).parent
    found = set()
    for part in ("training", "studies", "interchange", "tasks", "draw"):
        for path in (package / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_writer(node):
                    found.add((str(path.relative_to(package)), node.func.attr))
    assert found <= {
        ("training/run_folder.py", "rmdir"),
        ("training/trusted_data.py", "touch"),
        ("training/trained_runs.py", "touch"),
    }


def is_writer(call):
    """Whether a call is one of a path that writes; `replace` of a text has two arguments."""
    name, count = call.func.attr, len(call.args)
    if name == "open":
        return count > 0 and isinstance(call.args[0], ast.Constant) and str(call.args[0].value)[:1] in "wax"
    if name == "replace":
        return count == 1 and not call.keywords
    if name == "remove":  # lists have it, paths have not
        return isinstance(call.func.value, ast.Name) and call.func.value.id == "os"
    return name in WRITERS

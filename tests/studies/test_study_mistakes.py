"""Mistakes and hostile files that `study` is given: refused in one short line, and nothing is written."""

import errno
import io
import os
import sys

import pytest

from anaphor import files
from anaphor.cli.main import main
from faults.bombs import BOMBS, LONG_VALUES
from faults.paths import IMPOSSIBLE, assert_refused
from faults.trap import trap

STUDY = """
base: {data: %s, layers: 1, width: 4, batch_size: 2, bptt: 8, steps: 2, device: cpu}
parameters: {dropout: {values: [0]}}
seeds: 1
test: none
"""


@pytest.mark.parametrize("path", ["gatez.yaml", "studies/gatez", "run"])
def test_a_file_that_is_not_there_is_called_so(tmp_path, monkeypatch, error_of, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert error_of(["study", path]) == f"no file at {path}; `anaphor study list` lists the presets"


def test_an_empty_name_is_no_folder(tmp_path, monkeypatch, error_of):
    monkeypatch.chdir(tmp_path)
    line = error_of(["study", "bptt", "--out", ""])
    assert line == "out='': a folder or a file needs a name; . is this folder"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", IMPOSSIBLE)
@pytest.mark.parametrize(
    "place",
    ["study PATH", "study mixing --out PATH --dry-run", "study mixing --of PATH", "study mixing --import PATH"],
)
def test_a_path_that_no_file_can_have_is_one_line(text, tmp_path, capsys, place, name):
    assert_refused(place, name, tmp_path, capsys)


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_grows_is_refused(tmp_path, error_of, name):
    (tmp_path / "bomb.yaml").write_text(BOMBS[name])
    line = error_of(["study", str(tmp_path / "bomb.yaml")])
    assert name.split()[0] in line
    assert len(line) < 500


def test_the_same_in_a_flag(error_of):
    value = "x=[&a [x,x], " + ", ".join(f"&a{n} [*a{n - 1 if n else ''}, *a{n - 1 if n else ''}]" for n in range(40))
    line = error_of(["study", "mixing", "--set", value + "]"])
    assert len(line) < 2500


@pytest.mark.parametrize("text", LONG_VALUES, ids=range(len(LONG_VALUES)))
def test_a_message_never_repeats_a_long_value(tmp_path, error_of, text):
    (tmp_path / "long.yaml").write_text(text)
    message = error_of(["study", str(tmp_path / "long.yaml")])
    assert len(message) < 2500


def test_control_codes_of_a_name_do_not_reach_a_terminal(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["study", "\x1b]0;title\x07"]) == 2
    assert "\x07" not in terminal.getvalue()
    assert "\\x1b]0" in terminal.getvalue()


def test_a_full_disk_is_told_with_the_path(tmp_path, monkeypatch, capsys, text):
    def failing(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_file", failing)
    (tmp_path / "study.yaml").write_text(STUDY % "text")
    assert main(["study", "study.yaml", "--out", "study"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("anaphor: study/")
    assert "No space left on device; it needs" in last


@pytest.mark.slow
def test_workers_execute_no_file_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "study.yaml").write_text(STUDY % (tmp_path / "text.txt"))
    with trap(tmp_path, monkeypatch) as folder:
        assert (folder / "torch.py").exists()
        assert (folder / "safetensors.py").exists()
        (folder / "anaphor.py").write_text((folder / "torch.py").read_text())
        assert main(["study", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out")]) == 0


def test_it_takes_threads(capsys):
    assert main(["study", "--help"]) == 0
    assert "--threads" in capsys.readouterr().out

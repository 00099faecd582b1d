"""`anaphor lab`: a list, help without torch, JSON, tables and figures for people, and one line for a wrong name."""

import json
import os
import resource
import subprocess
import sys

import pytest
import torch

from anaphor.cli.main import main
from anaphor.labs.lab import LABS
from anaphor.registry import has_shelf
from faults.paths import IMPOSSIBLE, assert_refused


def test_the_list_names_every_lab(capsys, answer_of):
    assert main(["lab", "list"]) == 0
    shown = capsys.readouterr().out
    wanted = list(LABS)
    assert {"kronecker", "unroll", "complexity", "low-rank", "scaling", "masking"} < set(wanted)
    assert ({"backprop", "bptt"} <= set(wanted)) is has_shelf("trace")
    assert all(name in shown for name in wanted)
    assert [row["lab"] for row in answer_of(["lab", "list", "--json"])] == wanted


def test_help_and_list_need_no_torch():
    script = (
        "import sys; from anaphor.cli.main import main; from anaphor.labs.lab import LABS;"
        "main(['lab', 'list']); main(['lab', '--help']); [main(['lab', name, '--help']) for name in LABS];"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Spectral radii of the recurrent matrix" in done.stdout
    assert done.stdout.count("usage: anaphor lab") == 1 + len(LABS)


@pytest.mark.needs("trace")
def test_json_is_one_value_with_four_names(answer_of):
    plain = answer_of(["lab", "bptt", "--json", "--hidden", "5"])
    assert list(plain) == ["lab", "claim", "holds", "timing", "numbers"]
    assert plain["holds"] is True
    assert len(plain["numbers"]["∂J/∂W_hh, first line"]) == 5


def test_people_get_claim_numbers_verdict_and_the_path_of_the_figure(capsys, tmp_path):
    assert main(["lab", "scaling", "--samples", "1000", "--out", str(tmp_path / "figures")]) == 0
    shown = capsys.readouterr().out
    assert LABS["scaling"].claim[:30] in shown
    assert "h = 256" in shown
    assert "holds: yes" in shown
    assert f"wrote {tmp_path / 'figures' / 'scaling.png'}" in shown
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"scaling.png", "scaling.svg", "scaling.pdf"}


@pytest.mark.needs("trace")
def test_inputs_can_be_changed_until_the_claim_fails(capsys):
    assert main(["lab", "bptt", "--reach", "1"]) == 0
    assert "holds: no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kroneker"], "unknown lab 'kroneker'; did you mean 'kronecker'? (known: "),
        ([], "NAME"),
        (["unroll", "--radius", "2"], "did you mean '--radii'?"),
        (["masking", "--hidden", "9"], "hidden=9: the positions are 0 to 5"),
        pytest.param(
            ["backprop", "--x", "half"],
            "x='half' is not a number: write 2, 0.25 or 1/4",
            marks=pytest.mark.needs("trace"),
        ),
        (["complexity", "--out", __file__], f"out={__file__} cannot be written to: File exists"),
    ],
)
def test_bad_input_gets_one_line(error_of, words, message):
    assert message in error_of(["lab", *words])


def test_the_name_may_stand_behind_options(answer_of):
    assert len(answer_of(["lab", "--json", "list"])) == len(LABS)


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_every_lab_ends_within_half_a_minute(name, tmp_path):
    """Time spent computing, on one thread: the clock on the wall says more on a busy machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "anaphor", "lab", name, "--json", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30
    assert json.loads(done.stdout)["lab"] == name
    assert list(tmp_path.iterdir())


def test_a_missing_name_is_said(error_of):
    assert error_of(["lab"]) == "`anaphor lab` needs NAME: a lab by name, or `list`"


def test_an_empty_name_is_no_folder(tmp_path, monkeypatch, error_of):
    monkeypatch.chdir(tmp_path)
    line = error_of(["lab", "kronecker", "--out", ""])
    assert line == "out='': a folder or a file needs a name; . is this folder"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_path_that_no_file_can_have_is_one_line(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert_refused("lab unroll --out PATH", name, tmp_path, capsys)


@pytest.mark.parametrize("words", [["list"], ["unroll", "--steps", "5"], ["kronecker"]], ids=" ".join)
def test_what_goes_into_a_pipe_is_neither_broken_into_lines_nor_filled_up(words, capsys, monkeypatch):
    printed = []
    for width in ("8", "80", "1000"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["lab", *words]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == printed[2]
    assert words != ["list"] or "…" not in printed[0]
    assert all(line == line.rstrip() for line in printed[0].splitlines())


def test_the_name_of_the_verb_is_taken(tmp_path, error_of):
    path = tmp_path / "taken.py"
    path.write_text("import anaphor\nanaphor.register_verb('lab', 'another one', print)\n")
    assert "verb name 'lab' is already registered: choose another name" in error_of(["--import", str(path), "--help"])


def test_threads_are_set_before_anything_is_computed(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert main(["lab", "unroll", "--threads", "2", "--json"]) == 0
    assert asked[0] == 2

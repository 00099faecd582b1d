"""`anaphor report`: one file, told in one line; mistakes are refused before a model is loaded."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from anaphor.cli.main import main
from anaphor.shipped_files import EXAMPLES
from anaphor.web.pdf import find_browser


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    words = "train lm --data grammar --model lstm --width 8 --layers 1 --steps 2 --eval-every 1 --device cpu --no-test"
    assert main([*words.split(), "--out", str(folder), "--json"]) == 0
    return folder


def test_the_file_and_its_size_are_told(run, tmp_path, capsys, answer_of):
    out = tmp_path / "new" / "page.html"
    told = answer_of(["report", str(run), "--out", str(out), "--no-model", "--json"])
    assert told == {"report": str(out), "bytes": out.stat().st_size, "runs": ["a"], "left_out": []}
    assert main(["report", str(run), "--out", str(out), "--no-model"]) == 0  # a second time it is replaced
    assert capsys.readouterr().out == f"report: {out} (1 run, {out.stat().st_size / 1e6:.1f} MB)\n"
    assert "Content-Security-Policy" in out.read_text(encoding="utf-8")


def test_models_are_asked_unless_they_are_refused(run, tmp_path):
    assert main(["report", str(run), "--out", str(tmp_path / "a.html"), "--text", "these old", "--device", "cpu"]) == 0
    assert main(["report", str(run), "--out", str(tmp_path / "b.html"), "--no-model"]) == 0
    assert "POST /api/look" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "POST /api/look {" not in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_a_report_of_files_alone_loads_no_torch(run, tmp_path):
    script = (
        "import sys; from anaphor.cli.main import main\n"
        "assert main(['report', sys.argv[1], '--no-model', '--out', sys.argv[2]]) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(run), str(tmp_path / "a.html")], check=False)
    assert done.returncode == 0


def test_help_says_that_runs_are_required(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["report", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Folders of runs or studies. (required)" in shown
    assert "(default: )" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a.html"], "`anaphor report` needs RUN: folders of runs or studies"),
        (["nowhere", "--out", "a.html"], "no run at nowhere: there is no such folder"),
        (["RUN", "--out", "a.yaml"], "out=a.yaml: it must be a file whose name ends with .html"),
        (["RUN", "--out", "folder.html"], "out=folder.html is a folder: name a file in it"),
        (["RUN", "--out", "a.html", "--no-model", "--text", "x"], "--text needs models: leave out --no-model"),
        (["RUN", "--out", "file/a.html"], "out=file cannot be written to: File exists"),
        (["RUN", "--out", "a.html", "--device", "tpu"], "unknown device 'tpu'"),
    ],
)
def test_a_mistake_is_one_line(run, tmp_path, monkeypatch, error_of, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").touch()
    line = error_of(["report", *[str(run) if word == "RUN" else word for word in words]])
    assert line.startswith(message)
    assert not list(tmp_path.glob("a.*"))


def test_a_missing_file_is_said(error_of):
    assert error_of(["report", "run"]) == "`anaphor report` needs --out PATH: HTML file to write"


def test_a_file_of_parts_that_was_edited_is_taken_by_force_as_by_other_verbs(text, tmp_path, answer_of):
    parts = str(EXAMPLES / "leaky_mixer.py")
    words = ["--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2", "--steps", "3", "--no-test"]
    run = ["--import", parts, "--model", "leaky", "--device", "cpu", "--json", "--out", "run"]
    assert main(["train", "lm", *words, *run]) == 0
    spec = tmp_path / "run" / "spec.yaml"
    spec.write_text(re.sub(r"sha256: \w+", f"sha256: {'0' * 64}", spec.read_text()))
    words = ["report", "run", "--import", parts, "--out", "a.html", "--device", "cpu", "--json"]
    left_out = answer_of(words)["left_out"]
    assert [line.split(":")[0] for line in left_out] == ["an example of validation of run", "losses by group of run"]
    assert all("--force" in line for line in left_out)
    assert answer_of([*words, "--force"])["left_out"] == []


def count_pages(path):
    return len(re.findall(rb"/Type\s*/Page\b", path.read_bytes()))


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="there is no Chromium to print with: apt-get install chromium")
def test_a_report_of_five_runs_is_printed_on_at_most_eight_pages(run, tmp_path, capsys):
    runs = []
    for number in range(5):
        runs.append(tmp_path / f"run-{number}")
        shutil.copytree(run, runs[-1])
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "page.html"), "--device", "cpu", "--pdf"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'page.pdf'}"
    assert 2 <= count_pages(tmp_path / "page.pdf") <= 8


def test_without_chromium_a_line_says_so_and_the_report_is_written(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["report", str(run), "--out", str(tmp_path / "page.html"), "--no-model", "--pdf", "--json"]) == 0
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("anaphor: no PDF: Chromium is not found (chromium, ")
    assert json.loads(printed.out)["pdf"] is None
    assert (tmp_path / "page.html").is_file()


def test_a_browser_that_ends_is_one_line(run, tmp_path, capsys, monkeypatch):
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\nexit 1\n")
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["report", str(run), "--out", str(tmp_path / "page.html"), "--no-model", "--pdf"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no PDF: {browser} failed: the browser ended" in line

"""The command of the benchmarks: a missed target is an exit code, a mistake is one line."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks import generation, overhead
from benchmarks.__main__ import main
from benchmarks.parts import DEFAULT_PARTS, PARTS
from benchmarks.timing import Finding

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
MET = Finding("ours", "peer", 1.5, 1.4, 1.6, "at least 1 ×", kept=True)
MISSED = Finding("ours", "peer", 0.5, 0.4, 0.6, "at least 1 ×", kept=False)


def replace_parts(monkeypatch, first, second):
    monkeypatch.setattr(overhead, "measure", lambda pairs, device, tick: [first])
    monkeypatch.setattr(generation, "measure", lambda pairs, device, tick: [second])


def test_a_missed_target_is_an_exit_code(monkeypatch, capsys):
    replace_parts(monkeypatch, MET, MISSED)
    assert main(["--parts", "overhead", "generation", "--json"]) == 1
    assert [found["kept"] for found in json.loads(capsys.readouterr().out)["findings"]] == [True, False]
    replace_parts(monkeypatch, MET, MET)
    assert main(["--parts", "overhead", "generation"]) == 0
    assert "1.50 [1.40, 1.60]" in capsys.readouterr().out


def test_out_holds_the_page_the_figure_and_the_findings(monkeypatch, tmp_path, capsys):
    curves = {"state carried": [0.001] * 32, "no state": [0.001 * n for n in range(1, 33)]}
    timed = Finding("late", "early", 1.2, None, None, "at most 2", kept=True, token_seconds=curves)
    replace_parts(monkeypatch, MET, timed)
    assert main(["--parts", "generation", "overhead", "--out", str(tmp_path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generation.png", "speed.json", "speed.md"]
    assert json.loads((tmp_path / "speed.json").read_text())["findings"] == findings
    assert set(findings[0]) == {"what", "peer", "value", "low", "high", "promise", "kept", "detail"}
    page = (tmp_path / "speed.md").read_text()
    assert f"- command: `python -m benchmarks --parts generation overhead --out {tmp_path} --json`" in page
    assert "| ours | peer | **1.50** [1.40, 1.60] | at least 1 × | yes |" in page
    assert "(generation.png)" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pairs", "x"], "'x'"),
        (["--pairs", "1"], "pairs=1: an interval needs at least 2"),
        (["--parts", "overhed"], "unknown part 'overhed'; did you mean 'overhead'?"),
        (["--threads", "0"], "threads=0: it must be from 1 to 1024"),
        (["--list"], "unknown option --list; `python -m benchmarks --help` lists the options"),
    ],
)
def test_a_mistake_is_one_line(words, message, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("benchmarks: ")
    assert message in line


def test_what_a_part_announces_for_the_progress_bar_is_at_least_one_tick():
    assert all(part.count_ticks(2, CPU) > 0 for part in PARTS.values())
    assert set(DEFAULT_PARTS) < set(PARTS)


def test_the_package_does_not_import_the_benchmarks():
    imports = re.compile(r"^\s*(?:from|import) benchmarks\b", re.MULTILINE)
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert len(sources) > 100
    assert not [path for path in sources if imports.search(path.read_text(encoding="utf-8"))]

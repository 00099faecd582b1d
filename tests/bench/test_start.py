"""The bench of the command's start compares the command itself with the import of torch."""

from anaphor.bench import start
from anaphor.cli.main import main


def test_seconds_beyond_the_import_are_the_finding(monkeypatch):
    calls, seconds = [], iter([4.0, 2.5, 4.0, 2.5, 5.0, 2.5])
    monkeypatch.setattr(start, "run_python", lambda *words: calls.append(words))
    monkeypatch.setattr("anaphor.bench.timing.measure_seconds", lambda work: work() or next(seconds))
    monkeypatch.setattr("anaphor.bench.timing.random.Random.random", lambda self: 0.9)  # ours first
    (finding,) = start.measure(3, lambda what: None)
    assert round(finding.value, 2) == round((1.5 + 1.5 + 2.5) / 3, 2)
    assert not finding.kept
    assert ("-c", "import torch") in calls
    words = next(call for call in calls if call[0] == "-m")
    assert words[1] == "anaphor.cli.main"


def test_the_command_that_is_measured_works(tmp_path, capsys):
    assert main([*start.COMMAND.split(), "--out", str(tmp_path / "run"), "--json"]) == 0
    assert '"finished"' in capsys.readouterr().out

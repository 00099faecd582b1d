"""Signals while a model is validated end the program at once; the step is saved, and a resumed run validates it."""

import json
import os
import signal
from unittest.mock import Mock

import pytest

import anaphor.evaluation
from anaphor.cli.main import main
from anaphor.training import loop

SMALL = ["train", "lm", "--data", "text", "--model", "lstm", "--width", "8", "--batch-size", "2", "--bptt", "4",
         "--steps", "12", "--eval-every", "4", "--eval-batch-size", "2", "--device", "cpu", "--no-test",
         "--schedule", "plateau", "--json"]  # fmt: skip


def lines_of(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["epoch"], row["lr"], row["train_loss"], row["valid"]) for row in rows]


def weights_of(out):
    folder = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    files = json.loads((folder / "manifest.json").read_bytes())["files"]
    return folder.name, {name: files[name]["sha256"] for name in files if name != "facts.json"}


def stop_while_validating(out, monkeypatch, number, code):
    """Send a signal at the third report of the first validation. Returns all that it reported."""
    calls = []
    report = anaphor.evaluation.report_progress

    def interrupt(name, done, total):
        calls.append(done)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        report(name, done, total)

    with monkeypatch.context() as patch:
        patch.setattr(anaphor.evaluation, "report_progress", interrupt)
        assert main([*SMALL, "--out", str(out)]) == code
    return calls


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_while_validating_stops_at_once_and_resuming_is_exact(
    text, tmp_path, monkeypatch, capsys, number, code
):
    assert main([*SMALL, "--out", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    calls = stop_while_validating(tmp_path / "stopped", monkeypatch, number, code)
    assert json.loads(capsys.readouterr().out) == {"status": "stopped", "run": str(tmp_path / "stopped")}
    assert len(calls) <= 4, "it must not validate to the end"
    assert weights_of(tmp_path / "stopped")[0] == "step-4"
    assert not (tmp_path / "stopped" / "result.json").exists()
    assert main(["train", "lm", "--resume", "--out", str(tmp_path / "stopped"), "--no-test", "--json"]) == 0
    assert lines_of(tmp_path / "stopped") == lines_of(tmp_path / "whole")
    assert weights_of(tmp_path / "stopped") == weights_of(tmp_path / "whole")


def test_a_validation_that_was_logged_but_not_saved_is_repeated(text, tmp_path, monkeypatch):
    """As by a kill between the two: the checkpoint knows nothing of it."""
    assert main([*SMALL, "--out", str(tmp_path / "whole")]) == 0
    out = tmp_path / "stopped"
    stop_while_validating(out, monkeypatch, signal.SIGTERM, 143)
    resume = ["train", "lm", "--resume", "--out", str(out), "--no-test", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", Mock(side_effect=InterruptedError))
        with pytest.raises(InterruptedError):
            main(resume)
    assert [line[0] for line in lines_of(out)] == [4]
    assert main(resume) == 0
    assert lines_of(out) == lines_of(tmp_path / "whole")
    assert weights_of(out) == weights_of(tmp_path / "whole")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("stopped", "whole")]
    assert results[0]["best_step"] == results[1]["best_step"]

"""Signals while figures are drawn end the program at once: the weights are saved, the run is unscored, no figure is cut
off."""

import json
import signal
import weakref

import pytest
import torch

from anaphor.cli.main import main
from faults.runs import text_file

SMALL = ["train", "lm", "--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "4", "--bptt", "6",
         "--steps", "4", "--eval-every", "2", "--device", "cpu", "--json"]  # fmt: skip


@pytest.fixture
def send(monkeypatch):
    """Send a signal while a figure is saved. Some libraries catch what is raised there, and go on or raise another
    error; what is raised while an object is deleted nobody can catch, and Python would print it."""

    def patch(number, *, then="raises"):
        from matplotlib.figure import Figure

        sent = []

        def savefig(self, *arguments, **options):
            if sent:
                return
            sent.append(number)
            try:
                if then == "is deleted":
                    one = set()
                    reference = weakref.ref(one, lambda _: signal.raise_signal(number))
                    del one
                    assert reference() is None
                else:
                    signal.raise_signal(number)
            except Exception:
                if then == "fails":
                    raise ImportError("half loaded") from None
                if then == "raises":
                    raise

        monkeypatch.setattr(Figure, "savefig", savefig)

    return patch


@pytest.mark.curves
@pytest.mark.parametrize(
    ("number", "code", "then"),
    [
        (signal.SIGTERM, 143, "raises"),
        (signal.SIGINT, 130, "raises"),
        (signal.SIGHUP, 129, "raises"),
        (signal.SIGTERM, 143, "continues"),
        (signal.SIGINT, 130, "continues"),
        (signal.SIGINT, 130, "fails"),
        (signal.SIGINT, 130, "is deleted"),
    ],
)
def test_a_signal_while_curves_are_drawn_stops_training_unscored(
    tmp_path, monkeypatch, capsys, answer_of, send, number, code, then
):
    torch.set_default_dtype(torch.float32)
    out = tmp_path / "run"
    send(number, then=then)
    assert main([*SMALL, "--data", str(text_file(tmp_path)), "--out", str(out)]) == code
    assert json.loads(capsys.readouterr().out) == {"status": "stopped", "run": str(out)}
    assert (out / "checkpoints" / "step-4").is_dir()
    assert not (out / "result.json").exists()
    monkeypatch.undo()
    result = answer_of(["train", "lm", "--resume", "--out", str(out), "--json"])
    assert result["status"] == "finished"
    assert result["test"]["loss"] > 0
    assert result["figures"]


def test_ctrl_c_while_figures_of_look_are_drawn_leaves_none_half_written(tmp_path, capsys, send, single_precision):
    words = [*SMALL, "--data", str(text_file(tmp_path)), "--out", str(tmp_path / "run"), "--no-test"]
    assert main(words) == 0
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "which ends the program at once"
    send(signal.SIGINT)
    assert main(["look", str(tmp_path / "run"), "the cat sat", "--out", str(tmp_path / "looked")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "anaphor: interrupted"
    assert not [path for path in tmp_path.glob("looked/**/*") if path.suffix in (".png", ".svg")]

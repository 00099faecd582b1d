"""A lost connection: the step ends and is saved, as after SIGTERM, unless the signal is ignored (`nohup`)."""

import os
import pty
import signal

import pytest

from anaphor.cli.main import main
from anaphor.training import loop
from anaphor.training.signals import Interruption

WORDS = ["train", "lm", "--data", "text", "--width", "4", "--bptt", "4", "--batch-size", "2", "--device", "cpu",
         "--no-test", "--json"]  # fmt: skip


@pytest.fixture
def hang_up(monkeypatch):
    """SIGHUP in the second step."""
    train_step, steps = loop.train_step, []

    def hang_up_in_the_second(run, group):
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGHUP)
        return train_step(run, group)

    monkeypatch.setattr(loop, "train_step", hang_up_in_the_second)


def test_a_lost_connection_saves(text, tmp_path, hang_up, capsys):
    assert main([*WORDS, "--steps", "20", "--out", "run"]) == 129
    assert '"stopped"' in capsys.readouterr().out
    saved = list((tmp_path / "run" / "checkpoints").iterdir())
    assert saved
    assert "step-20" not in [path.name for path in saved]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_nohup(text, tmp_path, hang_up):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main([*WORDS, "--steps", "20", "--out", "run"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (tmp_path / "run" / "checkpoints" / "step-20").exists()


def test_nothing_more_is_written_to_a_terminal_that_is_gone():
    keeper, terminal = pty.openpty()
    kept = os.dup(2)
    os.dup2(terminal, 2)
    os.close(terminal)
    try:
        with Interruption() as interruption:
            os.close(keeper)
            os.kill(os.getpid(), signal.SIGHUP)
            assert interruption.is_requested()
            os.write(2, b"no error")
    finally:
        os.dup2(kept, 2)
        os.close(kept)

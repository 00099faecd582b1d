"""Overwriting a run: the old one stays until the new one has a checkpoint; nothing outside the folder is deleted."""

import json
import os
import signal

import pytest

import forked
from anaphor.cli.main import main
from anaphor.training import loop
from anaphor.training.run_folder import RunFolder

SMALL = ["train", "lm", "--data", "text", "--model", "lstm", "--width", "8", "--batch-size", "2", "--bptt", "8",
         "--no-test", "--json", "--device", "cpu"]  # fmt: skip


@pytest.fixture
def run(text, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SMALL, "--steps", "3", "--out", str(out)]) == 0
    capsys.readouterr()
    return out


def test_a_new_run_that_diverges_leaves_the_old_one(run, answer_of, error_of):
    before = json.loads((run / "result.json").read_text())
    assert main([*SMALL, "--steps", "9", "--lr", "1e30", "--overwrite", "--out", str(run)]) == 3
    assert json.loads((run / "previous" / "result.json").read_text()) == before
    (row,) = answer_of(["evaluate", str(run / "previous"), "--json"])
    assert row["loss"] == before["valid"]["loss"]
    for words in (["evaluate", str(run)], [*SMALL, "--out", str(run)]):
        assert f"the run that was being overwritten is in {run / 'previous'}" in error_of(words)


def test_a_new_run_with_a_checkpoint_deletes_the_old_one(run):
    assert main([*SMALL, "--steps", "5", "--overwrite", "--out", str(run)]) == 0
    assert not (run / "previous").exists()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-5"]


def test_the_old_run_survives_two_failures(run):
    for _ in range(2):
        assert main([*SMALL, "--steps", "9", "--lr", "1e30", "--overwrite", "--out", str(run)]) == 3
    assert (run / "previous" / "checkpoints" / "step-3").is_dir()
    assert main([*SMALL, "--steps", "5", "--overwrite", "--out", str(run)]) == 0
    assert not (run / "previous").exists()


def test_a_kill_before_the_first_checkpoint_leaves_the_old_run(run):
    def die_when_saving():
        loop.save = lambda run: os.kill(os.getpid(), signal.SIGKILL)

    words = [*SMALL, "--steps", "5", "--overwrite", "--out", str(run)]
    done = forked.run(words, {}, first=die_when_saving)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (run / "previous" / "spec.yaml").is_file()
    assert (run / "previous" / "checkpoints" / "step-3").is_dir()


def test_a_kill_after_the_last_checkpoint_leaves_nothing_of_the_old_run_once_the_new_one_is_resumed(run):
    def die_when_deleting():
        RunFolder.delete_previous = lambda self: os.kill(os.getpid(), signal.SIGKILL)

    words = [*SMALL, "--steps", "5", "--out", str(run)]
    assert forked.run([*words, "--overwrite"], {}, first=die_when_deleting).returncode == -signal.SIGKILL
    assert (run / "previous").exists()
    assert forked.run([*words, "--resume"], {}).returncode == 0
    assert not (run / "previous").exists()


def test_a_linked_folder_of_checkpoints_is_not_emptied(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (run / "checkpoints").rename(elsewhere)
    (run / "checkpoints").symlink_to(elsewhere)
    assert main([*SMALL, "--steps", "5", "--overwrite", "--out", str(run)]) == 0
    assert (elsewhere / "step-3").is_dir()
    assert (run / "checkpoints" / "step-5").is_dir()
    assert not (run / "checkpoints").is_symlink()

"""Runs that are killed, interrupted or damaged, and runs that are resumed with other settings."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from anaphor.training import loop
from anaphor.training.checkpoint import newest
from command_line import without_start_lines
from faults.runs import begin, hashes, here, run

SHORT = ("--steps", "8")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("reference")
    began = time.perf_counter()
    done = run(folder, folder / "run")
    assert done.returncode == 0, done.stderr
    return hashes(folder / "run"), json.loads(done.stdout), time.perf_counter() - began


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A folder with a finished run of few steps. Tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("short")
    assert here(folder, folder / "run", *SHORT).returncode == 0
    return folder


def comparable(found):
    """Hashes of the tensors of a checkpoint; its facts contain the time it took."""
    text = json.dumps(found)
    return {name: digest for name, digest in json.loads(text)["files"].items() if name.endswith(".safetensors")}


def killed_after(folder: Path, out: Path, wait: float, *more: str) -> None:
    process = begin(folder, out, *more)
    try:
        process.communicate(timeout=wait)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def resumed_to_the_end(folder: Path, out: Path):
    done = run(folder, out, *(["--resume"] if (out / "spec.yaml").exists() else []))
    assert done.returncode == 0, done.stderr
    return hashes(out), json.loads(done.stdout)


def kill_often(folder: Path, times: int, seed: int, seconds: float):
    out, draw = folder / "run", random.Random(seed)
    for _ in range(times):
        resume = ["--resume"] if (out / "spec.yaml").exists() else []
        killed_after(folder, out, seconds * draw.uniform(0.1, 1.0), *resume)
    return resumed_to_the_end(folder, out)


def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path, reference):
    found, result = kill_often(tmp_path, times=2, seed=1, seconds=reference[2])
    assert comparable(found) == comparable(reference[0])
    assert result["valid"] == reference[1]["valid"]


@pytest.mark.slow
def test_killed_at_twenty_random_moments_it_ends_with_the_same_bits(tmp_path, reference):
    found, result = kill_often(tmp_path, times=20, seed=2, seconds=reference[2])
    assert comparable(found) == comparable(reference[0])
    assert result["valid"] == reference[1]["valid"]


def test_a_finished_run_resumed_is_what_it_was(tmp_path, short):
    out = shutil.copytree(short / "run", tmp_path / "run")
    done = here(short, out, "--resume", *SHORT)
    assert done.returncode == 0, done.stderr
    assert comparable(hashes(out)) == comparable(hashes(short / "run"))
    assert json.loads(done.stdout)["valid"] == json.loads((short / "run" / "result.json").read_text())["valid"]


def test_a_damaged_checkpoint_is_left_out_with_one_warning(tmp_path, reference, monkeypatch):
    """Of a run that was ended right after its last checkpoint. One that is finished has one with all states."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "prune_finished", lambda run: None)
        assert here(tmp_path, out).returncode == 0
    last = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    weights = last / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    done = here(tmp_path, out, "--resume")
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("anaphor:")]
    assert len(warnings) == 1
    assert str(weights) in warnings[0]
    found, damaged = newest(out / "checkpoints")
    assert (found.path, damaged) == (last, []), "it was written anew"
    assert comparable(hashes(out)) == comparable(reference[0])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_training_after_the_step_and_keeps_the_best(tmp_path, number, code):
    out = tmp_path / "run"
    process = begin(tmp_path, out, "--steps", "1000000")
    for line in process.stderr:
        if line.startswith("epoch"):  # the first validation is over
            break
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert hashes(out)["step"] != "step-0"
    if code == 130:
        assert json.loads(output)["valid"]["perplexity"] > 1


def test_a_second_process_on_the_same_run_is_refused_at_once(tmp_path):
    out = tmp_path / "run"
    holder = begin(tmp_path, out, "--steps", "1000000")
    try:
        for line in holder.stderr:
            if line.startswith("epoch"):
                break
        second = run(tmp_path, out, "--resume")
        assert second.returncode == 2
        assert str(holder.pid) in second.stderr
        assert len(without_start_lines(second.stderr)) == 1
    finally:
        holder.kill()
        holder.communicate()
    assert run(tmp_path, out, "--resume", "--steps", "1000000", "--dry-run").returncode == 0


def test_divergence_is_reported_with_step_layer_norm_and_learning_rate(tmp_path):
    done = here(tmp_path, tmp_path / "run", "--lr", "1e20", "--clip", "0")
    assert done.returncode == 3, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("anaphor: training diverged at step")
    for word in ("gradient norm", "learning rate", "first non-finite gradient in"):
        assert word in line
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "diverged"


def test_weights_that_the_last_step_ruined_are_divergence_too(tmp_path):
    ruin = ["--optimizer", "sgd", "--schedule", "constant", "--lr", "1e38", "--clip", "1e30"]
    done = here(tmp_path, tmp_path / "run", "--steps", "1", *ruin)
    assert done.returncode == 3, done.stderr
    assert "anaphor: training diverged at step 1: validation loss nan" in done.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "diverged"


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
def test_a_loss_without_a_perplexity_is_divergence_too(tmp_path, rule):
    """The gates of a recurrent model stay within bounds, and so its loss remains a number, however large."""
    plain = ["--mixers", "lstm", "attention", "--layer-residuals", "False", "False", "--layer-norms", "none", "none"]
    done = here(tmp_path, tmp_path / "run", *plain, "--lr", "1e20", "--optimizer", rule, "--steps", "6")
    assert done.returncode == 3, done.stderr
    assert "anaphor: training diverged at step 2: loss" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--lr", "0.5"], "lr was 0.001 and is 0.5"), (["--bptt", "9"], "bptt was 6 and is 9")],
)
def test_another_config_is_refused_with_the_difference(short, more, message):
    done = here(short, short / "run", "--resume", *SHORT, *more)
    assert done.returncode == 2
    assert message in done.stderr
    assert "--force" in done.stderr
    assert len(without_start_lines(done.stderr)) == 1


def test_edited_data_and_another_thread_count_are_noticed(tmp_path, monkeypatch):
    out = tmp_path / "run"
    assert here(tmp_path, out, *SHORT).returncode == 0
    done = here(tmp_path, out, "--resume", *SHORT, "--threads", "2")
    assert done.returncode == 2
    assert "threads was 1 and is 2" in done.stderr
    monkeypatch.setattr("faults.runs.text_file", lambda folder: folder / "text.txt")
    (tmp_path / "text.txt").write_text("other words are here\n" * 200, encoding="utf-8")
    done = here(tmp_path, out, "--resume", *SHORT)
    assert done.returncode == 2
    assert "train has changed; valid has changed" in done.stderr


def test_an_existing_run_is_not_overwritten(tmp_path, short):
    out = shutil.copytree(short / "run", tmp_path / "run")
    done = here(short, out, *SHORT)
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert comparable(hashes(out)) == comparable(hashes(short / "run"))
    assert here(short, out, "--overwrite", "--steps", "1").returncode == 0
    assert hashes(out)["step"] == "step-1"


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self/mounts").exists(), reason="needs a read-only place")
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path):
    place = tmp_path / "file"
    place.write_text("not a folder")
    began = time.perf_counter()
    done = here(tmp_path, place / "run")
    assert done.returncode == 2
    assert len(without_start_lines(done.stderr)) == 1
    assert time.perf_counter() - began < 30

"""A run on the CPU of a machine with a GPU opens no CUDA context there: torch is asked nothing about the GPU."""

import pytest
import torch

import anaphor

SETTINGS = {"model": "lstm", "width": 8, "layers": 1, "bptt": 4, "batch_size": 2, "eval_every": 2, "device": "cpu"}


@pytest.fixture(autouse=True)
def _gpu_that_must_not_be_asked(monkeypatch, text):
    def fail(*arguments, **options):
        raise AssertionError("a run on the CPU asks for the GPU")

    for name in ("is_available", "device_count", "current_device", "get_rng_state", "set_rng_state", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, fail)
    monkeypatch.setattr(torch.cuda, "_lazy_init", fail)


def train(**options):
    return anaphor.train("lm", data="text", out="run", no_test=True, progress=False, **SETTINGS, **options)


def test_training_resuming_and_loading(text):
    train(steps=4)
    train(steps=6, resume=True, force=True)
    run = anaphor.load_run("run", device="cpu")
    assert run.step in (2, 4, 6)
    assert run.evaluate()["loss"] > 0


def test_a_budget_in_minutes_whose_end_is_estimated(text):
    assert train(minutes=0.05).result["reserved_seconds"] > 0


def test_a_checkpoint_has_the_random_state_of_the_cpu_alone(text):
    from anaphor.training.checkpoint import newest

    run = train(steps=2)
    saved, _ = newest(run.folder / "checkpoints", ("random",))
    assert list(saved.parts["random"]) == ["cpu"]

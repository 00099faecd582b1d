"""Evaluation keeps totals, not the losses of a whole split."""

import gc
import weakref

import pytest

from anaphor.registry import TASKS
from anaphor.tasks.lm import experiment as lm
from anaphor.tasks.translate import experiment as translate
from anaphor.training.build import build_experiment

BASE = {"width": 8, "layers": 1, "batch_size": 2, "device": "cpu"}


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch, single_precision):
    monkeypatch.chdir(tmp_path)
    for name in ("train.txt", "valid.txt", "train.en", "train.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text("the cat sat\n\na dog sat on a log\n\n" * 30 if "txt" in name else "a cat\n" * 60)


@pytest.fixture
def alive(monkeypatch):
    """The largest number of loss tensors that existed at a time, and how many there were."""
    references, most = [], [0]

    def note(tensor):
        references.append(weakref.ref(tensor))
        most[0] = max(most[0], sum(reference() is not None for reference in references))

    def noting(original):
        def wrapped(*arguments, **options):
            for batch, losses in original(*arguments, **options):
                note(losses)
                yield batch, losses
                del losses

        return wrapped

    def noting_losses(original):
        def wrapped(*arguments, **options):
            losses = original(*arguments, **options)
            note(losses)
            return losses

        return wrapped

    monkeypatch.setattr(lm, "losses_by_batch", noting(lm.losses_by_batch))
    monkeypatch.setattr(translate, "token_losses", noting_losses(translate.token_losses))
    gc.disable()  # nothing may depend on when cycles are collected
    yield lambda: (most[0], len(references))
    gc.enable()


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("lm", {"data": ".", "bptt": 3, "eval_batch_size": 2}),
        ("lm", {"data": ".", "batching": "padded"}),
        ("translate", {"data": ".", "source": "en", "target": "de", "beam": 1}),
    ],
    ids=["stream", "padded", "translate"],
)
def test_the_losses_of_a_batch_are_dropped_before_the_next_but_one(task, settings, alive):
    experiment = build_experiment(TASKS[task].run_spec(**BASE, **settings))
    result = experiment.evaluate("valid")
    most, batches = alive()
    assert batches >= 20
    assert most <= 2
    assert result.values["loss"] > 0

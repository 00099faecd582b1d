"""The benchmark of fine-tuning: both loops train models of one shape; what is missing is said in one line."""

import sys
from contextlib import closing

import numpy as np
import pytest
import torch

from anaphor.errors import ConfigError
from benchmarks import finetune

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch, single_precision):
    monkeypatch.setitem(finetune.SHAPES, "cpu", {"layers": 2, "heads": 2, "width": 16})
    monkeypatch.setitem(finetune.BATCH_SIZE, "cpu", 4)
    monkeypatch.setattr(finetune, "TEXTS", 256)


def test_neighboring_batches_have_short_and_long_texts():
    ours = finetune.build_ours(CPU)
    widths = np.array([next(ours.batches).tokens.shape[1] for _ in range(finetune.TEXTS // 4)])
    assert widths.std() > 5
    in_random_order = widths.std() / 8**0.5  # standard deviation of the means of eight
    assert widths.reshape(-1, 8).mean(1).std() < 0.67 * in_random_order


@pytest.mark.parametrize("padding", finetune.PADDINGS)
def test_both_loops_train_models_of_the_same_size(padding):
    pytest.importorskip("accelerate")
    ours = finetune.build_ours(CPU)
    with closing(finetune.TrainerLoop(padding, CPU)) as theirs:
        before = theirs.model.classifier.weight.detach().clone()
        for step in range(3):
            ours.step(), theirs.step()
            assert theirs.trainer.state.global_step == step + 1
    assert not torch.equal(theirs.model.classifier.weight, before)
    sizes = [sum(w.numel() for w in model.parameters()) for model in (ours.step_once.experiment.model, theirs.model)]
    assert sizes[0] == sizes[1]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ConfigError, match="finetune needs accelerate: pip install"):
        finetune.TrainerLoop("longest", CPU)

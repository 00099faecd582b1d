"""The benchmark of fine-tuning: both loops train models of one shape; what is missing is said in one line."""

import sys
from contextlib import closing

import pytest
import torch

from anaphor.bench import finetune
from anaphor.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setitem(finetune.SHAPES, "cpu", {"layers": 2, "heads": 2, "width": 16})
    monkeypatch.setitem(finetune.BATCH_SIZE, "cpu", 4)
    monkeypatch.setattr(finetune, "TEXTS", 64)


def test_groups_of_batches_have_short_and_long_texts():
    ours = finetune.build_ours(CPU, group=4)
    widths = [next(ours.batches).tokens.shape[1] for _ in range(16)]
    assert len(set(widths)) > 4
    for start in range(0, 16, 4):
        assert widths[start : start + 4] == sorted(widths[start : start + 4])
        assert widths[start] <= sorted(widths)[3]
        assert widths[start + 3] >= sorted(widths)[-4]


@pytest.mark.parametrize("padding", finetune.PADDINGS)
def test_both_loops_train_models_of_the_same_size(padding):
    pytest.importorskip("accelerate")
    ours = finetune.build_ours(CPU, group=4)
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

"""What is compared in the benchmark of training is of one size and does the same work."""

import math

import pytest
import torch

from benchmarks import training


@pytest.mark.parametrize("name", training.RECIPES)
def test_ours_and_the_plain_loop_learn_from_as_many_weights(name, monkeypatch, single_precision):
    monkeypatch.setattr(training, "VOCABULARY", 500)
    ours, plain = (
        training.build_our_loop(name, torch.device("cpu")),
        training.build_plain_loop(name, torch.device("cpu")),
    )
    tokens, targets = next(training.build_plain_loop(name, torch.device("cpu")).batches)
    batch = next(training.build_our_loop(name, torch.device("cpu")).batches)
    assert torch.equal(tokens, batch.input_ids.t()), "both read the same"
    assert torch.equal(targets, batch.targets.t().flatten())
    assert ours.step_once.experiment.model.count_parameters() == sum(
        weight.numel() for weight in plain.model.parameters()
    )
    first = [loop.step() for loop in (ours, plain)]
    assert first == pytest.approx([math.log(training.VOCABULARY)] * 2, abs=0.6), "nobody knows anything yet"

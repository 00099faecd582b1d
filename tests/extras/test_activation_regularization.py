"""Activation regularization is what its definition says, part of the gradient, and part of no score."""

import dataclasses
import json

import pytest
import torch

from anaphor.api import execute
from anaphor.data.batches import IGNORE_INDEX, Batch
from anaphor.errors import ConfigError
from anaphor.extras.activation_regularization import ActivationRegularization, make_term
from anaphor.registry import TASKS
from anaphor.training.build import build_experiment
from anaphor.training.callbacks import NullCallback
from anaphor.training.load import load_run

SPEC = TASKS["lm"].run_spec(data="grammar", width=16, layers=1, batch_size=4, bptt=8, steps=60, lr=0.01, device="cpu")


def test_the_cost_is_that_of_a_loop_over_tokens():
    x, targets = torch.randn(3, 5, 4, dtype=torch.float32), torch.randint(0, 9, (3, 5))
    targets[1, 2:] = IGNORE_INDEX
    expected = 0.0
    for row in range(3):
        for time in range(5 if row != 1 else 2):
            expected += 2.0 * x[row, time].square().mean()
            if time:
                expected += 0.5 * (x[row, time] - x[row, time - 1]).square().mean()
    term = make_term(ActivationRegularization(activation_reg=2.0, temporal_activation_reg=0.5))
    torch.testing.assert_close(term(x, None, Batch(targets, targets)), expected)
    assert make_term(ActivationRegularization()) is None


@pytest.mark.slow
def test_learning_pays_it_and_no_loss_shows_it(tmp_path):
    free = build_experiment(SPEC)
    penalized = build_experiment(dataclasses.replace(SPEC, activation_reg=3.0, temporal_activation_reg=1.0))
    (plain, _), (restrained, _) = (each.loss(each.batches(0)[0], None) for each in (free, penalized))
    assert torch.equal(plain.total, restrained.total)
    assert restrained.objective > plain.objective
    loud, quiet = (_size_after(tmp_path / name, penalty) for name, penalty in (("loud", 0.0), ("quiet", 100.0)))
    assert quiet < 0.5 * loud


def _size_after(out, penalty):
    spec = dataclasses.replace(SPEC, activation_reg=penalty)
    execute(spec, out, NullCallback(), test=False)
    logged = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert logged["train_loss"] < 10, "the penalty is no part of what is told"
    experiment = load_run(out, device="cpu").experiment
    with torch.no_grad():
        x, _ = experiment.model.compute_hidden_states(experiment.batches(0)[0].input_ids)
    return float(x.square().mean())


@pytest.mark.parametrize("field", ["activation_reg", "temporal_activation_reg"])
def test_a_negative_price_is_refused_by_name(field):
    with pytest.raises(ConfigError, match=f"{field}=-1.0: it must be at least 0"):
        build_experiment(dataclasses.replace(SPEC, **{field: -1.0}))

"""What is compared in the benchmark of training is of one size and does the same work."""

import math
from functools import partial

import pytest
import torch

from anaphor.bench import overhead, training
from anaphor.data.batches import EvaluationStream
from anaphor.inspect import recorded
from anaphor.models import build
from anaphor.tasks.lm.adaptation import AdaptiveStep, Dynamic


@pytest.mark.parametrize("name", training.RECIPES)
def test_ours_and_the_plain_loop_learn_from_as_many_weights(name, monkeypatch):
    torch.set_default_dtype(torch.float32)
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


def test_a_model_without_taps_computes_the_same():
    model = build("transformer", vocabulary=9, width=16, layers=2).eval()
    tokens = torch.randint(0, 9, (2, 5))
    bare = overhead.remove_taps(model)
    assert torch.equal(bare(tokens)[0], model(tokens)[0])
    with recorded(model, "layers.1.mixer.weights") as seen:
        model(tokens)
    assert list(seen) == ["layers.1.mixer.weights"]


@pytest.mark.parametrize("name", training.ADAPTED["cpu"])
def test_dynamic_evaluation_and_the_plain_loop_give_the_same_losses(name):
    sizes = training.ADAPTED["cpu"][name] | {"vocabulary": 30, "width": 16}
    model = build(name, tied=True, **sizes).eval()
    batches = EvaluationStream(torch.randint(30, (40,)), 0, 1, 9)
    dynamic = Dynamic(0.5, 0.1)
    ours, plain = AdaptiveStep(model, carry=True).losses, partial(training.adapt_plainly, model)
    for (_, found), (_, expected) in zip(list(ours(batches, dynamic)), list(plain(batches, dynamic)), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_part_adaptation_has_a_finding_for_each_model(monkeypatch):
    small = {"lstm": {"vocabulary": 20, "width": 8, "layers": 1}}
    monkeypatch.setattr(training, "ADAPTED", {"cpu": small})
    ticks = []
    (finding,) = training.measure_adaptation(2, torch.device("cpu"), ticks.append)
    assert len(ticks) == 2 * training.count_adaptations(torch.device("cpu"))
    assert finding.value > 0
    assert finding.promise == "not slower: the interval reaches 1"

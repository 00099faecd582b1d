"""What is compared in the benchmark of training is of one size and does the same work."""

import math

import pytest
import torch

from anaphor.bench import overhead, training
from anaphor.inspect import recorded
from anaphor.models import build


@pytest.mark.parametrize("name", training.RECIPES)
def test_ours_and_the_plain_loop_learn_from_as_many_weights(name, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(training, "VOCABULARY", 500)
    ours, plain = training.build_loops(name, torch.device("cpu"))
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

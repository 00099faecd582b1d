"""The benchmark of dynamic evaluation: both sides give the same losses."""

from functools import partial

import pytest
import torch

from anaphor.data.batches import EvaluationStream
from anaphor.extras.adaptation.dynamic_evaluation import Dynamic
from anaphor.extras.adaptation.steps import AdaptiveStep
from anaphor.models import build
from benchmarks import adaptation


@pytest.mark.parametrize("name", adaptation.ADAPTED["cpu"])
def test_dynamic_evaluation_and_the_plain_loop_give_the_same_losses(name):
    sizes = adaptation.ADAPTED["cpu"][name] | {"vocabulary": 30, "width": 16}
    model = build(name, tied=True, **sizes).eval()
    batches = EvaluationStream(torch.randint(30, (40,)), 0, 1, 9)
    dynamic = Dynamic(0.5, 0.1)
    ours, plain = AdaptiveStep(model, carry=True).losses, partial(adaptation.adapt_plainly, model)
    for (_, found), (_, expected) in zip(list(ours(batches, dynamic)), list(plain(batches, dynamic)), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_part_adaptation_has_a_finding_for_each_model(monkeypatch):
    small = {"lstm": {"vocabulary": 20, "width": 8, "layers": 1}}
    monkeypatch.setattr(adaptation, "ADAPTED", {"cpu": small})
    ticks = []
    (finding,) = adaptation.measure(2, torch.device("cpu"), ticks.append)
    assert len(ticks) == adaptation.count_ticks(2, torch.device("cpu"))
    assert finding.value > 0
    assert finding.promise == "not slower: the interval reaches 1"

"""What is compared in the benchmark of input feeding does the same work."""

import pytest
import torch

from benchmarks import feeding


def test_ours_and_the_loop_over_cells_learn_the_same(monkeypatch, single_precision):
    for name, small in (("WIDTH", 32), ("VOCABULARY", 300)):
        monkeypatch.setattr(feeding, name, small)
    torch.manual_seed(0)
    ours, plain, targets = feeding.build_loops(torch.device("cpu"))
    assert 0 < targets < feeding.ROWS * (feeding.MAX_LENGTH + 1)
    with torch.no_grad():
        for mine, theirs in zip(ours.step_once.experiment.model.parameters(), _in_our_order(plain.model), strict=True):
            theirs.copy_(mine)
    steps = [(ours.step(), plain.step()) for _ in range(3)]
    for mine, theirs in steps:
        assert mine == pytest.approx(theirs, rel=1e-4)
    assert steps[0][0] != pytest.approx(steps[2][0], rel=1e-4), "it learns"


def _in_our_order(peer):
    parts = (peer.target, peer.cells, peer.score, peer.combine, peer.head, peer.source, peer.encoder)
    return [weight for part in parts for weight in part.parameters()]

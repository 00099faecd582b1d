"""The benchmark of image classifiers: both loops train, on models of one shape."""

import pytest
import torch

from benchmarks import images


@pytest.mark.parametrize("peer", images.peers())
def test_both_loops_train_models_of_the_same_size(peer, monkeypatch, single_precision):
    monkeypatch.setitem(
        images.SETTINGS, "cpu", {"model": "vit-nano", "width": 16, "layers": 2, "batch_size": 8, "position": "learned"}
    )
    monkeypatch.setattr(images, "IMAGES", 32)
    ours, theirs, _ = images.build_loops(peer, torch.device("cpu"))
    sizes = [sum(weight.numel() for weight in model.parameters())
             for model in (ours.step_once.experiment.model, theirs.model)]  # fmt: skip
    assert sizes[0] == sizes[1]
    for loop in (ours, theirs):
        losses = [loop.step() for _ in range(3)]
        assert all(0 < loss < 10 for loss in losses)

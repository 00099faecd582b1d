"""The benchmark of recording compares models that compute the same."""

import torch

from anaphor.inspect import recorded
from anaphor.models import build
from benchmarks import recording


def test_a_model_without_taps_computes_the_same():
    model = build("transformer", vocabulary=9, width=16, layers=2).eval()
    tokens = torch.randint(0, 9, (2, 5))
    bare = recording.remove_taps(model)
    assert torch.equal(bare(tokens)[0], model(tokens)[0])
    with recorded(model, "layers.1.mixer.weights") as seen:
        model(tokens)
    assert list(seen) == ["layers.1.mixer.weights"]

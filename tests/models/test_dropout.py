"""Dropout: on in training, off in evaluation, at the rate that was asked for, in every place."""

import pytest
import torch

from anaphor.inspect import recorded
from anaphor.mixers import AttentionSpec, Span, SVDSpec
from anaphor.models import BlockSpec, build
from anaphor.models.block import FeedForward, Frame

RATE = 0.3


def share_of_zeros(tensor):
    return (tensor == 0).double().mean().item()


def block_spec(**options):
    return BlockSpec(mixer=AttentionSpec(width=8, heads=2), dropout=RATE, **options)


def test_after_a_layer():
    frame, x = Frame(block_spec(norm="none"), 8, 8), torch.ones(10, 100, 8)
    assert share_of_zeros(frame.leave(torch.zeros_like(x), x)) == pytest.approx(RATE, abs=0.03)
    assert torch.equal(frame.eval().leave(torch.zeros_like(x), x), x)


def test_inside_the_feed_forward_network():
    network = FeedForward(4, 4, "relu", RATE)
    with torch.no_grad():
        for layer in (network.up, network.down):
            layer.weight.copy_(torch.eye(4))
            layer.bias.zero_()
    x = torch.ones(50, 50, 4)
    assert share_of_zeros(network(x)) == pytest.approx(RATE, abs=0.03)
    assert torch.equal(network.eval()(x), x)


def test_after_the_embedding():
    model = build("lstm", vocabulary=5, width=8, dropout=RATE)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    tokens = torch.randint(0, 5, (20, 50))
    model(tokens)
    model.eval()(tokens)
    assert share_of_zeros(seen[0]) == pytest.approx(RATE, abs=0.03)
    assert share_of_zeros(seen[1]) == 0


@pytest.mark.parametrize("watched", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("spec", [AttentionSpec, SVDSpec], ids=["attention", "svd"])
def test_on_the_weights_of_attention(spec, watched):
    """With values of one the output is the sum of the weights that are left, over what is kept: one on average."""
    mixer = spec(width=4, heads=1, dropout=RATE, bias=False).build()
    with torch.no_grad():
        mixer.project.weight.zero_()
        mixer.project.weight[8:] = torch.eye(4)
        mixer.out.weight.copy_(torch.eye(4))
    x = torch.ones(60, 12, 4)

    def run():
        if not watched:
            return mixer(x, mixer.initial_state(x), Span.whole(x))[0]
        with recorded(mixer, "weights") as seen:
            y = mixer(x, mixer.initial_state(x), Span.whole(x))[0]
        torch.testing.assert_close(seen["weights"].sum(-1), torch.ones(60, 1, 12))  # a tap shows them before dropout
        return y

    last = run()[:, -1]
    assert last.std() > 0.05
    assert last.mean().item() == pytest.approx(1, abs=0.05)
    mixer.eval()
    torch.testing.assert_close(run(), x)


def test_a_rate_of_zero_changes_nothing_in_training():
    model = build("transformer", vocabulary=5, width=8)
    tokens = torch.randint(0, 5, (2, 6))
    assert torch.equal(model.train()(tokens)[0], model.eval()(tokens)[0])

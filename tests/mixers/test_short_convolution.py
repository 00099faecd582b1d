"""The short causal convolution, a part of its own in front of every mixer or inside those that have a place for it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.mixers import MIXERS, Span, contract, mixer_spec
from anaphor.mixers.short_convolution import ShortConvolution
from anaphor.models import build, preset
from anaphor.models.backbone import Block, BlockSpec
from anaphor.models.spec import BackboneSpec

STREAMING = [name for name in MIXERS if mixer_spec(name, width=8).streams]


class Padded(nn.Module):
    """A block that behaves as a mixer does: zeros in padding."""

    def __init__(self, block):
        super().__init__()
        self.block, self.streams, self.width_out = block, True, block.width_out
        self.initial_state = block.initial_state

    def forward(self, x, state, span):
        y, state = self.block(x, state, span)
        return span.zero_padding(y), state


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_torchs_depthwise_convolution_of_the_past(bias):
    convolution, x = ShortConvolution(6, 4, bias=bias), torch.randn(2, 9, 6)
    y, newest = convolution(x, convolution.initial_state(2), Span.whole(x))
    expected = F.conv1d(F.pad(x.mT, (3, 0)), convolution.weight[:, None], convolution.bias, groups=6).mT
    torch.testing.assert_close(y, expected)
    assert torch.equal(newest, x[:, -3:])


@pytest.mark.parametrize("name", STREAMING)
def test_every_mixer_behind_it_keeps_the_promises(name):
    torch.manual_seed(1)
    block = Block(BlockSpec(mixer=mixer_spec(name, width=8), short_conv=3, feedforward=8)).eval()
    mixer, x, more = Padded(block), 0.5 * torch.randn(3, 6, 8), 0.5 * torch.randn(3, 3, 8)
    contract.chunks_equal_whole(mixer, x, [1, 2, 5])
    contract.padding_leaves_no_trace(mixer, x, more, torch.tensor([6, 2, 0]))
    contract.rows_can_be_reordered(mixer, x, more, torch.tensor([2, 0, 0]))
    contract.gradient_crosses_the_seam(mixer, x, more)
    contract.old_state_survives(mixer, x, more)


@pytest.mark.parametrize("mixers", [("lstm",), ("attention", "mamba2"), ("gru", "gated-delta", "attention")])
def test_it_is_on_or_off_for_a_stack_and_for_each_layer(mixers):
    def convolutions(**options):
        model = build("lstm", vocabulary=7, width=8, mixers=mixers, **options)
        sizes = []
        for block in model.layers:
            inner = getattr(block.mixer, "convolution", None)
            found = [one.kernel_size for one in (block.convolution, inner) if one is not None]
            assert len(found) <= 1, "it is there once"
            sizes.append(sum(found))
        return sizes

    assert convolutions() == [0] * len(mixers)
    assert convolutions(short_conv=4) == [4] * len(mixers)
    assert convolutions(layer_short_convs=(3, 0, 2)[: len(mixers)]) == [3, 0, 2][: len(mixers)]


def test_an_lstm_with_it_looks_at_the_newest_inputs():
    spec = preset("lstm", vocabulary=7, width=8, short_conv=4)
    assert spec.used_settings()["short_conv"] == 4
    model = spec.build().eval()
    _, state = model(torch.randint(0, 7, (2, 5)))
    assert state.layers[0].inputs.shape == (2, 3, 8)
    assert model.layers[0].state_bytes(100) == (3 + 2) * 8 * 8


@pytest.mark.parametrize("size", [-1, 1, 65])
def test_a_size_that_makes_no_sense_is_refused(size):
    message = rf"short_conv={size}: it must be 0 \(none\), or from 2 to 64"
    for mixers in ("lstm", "delta"):
        with pytest.raises(ConfigError, match=message):
            BackboneSpec(width=8, mixers=(mixers,), short_conv=size)


def test_a_decoder_starts_from_the_state_of_an_encoder_behind_it():
    from anaphor.models import build_seq2seq

    sizes = {"source_vocabulary": 7, "vocabulary": 7, "width": 8, "short_conv": 3}
    for options in ({"condition": "state", "encoder": ("lstm",)}, {}):
        model = build_seq2seq("luong", **sizes, **options).eval()
        source, lengths = torch.randint(0, 7, (2, 5)), torch.tensor([5, 3])
        logits, _ = model(torch.randint(0, 7, (2, 4)), model.encode(source, lengths))
        assert logits.isfinite().all()

"""Weights of a new model: a mixer draws its own, or the scheme of the model does where the mixer follows it."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from anaphor.mixers import MIXERS, Mixer, MixerSpec
from anaphor.mixers.base import Span
from anaphor.mixers.recurrent import LSTMSpec
from anaphor.models import BackboneSpec, build, preset, summarize
from anaphor.models.initialize import INIT_SCHEMES

SCHEMES = list(INIT_SCHEMES)


class Gated(Mixer):
    """A gate that starts open, and a part that is a mixer itself."""

    def __init__(self, spec):
        super().__init__(spec)
        self.gate = nn.Linear(spec.width, spec.out)
        self.names = nn.Embedding(3, spec.out)
        self.inner = LSTMSpec(width=spec.width, width_out=spec.out).build()
        self.open()

    def open(self):
        for weight in self.parameters():
            nn.init.constant_(weight, 4.0)

    def initial_state(self, like):
        return self.inner.initial_state(like)

    def mix(self, x, state, span: Span):
        y, state = self.inner(x, state, span)
        return self.gate(x).sigmoid() * y, state


class Resetting(Gated):
    def open(self):
        pass

    def reset_parameters(self):
        for weight in self.parameters():
            nn.init.constant_(weight, 4.0)


class Following(Gated):
    follows_init_scheme = True


@dataclass(frozen=True, kw_only=True)
class GatedSpec(MixerSpec):
    kind = Gated

    def build(self):
        return self.kind(self)


class ResettingSpec(GatedSpec):
    kind = Resetting


class FollowingSpec(GatedSpec):
    kind = Following


@pytest.fixture(autouse=True)
def _own_mixers(monkeypatch):
    own = {"gated": GatedSpec, "resetting": ResettingSpec, "following": FollowingSpec}
    monkeypatch.setattr(MIXERS, "_entries", {**MIXERS._entries, **own})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["gated", "resetting"])
def test_a_mixer_of_ones_own_initializes_itself(name, scheme):
    mixer = BackboneSpec(width=4, mixers=(name,), init_scheme=scheme).build().mixers[0]
    assert {weight.unique().tolist()[0] for weight in mixer.parameters()} == {4.0}
    assert all(len(weight.unique()) == 1 for weight in mixer.parameters())


def test_a_mixer_may_follow_the_scheme():
    mixer = BackboneSpec(width=64, mixers=("following",)).build().mixers[0]
    assert mixer.gate.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not mixer.gate.bias.any()


def test_what_follows_the_scheme_writes_to_the_residual_stream_with_less():
    spec = BackboneSpec(width=64, mixers=("attention",), layers=8)
    mixer = spec.build().mixers[0]
    assert mixer.project.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert mixer.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)  # two writers in each of eight layers
    alone = replace(spec, residual=False, norm="none", feedforward=0).build().mixers[0]
    assert alone.out.weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_recurrent_layers_are_initialized_as_torch_does(scheme):
    for name in ("lstm", "gru", "rnn-tanh", "bidirectional-lstm"):
        mixer = BackboneSpec(width=64, mixers=(name,), causal=False, init_scheme=scheme).build().mixers[0]
        kernel = getattr(mixer, "forward_layer", mixer).kernel
        bound = kernel.hidden_size**-0.5
        assert 0.95 * bound < kernel.weight_hh_l0.abs().max() <= bound


@pytest.mark.parametrize("name", ["lstm", "transformer-xl", "linear", "hybrid", "qrnn"])
def test_a_summary_draws_no_random_numbers(name):
    before = torch.get_rng_state()
    summarize(preset(name, vocabulary=9, width=8))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_gives_one_model():
    first, again = ((torch.manual_seed(1), build("hybrid", vocabulary=9, width=8))[1] for _ in range(2))
    assert all(torch.equal(mine, other) for mine, other in zip(first.parameters(), again.parameters(), strict=True))

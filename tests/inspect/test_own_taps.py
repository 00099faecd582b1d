"""Taps of a mixer of one's own are shown by their names and shapes, whatever its class."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from anaphor.inspect import look_inside, unit_maps
from anaphor.mixers import MIXERS, Mixer, MixerSpec
from anaphor.models import build
from anaphor.taps import Tap

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


class State(NamedTuple):
    memory: Tensor


class Own(Mixer):
    """A running mean with a gate. `shapes` changes what its taps get."""

    state_type = State

    def __init__(self, spec):
        super().__init__(spec)
        self.gate = nn.Linear(spec.width, spec.out)
        self.weights, self.gates, self.states = Tap(), Tap(), Tap()
        self.shapes = {}

    def initial_state(self, like):
        return State(like.new_zeros(len(like), self.width_in))

    def tap(self, kind, tensor):
        getattr(self, kind)(self.shapes.get(kind, lambda tensor: tensor)(tensor))

    def mix(self, x, state, span):
        f, steps = self.gate(x).sigmoid(), x.shape[1]
        weights = torch.ones(len(x), 2, steps, steps).tril()
        self.tap("weights", weights / weights.sum(-1, keepdim=True))
        memory = state.memory[:, None] + x.cumsum(1)
        self.tap("states", memory[:, :, None])
        self.tap("gates", torch.stack((f, x - 1), 2))
        return f * memory, State(memory[:, -1])


class Named(Own):
    gate_names = ("forget", "candidate")
    state_names = ("leak",)


@dataclass(frozen=True, kw_only=True)
class OwnSpec(MixerSpec):
    kind = Own

    def build(self):
        return self.kind(self)


class NamedSpec(OwnSpec):
    kind = Named


@pytest.fixture(autouse=True)
def _own_mixers(monkeypatch):
    monkeypatch.setattr(MIXERS, "_entries", {**MIXERS._entries, "own": OwnSpec, "named": NamedSpec})


def look(name, **shapes):
    model = build("transformer", vocabulary=9, width=8, mixers=[name, "gru"]).eval()
    model.layers[0].mixer.shapes = shapes
    return model, look_inside(model, TOKENS, tokens=list("abcde"))


@pytest.mark.parametrize(
    ("name", "parts"),
    [("own", ["memory", "gate 0", "gate 1"]), ("named", ["leak", "forget", "candidate"])],
)
def test_gates_states_and_weights_are_shown(name, parts):
    model, found = look(name)
    own = [one for one in found.units if one.layer == "layers.0.mixer"]
    assert [one.part for one in own] == parts
    assert [one.kind for one in own] == ["states", "gates", "gates"]
    assert [one.bounded for one in own] == [False, True, False]
    assert all(one.values.shape == (8, 5) and one.of == 8 for one in own)
    assert [one.part for one in found.units if one.layer == "layers.1.mixer"] == [
        "hidden", "reset", "update", "candidate"
    ]  # fmt: skip
    assert found.maps["layers.0.mixer.weights"].shape == (2, 5, 5)
    assert [head.layer for head in found.heads] == [0, 0]
    assert found.notes == ("The rollout skips layer 1: no attention.",)
    assert [one.part for one in unit_maps(model, TOKENS, most=2)][:3] == parts


def test_a_single_state_head_or_gate_needs_no_axis_of_its_own():
    _, found = look("own", states=lambda tensor: tensor[:, :, 0], weights=lambda tensor: tensor[:, 0])
    assert found.units[0].part == "memory"
    assert found.maps["layers.0.mixer.weights"].shape == (1, 5, 5)
    _, found = look("own", gates=lambda tensor: tensor[:, :, 0])
    assert [one.part for one in found.units][:2] == ["memory", "gate"]


def test_gates_of_another_width_have_units_of_their_own():
    _, found = look("own", gates=lambda tensor: tensor[..., :3])
    assert [one.of for one in found.units][:3] == [8, 3, 3]


def test_a_layer_with_gates_alone_is_shown():
    _, found = look("own", states=lambda tensor: tensor[:, :, :, :, None])
    assert [one.part for one in found.units][:2] == ["gate 0", "gate 1"]


@pytest.mark.parametrize(
    ("kind", "change", "given"),
    [
        ("states", lambda tensor: tensor[0, 0], "[1, 8], and must be [1, 5, parts, features]"),
        ("states", lambda tensor: tensor[:, 1:], "[1, 4, 1, 8], and must be [1, 5, parts, features]"),
        ("gates", lambda tensor: tensor.long(), "[1, 5, 2, 8], and must be [1, 5, parts, features]"),
        ("weights", lambda tensor: tensor[..., None], "[1, 2, 5, 5, 1], and must be [1, heads, 5, keys]"),
        ("weights", lambda tensor: tensor[:, :, 1:], "[1, 2, 4, 5], and must be [1, heads, 5, keys]"),
    ],
)
def test_a_tap_of_another_shape_is_named(kind, change, given):
    _, found = look("own", **{kind: change})
    assert any(
        note.startswith(f"layers.0.mixer.{kind} is not shown: its shape is ") and given in note for note in found.notes
    )
    assert f"layers.0.mixer.{kind}" not in found.maps


def test_maps_over_other_keys_than_the_tokens_have_no_rollout():
    _, found = look("own", weights=lambda tensor: torch.cat((tensor, tensor), -1))
    assert found.maps["layers.0.mixer.weights"].shape == (2, 5, 10)
    assert found.notes[-1] == "No rollout: in layer 0 the keys are not the tokens."

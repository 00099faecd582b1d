"""What a stack that is spelled out by its mixers gets around them where nothing else is said: blocks and positions.

The mixers decide by what their specs declare. Layers that stand alone, as recurrent ones do, are stacked as they are.
Any other layer, attention for example, brings a norm, a residual connection and a feed-forward network to every layer.
Positions are for attention that no recurrence gives the order of the tokens. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anaphor.errors import ConfigError
from anaphor.mixers.spec import MixerSpec, mixer_spec, options_of
from anaphor.models.spec import BackboneSpec, find_position
from anaphor.registry import MIXERS

PLAIN: Mapping[str, Any] = {
    "norm": "none",
    "residual": False,
    "feedforward": 0,
    "tied": False,
    "head_bias": True,
    "init_scheme": "uniform",
}
"""Layers without norm, residual connection and feed-forward network, as textbooks have them."""
BLOCKS = ("norm", "residual", "feedforward")
SPELLED_OUT = ("layer_norms", "layer_residuals")
"""Where one of these is given, so are the blocks, layer by layer."""
NORMS = {"before": "pre-norm", "after": "post-norm", "none": "no norm"}


@dataclass(frozen=True)
class Role:
    """What a mixer is in a stack."""

    stands_alone: bool
    """Whether it needs no norm, residual connection and feed-forward network."""
    is_recurrence: bool
    """Whether it carries a state of constant size through the text, and so tells the order of the tokens."""


def names_other_mixers(preset: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether mixers are given that are not those of the preset, in whatever number and order."""
    return bool(given.get("mixers")) and set(given["mixers"]) != set(preset.get("mixers", ()))


def find_roles(settings: Mapping[str, Any]) -> list[Role]:
    """The roles of the mixers that are named in the settings of a model."""
    width = settings.get("width", BackboneSpec.width)
    return [_find_role(name, {**settings, "width": width}) for name in settings["mixers"] if name in MIXERS]


def _find_role(name: str, settings: Mapping[str, Any]) -> Role:
    accepted = options_of(name)
    try:
        spec = mixer_spec(name, **{option: value for option, value in settings.items() if option in accepted})
    except ConfigError:  # the model will refuse the option, or has layers of other widths
        spec = MixerSpec(width=1)
    recurs = spec.streams and not spec.grows and "position" not in accepted
    return Role(spec.stands_alone, is_recurrence=recurs)


def choose_blocks(
    preset: Mapping[str, Any], overrides: Mapping[str, Any], with_blocks: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a preset of plain layers, or those of the preset `with_blocks` where mixers are named that do not
    stand alone. A preset that has blocks keeps them."""
    is_plain = all(preset.get(name) == PLAIN[name] for name in BLOCKS)
    is_spelled_out = any(overrides.get(name) for name in SPELLED_OUT)
    if not names_other_mixers(preset, overrides) or not is_plain or is_spelled_out:
        return dict(preset)
    if all(role.stands_alone for role in find_roles({**preset, **overrides})):
        return dict(preset)
    return {**with_blocks, **{name: value for name, value in preset.items() if name not in (*PLAIN, "pooling")}}


def choose_position(settings: Mapping[str, Any], overrides: Mapping[str, Any], carried: str, restarted: str) -> str:
    """The position encoding of a language model whose mixers are named. Beside a recurrence there is none that is added
    to the embeddings: it would run on with the carried state, to positions that training never saw.

    Args:
        settings: Those of the model without an encoding for these mixers.
        overrides: What is given.
        carried: The encoding for attention with a memory, whose state is carried as well.
        restarted: The one for attention whose state is not carried.
    """
    position: str = settings.get("position", "none")
    together = {**settings, **overrides}
    if together.get("layer_positions"):
        return position
    if any(role.is_recurrence for role in find_roles(together)):
        return "none" if find_position(position).method == "embed" else position
    if position != "none":
        return position
    return restarted if together.get("memory") is None else carried


def describe_surroundings(spec: BackboneSpec) -> str:
    """What stands around the mixers: "pre-norm, residual connections, feed-forward networks, no positions"."""
    if spec.layer_norms or spec.layer_residuals:
        parts = ["norms and residual connections as given for each layer"]
    else:
        parts = [NORMS[spec.norm], f"{'' if spec.residual else 'no '}residual connections"]
    parts.append(f"{'no ' if spec.feedforward == 0 else ''}feed-forward networks")
    if spec.layer_positions:
        parts.append("positions as given for each layer")
    else:
        parts.append("no positions" if spec.position == "none" else f"{spec.position} positions")
    return ", ".join(parts)

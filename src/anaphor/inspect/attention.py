"""Attention maps by the name of their tap, the average of a layer's heads, and what flows through all layers.

A map is [H, T, S]: each of the T new tokens, and how much it takes of each of the S tokens it may look at. The last T
of those are the new tokens themselves; a carried state puts older ones before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.inspect.record import recorded
from anaphor.mixers.low_rank import LowRank
from anaphor.models.backbone import SOURCE_MIXERS
from anaphor.taps import taps_of

ROUNDING = 1e-3
"""How far from one the sum of a row may be, and still be called one: half precision has three digits."""


def attention_maps(model: nn.Module, *inputs: Any) -> dict[str, Tensor]:
    """Run `model(*inputs)` on one text, and give the map of every layer that has one: `{"layers.1.mixer.weights": …}`.

    A language model takes the tokens, `[T]` or `[1, T]`, and a state behind them if there is a past; a stack takes
    `x, state, span`.
    """
    if not any(_is_map(model, name) for name in taps_of(model)):
        return {}
    with eval_mode(model), torch.no_grad(), recorded(model, "*weights") as seen:
        model(*as_row(inputs))
    return maps_of(model, seen)


def maps_of(model: nn.Module, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The maps among what was recorded, in the order of the layers, all of them over tokens."""
    return {name: _over_tokens(model, name, seen[name]) for name in seen if _is_map(model, name)}


def _is_map(model: nn.Module, name: str) -> bool:
    path, _, tap = name.rpartition(".")
    return tap == "weights" and not isinstance(model.get_submodule(path), SOURCE_MIXERS)  # they look at another text


def _over_tokens(model: nn.Module, name: str, weights: Tensor) -> Tensor:  # -> [H, T, S]
    if len(weights) != 1:
        raise ConfigError(f"a map is of one text, but {name} saw {len(weights)} rows: give one of them")
    path, _, _ = name.rpartition(".")
    layer = model.get_submodule(path)
    if weights.ndim == 2:  # one average for all tokens: every one of them looks alike
        weights = weights[:, None, None, :].expand(-1, -1, weights.shape[-1], -1)
    if isinstance(layer, LowRank):  # a token is worth what the directions seen are worth times its share in them
        weights = weights @ layer.along_time[:, : weights.shape[-2]]
    if "returning" in path.split("."):  # read from the end: put both axes back
        weights = weights.flip(-1, -2)
    return weights[0].detach().cpu()


def as_row(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """One text without a row round it gets one. [T] -> [1, T]"""
    first, *others = inputs
    return (first[None] if isinstance(first, Tensor) and first.ndim == 1 else first, *others)


def head_average(weights: Tensor) -> Tensor:
    """[H, T, S] -> [T, S]"""
    return weights.mean(0)


def shares(weights: Tensor) -> Tensor:
    """Rows divided by their sum, for normalisers whose rows do not sum to one; a row of zeros stays. Same shape."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total.where(total > 0, 1), 0)


def sums_to_one(weights: Tensor) -> bool:
    """Whether every row that looks at anything does."""
    total = weights.sum(-1)
    return bool(((total - 1).abs() < ROUNDING)[weights.ne(0).any(-1)].all())


def rollout(maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How much of each token has reached each place by then: [T, T] under the name of each layer.

    Attention rollout (Abnar & Zuidema, 2020). A layer counts as half its average head, in shares, and half the token
    itself, for the residual connection; layers are multiplied from the first to the last. What lies between two maps,
    such as a recurrent layer, counts as nothing.
    """
    reached: Tensor | None = None
    found: dict[str, Tensor] = {}
    for name, weights in maps.items():
        _, rows, columns = weights.shape
        if rows != columns:
            raise ConfigError(f"a rollout needs the whole text, but {name} has {rows} tokens that look at {columns}")
        if bool((weights < 0).any()):
            raise ConfigError(f"a rollout follows shares, but {name} has weights below zero")
        identity = torch.eye(rows, dtype=weights.dtype)
        average = head_average(shares(weights))
        # A token that looks at nothing is left with itself.
        layer = shares(average + identity)
        reached = layer if reached is None else layer @ reached
        found[name] = reached
    return found

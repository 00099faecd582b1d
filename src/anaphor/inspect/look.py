"""A look at one text in one model: everything that the page, the figures and the JSON show."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError, DataError
from anaphor.evaluation import ScoredText, check_length, eval_mode
from anaphor.inspect.attention import maps_of, rollout, sums_to_one
from anaphor.inspect.heads import HeadSummary, ranked, summarise
from anaphor.inspect.record import recorded
from anaphor.inspect.recurrence import UnitMap, units_of
from anaphor.inspect.tokens import losses_of
from anaphor.models import LanguageModel
from anaphor.taps import taps_of

LARGEST = 250_000_000
"""Weights that are held at once: a gigabyte in single precision."""


@dataclass(frozen=True)
class Look:
    """One text in one model. Places count from the boundary before the text, which is looked at like any token."""

    model: str
    """What the layers are."""
    tokens: tuple[str, ...]
    """The boundary and the text."""
    joined: bool
    """Whether tokens stand side by side as they are, or are words with spaces between them."""
    scored: ScoredText
    """The loss of every token but the boundary."""
    maps: dict[str, Tensor]
    """[H, T, T] under the tap's name."""
    rollouts: dict[str, Tensor]
    """[T, T] under the same names; empty where there is none, and then a note says why."""
    heads: list[HeadSummary]
    """Ranked."""
    units: list[UnitMap]
    notes: tuple[str, ...]
    """What a reader has to know."""

    def heads_of(self, layer: int, head: int | None = None) -> list[tuple[str, int]]:
        """The maps of a layer as (name, head), or one of them; an error says which there are."""
        found = [
            (name, number) for name in self.maps if layer_of(name) == layer for number in range(len(self.maps[name]))
        ]
        if not found:
            others = sorted(set(map(layer_of, self.maps)))
            there = f"attention was looked at in {_listed(others)}" if others else "no layer has one"
            raise ConfigError(f"layer {layer} has no attention map: {there}")
        if head is None:
            return found
        if not 0 <= head < len(found):
            raise ConfigError(f"layer {layer} has no head {head}: its heads are 0 to {len(found) - 1}")
        return found[head : head + 1]


def layer_of(name: str) -> int:
    """The number of the layer a tap of a language model belongs to."""
    return int(name.split(".")[1])


def place_of(name: str) -> str:
    """The same for people: '2', or '2 onward' and '2 returning' where a layer reads in both directions."""
    _, number, *between, _ = name.split(".")
    return " ".join([number, *(part for part in between if part != "mixer")])


def look_at(model: LanguageModel, tokenizer: Tokenizer, text: str, layers: Sequence[int] = ()) -> Look:
    """Run a text through a model, after the tokenizer's boundary and without a past, and keep what can be seen.

    `layers` are those to look at; none given means all.
    """
    count = len(model.layers)
    for layer in layers:
        if not 0 <= layer < count:
            raise ConfigError(f"there is no layer {layer}: they are 0 to {count - 1}")
    ids = [tokenizer.boundary, *tokenizer.encode_sentence(text).tolist()]
    chosen = sorted(set(layers)) or list(range(count))
    check_length(model, len(ids), "the text with its boundary")
    _refuse_too_much(model, chosen, len(ids))
    scored = losses_of(model, tokenizer, text)
    row = torch.tensor([ids], device=model.device)
    tapped = {layer_of(name) for name in taps_of(model) if name.startswith("layers.")}
    seen: dict[str, Tensor] = {}
    with eval_mode(model), torch.no_grad(), ExitStack() as opened:
        recordings = [opened.enter_context(recorded(model, f"layers.{layer}.*")) for layer in chosen if layer in tapped]
        model.features(row)
    for recording in recordings:
        seen |= recording
    maps = maps_of(model, seen)
    rollouts, why_not = _rolled(model, maps)
    return Look(
        model=_described(model),
        tokens=tuple(tokenizer.tokens[number] for number in ids),
        joined=tokenizer.kind not in ("word", "treebank"),
        scored=scored,
        maps=maps,
        rollouts=rollouts,
        heads=ranked(summarise(maps, ids)),
        units=units_of(model, seen),
        notes=(*_blind([layer for layer in chosen if layer not in tapped]), *_notes(model, maps), *why_not),
    )


def _refuse_too_much(model: LanguageModel, layers: Sequence[int], tokens: int) -> None:
    names = [name for name in taps_of(model) if name.endswith(".weights") and layer_of(name) in layers]
    heads = sum(getattr(model.get_submodule(name.rpartition(".")[0]).spec, "heads", 1) for name in names)
    if heads * tokens**2 > LARGEST:
        raise DataError(
            f"{heads} heads on {tokens:,} tokens have {heads * tokens**2:,} weights, and at most {LARGEST:,} "
            f"can be shown: cut the text, or choose fewer layers"
        )


def _described(model: LanguageModel) -> str:
    mixers = model.spec.mixers_by_layer
    runs = [f"{mixers.count(name)} × {name}" for name in dict.fromkeys(mixers)]
    return f"{', '.join(runs)}; width {model.spec.width}; {model.count_parameters():,} parameters"


def _rolled(model: LanguageModel, maps: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The rollout, and a note where there is none or where it is not of the whole model."""
    if not maps:
        return {}, []
    if set(maps) != {name for name in taps_of(model) if name.endswith(".weights")}:
        return {}, ["There is no rollout: it needs every layer that has attention."]
    signed = [layer_of(name) for name, weights in maps.items() if bool((weights < 0).any())]
    if signed:
        return {}, [f"There is no rollout: {_listed(signed)} has weights below zero."]
    both = sorted({layer_of(name) for name in maps if "returning" in name})
    if both:
        return {}, [f"There is no rollout: {_listed(both)} reads in two directions that do not follow each other."]
    others = [layer for layer in range(len(model.layers)) if layer not in map(layer_of, maps)]
    passed = [f"The rollout passes over {_listed(others)}: there is no attention."] if others else []
    return rollout(maps), passed


def _blind(layers: Sequence[int]) -> list[str]:
    return [f"Nothing is shown of {_listed(layers)}: there is no tap to look through."] if layers else []


def _notes(model: LanguageModel, maps: dict[str, Tensor]) -> list[str]:
    notes = []
    if not model.causal:
        notes.append("This model sees later tokens, and so what it is to predict: its losses make no perplexity.")
    loose = sorted({layer_of(name) for name, weights in maps.items() if not sums_to_one(weights)})
    if loose:
        notes.append(
            f"Rows do not sum to one in {_listed(loose)}: the summary and the rollout divide them by their sum."
        )
    return notes


def _listed(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"

"""What happens inside a model while it reads one sequence: the data behind page, figures and JSON of `anaphor look`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError, DataError
from anaphor.evaluation import ScoredText, check_length, eval_mode, score_text
from anaphor.inspect.maps import (
    UNIT_TAPS,
    HeadSummary,
    UnitMap,
    as_batch,
    has_units,
    has_weights,
    layer_of,
    rank_heads,
    rollout,
    rows_sum_to_one,
    select_maps,
    select_units,
    summarize_heads,
)
from anaphor.inspect.notebook import ShownAsPage
from anaphor.inspect.record import recorded
from anaphor.models import LanguageModel
from anaphor.taps import taps_of

MAX_WEIGHTS = 250_000_000
"""Attention weights held at once: a gigabyte in single precision."""
SHOWN = ("weights", *UNIT_TAPS)
"""Names of the taps that a look shows."""


@dataclass(frozen=True)
class Look(ShownAsPage):
    """One sequence in one model. Its representation in a notebook leaves out what fills pages."""

    model: str
    """Description of the model."""
    tokens: tuple[str, ...]
    """Names of the positions. For a text: the tokenizer's boundary and the tokens."""
    maps: dict[str, Tensor] = field(repr=False)
    """[H, T, T] by the tap's name."""
    rollouts: dict[str, Tensor] = field(repr=False)
    """[T, T] by the same names; empty if there is no rollout, and then a note says why."""
    heads: list[HeadSummary] = field(repr=False)
    """Ranked."""
    units: list[UnitMap] = field(repr=False)
    notes: tuple[str, ...]

    def heads_of(self, layer: int, head: int | None = None) -> list[tuple[str, int]]:
        """The maps of a layer as (name, head), or one of them."""
        names = [name for name in self.maps if layer_of(name) == layer]
        heads = [(name, number) for name in names for number in range(len(self.maps[name]))]
        if not heads:
            others = sorted({index for index in map(layer_of, self.maps) if index is not None})
            where = f"attention maps are in {_format_layers(others)}" if others else "no layer has one"
            raise ConfigError(f"layer {layer} has no attention map: {where}")
        if head is None:
            return heads
        if not 0 <= head < len(heads):
            raise ConfigError(f"layer {layer} has no head {head}: its heads are 0 to {len(heads) - 1}")
        return heads[head : head + 1]


@dataclass(frozen=True)
class TextLook(Look):
    """A text in a language model."""

    joined: bool
    """Whether tokens are shown without spaces between them."""
    scored: ScoredText = field(repr=False)
    """Losses of all tokens but the first."""
    summary: str
    """Scores of the whole text, as the page shows them; the caller decides which."""


@dataclass(frozen=True)
class ClassLook(Look):
    """A text in a classifier."""

    joined: bool
    """Whether tokens are shown without spaces between them."""
    label: str | None
    """The class that the contributions are of; None for an encoder without a head."""
    contributions: tuple[float, ...]
    """What each token adds to the logit of that class, to first order: gradient × input, summed over the features.
    Empty without a head."""
    summary: str
    """The prediction, as the page shows it."""


def layer_label(name: str) -> str:
    """Label of a tap's layer: '2', or '2 forward' and '2 backward' for the two directions of a layer."""
    _, number, *parts, _ = name[name.rindex("layers.") :].split(".")
    return " ".join([number, *(part.removesuffix("_layer") for part in parts if part != "mixer")])


def look_inside(model: nn.Module, *inputs: Any, tokens: Sequence[str], layers: Sequence[int] = ()) -> Look:
    """Run `model(*inputs)` on one sequence and collect attention maps, gates and states of all layers, or of `layers`.

    Works for every model whose layers are named `layers.N`; `tokens` are the names of the positions.
    """
    existing = sorted({index for name, _ in model.named_modules() if (index := layer_of(f"{name}.")) is not None})
    for layer in layers:
        if layer not in existing:
            raise ConfigError(f"there is no layer {layer}: layers are {existing[0]} to {existing[-1]}")
    chosen = sorted(set(layers)) or existing
    check_memory(model, chosen, len(tokens), "shorten the text, or choose fewer layers")
    tapped = {layer_of(name) for name in taps_of(model)}
    wanted = [name for name in taps_of(model) if layer_of(name) in chosen and name.rpartition(".")[2] in SHOWN]
    with eval_mode(model), torch.no_grad(), ExitStack() as stack:
        taps = [stack.enter_context(recorded(model, name)) for name in wanted]
        model(*as_batch(inputs))
    recordings = {name: tensor for recording in taps for name, tensor in recording.items()}
    values, shape_notes = _check_shapes(recordings, len(tokens))
    maps = select_maps(model, values)
    rollouts, rollout_notes = compute_rollout(model, maps, existing)
    untapped = [layer for layer in chosen if layer not in tapped]
    notes = [f"{_format_layers(untapped, 'Layer')}: nothing to show, because there is no tap."] if untapped else []
    return Look(
        model=type(model).__name__,
        tokens=tuple(tokens),
        maps=maps,
        rollouts=rollouts,
        heads=rank_heads(summarize_heads(maps, tokens)),
        units=select_units(model, values),
        notes=(*notes, *_sequential_notes(model, chosen), *shape_notes, *_normalization_note(maps), *rollout_notes),
    )


def _sequential_notes(model: nn.Module, layers: Sequence[int]) -> list[str]:
    """A line for the layers of a mixer that has no implied attention and says why."""
    found: dict[str, list[int]] = {}
    for path, module in model.named_modules():
        reason = getattr(getattr(module, "spec", None), "sequential_reason", "")
        layer = layer_of(f"{path}.")
        if reason and layer in layers:
            found.setdefault(reason, []).append(layer or 0)
    return [
        f"{_format_layers(numbers, 'Layer')}: no implied attention, because {reason}."
        for reason, numbers in found.items()
    ]


def look_at(model: LanguageModel, tokenizer: Tokenizer, text: str, layers: Sequence[int] = ()) -> TextLook:
    """Run a text through a language model, after the tokenizer's boundary and without a past, with its losses."""
    ids = tokenizer.encode_prompt(text)
    check_length(model, len(ids), "the text with its boundary")
    tokens = [tokenizer.tokens[number] for number in ids]
    look = look_inside(model, torch.tensor([ids], device=model.device), tokens=tokens, layers=layers)
    scored = score_text(model, tokenizer, text)
    noncausal = () if model.causal else ("This model is not causal: it sees the tokens that it predicts.",)
    changes = {
        "model": describe_layers(model),
        "joined": tokenizer.is_joined,
        "scored": scored,
        "summary": f"loss {scored.total.loss:.4f}",
        "notes": (*noncausal, *look.notes),
    }
    return TextLook(**{**vars(look), **changes})


def describe_layers(model: Any) -> str:
    """'2 × lstm; width 128; 296,317 parameters'"""
    parameters = f"{model.count_parameters():,} parameters"
    if not model.blocks:
        return f"no layers; {parameters}"
    mixers = model.spec.mixers_by_layer
    counts = ", ".join(f"{mixers.count(name)} × {name}" for name in dict.fromkeys(mixers))
    return f"{counts}; width {model.spec.width}; {parameters}"


def look_at_class(
    model: Any,
    ids: Sequence[int],
    number: int | None,
    *,
    label: str | None,
    tokens: Sequence[str],
    joined: bool,
    summary: str,
) -> ClassLook:
    """Run the tokens of a text through a classifier.

    Args:
        model: The classifier, `model(ids, lengths)`.
        ids: The tokens.
        number: Number of the class to whose logit contributions are computed; None for no contributions.
        label: Name of this class.
        tokens: The tokens as text.
        joined: Whether the tokens, one behind the other, are the text.
        summary: A line about the result.
    """
    batch = torch.tensor([ids], device=model.device)
    if model.blocks:
        look = look_inside(model, batch, tokens=tokens)
    else:
        look = Look("", tuple(tokens), {}, {}, [], [], ("The model has no layers.",))
    found = () if number is None else tuple(gradient_times_input(model, batch, number).tolist())
    own = {"model": describe_layers(model), "joined": joined, "label": label, "contributions": found}
    return ClassLook(**{**vars(look), **own, "summary": summary})


def gradient_times_input(model: Any, batch: Tensor, number: int) -> Tensor:
    """What the embedding of each token adds to a logit, to first order. For a linear model over counts it is exact.
    [1, T] -> [T]"""
    if not hasattr(model, "embedder"):
        with torch.no_grad():
            contributions: Tensor = model.contributions(batch)[0, :, number].cpu()
        return contributions
    captured: list[Tensor] = []

    def capture(module: nn.Module, given: Any, x: Tensor) -> Tensor:
        captured.append(x.detach().requires_grad_())
        return captured[-1]

    handle = model.embedder.register_forward_hook(capture)
    try:
        with eval_mode(model), torch.enable_grad():
            (gradient,) = torch.autograd.grad(model(batch)[0, number], captured[0])
    finally:
        handle.remove()
    return (gradient * captured[0]).detach().sum(-1)[0].cpu()


def compare_losses(first: ScoredText, second: ScoredText) -> tuple[float, ...]:
    """Second loss minus first for each token: negative where the second model is better. Needs equal tokens."""
    if first.tokens != second.tokens:
        difference = f"into {len(first.tokens)} and {len(second.tokens)} tokens"
        for index, (one, other) in enumerate(zip(first.tokens, second.tokens, strict=False)):
            if one != other:
                difference = f"token {index} is {one!r} for the first and {other!r} for the second"
                break
        raise DataError(
            f"the models tokenize the text differently: {difference}; only losses of equal tokens can be compared"
        )
    return tuple(other - one for one, other in zip(first.losses, second.losses, strict=True))


def check_memory(model: nn.Module, layers: Sequence[int], tokens: int, advice: str) -> None:
    """Refuse to record more attention weights than `MAX_WEIGHTS`."""
    names = [name for name in taps_of(model) if name.endswith(".weights") and layer_of(name) in layers]
    specs = [getattr(model.get_submodule(name.rpartition(".")[0]), "spec", None) for name in names]
    heads = sum(getattr(spec, "heads", None) or 1 for spec in specs)
    if heads * tokens**2 > MAX_WEIGHTS:
        raise DataError(
            f"{heads} heads on {tokens:,} tokens have {heads * tokens**2:,} weights, but at most {MAX_WEIGHTS:,} "
            f"can be shown: {advice}"
        )


def compute_rollout(
    model: nn.Module, maps: Mapping[str, Tensor], layers: Sequence[int]
) -> tuple[dict[str, Tensor], list[str]]:
    """The rollout, and a note if there is none or if it skips layers."""
    if not maps:
        return {}, []
    if set(maps) != {name for name in taps_of(model) if name.endswith(".weights")}:
        return {}, ["No rollout: it needs every attention layer."]
    other = [layer_of(name) for name, weights in maps.items() if weights.shape[-1] != weights.shape[-2]]
    if other:
        return {}, [f"No rollout: in {_format_layers(other)} the keys are not the tokens."]
    signed = [layer_of(name) for name, weights in maps.items() if bool((weights < 0).any())]
    if signed:
        return {}, [f"No rollout: {_format_layers(signed)} has negative weights."]
    bidirectional = sorted({layer_of(name) or 0 for name in maps if "backward_layer" in name})
    if bidirectional:
        return {}, [f"No rollout: {_format_layers(bidirectional)} reads in two directions in parallel."]
    skipped = [layer for layer in layers if layer not in set(map(layer_of, maps))]
    return rollout(maps), [f"The rollout skips {_format_layers(skipped)}: no attention."] if skipped else []


def _check_shapes(values: Mapping[str, Tensor], tokens: int) -> tuple[dict[str, Tensor], list[str]]:
    """The taps that can be shown, and a line for each that cannot because of its shape. Taps of other names are not for
    a look."""
    shown, notes = {}, []
    for name, tensor in values.items():
        kind = name.rpartition(".")[2]
        if kind == "weights":
            fits, shape = has_weights(tensor) and tensor.shape[-2] in (tokens, 1), f"[1, heads, {tokens}, keys]"
        elif kind in UNIT_TAPS:
            fits, shape = has_units(tensor) and tensor.shape[1] == tokens, f"[1, {tokens}, parts, features]"
        else:
            continue
        if fits:
            shown[name] = tensor
        else:
            notes.append(f"{name} is not shown: its shape is {list(tensor.shape)}, and must be {shape}.")
    return shown, notes


def _normalization_note(maps: Mapping[str, Tensor]) -> list[str]:
    layers = sorted({layer_of(name) or 0 for name, weights in maps.items() if not rows_sum_to_one(weights)})
    text = f"Rows do not sum to one in {_format_layers(layers)}: summary and rollout divide them by their sum."
    return [text] if layers else []


def _format_layers(layers: Sequence[int | None], word: str = "layer") -> str:
    return f"{word}{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"

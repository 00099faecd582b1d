"""Which words of a source a translation looked at: as a matrix, as text, as figures and as one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anaphor.data.corpus import PairTokenizers, encode_pairs
from anaphor.draw import Panel, heat_maps
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.inspect.figures import ENDINGS
from anaphor.inspect.page import one_file
from anaphor.inspect.record import recorded
from anaphor.inspect.tokens import shown
from anaphor.mixers import CrossAttention, InputFeeding
from anaphor.models import Seq2Seq

SCRIPTS = ("data.js", "grid.js", "alignment.js")


@dataclass(frozen=True)
class Alignment:
    """What each token of a target looked at when it was predicted."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    """The predicted tokens; the last one is the end, unless the target was cut before it."""
    weights: Tensor
    """[T, S]"""


def looking_layers(model: Seq2Seq) -> list[str]:
    """The taps of those layers of the decoder that look at the source, from the first to the last."""
    return [
        f"{name}.weights" for name, module in model.named_modules() if isinstance(module, CrossAttention | InputFeeding)
    ]


def alignment(
    model: Seq2Seq,
    tokenizers: PairTokenizers,
    source_text: str,
    target_tokens: Sequence[int],
    layer: int | None = None,
) -> Alignment:
    """The weights with which a model predicts a given target, its end included.

    `target_tokens` come without an end. Of several heads it is the mean; of several layers `layer`, counted from 0, or
    the last. With input feeding all layers are one.
    """
    predicted = [*target_tokens, tokenizers.target.boundary]
    _refuse_too_long(model, predicted, " with its end")
    return _looked(model, tokenizers, source_text, predicted, layer)


def alignment_so_far(
    model: Seq2Seq,
    tokenizers: PairTokenizers,
    source_text: str,
    target_tokens: Sequence[int],
    layer: int | None = None,
) -> Alignment:
    """The same for a target that was cut: its end was never predicted, and has no row."""
    if not target_tokens:
        raise ConfigError("nothing of the target was given: there is no token that could have looked at the source")
    _refuse_too_long(model, target_tokens)
    return _looked(model, tokenizers, source_text, target_tokens, layer)


@torch.inference_mode()
def _looked(
    model: Seq2Seq, tokenizers: PairTokenizers, source_text: str, predicted: Sequence[int], layer: int | None
) -> Alignment:
    tap = _chosen(model, layer)
    given = encode_pairs([(source_text, "")], tokenizers)
    given.check_lengths(source=model.source_limit)
    target = tokenizers.target
    device = model.device
    source_ids = torch.tensor([given.source.tokens.tolist()], device=device)
    input_ids = torch.tensor([[target.boundary, *predicted[:-1]]], device=device)
    with eval_mode(model), recorded(model, tap) as seen:
        model.features(input_ids, model.encode(source_ids))
    (weights,) = seen[tap]
    return Alignment(
        tuple(tokenizers.source.tokens[token] for token in source_ids[0].tolist()),
        tuple(target.tokens[token] for token in predicted),
        (weights if weights.ndim == 2 else weights.mean(0)).cpu(),
    )


def _refuse_too_long(model: Seq2Seq, predicted: Sequence[int], counted: str = "") -> None:
    if model.limit is not None and len(predicted) > model.limit:
        raise ConfigError(f"the target has {len(predicted):,} tokens{counted}, but the limit is {model.limit:,}")


def weight_at(found: Alignment, places: Sequence[int]) -> Tensor:
    """How much each of the first predicted tokens looked at the place of the source that is given for it. [len(places)]

    Of an echo the places are 0, 1, 2, …; where there is a right answer, this says how much of the weight is on it. The
    end has no place in the source, so it is left out by giving one place less.
    """
    tokens, width = found.weights.shape
    if len(places) > tokens:
        were = "token was" if tokens == 1 else "tokens were"
        raise ConfigError(f"{len(places):,} places were given, but {tokens:,} {were} predicted")
    if wrong := [place for place in places if not 0 <= place < width]:
        raise ConfigError(f"place {wrong[0]} is not in the source, whose places are 0 to {width - 1}")
    return found.weights[torch.arange(len(places)), torch.tensor(places, dtype=torch.long)]


def as_text(found: Alignment) -> str:
    """A line for each predicted token: `c: [a/0.10, b/0.50, c/0.40]`."""
    source = shown(found.source)
    lines = []
    for token, row in zip(shown(found.target), found.weights.tolist(), strict=True):
        looked = ", ".join(f"{name}/{weight:.2f}" for name, weight in zip(source, row, strict=True))
        lines.append(f"{token}: [{looked}]")
    return "\n".join(lines)


def alignment_page(found: Alignment) -> str:
    """The matrix as one page that needs no network."""
    rows = [[float(f"{weight:.4g}") for weight in row] for row in found.weights.tolist()]
    content = {"source": found.source, "target": found.target, "weights": rows}
    return one_file(content, "alignment.html", SCRIPTS)


def draw_alignment(found: Alignment, stem: Path) -> list[Path]:
    """`stem`.png and `stem`.svg: the source across, the target down."""
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ENDINGS]
    panel = Panel("", found.weights.numpy(), 0.0, 1.0)
    heat_maps(
        [panel], paths, across=1, rows=shown(found.target), columns=shown(found.source), x_label="source",
        y_label="predicted token", label="weight",
        sqrt_scale=True,
    )  # fmt: skip
    return paths


def _chosen(model: Seq2Seq, layer: int | None) -> str:
    taps = looking_layers(model)
    if not taps:
        raise ConfigError(
            f"a model with condition={model.spec.condition!r} looks at no source: there is no alignment; "
            "train one with condition='attention'"
        )
    if layer is None:
        return taps[-1]
    if not 0 <= layer < len(taps):
        places = "layer 0 only" if len(taps) == 1 else f"the layers 0 to {len(taps) - 1}"
        raise ConfigError(f"layer={layer}: the source is looked at by {places}")
    return taps[layer]

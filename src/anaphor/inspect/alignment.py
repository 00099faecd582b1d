"""Cross-attention of an encoder-decoder: which source tokens each target token attends to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anaphor.data.pairs import PairTokenizers, encode_pairs
from anaphor.draw import Panel, heat_maps
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.inspect.figures import SUFFIXES, token_labels
from anaphor.inspect.notebook import ShownAsPage
from anaphor.inspect.page import SHARED, render_page
from anaphor.inspect.record import recorded
from anaphor.mixers.attention.layer import CrossAttention
from anaphor.mixers.input_feeding import InputFeeding
from anaphor.models import Seq2Seq

SCRIPTS = (*SHARED, "data.js", "grid.js", "alignment.js")


@dataclass(frozen=True)
class Alignment(ShownAsPage):
    """Attention weights of each target token on the source, when it was predicted."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    """The predicted tokens; the last one is the end of sequence, unless the target was truncated."""
    weights: Tensor
    """[T, S]"""


def cross_attention_taps(model: Seq2Seq) -> list[str]:
    """The taps of the decoder's cross-attention layers, from first to last."""
    return [
        f"{name}.weights" for name, module in model.named_modules() if isinstance(module, CrossAttention | InputFeeding)
    ]


def alignment(
    model: Seq2Seq,
    tokenizers: PairTokenizers,
    source_text: str,
    target_tokens: Sequence[int],
    layer: int | None = None,
    *,
    finished: bool = True,
) -> Alignment:
    """The weights with which a model predicts a given target and its end, the mean of all heads.

    Args:
        model: A translation model.
        tokenizers: Those of both languages.
        source_text: The source sentence.
        target_tokens: The target without its end.
        layer: Which layer, from 0; the last one if not given. With input feeding there is a single attention layer.
        finished: Whether the target has an end; that of a truncated one has no row.
    """
    tap = _choose_tap(model, layer)
    source, target, maps = cross_attention(model, tokenizers, source_text, target_tokens, [tap], finished=finished)
    return Alignment(source, target, maps[tap].mean(0))


@torch.inference_mode()
def cross_attention(
    model: Seq2Seq,
    tokenizers: PairTokenizers,
    source_text: str,
    target_tokens: Sequence[int],
    taps: Sequence[str],
    *,
    finished: bool = True,
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, Tensor]]:
    """The weights of several taps, as `alignment` computes those of one.

    Returns:
        Source tokens, predicted tokens, and the weights of each tap, [H, T, S].
    """
    source, target, device = tokenizers.source, tokenizers.target, model.device
    predicted = [*target_tokens, *([target.boundary] if finished else [])]
    if not predicted:
        raise ConfigError("the target is empty: there is no token to align")
    if model.max_positions is not None and len(predicted) > model.max_positions:
        end = " with its end" if finished else ""
        raise ConfigError(f"the target has {len(predicted):,} tokens{end}, but the limit is {model.max_positions:,}")
    encoded = encode_pairs([(source_text, "")], tokenizers)
    encoded.check_lengths(source=model.max_source_positions)
    source_ids = torch.tensor([np.asarray(encoded.source.tokens).tolist()], device=device)
    input_ids = torch.tensor([[target.boundary, *predicted[:-1]]], device=device)
    with eval_mode(model), ExitStack() as stack:
        found = [stack.enter_context(recorded(model, tap)) for tap in taps]
        model.compute_hidden_states(input_ids, model.encode(source_ids))
    weights = {name: rows[0].cpu() for recording in found for name, rows in recording.items()}
    return (
        tuple(source.tokens[token] for token in source_ids[0].tolist()),
        tuple(target.tokens[token] for token in predicted),
        {name: one[None] if one.ndim == 2 else one for name, one in weights.items()},
    )


def weight_at(found: Alignment, places: Sequence[int]) -> Tensor:
    """The weight of each of the first predicted tokens on a given source position. [len(places)]

    For copied text the positions are 0, 1, 2, …; with a known alignment, this is the weight on the right token. The end
    of sequence has no source position: pass one position less.
    """
    tokens, width = found.weights.shape
    if len(places) > tokens:
        were = "token was" if tokens == 1 else "tokens were"
        raise ConfigError(f"{len(places):,} positions were given, but {tokens:,} {were} predicted")
    if wrong := [place for place in places if not 0 <= place < width]:
        raise ConfigError(f"position {wrong[0]} is not in the source, whose positions are 0 to {width - 1}")
    return found.weights[torch.arange(len(places)), torch.tensor(places, dtype=torch.long)]


def as_text(found: Alignment) -> str:
    """One line per predicted token: `c: [a/0.10, b/0.50, c/0.40]`."""
    source = token_labels(found.source)
    lines = []
    for token, row in zip(token_labels(found.target), found.weights.tolist(), strict=True):
        looked = ", ".join(f"{name}/{weight:.2f}" for name, weight in zip(source, row, strict=True))
        lines.append(f"{token}: [{looked}]")
    return "\n".join(lines)


def alignment_page(found: Alignment) -> str:
    """The matrix as one self-contained HTML page."""
    rows = [[float(f"{weight:.4g}") for weight in row] for row in found.weights.tolist()]
    content = {"source": found.source, "target": found.target, "weights": rows}
    return render_page(content, "alignment.html", SCRIPTS)


def draw_alignment(found: Alignment, stem: Path) -> list[Path]:
    """`stem`.png and `stem`.svg: source tokens as columns, target tokens as rows."""
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in SUFFIXES]
    panel = Panel("", found.weights.numpy(), 0.0, 1.0, scale="sqrt")
    labels = {"x_label": "source token", "y_label": "predicted token", "label": "attention weight"}
    rows, columns = token_labels(found.target), token_labels(found.source)
    heat_maps([panel], paths, across=1, rows=rows, columns=columns, **labels)
    return paths


def _choose_tap(model: Seq2Seq, layer: int | None) -> str:
    taps = cross_attention_taps(model)
    if not taps:
        raise ConfigError(
            f"a model with condition={model.spec.condition!r} has no cross-attention, so there is no alignment; "
            "train one with condition='attention'"
        )
    if layer is None:
        return taps[-1]
    if not 0 <= layer < len(taps):
        places = "layer 0 only" if len(taps) == 1 else f"the layers 0 to {len(taps) - 1}"
        raise ConfigError(f"layer={layer}: cross-attention is in {places}")
    return taps[layer]

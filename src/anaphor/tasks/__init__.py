"""Tasks, a folder each: what is trained, on which data, and how it is scored. Imports no torch.

`registry.TASKS` names them. A folder defines `TASK`, a `TaskDefinition`, in its `__init__.py`; its other modules are
imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.errors import ConfigError, count_noun
from anaphor.metrics.result import Metric, format_perplexity, format_values
from anaphor.training.spec import check_seed

if TYPE_CHECKING:
    from anaphor.data.tokenizer import Tokenizer

LOSS = Metric("loss", "min", "loss", "nats per token", digits=4, minimum=0.0)
PERPLEXITY = Metric("perplexity", "min", "perplexity", derived_from="loss", minimum=1.0)
BITS_PER_BYTE = Metric("bits_per_byte", "min", "bits per byte", digits=3, derived_from="loss", minimum=0.0)
ACCURACY = Metric("accuracy", "max", "accuracy", digits=4, minimum=0.0, maximum=1.0)
TOP5 = Metric("top5", "max", "top-5 accuracy", digits=4, derived_from="accuracy", minimum=0.0, maximum=1.0)
CALIBRATION = Metric("calibration_error", "min", "calibration error", digits=4, derived_from="loss", minimum=0.0)
REPLACED_LAYERS: Mapping[str, tuple[str, ...]] = {
    "model": ("mixers", "layer_widths", "layer_norms", "layer_residuals", "layer_dropouts", "layer_kernel_sizes"),
    "width": ("layer_widths",),
    "norm": ("layer_norms",),
    "residual": ("layer_residuals",),
    "dropout": ("layer_dropouts",),
    "kernel_size": ("layer_kernel_sizes",),
}
"""`RunSpec.replaced` of a stack of layers: what a flag says of all replaces what a file says of each."""
WORST = 5  # classes that `describe_classes` names
LISTED = 5  # unknown words and sentences that a warning lists
WITHOUT_SAMPLING = {"temperature": 1.0, "top_k": None, "top_p": None, "seed": 0, "samples": 1, "cuda_graph": False}
"""Defaults of the options that beam search does not use."""


def describe_values(metrics: Sequence[Metric], result: Mapping[str, Any]) -> str:
    """All metrics and the signature in one line. Bits per byte are left out where the whole text was not scored."""
    shown = [metric for metric in metrics if metric != BITS_PER_BYTE or result.get(metric.name) is not None]
    return f"{format_text_values(shown, result)} ({result['signature']})"


def format_text_values(metrics: Sequence[Metric], result: Mapping[str, Any]) -> str:
    """Values in one line, and why there is no perplexity where there is none."""
    perplexity = format_perplexity(result.get(PERPLEXITY.name))
    return format_values(metrics, result).replace(PERPLEXITY.format(None), perplexity)


def describe_classes(metrics: Sequence[Metric], result: Mapping[str, Any]) -> list[str]:
    """A result of a classifier: metrics and signature, and the classes with the lowest accuracy."""
    shown = [metric for metric in metrics if result.get(metric.name) is not None]
    lines = [f"{format_values(shown, result)} ({result['signature']})"]
    by_class = {name: value for name, value in (result.get("accuracy_by_class") or {}).items() if value is not None}
    if by_class:
        worst = sorted(by_class, key=lambda name: by_class[name])[:WORST]
        few = "" if len(by_class) <= WORST else f" (lowest {WORST} of {len(by_class)})"
        # A colon, because the name of a class may be a number.
        lines.append(f"accuracy by class{few}: {', '.join(f'{name}: {by_class[name]:.4f}' for name in worst)}")
    return lines


def describe_overlap(result: Mapping[str, Any]) -> list[str]:
    """How much of test, or of what was scored in its place, is in train, where that is known."""
    if "overlap" not in result:
        return []
    overlap = result["overlap"]
    count = count_noun(overlap["test"], overlap["unit"].removesuffix("s"))
    return [f"{overlap.get('split', 'test')}/train overlap: {overlap['in_train']:,} of {count}"]


def describe_unknown_words(texts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """A warning that names the words of texts that are not in the vocabulary, where there are any."""
    words = list(dict.fromkeys(word for text in texts for word in tokenizer.find_unknown(text)))
    if not words or tokenizer.unknown is None:
        return []
    return [f"not in the vocabulary, replaced by {tokenizer.tokens[tokenizer.unknown]}: {list_some(words)}"]


def list_some(words: Sequence[str]) -> str:
    """The first words of a list, and how many more there are."""
    more = len(words) - LISTED
    return ", ".join(words[:LISTED]) + (f" and {more:,} more" if more > 0 else "")


def describe_mostly_unknown(
    counts: Mapping[str, tuple[int, int]], vocabulary: int | None, init: str | None = None
) -> list[str]:
    """A warning where more than half of a split is not in the vocabulary. `counts`: its tokens and the unknown ones;
    `vocabulary` and `init`: the settings of the run."""
    shares = {split: unknown / tokens for split, (tokens, unknown) in counts.items() if 2 * unknown > tokens}
    if not shares:
        return []
    if init is not None:
        advice = f"the vocabulary comes with init={init}: use text of the same language, or train without --init"
    else:
        larger = "" if vocabulary is None else "a larger --vocabulary, or "
        advice = f"use {larger}--tokenizer bpe, which has no unknown words"
    which = ", ".join(f"{share:.1%} of {split}" for split, share in shares.items())
    return [f"tokens that are not in the vocabulary: {which}; {advice}"]


def drop_implied_options(
    settings: Mapping[str, Any], kind: Any, used_settings: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Settings without options of the model that follow from its preset and the other options.

    Args:
        settings: What is given.
        kind: The class with the options of the model.
        used_settings: The settings that the model of these settings uses; raises `ConfigError` where there is none.
    """
    kept = dict(settings)
    wanted = used_settings(kept)
    for name in [field.name for field in fields(kind) if kept.get(field.name) not in (None, ())]:
        fewer = {other: value for other, value in kept.items() if other != name}
        try:
            if used_settings(fewer) == wanted:
                kept = fewer
        except ConfigError:  # the preset does not work without it
            continue
    return kept


def pick_options(kind: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are options of this class; None for those that do not apply."""
    return {field.name: settings.get(field.name) for field in fields(kind)}


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text, columns aligned on the right. Rows may be shorter than the first one."""
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]


def join_layers(mixers: Sequence[str]) -> str:
    """'lstm, 3 × attention' for a stack of four layers."""
    runs = [(name, len(list(same))) for name, same in groupby(mixers)]
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in runs)


def format_size(width: int, parameters: int) -> dict[str, str]:
    return {"width": f"{width:,}", "parameters": f"{parameters / 1e6:,.1f} M"}


def check_texts(texts: Sequence[str], file: Path | None) -> None:
    """Raise where a command is given no text, or texts and a file."""
    ways = "give texts behind the run, or a file with --file"
    if not texts and file is None:
        raise ConfigError(f"the text is missing: {ways} (- is standard input)")
    if texts and file is not None:
        raise ConfigError(f"{ways}, but not both")


def check_top5(select: str | None, classes: Sequence[str]) -> None:
    """Raise where runs are selected by top-5 accuracy, and no answer can be wrong."""
    if select == TOP5.name and len(classes) <= 5:
        raise ConfigError(f"select={select!r}: it needs more than 5 classes, but the data have {len(classes)}")


def check_sampling(beam: int | None, **sampling: Any) -> None:
    """Raise for a seed that no generator takes, and for options of sampling beside a beam."""
    check_seed(sampling["seed"])
    for name, value in sampling.items():
        if beam is not None and value != WITHOUT_SAMPLING[name]:
            raise ConfigError(f"{name}={value} has no effect with --beam, which does not sample")

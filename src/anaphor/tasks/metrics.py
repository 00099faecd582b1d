"""Metrics that several tasks have, and a result of theirs as text. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anaphor.errors import ConfigError, count_noun
from anaphor.metrics.losses import format_perplexity
from anaphor.metrics.result import Metric, format_values

LOSS = Metric("loss", "min", "loss", "nats per token", digits=4, minimum=0.0)
PERPLEXITY = Metric("perplexity", "min", "perplexity", derived_from="loss", minimum=1.0)
BITS_PER_BYTE = Metric("bits_per_byte", "min", "bits per byte", digits=3, derived_from="loss", minimum=0.0)
ACCURACY = Metric("accuracy", "max", "accuracy", digits=4, minimum=0.0, maximum=1.0)
TOP5 = Metric("top5", "max", "top-5 accuracy", digits=4, derived_from="accuracy", minimum=0.0, maximum=1.0)
CALIBRATION = Metric("calibration_error", "min", "calibration error", digits=4, derived_from="loss", minimum=0.0)
RECALL_PERPLEXITY = Metric("recall_perplexity", "min", "perplexity on recall tokens", derived_from="loss", minimum=1.0)
WORST = 5  # classes that `describe_classes` names


def position_metrics(longer: Iterable[int] = ()) -> tuple[Metric, ...]:
    """The metrics of a `TokenExperiment`, accuracy first; with those of sequences so many times as long."""
    others = [
        Metric(f"accuracy_{times}x", "max", f"accuracy at {times} times the length", digits=4, minimum=0.0, maximum=1.0)
        for times in longer
    ]
    whole = Metric("sequence_accuracy", "max", "share of sequences without an error", digits=4, maximum=1.0)
    loss = Metric("loss", "min", "loss", "nats per target", digits=4, minimum=0.0)
    return (ACCURACY, *others, whole, loss)


ANSWER_METRICS = position_metrics((2, 4))[:-1]
"""Those of language models on synthetic tasks, beside the loss."""


def describe_values(metrics: Sequence[Metric], result: Mapping[str, Any]) -> str:
    """All metrics and the signature in one line. Bits per byte are left out where the whole text was not scored, and
    recall tokens stand behind it (`describe_recall`)."""
    shown = [
        metric
        for metric in metrics
        if metric != RECALL_PERPLEXITY and (metric != BITS_PER_BYTE or result.get(metric.name) is not None)
    ]
    return f"{format_text_values(shown, result)} ({result['signature']})"


def format_text_values(metrics: Sequence[Metric], result: Mapping[str, Any]) -> str:
    """Values in one line, and why there is no perplexity where there is none."""
    perplexity = format_perplexity(result.get(PERPLEXITY.name))
    return format_values(metrics, result).replace(PERPLEXITY.format(None), perplexity)


def describe_recall(result: Mapping[str, Any]) -> str:
    """What follows a line about a text that has recall tokens: their perplexity, and how many they are."""
    if result.get(RECALL_PERPLEXITY.name) is None:
        return ""
    share = result["recall_tokens"] / result["tokens"]
    return f"; on recall tokens ({share:.0%}) {PERPLEXITY.format(result[RECALL_PERPLEXITY.name])}"


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


def check_top5(select: str | None, classes: Sequence[str]) -> None:
    """Raise where runs are selected by top-5 accuracy, and no answer can be wrong."""
    if select == TOP5.name and len(classes) <= 5:
        raise ConfigError(f"select={select!r}: it needs more than 5 classes, but the data have {len(classes)}")

"""The loss of every example of a split in a classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anaphor.inspect.split_losses import Groups, SplitLosses
from anaphor.metrics.accuracy import score_classes
from anaphor.metrics.result import Result
from anaphor.precision import to_double


@dataclass(frozen=True)
class ClassLosses(SplitLosses):
    """Separate examples with labels."""

    unit = "examples"

    probabilities: NDArray[np.float32]
    """[N, C]"""
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    digest: str
    """Of the split."""
    describe: Callable[[int], dict[str, Any]]
    """An example for people, without its label."""

    def mismatch(self, other: Any, names: tuple[str, str]) -> str:
        if self.digest != other.digest or len(self.losses) != len(other.losses):
            return f"{names[0]} and {names[1]} were not scored on the same examples: compare runs with the same data"
        if [self.classes[label] for label in self.labels] != [other.classes[label] for label in other.labels]:
            return f"{names[0]} and {names[1]} have different classes"
        return ""

    def show(self, start: int, stop: int) -> dict[str, Any]:
        return {**self.describe(start), "true": self.classes[self.labels[start]]}

    def predictions(self, indices: Sequence[int], experiment: Any) -> list[dict[str, Any]]:
        found = []
        for index in indices:
            best = int(self.probabilities[index].argmax())
            found.append({"predicted": self.classes[best], "probability": float(self.probabilities[index, best])})
        return found


def class_losses(
    logits: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    *,
    metadata: Mapping[str, Any],
    digest: str,
    describe: Callable[[int], dict[str, Any]],
    groups: Mapping[str, Groups],
) -> ClassLosses:
    """From the logits of all examples, [N, C] and [N]; `metadata` are those of the signature."""
    log_p = to_double(logits).log_softmax(-1)
    losses = -log_p.gather(1, labels[:, None]).squeeze(1)
    codes = labels.cpu().numpy()
    return ClassLosses(
        losses=losses.float().cpu().numpy(),
        lines=np.arange(len(codes), dtype=np.int32),
        result=Result(score_classes(logits, labels).values, metadata).to_plain(),
        groups={"label": Groups("Label", tuple(classes), codes), **groups},
        notes=(),
        probabilities=log_p.exp().float().cpu().numpy(),
        labels=tuple(codes.tolist()),
        classes=tuple(classes),
        digest=digest,
        describe=describe,
    )

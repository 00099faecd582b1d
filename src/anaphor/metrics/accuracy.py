"""Scores of a classifier from its logits: accuracy, loss, top-5 accuracy, calibration error, confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.precision import to_double, widest_dtype

BINS = 15
"""Of the calibration error, as Guo et al. (2017) have them."""
MAX_CONFUSION = 200
"""Classes up to which a result holds the confusion matrix."""


@dataclass(frozen=True)
class ClassScores:
    """Scores of one split."""

    accuracy: float
    """Share of examples whose most probable class is right."""
    loss: float
    """Mean cross-entropy in nats."""
    top5: float | None
    """Share of examples whose class is among the five most probable; None for five classes or fewer."""
    calibration_error: float
    """Expected calibration error: mean distance of confidence and accuracy over 15 bins of confidence."""
    confusion: Tensor
    """int64 [C, C]: number of examples by true class (row) and predicted class (column)."""

    @property
    def values(self) -> dict[str, float | None]:
        """The metrics by name."""
        return {name: getattr(self, name) for name in ("accuracy", "loss", "top5", "calibration_error")}

    def details(self, classes: Sequence[str]) -> dict[str, Any]:
        """Accuracy by class, and the confusion matrix where there are not too many classes."""
        found: dict[str, Any] = {"accuracy_by_class": dict(zip(classes, self.accuracy_by_class, strict=True))}
        if len(classes) <= MAX_CONFUSION:
            found["confusion"] = {"classes": list(classes), "counts": self.confusion.tolist()}
        return found

    @property
    def accuracy_by_class(self) -> list[float | None]:
        """Accuracy of each class; None for a class without examples."""
        counts = self.confusion.sum(1).tolist()
        right = self.confusion.diagonal().tolist()
        return [one / count if count else None for one, count in zip(right, counts, strict=True)]


class Outcomes(NamedTuple):
    """What became of each example: all that its scores need of its logits, however many classes there are. [N] each"""

    log_p: Tensor
    """Of its class, in double precision."""
    confidence: Tensor
    """Probability of the most probable class."""
    predicted: Tensor
    """The most probable class."""
    in_top5: Tensor
    """Whether its class is among the five most probable; among fewer classes, whether it is the most probable."""


def find_outcomes(logits: Tensor, labels: Tensor) -> Outcomes:
    """[N, C], [N] -> outcomes. Those of an example do not depend on the others."""
    log_p = to_double(logits).log_softmax(-1)
    confidence, predicted = log_p.max(-1)
    is_right = predicted == labels
    in_top5 = (log_p.topk(5).indices == labels[:, None]).any(1) if log_p.shape[1] > 5 else is_right
    return Outcomes(log_p.gather(1, labels[:, None]).squeeze(1), confidence.exp(), predicted, in_top5)


def score_classes(logits: Tensor, labels: Tensor) -> ClassScores:
    """[N, C], [N] -> scores."""
    return score_outcomes(find_outcomes(logits, labels), labels, logits.shape[1])


def score_outcomes(outcomes: Outcomes, labels: Tensor, classes: int) -> ClassScores:
    """Scores of examples with these labels. Values are read on the host once."""
    is_right = outcomes.predicted == labels
    right = to_double(is_right).mean()
    loss = F.nll_loss(outcomes.log_p[:, None], torch.zeros_like(labels))
    error = calibration_error(outcomes.confidence, is_right)
    values = torch.stack([right, loss, to_double(outcomes.in_top5).mean(), error]).tolist()
    counts = torch.bincount(labels * classes + outcomes.predicted, minlength=classes**2).view(classes, classes)
    return ClassScores(values[0], values[1], values[2] if classes > 5 else None, values[3], counts.cpu())


def calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> Tensor:
    """Σ over bins of |accuracy - mean confidence| · share of examples. Bins have equal width; [N], [N] -> []"""
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1  # a bin contains its upper end
    gaps = torch.zeros(bins, dtype=widest_dtype(confidence.device), device=confidence.device)
    gaps.index_add_(0, place, to_double(right) - to_double(confidence))
    return gaps.abs().sum() / len(confidence)

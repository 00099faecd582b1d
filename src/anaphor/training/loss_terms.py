"""Loss terms: penalties beside the loss of a batch, part of the gradient and of no score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anaphor.errors import ConfigError
from anaphor.models.cross_entropy import smoothed_cross_entropy
from anaphor.models.head import Head
from anaphor.training.experiment import Loss

Penalty = Callable[[Tensor, Any, Any], Tensor]
"""`(hidden_states, head, batch)` -> the penalty [], summed as the loss is (over the tokens with a target): both are
divided by `batch.denominator`."""


class LossTerm:
    """A loss term that needs more than its penalty; any other may be a plain function, a `Penalty`."""

    passes: int = 1
    """How often the model reads each batch. The passes are rows of one batch: first all rows, then all again. Loss and
    penalties are their means."""

    def __call__(self, hidden_states: Tensor, head: Any, batch: Any) -> Tensor:
        """The penalties of all rows of all passes, added up."""
        raise NotImplementedError

    def loss_and_penalty(
        self, hidden_states: Tensor, head: Head, batch: Any, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Loss and penalty of a batch, means over the passes; for terms that compute both at once faster. Called
        where a batch can be read in several passes; language models, whose batches continue each other, ask for the
        penalty alone."""
        total = smoothed_cross_entropy(hidden_states, head, batch.targets, label_smoothing)
        return total / self.passes, self(hidden_states, head, batch) / self.passes


def count_passes(terms: Sequence[Penalty]) -> int:
    """How often the model reads each batch. Terms that disagree are refused."""
    wanted = {passes for term in terms if (passes := getattr(term, "passes", 1)) != 1}
    if len(wanted) > 1:
        counts = " and ".join(map(str, sorted(wanted)))
        raise ConfigError(f"loss terms want {counts} passes of a batch: use one of them")
    return wanted.pop() if wanted else 1


def sum_penalties(terms: Sequence[Penalty], hidden_states: Tensor, head: Any, batch: Any) -> Tensor | None:
    """The penalties of all terms added up; None where there is no term."""
    penalties = [term(hidden_states, head, batch) for term in terms]
    return torch.stack(penalties).sum() if penalties else None


def loss_with_terms(
    terms: Sequence[Penalty], hidden_states: Tensor, head: Head, batch: Any, label_smoothing: float
) -> Loss:
    """The loss of a batch and the penalties of loss terms.

    Args:
        terms: The loss terms of the run.
        hidden_states: What the head reads, [B, T, D], of as many passes over the batch as the terms want.
        head: The head of the model.
        batch: The batch, repeated for each pass.
        label_smoothing: Part of the probability that each target gives to all tokens uniformly.
    """
    if len(terms) == 1 and isinstance(terms[0], LossTerm):
        return Loss(*terms[0].loss_and_penalty(hidden_states, head, batch, label_smoothing))
    total, passes = smoothed_cross_entropy(hidden_states, head, batch.targets, label_smoothing), count_passes(terms)
    penalty = sum_penalties(terms, hidden_states, head, batch)
    return Loss(total, penalty) if passes == 1 or penalty is None else Loss(total / passes, penalty / passes)

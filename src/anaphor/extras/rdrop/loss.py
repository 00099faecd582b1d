"""The loss term of R-Drop."""

from __future__ import annotations

import torch
from torch import Tensor

from anaphor.data.batches import Batch
from anaphor.extras.rdrop import RDropSettings
from anaphor.models.cross_entropy import IGNORE_INDEX, smoothed_cross_entropy
from anaphor.models.head import Head
from anaphor.operations import operation
from anaphor.training.loss_terms import LossTerm


class RDrop(LossTerm):
    """The penalty is part of the gradient and of no score.

    The authors minimize CE(P) + CE(Q) + weight · (KL(P‖Q) + KL(Q‖P)) / 2. Here the loss of a batch is the mean of the
    two cross-entropies, to be comparable with that of a single pass. That is half of theirs, so the penalty of a token
    is weight · (KL(P‖Q) + KL(Q‖P)) / 4.
    """

    passes = 2

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, hidden_states: Tensor, head: Head, batch: Batch) -> Tensor:
        # Both rows of a pair have it, and the penalty is the mean of the passes.
        return 2 * rdrop_penalty(hidden_states, head, batch.targets.chunk(2)[0], self.weight)

    def loss_and_penalty(
        self, hidden_states: Tensor, head: Head, batch: Batch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        return rdrop_loss(hidden_states, head, batch.targets.chunk(2)[0], label_smoothing, self.weight)


@operation
def rdrop_loss(
    hidden_states: Tensor, head: Head, targets: Tensor, label_smoothing: float, weight: float
) -> tuple[Tensor, Tensor]:
    """The mean of the losses of both passes, and the penalty, of whose sum there is a gradient.

    The rows of the hidden states are those of the first pass, then those of the second. [2·B, T, D], [B, T] -> [], []
    """
    loss = smoothed_cross_entropy(hidden_states, head, targets.repeat(2, 1), label_smoothing) / 2
    return loss, rdrop_penalty(hidden_states, head, targets, weight)


def rdrop_penalty(hidden_states: Tensor, head: Head, targets: Tensor, weight: float) -> Tensor:
    """Sum over all tokens with a target. Rows as above. [2·B, T, D], [B, T] -> []"""
    divergences = measure_divergence(head(hidden_states).flatten(0, -2)).view(targets.shape)
    return weight / 4 * (divergences * (targets != IGNORE_INDEX)).sum()


def measure_divergence(logits: Tensor) -> Tensor:
    """KL(P‖Q) + KL(Q‖P) of each row of the first half and that of the second. [2N, V] -> [N]"""
    p, q = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).chunk(2)
    # The difference of the logarithms, weighted by P - Q.
    return ((p.exp() - q.exp()) * (p - q)).sum(-1)


def make_term(settings: RDropSettings) -> RDrop | None:
    """The term; None where its weight is 0."""
    return RDrop(settings.rdrop) if settings.rdrop else None

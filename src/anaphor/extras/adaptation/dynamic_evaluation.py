"""Dynamic evaluation: the weights follow the text that is scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anaphor.config import look_up
from anaphor.data.batches import Batch
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.mixers.base import detach
from anaphor.models.language_model import LanguageModel, ModelState
from anaphor.operations import kernel_errors

RULES = {"sgd": "plain gradient steps", "rms": "steps scaled by the size of the gradients in training"}
# Added to a gradient scale, which is one on average, before a step is divided by it: weights that had hardly any
# gradient in training must not make large steps.
FLOOR = 0.3


@dataclass(frozen=True)
class Dynamic:
    """Dynamic evaluation (Krause et al. 2018): after a segment is scored, the weights are trained on it.

    The text is one row: weights are common to all rows, so a row would see later text through another.
    """

    lr: float
    """Learning rate of the gradient step on a segment's mean loss."""
    decay: float = 0.0
    """Share of the way back to the trained weights that each step takes."""
    rule: str = "sgd"
    """Size of a step: sgd (the same for all weights) or rms (smaller where gradients were large in training)."""

    def __post_init__(self) -> None:
        look_up(RULES, self.rule, "rule of dynamic evaluation")
        if not 0 <= self.lr < math.inf:
            raise ConfigError(f"dynamic evaluation with learning rate {self.lr}: it must be a number of at least 0")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"dynamic decay {self.decay} is not a share: it must be from 0 to 1")

    def __str__(self) -> str:
        settings = f"{self.lr}" if not self.decay else f"{self.lr},{self.decay}"
        return f"dynamic({settings})" if self.rule == "sgd" else f"dynamic-{self.rule}({settings})"


@dataclass(frozen=True)
class Rates:
    """Settings of dynamic evaluation as inputs of a step [], so that all values share one CUDA graph."""

    lr: Tensor
    decay: Tensor | None  # None for no decay

    @classmethod
    def of(cls, dynamic: Dynamic, like: Tensor) -> Rates:
        lr, decay = (torch.tensor(value, dtype=like.dtype, device=like.device) for value in (dynamic.lr, dynamic.decay))
        return cls(lr, decay if dynamic.decay else None)


def gradient_scales(model: LanguageModel, batches: Sequence[Batch], carry: bool) -> list[Tensor]:
    """Root mean square of each weight's gradient over batches, scaled to one on average.

    The average is that of the matrices' means: else the embeddings of rare words, which are most of all weights, would
    dominate it.
    """
    state = None
    weights = trainable_weights(model)
    squares = [torch.zeros_like(weight) for weight in weights]
    for batch in batches:
        state = state if carry and not batch.restarts else None
        _, _, state, gradients = compute_gradients(model, weights, batch, state)
        torch._foreach_addcmul_(squares, gradients, gradients)
    roots = [square.sqrt() for square in squares]
    mean = torch.stack([root.mean() for root in roots]).mean()
    return [root / mean for root in roots]


def trainable_weights(model: LanguageModel) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def compute_gradients(
    model: LanguageModel,
    weights: Sequence[Tensor],
    batch: Batch,
    state: ModelState | None,
    factor: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor, ModelState, list[Tensor]]:
    """Hidden states and losses of a segment, the next state, and the gradient of `factor` times the mean loss by each
    weight. The factor is applied to the loss, where it costs nothing."""
    with eval_mode(model), torch.enable_grad(), model.share_embeddings(), kernel_errors():
        x, state = model.compute_hidden_states(batch.input_ids, state, batch.lengths)
        total, losses = model.cross_entropy_by_token(x, batch.targets, state)
        # Not `backward`, which would add to gradients that the caller may have.
        gradients = torch.autograd.grad(total * (factor / batch.denominator), list(weights), materialize_grads=True)
    return x.detach(), losses, detach(state), list(gradients)

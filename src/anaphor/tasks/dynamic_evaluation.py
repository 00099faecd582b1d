"""Dynamic evaluation (Krause et al. 2018): the weights follow the text while it is scored.

Each segment is scored first and learnt from afterwards, so that no token was seen before its own score. The text is
read as one row: weights are common to all rows, and a row would learn what stands further on in the text from another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anaphor.config import look_up
from anaphor.data.batches import Batch
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.mixers import detach
from anaphor.models import LanguageModel, ModelState
from anaphor.models.head import cross_entropy, token_losses

RULES = {"sgd": "plain gradient steps", "rms": "steps scaled by how large the gradients were in training"}
# Added to a strength, which is one on average, before a step is divided by it: weights that training hardly ever
# touched must not jump.
FLOOR = 0.3


@dataclass(frozen=True)
class Dynamic:
    """How weights follow a text."""

    lr: float
    """Length of a step along the gradient of a segment's mean loss."""
    decay: float = 0.0
    """Share of the way back to the trained weights that each step goes."""
    rule: str = "sgd"
    """How long a step is: sgd, the same for all weights; rms, shorter where gradients were large in training."""

    def __post_init__(self) -> None:
        look_up(RULES, self.rule, "rule of dynamic evaluation")
        if not 0 <= self.lr < math.inf:
            raise ConfigError(f"dynamic evaluation with learning rate {self.lr}: it must be a number of at least 0")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"dynamic decay {self.decay} is not a share: it must be from 0 to 1")

    def __str__(self) -> str:
        settings = f"{self.lr}" if not self.decay else f"{self.lr},{self.decay}"
        return f"dynamic({settings})" if self.rule == "sgd" else f"dynamic-{self.rule}({settings})"


def dynamic_losses(
    model: LanguageModel,
    batches: Sequence[Batch],
    carry: bool,
    dynamic: Dynamic,
    strengths: Sequence[Tensor] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[tuple[Batch, Tensor]]:
    """Each batch with the losses of its targets [B, T], each under the weights that those before have left behind.

    Afterwards the model has its own weights again, bit for bit. The rule rms needs `gradient_strengths` of training.
    """
    if (dynamic.rule == "rms") != (strengths is not None):
        raise ConfigError(f"rule {dynamic.rule!r} of dynamic evaluation: gradient strengths belong to 'rms'")
    found, state = [], None
    with _learning(model) as weights:
        own = [weight.detach().clone() for weight in weights]
        steps = [dynamic.lr] * len(own) if strengths is None else [dynamic.lr / (one + FLOOR) for one in strengths]
        # A pull of more than the whole way would overshoot.
        pulls = float(dynamic.decay) if strengths is None else [(dynamic.decay * one).clamp(max=1) for one in strengths]
        try:
            for batch in batches:
                state = state if carry and not batch.restarts else None
                losses, gradients, state = _read(model, weights, batch, state)
                found.append((batch, losses))
                with torch.no_grad():
                    for place, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                        if dynamic.decay:
                            weight.lerp_(own[place], pulls if isinstance(pulls, float) else pulls[place])
                        weight.sub_(steps[place] * gradient)
                tick()
        finally:
            with torch.no_grad():
                for weight, value in zip(weights, own, strict=True):
                    weight.copy_(value)
    return found


def gradient_strengths(model: LanguageModel, batches: Sequence[Batch], carry: bool) -> list[Tensor]:
    """How large the gradient of each weight is on a text: root mean square over batches, scaled to one on average.

    The average is that of the matrices' means: else the rare words, which are most of all weights, would decide alone.
    """
    state = None
    with _learning(model) as weights:
        squares = [torch.zeros_like(weight) for weight in weights]
        for batch in batches:
            state = state if carry and not batch.restarts else None
            _, gradients, state = _read(model, weights, batch, state)
            for total, gradient in zip(squares, gradients, strict=True):
                total.addcmul_(gradient, gradient)
    roots = [square.sqrt() for square in squares]
    mean = torch.stack([root.mean() for root in roots]).mean()
    return [root / mean for root in roots]


def _read(
    model: LanguageModel, weights: Sequence[nn.Parameter], batch: Batch, state: ModelState | None
) -> tuple[Tensor, list[Tensor], ModelState]:
    """The losses of a segment [B, T], the gradient of their mean by each weight, and the state behind it."""
    with torch.enable_grad():
        x, state = model.features(batch.input_ids, state, batch.lengths)
        mean = cross_entropy(x, model.head, batch.targets) / batch.count
        # Not by `backward`, which would add to the gradients of whoever trains this model.
        gradients = torch.autograd.grad(mean, list(weights), materialize_grads=True)
    return token_losses(x, model.head, batch.targets), list(gradients), detach(state)


@contextmanager
def _learning(model: LanguageModel) -> Iterator[list[nn.Parameter]]:
    """The weights to be moved. Nothing is dropped meanwhile."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    # On a GPU the recurrent kernels of cuDNN have no way back unless they train, and then mixers drop; others have.
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = enabled and model.device.type != "cuda"
    try:
        with eval_mode(model):
            yield weights
    finally:
        torch.backends.cudnn.enabled = enabled

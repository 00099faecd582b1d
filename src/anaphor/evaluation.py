"""Run a model to see what it does, not to teach it: nothing is dropped, and long texts are read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from anaphor.models import LanguageModel, ModelState

# Attention may hold a number for each head and each pair of tokens, which no machine has room for when a text is
# long. Each call of the model has its price, too, so it gets so many tokens of a row at least.
PAIRS_AT_ONCE = 2**24
LEAST_AT_ONCE = 64


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Models in evaluation mode; afterwards every part of them is what it was. Gradients are the caller's business.

    Recurrence on a GPU keeps all digits of single precision meanwhile: scores are to be the same everywhere.
    """
    tensor_cores, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    learning = [module for model in models for module in model.modules() if module.training]
    for module in learning:
        module.training = False
    try:
        yield
    finally:
        for module in learning:
            module.training = True
        torch.backends.cudnn.allow_tf32 = tensor_cores


def cuts(rows: int, tokens: int) -> Iterator[slice]:
    """Where to cut so many rows of a text that a causal model may be too small to read at once. A state that goes on
    from each piece to the next gives what the whole would."""
    size = max(PAIRS_AT_ONCE // max(rows * tokens, 1), LEAST_AT_ONCE)
    for start in range(0, max(tokens, 1), size):
        yield slice(start, min(start + size, tokens))


def read(model: LanguageModel, tokens: Tensor, state: ModelState | None) -> tuple[Tensor, ModelState | None]:
    """What the head reads behind the last token [B, D], and the state there. [B, T], with at least one token."""
    for cut in cuts(*tokens.shape):
        x, state = model.features(tokens[:, cut], state)
    return x[:, -1], state

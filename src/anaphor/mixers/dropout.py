"""Dropout: values set to zero in training, the rest scaled up, so that the mean stays. One function for each kind.

`locked` is variational dropout (Gal and Ghahramani, 2016) as language models use it (Merity et al., 2017): what a row
loses it loses for a whole segment, so that a recurrence cannot win it back from the next token.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F


def each(x: Tensor, share: float) -> Tensor:
    """Every value by itself."""
    return F.dropout(x, share)


def locked(x: Tensor, share: float) -> Tensor:
    """The same features for all tokens of a row. Time is the second axis. [B, T, ...]"""
    return x * F.dropout(x.new_ones(x.shape[0], 1, *x.shape[2:]), share)


DROPOUTS: dict[str, Callable[[Tensor, float], Tensor]] = {"each": each, "locked": locked}

"""Dropout of whole words. That of single values is a matter of the mixers."""

from __future__ import annotations

import torch
from torch import Tensor


def words(x: Tensor, tokens: Tensor, share: float, vocabulary: int, instead: Tensor) -> Tensor:
    """Whole words, each wherever it stands in the batch. They become `instead` [D] rather than zero: where a row begins
    with a word that is left out all layers would see zero, and the gradient of a norm is without bound there.
    [B, T, D], [B, T] -> [B, T, D]"""
    left_out = torch.rand(vocabulary, device=x.device) < share
    return torch.where(left_out[tokens][..., None], instead.to(x.dtype), x)

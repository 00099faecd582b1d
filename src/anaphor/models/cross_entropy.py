"""Cross-entropy of a linear output without ever holding the logits of a whole batch.

With a large vocabulary the logits are by far the largest tensor of a model, and touching them again and again is what
the loss costs. Here they are made for some tokens at a time, in memory that is used again for the next, and turned into
gradients on the spot. `whole` is the slow twin; tests hold the two together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.models.language_model import Head

NO_TARGET = -100  # what a target is where there is nothing to predict
LOGITS_AT_ONCE = 8_000_000


def whole(features: Tensor, head: Head, targets: Tensor) -> Tensor:
    """Sum of the losses of all tokens. [B, T, D], [B, T] -> []"""
    logits = _wide(head(features)).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), reduction="sum", ignore_index=NO_TARGET)


def chunked(features: Tensor, head: Head, targets: Tensor, at_once: int = LOGITS_AT_ONCE) -> Tensor:
    """The same sum. Its gradients are made on the way, so it can be differentiated once."""
    rows = max(1, at_once // head.out_features)
    flat, wanted = features.flatten(0, -2), targets.flatten()
    total: Tensor = _Chunked.apply(flat, head.weight, head.bias, wanted, rows)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(features: Tensor, head: Head, targets: Tensor, at_once: int = LOGITS_AT_ONCE) -> Tensor:
    """The loss of each token, zero where there is no target. [B, T, D], [B, T] -> [B, T]"""
    rows = max(1, at_once // head.out_features)
    pieces = [
        F.cross_entropy(_wide(head(some)), wanted, reduction="none", ignore_index=NO_TARGET)
        for some, wanted in zip(features.flatten(0, -2).split(rows), targets.flatten().split(rows), strict=True)
    ]
    return torch.cat(pieces).view(targets.shape)


class _Chunked(torch.autograd.Function):
    """Gradients by features, weight and bias are made in the forward pass, where a chunk's probabilities are at hand.

    A token's loss has the gradient p - e by its logits: what was expected minus what came. The part of e is a row of
    the weight and a row of the features, so it is added by index and the probabilities are never written to again.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int) -> Tensor:
        kind = features.device.type
        # Autocast does not reach into a function of one's own, so the reduced type is asked for by name.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype
        matrix, constant = weight.to(dtype), None if bias is None else bias.to(dtype)
        by_features, by_weight = torch.empty_like(features), torch.zeros_like(weight)
        by_bias = None if bias is None else torch.zeros_like(bias)
        real = targets != NO_TARGET
        targets = targets.clamp(min=0)
        total = _wide(features.new_zeros(()))
        wide = total.new_empty(min(rows, len(features)), len(weight))
        probabilities = torch.empty_like(wide)  # both are filled again for every chunk: fresh memory is slow to touch
        with torch.autocast(kind, enabled=False):
            for some, target, counts, gradient in zip(
                features.split(rows), targets.split(rows), real.split(rows), by_features.split(rows), strict=True
            ):
                some = some.to(dtype)
                logits = _product(some, matrix, constant, wide[: len(some)])
                p = torch.softmax(logits, -1, out=probabilities[: len(some)])
                # The largest probability is never tiny, so what all logits were divided by comes from it without loss.
                level = logits.amax(-1) - p.amax(-1).log()
                aim = logits.gather(-1, target[:, None]).squeeze(-1)
                total = total + ((level - aim) * counts).sum()
                p, some = p.to(dtype), some * counts[:, None]
                gradient.copy_((p @ matrix - matrix[target]) * counts[:, None])
                by_weight.addmm_(p.t().to(weight.dtype), some.to(weight.dtype))
                by_weight.index_add_(0, target, some.to(weight.dtype), alpha=-1)
                if by_bias is not None:
                    by_bias += counts.to(dtype) @ p
                    by_bias.index_add_(0, target, counts.to(by_bias.dtype), alpha=-1)
        ctx.save_for_backward(by_features, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if made is None else made * gradient for made in ctx.saved_tensors]
        return (*scaled, None, None)


def _product(some: Tensor, matrix: Tensor, constant: Tensor | None, out: Tensor) -> Tensor:
    """The logits of some tokens, in `out` where its type allows."""
    if matrix.dtype != out.dtype:
        return out.copy_(F.linear(some, matrix, constant))
    if constant is None:
        return torch.mm(some, matrix.t(), out=out)
    return torch.addmm(constant, some, matrix.t(), out=out)


def _wide(logits: Tensor) -> Tensor:
    """At least single precision: a sum of exponentials needs it."""
    return logits if logits.dtype == torch.float64 else logits.float()

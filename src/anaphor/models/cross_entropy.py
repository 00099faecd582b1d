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
# A CPU is slow to touch fresh memory; a GPU wants few large products and has the room.
LOGITS_AT_ONCE = {"cpu": 12_000_000, "cuda": 500_000_000}
# Tensor cores read whole lines of memory: a vocabulary that is no multiple of this makes them several times slower.
LINE = 64


def whole(features: Tensor, head: Head, targets: Tensor) -> Tensor:
    """Sum of the losses of all tokens. [B, T, D], [B, T] -> []"""
    logits = _wide(head(features)).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), reduction="sum", ignore_index=NO_TARGET)


def chunked(features: Tensor, head: Head, targets: Tensor, at_once: int | None = None) -> Tensor:
    """The same sum. Its gradients are made on the way, so it can be differentiated once."""
    rows = _rows_at_once(features, head, at_once)
    flat, wanted = features.flatten(0, -2), targets.flatten()
    total: Tensor = _Chunked.apply(flat, head.weight, head.bias, wanted, rows)  # type: ignore[no-untyped-call]
    return total


def smoothed(features: Tensor, head: Head, targets: Tensor, share: float) -> Tensor:
    """The same sum where every target gives that share of its probability to all tokens alike.

    Such a target asks for its own logit less and for the mean of all logits more; the rest of the loss is the same, so
    the difference is two products and never needs the logits.
    """
    total = chunked(features, head, targets)
    if not share:
        return total
    real, wanted = targets != NO_TARGET, targets.clamp(min=0)
    aim, mean = (features * head.weight[wanted]).sum(-1), features @ head.weight.mean(0)
    if head.bias is not None:
        aim, mean = aim + head.bias[wanted], mean + head.bias.mean()
    return total + share * (_wide(aim - mean) * real).sum()


@torch.no_grad()
def token_losses(features: Tensor, head: Head, targets: Tensor, at_once: int | None = None) -> Tensor:
    """The loss of each token, zero where there is no target. [B, T, D], [B, T] -> [B, T]"""
    rows = _rows_at_once(features, head, at_once)
    pieces = [
        F.cross_entropy(_wide(head(some)), wanted, reduction="none", ignore_index=NO_TARGET)
        for some, wanted in zip(features.flatten(0, -2).split(rows), targets.flatten().split(rows), strict=True)
    ]
    return torch.cat(pieces).view(targets.shape)


def _rows_at_once(features: Tensor, head: Head, at_once: int | None) -> int:
    logits = LOGITS_AT_ONCE.get(features.device.type, LOGITS_AT_ONCE["cpu"]) if at_once is None else at_once
    return max(1, logits // head.out_features)


class _Chunked(torch.autograd.Function):
    """Gradients by features, weight and bias are made in the forward pass, where a chunk's probabilities are at hand.

    A token's loss has the gradient p - e by its logits: what was expected minus what came.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int) -> Tensor:
        kind = features.device.type
        # Autocast does not reach into a function of one's own, so the reduced type is asked for by name.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype
        matrix, constant = _lined_up(weight.to(dtype)), None if bias is None else _lined_up(bias.to(dtype))
        words = len(weight)
        # Sums over all tokens: a narrow type would lose what single tokens add.
        sums = torch.promote_types(weight.dtype, torch.float32)
        by_features, by_weight = torch.empty_like(features), None
        by_bias = None if bias is None else bias.new_zeros(len(matrix), dtype=sums)
        real = targets != NO_TARGET
        targets = targets.where(real, 0)
        total = _wide(features.new_zeros(()))
        # Filled again for every chunk, with logits, probabilities and gradients in turn: fresh memory is slow to touch.
        rows = -(-len(features) // -(-len(features) // rows)) if len(features) else 1  # chunks of equal size
        room = matrix.new_empty(min(rows, len(features)), len(matrix), dtype=_room_type(matrix))
        with torch.autocast(kind, enabled=False):
            for some, target, counts, gradient in zip(
                features.split(rows), targets.split(rows), real.split(rows), by_features.split(rows), strict=True
            ):
                some = some.to(dtype)
                logits = _product(some, matrix, constant, room[: len(some)])
                logits[:, words:] = -torch.inf  # what was added for the sake of the line is no word
                losses, by_logits = _turned(logits, target[:, None])
                total = total + (losses * counts).sum()
                by_logits, some = by_logits.to(dtype), some * counts[:, None]
                gradient.copy_((by_logits @ matrix) * counts[:, None])
                by_weight = _with_product(by_weight, by_logits.t(), some, sums)
                if by_bias is not None:
                    by_bias += counts.to(dtype) @ by_logits
        by_weight = weight.new_zeros(matrix.shape) if by_weight is None else by_weight[:words].to(weight.dtype)
        by_bias = None if bias is None or by_bias is None else by_bias[:words].to(bias.dtype)
        ctx.save_for_backward(by_features, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # In place: they are nobody else's, and a second copy of a whole output matrix would be slow to make.
        scaled = [None if made is None else made.mul_(gradient) for made in ctx.saved_tensors]
        return (*scaled, None, None)


def _turned(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's loss, and its gradient by the logits, which takes their place. [N, V], [N, 1] -> [N], [N, V]"""
    peak, aim = _wide(logits.amax(-1, keepdim=True)), _wide(logits.gather(-1, target))
    p = torch.softmax(logits, -1, out=logits)
    # The largest probability is never tiny, so what all logits were divided by comes from it without loss.
    level = peak - _wide(p.amax(-1, keepdim=True)).log()
    missed = _missed(p, target)
    # In a narrow type a probability near one is rounded to one: what is missing to it still has its digits.
    losses = torch.where(missed < 0.5, -torch.log1p(-missed), level - aim)
    return losses.squeeze(-1), p.scatter_(-1, target, -missed.to(p.dtype))


def _missed(p: Tensor, target: Tensor) -> Tensor:
    """The probability that was not given to the target: one minus its own, in a narrow type the sum of all others.
    [N, V], [N, 1] -> [N, 1]"""
    if p.dtype.itemsize >= torch.float32.itemsize:
        return 1 - p.gather(-1, target)
    return p.scatter_(-1, target, 0).sum(-1, keepdim=True, dtype=torch.float32)


def _product(some: Tensor, matrix: Tensor, constant: Tensor | None, out: Tensor) -> Tensor:
    """The logits of some tokens, in `out` where its type allows."""
    if matrix.dtype != out.dtype:
        return out.copy_(F.linear(some, matrix, constant))
    if constant is None:
        return torch.mm(some, matrix.t(), out=out)
    return torch.addmm(constant, some, matrix.t(), out=out)


def _lined_up(matrix: Tensor) -> Tensor:
    """With rows of zeros added where tensor cores want them."""
    missing = -len(matrix) % LINE if matrix.is_cuda else 0
    return F.pad(matrix, (0, 0) * (matrix.ndim - 1) + (0, missing)) if missing else matrix


def _room_type(matrix: Tensor) -> torch.dtype:
    """Of logits and probabilities. A CPU works in single precision at least; on a GPU the passes over memory count, and
    the kernels themselves compute in single precision."""
    return matrix.dtype if matrix.is_cuda else torch.promote_types(matrix.dtype, torch.float32)


def _with_product(to: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of what there is so far and a product."""
    if not a.is_cuda or a.dtype == dtype:
        a, b = a.to(dtype), b.to(dtype)
        return a @ b if to is None else to.addmm_(a, b)
    product = torch.mm(a, b, out_dtype=dtype)  # tensor cores multiply in the narrow type and add up in single precision
    return product if to is None else to.add_(product)


def _wide(logits: Tensor) -> Tensor:
    """At least single precision: a sum of exponentials needs it."""
    return logits if logits.dtype == torch.float64 else logits.float()

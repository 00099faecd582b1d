"""Heads over a vocabulary and over classes, and the cross-entropy of their logits. Those of a vocabulary are never all
in memory.

With a large vocabulary the logits are by far the largest tensor of a model, and most of the time of the loss is spent
on reading and writing them. Here they are computed for a chunk of tokens at a time, in memory that the next chunk uses
again, and turned into gradients at once. `full_cross_entropy` is the simple version; tests compare the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.models.ngram_embedding import NgramEmbedding

IGNORE_INDEX = -100  # target of a token that has none, as in torch
# A CPU is slow to touch fresh memory; a GPU wants few large products and has enough memory.
LOGITS_PER_CHUNK = {"cpu": 12_000_000, "cuda": 500_000_000}
# Tensor cores are several times slower if the vocabulary is no multiple of this.
ALIGNMENT = 64


class Head(nn.Module):
    """From features to logits, with a matrix of its own or tied to the embeddings.

    A tied matrix is looked up at every call rather than shared: so it exists once, in every copy, file and device.
    """

    def __init__(self, width: int, vocabulary: int, bias: bool, tied_to: nn.Embedding | None) -> None:
        super().__init__()
        self.out_features = vocabulary
        self.own = nn.Parameter(torch.empty(vocabulary, width)) if tied_to is None else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self.tie(tied_to)

    def tie(self, embedding: nn.Embedding | None) -> None:
        """Use these embeddings as the matrix."""
        self._tied_to = (embedding,)  # in a tuple, so that it is not registered a second time

    @property
    def weight(self) -> Tensor:
        """[V, D]"""
        if self.own is not None:
            return self.own
        (embedding,) = self._tied_to
        assert embedding is not None, "a head without a matrix of its own is tied"
        return embedding.table() if isinstance(embedding, NgramEmbedding) else embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ClassHead(Head):
    """Pooled features, layer norm and logits of classes. [B, T, D] -> [B, C]"""

    def __init__(self, width: int, classes: int, pooling: str, extra_tokens: int, norm_eps: float | None) -> None:
        """The first `extra_tokens` are no patches; with pooling "class" the first of all is read. No `norm_eps`: no
        norm."""
        super().__init__(width, classes, bias=True, tied_to=None)
        self.pooling, self.extra_tokens = pooling, extra_tokens
        self.norm = None if norm_eps is None else nn.LayerNorm(width, eps=norm_eps)

    def pool(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, D]"""
        return x[:, 0] if self.pooling == "class" else x[:, self.extra_tokens :].mean(1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(x)
        return super().forward(pooled if self.norm is None else self.norm(pooled))


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the losses of all rows against probabilities of the classes. [B, C], [B, C] -> []"""
    log_p = widen(logits).log_softmax(-1)
    return -(targets.to(log_p.dtype) * log_p).sum()


def full_cross_entropy(features: Tensor, head: Head, targets: Tensor) -> Tensor:
    """Sum of the losses of all tokens, from all logits at once. [B, T, D], [B, T] -> []"""
    logits = widen(head(features)).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), reduction="sum", ignore_index=IGNORE_INDEX)


def cross_entropy(
    features: Tensor,
    head: Head,
    targets: Tensor,
    logits_per_chunk: int | None = None,
    token_losses: Tensor | None = None,
) -> Tensor:
    """The same sum in chunks. Its gradients are computed in the forward pass, so it can be differentiated once.

    The losses of the tokens are written to `token_losses` [B · T] where it is given, without gradient.
    """
    rows = _chunk_size(features, head, logits_per_chunk)
    inputs = (features.flatten(0, -2), head.weight, head.bias, targets.flatten(), rows, token_losses)
    total: Tensor = _ChunkedCrossEntropy.apply(*inputs)  # type: ignore[no-untyped-call]
    return total


def smoothed_cross_entropy(features: Tensor, head: Head, targets: Tensor, label_smoothing: float) -> Tensor:
    """The same sum with label smoothing: every target gives that part of its probability to all tokens uniformly.

    Against the plain loss this weighs the target's logit less and the mean of all logits more. The difference takes two
    products and no logits.
    """
    total = cross_entropy(features, head, targets)
    if not label_smoothing:
        return total
    valid, index = targets != IGNORE_INDEX, targets.clamp(min=0)
    target, mean = (features * head.weight[index]).sum(-1), features @ head.weight.mean(0)
    if head.bias is not None:
        target, mean = target + head.bias[index], mean + head.bias.mean()
    return total + label_smoothing * (widen(target - mean) * valid).sum()


@torch.no_grad()
def token_losses(features: Tensor, head: Head, targets: Tensor, logits_per_chunk: int | None = None) -> Tensor:
    """The loss of each token, zero where there is no target. [B, T, D], [B, T] -> [B, T]"""
    rows = _chunk_size(features, head, logits_per_chunk)
    chunks = [
        F.cross_entropy(widen(head(x)), target, reduction="none", ignore_index=IGNORE_INDEX)
        for x, target in zip(features.flatten(0, -2).split(rows), targets.flatten().split(rows), strict=True)
    ]
    return torch.cat(chunks).view(targets.shape)


def _chunk_size(features: Tensor, head: Head, logits: int | None) -> int:
    if logits is None:
        logits = LOGITS_PER_CHUNK.get(features.device.type, LOGITS_PER_CHUNK["cpu"])
    return max(1, logits // head.out_features)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The gradients of features, weight and bias are computed in the forward pass, from each chunk's probabilities p.

    The gradient of a token's loss with respect to its logits is p minus the one-hot vector of the target.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        token_losses: Tensor | None,
    ) -> Tensor:
        device = features.device.type
        # Autocast does not reach into a custom function, so its type is applied here.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
        matrix, constant = _aligned(weight.to(dtype)), None if bias is None else _aligned(bias.to(dtype))
        vocabulary = len(weight)
        # Sums over all tokens: a narrow type would lose the contributions of single tokens.
        sum_dtype = torch.promote_types(weight.dtype, torch.float32)
        grad_features, grad_weight = torch.empty_like(features), None
        grad_bias = None if bias is None else bias.new_zeros(len(matrix), dtype=sum_dtype)
        valid = targets != IGNORE_INDEX
        targets = targets.where(valid, 0)
        total = widen(features.new_zeros(()))
        # One buffer for the logits, probabilities and gradients of all chunks: fresh memory is slow to touch.
        rows = -(-len(features) // -(-len(features) // rows)) if len(features) else 1  # chunks of equal size
        buffer = matrix.new_empty(min(rows, len(features)), len(matrix), dtype=_buffer_dtype(matrix))
        with torch.autocast(device, enabled=False):
            for number, (x, target, mask, grad_x) in enumerate(
                zip(
                    features.split(rows), targets.split(rows), valid.split(rows), grad_features.split(rows), strict=True
                )
            ):
                x = x.to(dtype)
                logits = _compute_logits(x, matrix, constant, buffer[: len(x)])
                logits[:, vocabulary:] = -torch.inf  # rows added for alignment are no tokens
                losses, grad_logits = _losses_and_gradient(logits, target[:, None])
                total = total + (losses * mask).sum()
                if token_losses is not None:
                    token_losses[number * rows : number * rows + len(losses)] = losses
                grad_logits, x = grad_logits.to(dtype), x * mask[:, None]
                grad_x.copy_((grad_logits @ matrix) * mask[:, None])
                grad_weight = _add_product(grad_weight, grad_logits.t(), x, sum_dtype)
                if grad_bias is not None:
                    grad_bias += mask.to(dtype) @ grad_logits
        if grad_weight is None:
            grad_weight = weight.new_zeros(matrix.shape)
        else:
            grad_weight = grad_weight[:vocabulary].to(weight.dtype)
        grad_bias = None if bias is None or grad_bias is None else grad_bias[:vocabulary].to(bias.dtype)
        ctx.save_for_backward(grad_features, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # In place: a second copy of a whole output matrix would be slow to make.
        scaled = [None if saved is None else saved.mul_(gradient) for saved in ctx.saved_tensors]
        return (*scaled, None, None, None)


def _losses_and_gradient(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's loss, and the gradient of the logits, written over them. [N, V], [N, 1] -> [N], [N, V]"""
    peak, target_logit = widen(logits.amax(-1, keepdim=True)), widen(logits.gather(-1, target))
    p = torch.softmax(logits, -1, out=logits)
    # The largest probability is never tiny, so the normalizer follows from it without loss of precision.
    log_normalizer = peak - widen(p.amax(-1, keepdim=True)).log()
    missing = _missing_probability(p, target)
    # In a narrow type a probability near one is rounded to one, but what is missing to it keeps its digits.
    losses = torch.where(missing < 0.5, -torch.log1p(-missing), log_normalizer - target_logit)
    return losses.squeeze(-1), p.scatter_(-1, target, -missing.to(p.dtype))


def _missing_probability(p: Tensor, target: Tensor) -> Tensor:
    """One minus the probability of the target, in a narrow type as the sum of all others. [N, V], [N, 1] -> [N, 1]"""
    if p.dtype.itemsize >= torch.float32.itemsize:
        return 1 - p.gather(-1, target)
    return p.scatter_(-1, target, 0).sum(-1, keepdim=True, dtype=torch.float32)


def _compute_logits(x: Tensor, matrix: Tensor, constant: Tensor | None, out: Tensor) -> Tensor:
    """The logits of a chunk, written to `out`."""
    if matrix.dtype != out.dtype:
        return out.copy_(F.linear(x, matrix, constant))
    if constant is None:
        return torch.mm(x, matrix.t(), out=out)
    return torch.addmm(constant, x, matrix.t(), out=out)


def _aligned(matrix: Tensor) -> Tensor:
    """With rows of zeros added for tensor cores."""
    missing = -len(matrix) % ALIGNMENT if matrix.is_cuda else 0
    return F.pad(matrix, (0, 0) * (matrix.ndim - 1) + (0, missing)) if missing else matrix


def _buffer_dtype(matrix: Tensor) -> torch.dtype:
    """Type of logits and probabilities. A CPU computes in single precision at least; on a GPU memory traffic dominates,
    and the kernels compute in single precision internally."""
    return matrix.dtype if matrix.is_cuda else torch.promote_types(matrix.dtype, torch.float32)


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """total + a @ b, in place where there is a total."""
    if not a.is_cuda or a.dtype == dtype:
        a, b = a.to(dtype), b.to(dtype)
        return a @ b if total is None else total.addmm_(a, b)
    product = torch.mm(a, b, out_dtype=dtype)  # tensor cores multiply in the narrow type and add in single precision
    return product if total is None else total.add_(product)


def widen(x: Tensor) -> Tensor:
    """At least in single precision, which a sum of exponentials needs."""
    return x if x.dtype == torch.float64 else x.float()

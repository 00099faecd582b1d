"""Heads over a vocabulary and over classes, and the cross-entropy of their logits. Those of a vocabulary are never all
in memory.

With a large vocabulary the logits are by far the largest tensor of a model, and most of the time of the loss is spent
on reading and writing them. Here they are computed for a chunk of tokens at a time, in memory that the next chunk uses
again, and turned into gradients at once. `full_cross_entropy` is the simple version, which tests compare with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.base import multiply
from anaphor.models.embedding import Embedding
from anaphor.operations import operation

IGNORE_INDEX = -100  # target of a token that has none, as in torch
# A CPU is slow to touch fresh memory: of 32 MiB at most the C library gives the same again. A GPU wants few large
# products and has enough memory.
LOGITS_PER_CHUNK = {"cpu": 8_000_000, "cuda": 500_000_000}
# Of tokens that are scored on a CPU: with 33,278 words and a width of 16 or 64, a third or two thirds of the time.
MIN_LOGITS_PER_CHUNK = 1_000_000


class Head(nn.Module):
    """From features to logits, with a matrix of its own or tied to the embeddings.

    A tied matrix is looked up at every call rather than shared: so it exists once, in every copy, file and device.
    """

    def __init__(self, width: int, vocabulary: int, bias: bool, tied_to: Embedding | None) -> None:
        super().__init__()
        self.out_features = vocabulary
        self.own = nn.Parameter(torch.empty(vocabulary, width)) if tied_to is None else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self.tie(tied_to)

    def tie(self, embedding: Embedding | None) -> None:
        """Use these embeddings as the matrix."""
        self._tied_to = (embedding,)  # in a tuple, so that it is not registered a second time

    @property
    def tied_to(self) -> Embedding | None:
        """The embeddings that are its matrix; None if it has one of its own."""
        return self._tied_to[0]

    @property
    def weight(self) -> Tensor:
        """[V, D]"""
        if self.own is not None:
            return self.own
        embedding = self.tied_to
        assert embedding is not None, "a head without a matrix of its own is tied"
        return embedding.table()

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


@operation
def cross_entropy(
    features: Tensor,
    head: Head,
    targets: Tensor,
    logits_per_chunk: int | None = None,
    token_losses: Tensor | None = None,
) -> Tensor:
    """The same sum in chunks, to be differentiated once: the gradients are computed in the forward pass. The losses of
    the tokens are written to `token_losses` [B · T] where it is given, without gradient."""
    rows = chunk_size(features, head, logits_per_chunk)
    return chunked_cross_entropy(features, head.weight, head.bias, targets, rows, token_losses)


@operation
def smoothed_cross_entropy(features: Tensor, head: Head, targets: Tensor, label_smoothing: float) -> Tensor:
    """The same sum with label smoothing: every target gives that part of its probability to all tokens uniformly.

    Against the plain loss this weighs the target's logit less and the mean of all logits more; the difference takes two
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
    if logits_per_chunk is None and features.device.type == "cpu":
        # Fresh memory is slow to touch, and that of a short chunk is used again. But each chunk reads all weights.
        least = max(MIN_LOGITS_PER_CHUNK, 2 * features.shape[-1] * head.out_features)
        logits_per_chunk = min(LOGITS_PER_CHUNK["cpu"], least)
    rows = chunk_size(features, head, logits_per_chunk)
    chunks = [
        F.cross_entropy(widen(head(x)), target, reduction="none", ignore_index=IGNORE_INDEX)
        for x, target in zip(features.flatten(0, -2).split(rows), targets.flatten().split(rows), strict=True)
    ]
    return torch.cat(chunks).view(targets.shape)


def product_dtype(features: Tensor) -> torch.dtype:
    """The type of products, which autocast does not apply to those that are written to memory that is given."""
    device = features.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype


def chunk_size(features: Tensor, head: Head, logits: int | None) -> int:
    """How many tokens are a chunk of so many logits."""
    if logits is None:
        logits = LOGITS_PER_CHUNK.get(features.device.type, LOGITS_PER_CHUNK["cpu"])
    return max(1, logits // head.out_features)


class Chunk(NamedTuple):
    """What the loss of some tokens is computed from, and where their gradients go."""

    x: Tensor  # [N, D]
    target: Tensor  # [N]
    valid: Tensor  # [N]: whether there is a target
    matrix: Tensor  # [V, D]
    constant: Tensor | None  # [V]
    buffer: Tensor  # [N · V]: memory for logits
    grad_x: Tensor  # [N, D], to be written
    grad_weight: Tensor | None  # [V, D], of the chunks before
    grad_bias: Tensor | None  # [V], to be added to
    sum_dtype: torch.dtype  # that of the gradient of the weight

    def compute_logits(self, out: Tensor, at: slice = slice(None)) -> None:
        """The logits of a part of the vocabulary, written to `out`."""
        compute_logits(self.x, self.matrix[at], None if self.constant is None else self.constant[at], out)


def allocate_logits(rows: int, matrix: Tensor) -> Tensor:
    """Memory for the logits of so many tokens. A CPU computes in single precision at least; on a GPU memory traffic
    dominates, and torch computes in single precision internally."""
    wide = matrix.dtype if matrix.is_cuda else torch.promote_types(matrix.dtype, torch.float32)
    return matrix.new_empty(rows * len(matrix), dtype=wide)


def compute_losses(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """The loss of each token, and the gradient of the weight so far."""
    logits = chunk.buffer[: len(chunk.x) * len(chunk.matrix)].view(len(chunk.x), len(chunk.matrix))
    chunk.compute_logits(logits)
    losses, grad_logits = _losses_and_gradient(logits, chunk.target[:, None])
    grad_logits, x = grad_logits.to(chunk.x.dtype), chunk.x * chunk.valid[:, None]
    chunk.grad_x.copy_((grad_logits @ chunk.matrix) * chunk.valid[:, None])
    if chunk.grad_bias is not None:
        chunk.grad_bias.add_(chunk.valid.to(x.dtype) @ grad_logits)
    return losses, add_product(chunk.grad_weight, grad_logits.t(), x, chunk.sum_dtype)


class ChunkMethod(NamedTuple):
    """How the loss of a chunk is computed."""

    compute: Callable[[Chunk], tuple[Tensor, Tensor]]
    """The loss of each token, and the gradient of the weight so far."""
    allocate: Callable[[int, Tensor], Tensor]
    """Memory for the logits of so many tokens by a matrix."""


READABLE_CHUNKS = ChunkMethod(compute_losses, allocate_logits)


def chunked_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    rows: int,
    token_losses: Tensor | None,
    method: ChunkMethod = READABLE_CHUNKS,
) -> Tensor:
    """The loss of `rows` tokens at a time."""
    inputs = (features.flatten(0, -2), weight, bias, targets.flatten())
    total: Tensor = _ChunkedCrossEntropy.apply(*inputs, rows, token_losses, method)  # type: ignore[no-untyped-call]
    return total


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
        method: ChunkMethod,
    ) -> Tensor:
        dtype = product_dtype(features)
        matrix, constant = weight.to(dtype), None if bias is None else bias.to(dtype)
        # Sums over all tokens: a narrow type would lose the contributions of single tokens.
        sum_dtype = torch.promote_types(weight.dtype, torch.float32)
        grad_features, grad_weight = torch.empty_like(features), None
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=sum_dtype)
        valid = targets != IGNORE_INDEX
        targets = targets.where(valid, 0)
        total = widen(features.new_zeros(()))
        # One buffer for the logits, probabilities and gradients of all chunks: fresh memory is slow to touch.
        rows = -(-len(features) // -(-len(features) // rows)) if len(features) else 1  # chunks of equal size
        buffer = method.allocate(min(rows, len(features)), matrix)
        with torch.autocast(features.device.type, enabled=False):
            for start in range(0, max(len(features), 1), rows):
                chunk = slice(start, start + rows)
                x, mask, target = features[chunk].to(dtype), valid[chunk], targets[chunk]
                weights, grads = (matrix, constant, buffer), (grad_features[chunk], grad_weight, grad_bias)
                losses, grad_weight = method.compute(Chunk(x, target, mask, *weights, *grads, sum_dtype))
                total = total + (losses * mask).sum()
                if token_losses is not None:
                    token_losses[chunk] = losses
        assert grad_weight is not None, "there is at least one chunk"
        grad_bias = None if bias is None or grad_bias is None else grad_bias.to(bias.dtype)
        ctx.save_for_backward(grad_features, grad_weight.to(weight.dtype), grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # In place: a second copy of a whole output matrix would be slow to make.
        scaled = [None if saved is None else saved.mul_(gradient) for saved in ctx.saved_tensors]
        return (*scaled, None, None, None, None)


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


def compute_logits(x: Tensor, matrix: Tensor, constant: Tensor | None, out: Tensor) -> Tensor:
    """The logits of a chunk, written to `out`."""
    if matrix.dtype != out.dtype:
        return out.copy_(F.linear(x, matrix, constant))
    if constant is None:
        return torch.mm(x, matrix.t(), out=out)
    return torch.addmm(constant, x, matrix.t(), out=out)


def add_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """total + a @ b, in place where there is a total."""
    if total is None:
        return multiply(a, b, dtype)
    return total.addmm_(a, b) if a.dtype == dtype else total.add_(multiply(a, b, dtype))


def widen(x: Tensor) -> Tensor:
    """At least in single precision, which a sum of exponentials needs."""
    return x if x.dtype == torch.float64 else x.float()

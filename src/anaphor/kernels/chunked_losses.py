"""The cross-entropy of a head with its gradients in the forward pass, chunk by chunk: no logits are computed twice or
kept, and all chunks use the same memory. Most of the time of the loss is spent on reading and writing logits.

On a CPU the logits of a large vocabulary are computed for a block of it at a time: `vocabulary_blocks.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.kernels import vocabulary_blocks
from anaphor.mixers.base import multiply
from anaphor.models.cross_entropy import IGNORE_INDEX, chunk_size, widen
from anaphor.models.head import Head


def applies(*arguments: Any, **keywords: Any) -> bool:
    """Whether gradients are wanted: without them there is nothing to save."""
    return torch.is_grad_enabled()


def cross_entropy(
    hidden_states: Tensor,
    head: Head,
    targets: Tensor,
    logits_per_chunk: int | None = None,
    token_losses: Tensor | None = None,
) -> Tensor:
    method = WHOLE_VOCABULARY
    if hidden_states.device.type == "cpu" and head.out_features > vocabulary_blocks.MAX_VOCABULARY_WITHOUT_BLOCKS:
        method, logits_per_chunk = IN_BLOCKS, logits_per_chunk or vocabulary_blocks.LOGITS_PER_CHUNK
    rows = chunk_size(hidden_states, head, logits_per_chunk)
    return compute_chunks(hidden_states, head.weight, head.bias, targets, rows, token_losses, method)


def smoothed_cross_entropy(hidden_states: Tensor, head: Head, targets: Tensor, label_smoothing: float) -> Tensor:
    return cross_entropy(hidden_states, head, targets) + smoothing_term(hidden_states, head, targets, label_smoothing)


def smoothing_term(hidden_states: Tensor, head: Head, targets: Tensor, label_smoothing: float) -> Tensor | float:
    """What label smoothing adds to the sum of the losses: it weighs the target's logit less and the mean of all logits
    more, which takes two products and no logits."""
    if not label_smoothing:
        return 0.0
    valid, index = targets != IGNORE_INDEX, targets.clamp(min=0)
    target, mean = (hidden_states * head.weight[index]).sum(-1), hidden_states @ head.weight.mean(0)
    if head.bias is not None:
        target, mean = target + head.bias[index], mean + head.bias.mean()
    return label_smoothing * (widen(target - mean) * valid).sum()


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


class ChunkMethod(NamedTuple):
    """How the loss of a chunk is computed."""

    compute: Callable[[Chunk], tuple[Tensor, Tensor]]
    """The loss of each token, and the gradient of the weight so far."""
    allocate: Callable[[int, Tensor], Tensor]
    """Memory for the logits of so many tokens by a matrix."""


def compute_chunks(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    rows: int,
    token_losses: Tensor | None,
    method: ChunkMethod,
) -> Tensor:
    """The loss of `rows` tokens at a time."""
    inputs = (hidden_states.flatten(0, -2), weight, bias, targets.flatten())
    total: Tensor = _ChunkedCrossEntropy.apply(*inputs, rows, token_losses, method)  # type: ignore[no-untyped-call]
    return total


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The forward pass computes the gradients of hidden states, weight and bias, from each chunk's probabilities p.

    The gradient of a token's loss with respect to its logits is p minus the one-hot vector of the target.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        token_losses: Tensor | None,
        method: ChunkMethod,
    ) -> Tensor:
        dtype = product_dtype(hidden_states)
        matrix, constant = weight.to(dtype), None if bias is None else bias.to(dtype)
        # Sums over all tokens: a narrow type would lose the contributions of single tokens.
        sum_dtype = torch.promote_types(weight.dtype, torch.float32)
        grad_hidden_states, grad_weight = torch.empty_like(hidden_states), None
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=sum_dtype)
        valid = targets != IGNORE_INDEX
        targets = targets.where(valid, 0)
        total = widen(hidden_states.new_zeros(()))
        # One buffer for the logits, probabilities and gradients of all chunks: fresh memory is slow to touch.
        count = len(hidden_states)
        rows = -(-count // -(-count // rows)) if count else 1  # chunks of equal size
        buffer = method.allocate(min(rows, len(hidden_states)), matrix)
        with torch.autocast(hidden_states.device.type, enabled=False):
            for start in range(0, max(len(hidden_states), 1), rows):
                chunk = slice(start, start + rows)
                x, mask, target = hidden_states[chunk].to(dtype), valid[chunk], targets[chunk]
                weights, grads = (matrix, constant, buffer), (grad_hidden_states[chunk], grad_weight, grad_bias)
                losses, grad_weight = method.compute(Chunk(x, target, mask, *weights, *grads, sum_dtype))
                total = total + (losses * mask).sum()
                if token_losses is not None:
                    token_losses[chunk] = losses
        assert grad_weight is not None, "there is at least one chunk"
        grad_bias = None if bias is None or grad_bias is None else grad_bias.to(bias.dtype)
        ctx.save_for_backward(grad_hidden_states, grad_weight.to(weight.dtype), grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # In place: a second copy of a whole output matrix would be slow to make.
        scaled = [None if saved is None else saved.mul_(gradient) for saved in ctx.saved_tensors]
        return (*scaled, None, None, None, None)


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


def allocate_logits(rows: int, matrix: Tensor) -> Tensor:
    """Memory for the logits of so many tokens. A CPU computes in single precision at least; on a GPU memory traffic
    dominates, and torch computes in single precision internally."""
    wide = matrix.dtype if matrix.is_cuda else torch.promote_types(matrix.dtype, torch.float32)
    return matrix.new_empty(rows * len(matrix), dtype=wide)


WHOLE_VOCABULARY = ChunkMethod(compute_losses, allocate_logits)
IN_BLOCKS = ChunkMethod(vocabulary_blocks.compute_losses_in_blocks, vocabulary_blocks.kept_memory)


def product_dtype(hidden_states: Tensor) -> torch.dtype:
    """The type of products, which autocast does not apply to those that are written to memory that is given."""
    device = hidden_states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_states.dtype


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

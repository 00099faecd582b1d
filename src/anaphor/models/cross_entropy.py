"""The cross-entropy of a head, whose logits are never all in memory.

With a large vocabulary the logits are by far the largest tensor of a model. Here they are computed for a chunk of
tokens at a time, and of several chunks once more in the backward pass. `full_cross_entropy` is the simple version;
tests compare the two.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from anaphor.models.head import Head
from anaphor.operations import operation

IGNORE_INDEX = -100  # target of a token that has none, as in torch
# A CPU is slow to touch fresh memory: of 32 MiB at most the C library gives the same again. A GPU wants few large
# products and has enough memory.
LOGITS_PER_CHUNK = {"cpu": 8_000_000, "cuda": 500_000_000}
# Of tokens that are scored on a CPU: with 33,278 words and a width of 16 or 64, a third or two thirds of the time.
MIN_LOGITS_PER_CHUNK = 1_000_000


def full_cross_entropy(hidden_states: Tensor, head: Head, targets: Tensor) -> Tensor:
    """Sum of the losses of all tokens, from all logits at once. [B, T, D], [B, T] -> []"""
    return compute_losses(hidden_states.flatten(0, -2), head.weight, head.bias, targets.flatten()).sum()


@operation
def cross_entropy(
    hidden_states: Tensor,
    head: Head,
    targets: Tensor,
    logits_per_chunk: int | None = None,
    token_losses: Tensor | None = None,
) -> Tensor:
    """The same sum in chunks, to be differentiated once.

    Args:
        hidden_states: What the head reads, [B, T, D].
        head: Its weights give the logits.
        targets: Ids of the next tokens, [B, T]; `IGNORE_INDEX` where there is none.
        logits_per_chunk: Size of a chunk; that of the device if not given.
        token_losses: Tensor [B · T] that the losses of the tokens are written to, without gradient.
    """
    losses = compute_losses_in_chunks(hidden_states, head, targets, chunk_size(hidden_states, head, logits_per_chunk))
    if token_losses is not None:
        token_losses.copy_(losses.detach())
    return losses.sum()


@operation
def smoothed_cross_entropy(hidden_states: Tensor, head: Head, targets: Tensor, label_smoothing: float) -> Tensor:
    """The same sum with label smoothing: every target gives that part of its probability to all tokens uniformly."""
    if not label_smoothing:
        return cross_entropy(hidden_states, head, targets)
    return compute_losses_in_chunks(
        hidden_states, head, targets, chunk_size(hidden_states, head), label_smoothing
    ).sum()


@torch.no_grad()
def token_losses(hidden_states: Tensor, head: Head, targets: Tensor, logits_per_chunk: int | None = None) -> Tensor:
    """The loss of each token, zero where there is no target. [B, T, D], [B, T] -> [B, T]"""
    if logits_per_chunk is None and hidden_states.device.type == "cpu":
        # Fresh memory is slow to touch, and that of a short chunk is used again. But each chunk reads all weights.
        least = max(MIN_LOGITS_PER_CHUNK, 2 * hidden_states.shape[-1] * head.out_features)
        logits_per_chunk = min(LOGITS_PER_CHUNK["cpu"], least)
    rows = chunk_size(hidden_states, head, logits_per_chunk)
    return compute_losses_in_chunks(hidden_states, head, targets, rows).view(targets.shape)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the losses of all rows against probabilities of the classes. [B, C], [B, C] -> []"""
    log_p = widen(logits).log_softmax(-1)
    return -(targets.to(log_p.dtype) * log_p).sum()


def chunk_size(hidden_states: Tensor, head: Head, logits: int | None = None) -> int:
    """How many tokens are a chunk of so many logits."""
    if logits is None:
        logits = LOGITS_PER_CHUNK.get(hidden_states.device.type, LOGITS_PER_CHUNK["cpu"])
    return max(1, logits // head.out_features)


def compute_losses_in_chunks(
    hidden_states: Tensor, head: Head, targets: Tensor, rows: int, label_smoothing: float = 0.0
) -> Tensor:
    """The loss of each token, of so many at a time. [B, T, D], [B, T] -> [B · T]"""
    chunks = list(zip(hidden_states.flatten(0, -2).split(rows), targets.flatten().split(rows), strict=True))
    compute = compute_losses
    if torch.is_grad_enabled() and len(chunks) > 1:  # the logits of a single chunk may stay
        compute = partial(checkpoint, compute_losses, use_reentrant=False, preserve_rng_state=False)
    weight, bias = head.weight, head.bias  # looked up once: a matrix may be computed from embeddings
    return torch.cat([compute(x, weight, bias, target, label_smoothing) for x, target in chunks])


def compute_losses(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """The loss of each token, from all logits of a chunk. [N, D], [V, D], [V], [N] -> [N]"""
    logits = widen(F.linear(x, weight, bias))
    return F.cross_entropy(
        logits, targets, reduction="none", ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing
    )


def widen(x: Tensor) -> Tensor:
    """At least in single precision, which a sum of exponentials needs."""
    return x if x.dtype == torch.float64 else x.float()

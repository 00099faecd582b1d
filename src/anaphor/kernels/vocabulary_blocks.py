"""The cross-entropy on a CPU for a block of the vocabulary at a time, whose logits are used again while they are in the
cache."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from anaphor.kernels.chunked_losses import Chunk

# With two threads blocks make the loss faster by a tenth for a vocabulary of 50,257, slower by 3 % for one of 10,000.
MAX_VOCABULARY_WITHOUT_BLOCKS = 16_384
# Words whose logits are computed together: a product that writes to the cache takes two thirds of the time.
WORDS_PER_BLOCK = 4096
# The products of a block are faster with more tokens. Memory for so many logits (96 MB) is kept for the next call.
LOGITS_PER_CHUNK = 24_000_000


def compute_losses_in_blocks(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """The loss of each token, and the gradient of the weight so far.

    The softmax of a block has the block's own normalizer. Once those of all blocks are known, each block's share of a
    token's probability is, too; it scales the token's hidden state in the gradient of the weight. The target's
    probability is left out of its block: what is missing from it to one, which the gradient needs, is then that of all
    others.
    """
    x, target, matrix = chunk.x, chunk.target[:, None], chunk.matrix
    starts = range(0, len(matrix), WORDS_PER_BLOCK)
    blocks = [slice(start, min(start + WORDS_PER_BLOCK, len(matrix))) for start in starts]
    if len(x) and not (target.min() >= 0 and target.max() < len(matrix)):
        raise RuntimeError(f"a target is out of bounds: targets must be at least 0 and below {len(matrix)}")
    sizes = [len(matrix[at]) for at in blocks]
    parts = chunk.buffer[: len(x) * len(matrix)].split([len(x) * size for size in sizes])
    probabilities = [part.view(len(x), size) for part, size in zip(parts, sizes, strict=True)]
    log_normalizers = chunk.buffer.new_empty(len(x), len(blocks))
    target_logit = chunk.buffer.new_zeros(len(x), 1)
    means = x.new_empty(len(x), len(blocks), x.shape[1])  # of the rows of each block, weighted by their probabilities
    for number, (at, p) in enumerate(zip(blocks, probabilities, strict=True)):
        chunk.compute_logits(p, at)
        inside = (target >= at.start) & (target < at.stop)
        index = (target - at.start).clamp(0, at.stop - at.start - 1)
        logit = p.gather(1, index)
        target_logit = torch.where(inside, logit, target_logit)
        # Not minus infinity, of which a block with no other word would make NaN.
        p.scatter_(1, index, logit.masked_fill(inside, torch.finfo(p.dtype).min))
        peak = p.amax(1)
        torch.softmax(p, 1, out=p)
        # The largest probability is never tiny, so the normalizer follows from it without loss of precision.
        log_normalizers[:, number] = peak - p.amax(1).log()
        means[:, number] = p.to(x.dtype) @ matrix[at]
    log_normalizer = log_normalizers.logsumexp(1, keepdim=True)  # of all words but the target
    surprise = log_normalizer - target_logit
    missing = surprise.sigmoid() * chunk.valid[:, None]
    share = missing * (log_normalizers - log_normalizer).exp()  # [N, blocks]
    grad_x = torch.bmm(share[:, None], means.to(share.dtype)).squeeze(1)
    chunk.grad_x.copy_(grad_x.sub_(missing * matrix[chunk.target]))
    total, dtype = chunk.grad_weight, chunk.sum_dtype
    grad_weight = torch.empty_like(matrix, dtype=dtype) if total is None else total
    for number, (at, p) in enumerate(zip(blocks, probabilities, strict=True)):
        scale, part = share[:, number], grad_weight[at]
        # The first chunk is not added to what the memory held, whatever it was.
        torch.addmm(part, p.t().to(dtype), (x * scale[:, None]).to(dtype), beta=0 if total is None else 1, out=part)
        if chunk.grad_bias is not None:
            chunk.grad_bias[at].add_(p.t() @ scale)
    grad_weight.index_add_(0, chunk.target, (missing * x).to(dtype), alpha=-1)
    if chunk.grad_bias is not None:
        chunk.grad_bias.index_add_(0, chunk.target, missing.squeeze(1).to(dtype), alpha=-1)
    # An infinite logit of the target is no certainty, but an overflow: the loss is then not a number.
    return (0 * target_logit - F.logsigmoid(-surprise)).squeeze(1), grad_weight


_kept = threading.local()
"""What the last call in the same thread used."""


def kept_memory(rows: int, matrix: Tensor) -> Tensor:
    """Memory for the logits of so many tokens: that of the last call, where it is large enough. To touch so much fresh
    memory at every step takes longer than more tokens at once save."""
    size, dtype = rows * len(matrix), torch.promote_types(matrix.dtype, torch.float32)
    buffer: Tensor = getattr(_kept, "buffer", matrix.new_empty(0))
    if buffer.dtype != dtype or len(buffer) < size:
        buffer = _kept.buffer = torch.empty(size, dtype=dtype)
    return buffer[:size]

"""Sheet 004, 2.1: attention from scratch."""

import torch
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    """004.2.1: `num_heads` heads of size dim / num_heads. Returns [B, T, dim] and the weights [B, num_heads, T, T]."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = ...  # 004.2.1: queries, keys and values of all heads, from dim to 3 · dim
        self.out = ...

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [B, T, dim]; attn_mask [T, T] is 0 where token i must not attend to token j, and 1 elsewhere."""
        A = ...  # 004.2.1: your code, without a loop over heads
        out = ...
        return out, A

"""Sheet 004, 2.1: attention from scratch."""

import torch
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    """004.2.1: `num_heads` heads of size dim / num_heads. Returns [B, T, dim] and the weights [B, num_heads, T, T]."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [B, T, dim]; attn_mask [T, T] is 0 where token i must not attend to token j, and 1 elsewhere."""
        batch, tokens, dim = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each [B, num_heads, T, dim / num_heads]
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -torch.inf)
        A = torch.softmax(scores, dim=-1)
        return self.out((A @ v).transpose(1, 2).reshape(batch, tokens, dim)), A

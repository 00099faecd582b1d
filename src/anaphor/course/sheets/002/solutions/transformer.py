"""Sheet 002, problem 2 (c): a transformer, from the attention of `attention.py`."""

import torch
from attention import MultiHeadAttention
from torch import Tensor, nn


class FFN(nn.Module):
    """Given: norm, then two linear layers with a GELU between them. [B, T, dim] -> [B, T, dim]"""

    def __init__(self, dim: int, mlp_dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class TransformerBlock(nn.Module):
    """002.2c: attention, then the feed-forward network, each with a residual connection.

    Returns [B, T, dim] and the weights [B, num_heads, T, T].
    """

    def __init__(self, dim: int, attn_dim: int, mlp_dim: int, num_heads: int) -> None:
        """`attn_dim` is the size of queries, keys and values of each head."""
        super().__init__()
        self.attention = MultiHeadAttention(dim, attn_dim, num_heads)
        self.ffn = FFN(dim, mlp_dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        attended, A = self.attention(x, attn_mask)
        x = x + attended
        return x + self.ffn(x), A


class Transformer(nn.Module):
    """002.2c: blocks, one after the other. Returns [B, T, dim] and the weights [B, num_layers, num_heads, T, T]."""

    def __init__(self, dim: int, attn_dim: int, mlp_dim: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(dim, attn_dim, mlp_dim, num_heads) for _ in range(num_layers))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        weights = []
        for block in self.blocks:
            x, A = block(x, attn_mask)
            weights.append(A)
        return x, torch.stack(weights, dim=1)

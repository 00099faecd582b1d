"""Sheet 002, problem 2: attention. B is the number of sequences, T their length."""

import torch
from torch import Tensor, nn


class AttentionHead(nn.Module):
    """002.2a: one head. Returns the outputs [B, T, n_hidden] and the weights A [B, T, T]."""

    def __init__(self, dim: int, n_hidden: int) -> None:
        """`dim` is the size of a token's vector, `n_hidden` that of queries, keys and values (d_k)."""
        super().__init__()
        self.query = ...  # 002.2a: a linear layer from dim to n_hidden
        self.key = ...
        self.value = ...

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [B, T, dim]; attn_mask [T, T] is 0 where token i must not attend to token j, and 1 elsewhere."""
        A = ...  # 002.2a: your code
        out = ...
        return out, A


class MultiHeadAttention(nn.Module):
    """002.2b: several heads side by side. Returns [B, T, dim] and the weights of all heads [B, num_heads, T, T]."""

    def __init__(self, dim: int, n_hidden: int, num_heads: int) -> None:
        """Each head has queries, keys and values of size `n_hidden`."""
        super().__init__()
        self.heads = ...  # 002.2b: an nn.ModuleList of heads
        self.out = ...  # W_O: which size has it?

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        A = ...  # 002.2b: your code
        out = ...
        return out, A

"""Sheet 002, problem 2: attention. B is the number of sequences, T their length."""

import torch
from torch import Tensor, nn


class AttentionHead(nn.Module):
    """002.2a: one head. Returns the outputs [B, T, n_hidden] and the weights A [B, T, T]."""

    def __init__(self, dim: int, n_hidden: int) -> None:
        """`dim` is the size of a token's vector, `n_hidden` that of queries, keys and values (d_k)."""
        super().__init__()
        self.query = nn.Linear(dim, n_hidden)
        self.key = nn.Linear(dim, n_hidden)
        self.value = nn.Linear(dim, n_hidden)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [B, T, dim]; attn_mask [T, T] is 0 where token i must not attend to token j, and 1 elsewhere."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -torch.inf)
        A = torch.softmax(scores, dim=-1)
        return A @ v, A


class MultiHeadAttention(nn.Module):
    """002.2b: several heads side by side. Returns [B, T, dim] and the weights of all heads [B, num_heads, T, T]."""

    def __init__(self, dim: int, n_hidden: int, num_heads: int) -> None:
        """Each head has queries, keys and values of size `n_hidden`."""
        super().__init__()
        self.heads = nn.ModuleList(AttentionHead(dim, n_hidden) for _ in range(num_heads))
        self.out = nn.Linear(num_heads * n_hidden, dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, weights = zip(*(head(x, attn_mask) for head in self.heads), strict=True)
        return self.out(torch.cat(outputs, dim=-1)), torch.stack(weights, dim=1)

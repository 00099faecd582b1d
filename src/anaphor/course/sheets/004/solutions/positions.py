"""Sheet 004, 2.2.2: sines and cosines as positions."""

import math

import torch
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """004.2.2b: adds sin(k / 10000^(2m/dim)) to the dimensions 2m of token k, and the cosine of it to 2m + 1."""

    def __init__(self, dim: int, max_seq_len: int = 1024) -> None:
        super().__init__()
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.arange(max_seq_len, dtype=torch.float64)[:, None] * frequencies
        encoding = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :dim]
        self.register_buffer("encoding", encoding, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] -> [B, T, dim]"""
        return x + self.encoding[: x.shape[1]].to(x)

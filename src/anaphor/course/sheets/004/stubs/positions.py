"""Sheet 004, 2.2.2: sines and cosines as positions."""

import math

import torch
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """004.2.2b: adds sin(k / 10000^(2m/dim)) to the dimensions 2m of token k, and the cosine of it to 2m + 1."""

    def __init__(self, dim: int, max_seq_len: int = 1024) -> None:
        super().__init__()
        self.encoding = ...  # 004.2.2b: your code; self.register_buffer keeps a tensor that is not trained

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] -> [B, T, dim]"""
        return ...  # 004.2.2b: your code

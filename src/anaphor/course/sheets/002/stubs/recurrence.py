"""Sheet 002, problem 1: one step of a recurrent network."""

import torch
from torch import Tensor, nn


class RNNCell(nn.Module):
    """002.1g: h' = tanh(W_x x + b_x + W_h h + b_h)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.from_input = ...  # 002.1g: your code
        self.from_state = ...

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """x [B, input_size], h [B, hidden_size] -> the next h [B, hidden_size]"""
        return ...  # 002.1g: your code

"""Sheet 001, problem 3: one step of an LSTM."""

import torch
from torch import Tensor, nn


class LSTMCell(nn.Module):
    """001.3.3-cell: i, f, o = σ(…) and g = tanh(…) of W x + U h + b; c' = f c + i g, h' = o tanh(c')."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.from_input = ...  # 001.3.3-cell: all four at once, from input_size to 4 · hidden_size
        self.from_state = ...

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """x [B, input_size], state (h, c), each [B, hidden_size] -> the next h and c"""
        return ..., ...  # 001.3.3-cell: your code

"""Sheet 001, problem 3: one step of an LSTM."""

import torch
from torch import Tensor, nn


class LSTMCell(nn.Module):
    """001.3.3-cell: i, f, o = σ(…) and g = tanh(…) of W x + U h + b; c' = f c + i g, h' = o tanh(c')."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(input_size, 4 * hidden_size)
        self.from_state = nn.Linear(hidden_size, 4 * hidden_size)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """x [B, input_size], state (h, c), each [B, hidden_size] -> the next h and c"""
        h, c = state
        i, f, g, o = (self.from_input(x) + self.from_state(h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

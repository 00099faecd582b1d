"""Sheet 000, language models 5: an LSTM and attention in one layer."""

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class Hybrid(nn.Module):
    """000.2.5-code: h is what the LSTM makes of x, and the output is h plus what causal attention over h makes of it.

    The state of the LSTM is returned, detached, and given to the next call; attention sees the tokens of a call only.
    """

    def __init__(self, input_size: int, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.lstm = ...  # 000.2.5-code: nn.LSTM
        self.attention = ...  # nn.MultiheadAttention

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """x [B, T, input_size] -> y [B, T, hidden_size] and the state"""
        y = ...  # 000.2.5-code: your code
        return y, state

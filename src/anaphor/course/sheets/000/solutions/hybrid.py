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
        self.lstm = nn.LSTM(input_size, hidden_size, batch_first=True)
        self.attention = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """x [B, T, input_size] -> y [B, T, hidden_size] and the state"""
        h, (last, cell) = self.lstm(x, state)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        attended, _ = self.attention(h, h, h, attn_mask=later)
        return h + attended, (last.detach(), cell.detach())

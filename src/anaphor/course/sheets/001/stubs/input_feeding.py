"""Sheet 001, problem 3.8: a decoder with attention and input feeding (Luong et al., 2015)."""

import torch
from torch import Tensor, nn


class InputFeedingDecoder(nn.Module):
    """001.3.8-code: an LSTM cell reads the token and h̃ of the step before, and its h attends to the source.

    scores = q W k, c = softmax(scores) · source, h̃ = tanh(W [c; h])
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.cell = ...  # 001.3.8-code: an nn.LSTMCell; how large is its input?
        self.linear_in = ...  # W of the scores, without bias
        self.linear_out = ...  # W of the attentional vector, without bias

    def forward(self, x: Tensor, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [B, T, input_size], source [B, S, hidden_size], source_mask [B, S] 0 in padding -> h̃ [B, T, H]"""
        out = ...  # 001.3.8-code: your code, a loop over the tokens
        A = ...  # the weights of all steps, [B, T, S]
        return out, A

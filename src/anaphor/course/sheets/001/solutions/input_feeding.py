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
        self.cell = nn.LSTMCell(input_size + hidden_size, hidden_size)
        self.linear_in = nn.Linear(hidden_size, hidden_size, bias=False)
        self.linear_out = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [B, T, input_size], source [B, S, hidden_size], source_mask [B, S] 0 in padding -> h̃ [B, T, H]"""
        h = c = feed = x.new_zeros(len(x), self.hidden_size)
        vectors, maps = [], []
        for token in x.unbind(1):
            h, c = self.cell(torch.cat((token, feed), dim=-1), (h, c))
            scores = (source @ self.linear_in(h)[:, :, None]).squeeze(-1)
            if source_mask is not None:
                scores = scores.masked_fill(source_mask == 0, -torch.inf)
            weights = torch.softmax(scores, dim=-1)
            context = (weights[:, None] @ source).squeeze(1)
            feed = torch.tanh(self.linear_out(torch.cat((context, h), dim=-1)))
            vectors.append(feed)
            maps.append(weights)
        return torch.stack(vectors, dim=1), torch.stack(maps, dim=1)

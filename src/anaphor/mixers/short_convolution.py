"""Short causal convolution: each feature becomes a weighted sum of its own last few values.

It lets a layer compare a token with the ones just before it, which explains much of what papers credit to their
recurrence. So it is a part of its own: `--short-conv 4` puts it in front of every mixer, attention and LSTM included
(the block adds it to the mixer's input, as the Canon layers of Allen-Zhu, 2025), or, in mixers whose papers have a
place for it (behind the projections of `mamba2` and `delta`, for example), there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.base import Span

MAX_KERNEL_SIZE = 64


def check_short_conv(**sizes: int | None) -> None:
    """Refuse a kernel size that is not 0 (no convolution) or a few tokens."""
    for name, size in sizes.items():
        if size is not None and not (size == 0 or 2 <= size <= MAX_KERNEL_SIZE):
            raise ConfigError(f"{name}={size}: it must be 0 (none), or from 2 to {MAX_KERNEL_SIZE}")


def join_past(x: Tensor, past: Tensor, span: Span) -> tuple[Tensor, Tensor]:
    """The inputs behind the newest earlier ones [B, P + T, D], and the P newest after them, which the next call needs.

    [B, T, D], [B, P, D] -> [B, P + T, D], [B, P, D]
    """
    if not past.shape[1]:
        return x, past
    joined = torch.cat((past.to(x.dtype), x), dim=1)
    newest = joined[:, span.count :]
    if span.has_padding:
        places = span.lengths[:, None] + torch.arange(past.shape[1], device=x.device)
        newest = joined.gather(1, places.long()[..., None].expand(-1, -1, x.shape[-1]))
    return joined, newest.to(past.dtype, copy=True)  # a view would keep all inputs in memory


class ShortConvolution(nn.Module):
    """y_t = Σ_j w_j x_{t-j} for each channel by itself. Its state is the last `kernel_size - 1` inputs."""

    def __init__(self, channels: int, kernel_size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.empty(channels, kernel_size))  # oldest input first, as torch's Conv1d has it
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's Conv1d with a group for each channel."""
        bound = self.kernel_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initial_state(self, rows: int) -> Tensor:
        """The inputs before the first token: zeros."""
        return self.weight.new_zeros(rows, self.kernel_size - 1, len(self.weight))

    def forward(self, x: Tensor, past: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """[B, T, C], [B, kernel_size - 1, C] -> outputs [B, T, C], and the newest inputs."""
        joined, newest = join_past(x, past, span)
        weight = self.weight.to(x.dtype)
        y = joined[:, : span.count] * weight[:, 0]
        for age in range(1, self.kernel_size):
            y = torch.addcmul(y, joined[:, age : age + span.count], weight[:, age])
        return (y if self.bias is None else y + self.bias.to(x.dtype)), newest

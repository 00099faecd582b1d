"""Position: how a token's place gets in. There are three doors, and a scheme uses one of them.

`embed` adds a vector to the input, `rotate` turns queries and keys, `bias` adds to the scores. Keys are remembered
before they are rotated, so a state can be re-based and looked at under another scheme.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.spec import Sizes

Door = Literal["embed", "rotate", "bias"]


class Position(nn.Module):
    """Does nothing at any door; a scheme overrides one."""

    door: ClassVar[Door | None] = None
    fixed: ClassVar[bool] = False
    """Whether what is added has a size of its own, about one, to which word vectors must be brought."""
    bounded: ClassVar[bool] = False
    """Whether the scheme knows only the first `limit` positions, so that an endless stream runs out of them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()

    def embed(self, positions: Tensor) -> Tensor | None:
        """[B, T] -> [B, T, D], to be added to the tokens."""
        return None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, K], [B, T] -> [B, H, T, K]"""
        return x

    def bias(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """[B, H, T, K], [B, H, S, K], [B or 1, T], [B or 1, S] -> [B or 1, H, T, S], to be added to the scores.

        It must depend on distances alone: positions may be counted from anywhere.
        """
        return None


class Learned(Position):
    """A vector for each of the first `limit` positions, learned like a word."""

    door = "embed"
    bounded = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = nn.Embedding(sizes.max_positions, sizes.width)

    def embed(self, positions: Tensor) -> Tensor:
        vectors: Tensor = self.table(positions)
        return vectors


class Sinusoidal(Position):
    """Sine and cosine in pairs: both of a pair turn at the same speed (Vaswani et al., 2017)."""

    door = "embed"
    fixed = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.width = sizes.width

    def exponents(self, dimension: Tensor) -> Tensor:
        return dimension // 2 * 2 / self.width

    def embed(self, positions: Tensor) -> Tensor:
        exponents = self.exponents(torch.arange(self.width, device=positions.device, dtype=torch.float64))
        return waves(positions, speeds(exponents))


class SinusoidalUnpaired(Sinusoidal):
    """Every dimension turns at a speed of its own: sin(k / 10000^(i/d)) for even i, cos(k / 10000^(i/d)) for odd i."""

    def exponents(self, dimension: Tensor) -> Tensor:
        return dimension / self.width


class Rotary(Position):
    """Turns each pair of dimensions of q and k by an angle that grows with the position (Su et al., 2021)."""

    door = "rotate"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        if sizes.head_width % 2:
            raise ConfigError(
                f"rotary positions turn pairs of dimensions: a head's width must be even, but it is {sizes.head_width}"
            )

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = x.shape[-1] // 2
        turn = speeds(torch.arange(pairs, device=x.device, dtype=torch.float64) / pairs)
        angles = positions[:, None, :, None] * turn  # [B, 1, T, K/2]
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class Alibi(Position):
    """Takes from each score the distance times a slope that is fixed for each head (Press et al., 2022)."""

    door = "bias"

    @staticmethod
    def slopes_of(heads: Tensor, count: int) -> Tensor:
        """A geometric row for a power of two; other counts fill up from the row of the next power, every second one."""
        power = 2 ** math.floor(math.log2(count))
        coarse, finer = -8 * (heads + 1) / power, -4 * (2 * (heads - power) + 1) / power
        return 2.0 ** torch.where(heads < power, coarse, finer)

    def bias(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        heads = torch.arange(q.shape[1], device=q.device, dtype=torch.promote_types(q.dtype, torch.float32))
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()  # [B, T, S]
        return (-self.slopes_of(heads, q.shape[1])[:, None, None] * distance[:, None]).to(q.dtype)


class Relative(Position):
    """Transformer-XL's terms: what a query thinks of a distance, and what every query thinks of a key and a distance.

    With the dot product of the score this makes (q + u)·k + (q + v)·r, where r stands for the distance (Dai et al.,
    2019, section 3.3), all of it scaled by 1/√K.
    """

    door = "bias"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = Sinusoidal(sizes)
        self.project = nn.Linear(sizes.width, sizes.heads * sizes.head_width, bias=False)
        self.content = nn.Parameter(torch.zeros(sizes.heads, 1, sizes.head_width))  # u
        self.distance = nn.Parameter(torch.zeros(sizes.heads, 1, sizes.head_width))  # v

    def bias(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        heads, tokens, head_width = q.shape[1:]
        keys = k.shape[2]
        # A key is at most so far back as there are slots, and at most so far ahead as there are new tokens.
        distances = torch.arange(-(tokens - 1), keys, device=q.device)
        r = self.project(self.table.embed(distances).to(self.project.weight.dtype))
        r = r.view(-1, heads, head_width).transpose(0, 1)  # [H, T + S - 1, K]
        by_distance = (q + self.distance) @ r.transpose(-1, -2)  # [B, H, T, T + S - 1]
        index = query_positions[:, :, None] - key_positions[:, None, :] + (tokens - 1)  # [B, T, S]
        index = index.clamp(0, len(distances) - 1)[:, None].expand(len(q), heads, -1, -1)
        by_key = self.content @ k.transpose(-1, -2)  # [B, H, 1, S]
        bias: Tensor = (by_distance.gather(-1, index) + by_key) / math.sqrt(head_width)
        return bias


def check_limit(tokens: int, limit: int) -> None:
    """Refuse a text that is longer than the table of learned positions."""
    if tokens > limit:
        raise ConfigError(
            f"{tokens} tokens are more than the {limit} learned positions: give more, cut the text, do not carry the "
            f"state, or choose positions without end (sinusoidal, rotary, alibi, relative)"
        )


def speeds(exponents: Tensor) -> Tensor:
    """How fast each dimension turns.

    In double, and made anew at each call rather than kept as a buffer: a buffer would follow the model into single
    precision, where a position of 100,000 is already off by a hundredth of a radian.
    """
    return 10000.0**-exponents


def waves(positions: Tensor, turn: Tensor) -> Tensor:
    """Sine in even dimensions, cosine in odd ones. [...], [D] -> [..., D]"""
    table = positions.new_empty(*positions.shape, len(turn), dtype=turn.dtype)
    table[..., 0::2] = (positions[..., None] * turn[0::2]).sin()
    table[..., 1::2] = (positions[..., None] * turn[1::2]).cos()
    return table


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "sinusoidal-unpaired": SinusoidalUnpaired,
    "rotary": Rotary,
    "alibi": Alibi,
    "relative": Relative,
}

"""Position encodings. Each uses one of three methods: `embed` adds a vector to the input, `rotate` rotates queries and
keys, `bias` adds to the scores.

Keys are cached before they are rotated, so a state can be re-based and used with another encoding.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.attention.rope_scaling import parse_rope_scaling
from anaphor.mixers.spec import Sizes
from anaphor.precision import widest_dtype

Method = Literal["embed", "rotate", "bias"]
Rotation = tuple[Tensor, Tensor]
"""For each dimension that is rotated: the cosine of the angle of its pair, and the sine with the sign that it has in
that row of the matrix, minus in the first half. Both [B, 1, T, rotated dimensions]."""


class Position(nn.Module):
    """No position encoding; a subclass overrides one of the three methods."""

    method: ClassVar[Method | None] = None
    """Which one."""
    scales_embedding: ClassVar[bool] = False
    """Whether embeddings must be scaled by √width first, because what is added has entries of size one."""
    has_limit: ClassVar[bool] = False
    """Whether the encoding covers only the first `max_positions` positions."""

    def __init__(self, sizes: Sizes) -> None:
        self.check(sizes)
        super().__init__()

    @classmethod
    def check(cls, sizes: Sizes) -> None:
        """Raise for sizes that it does not work with. Specs call it, for which no module is made."""

    def embed(self, positions: Tensor) -> Tensor | None:
        """[B, T] -> [B, T, D], to be added to the tokens."""
        return None

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Cosines and sines for tokens at these positions, with which `rotate` turns queries and keys. [B, T]"""
        raise NotImplementedError(f"{type(self).__name__} does not define rotation")

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        """[B, H, T, K] -> [B, H, T, K]"""
        return x

    def bias(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """[B, H, T, K], [B, H, S, K], [B or 1, T], [B or 1, S] -> [B or 1, H, T, S], to be added to the scores.

        It must depend on differences of positions only: they may be counted from anywhere.
        """
        return None


class Learned(Position):
    """A learned embedding of each of the first `max_positions` positions."""

    method = "embed"
    has_limit = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = nn.Embedding(sizes.max_positions, sizes.width)

    def embed(self, positions: Tensor) -> Tensor:
        vectors: Tensor = self.table(positions)
        return vectors


class Sinusoidal(Position):
    """Sine and cosine in pairs of the same frequency (Vaswani et al., 2017)."""

    method = "embed"
    scales_embedding = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.width = sizes.width

    def exponents(self, dimension: Tensor) -> Tensor:
        return dimension // 2 * (2 / self.width)

    def embed(self, positions: Tensor) -> Tensor:
        exponents = self.exponents(
            torch.arange(self.width, device=positions.device, dtype=widest_dtype(positions.device))
        )
        return sinusoids(positions, inverse_frequencies(exponents))


class SinusoidalUnpaired(Sinusoidal):
    """Every dimension has its own frequency: sin(k / 10000^(i/d)) for even i, cos(k / 10000^(i/d)) for odd i."""

    def exponents(self, dimension: Tensor) -> Tensor:
        return dimension / self.width


class Rotary(Position):
    """Rotates each pair of dimensions of q and k by an angle proportional to the position (Su et al., 2021). A pair has
    one dimension of the first half of those that are rotated, and the one at its place in the second half."""

    method = "rotate"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.theta, self.width = sizes.rope_theta, rotated_width(sizes)
        self.scaling = None if sizes.rope_scaling is None else parse_rope_scaling(sizes.rope_scaling)

    @classmethod
    def check(cls, sizes: Sizes) -> None:
        if sizes.head_width % 2:
            raise ConfigError(
                f"rotary positions rotate pairs of dimensions: head_width must be even, but it is {sizes.head_width}"
            )
        if not 1 < sizes.rope_theta < math.inf:
            raise ConfigError(f"rope_theta={sizes.rope_theta:g}: it must be a number above 1")
        part, width = sizes.partial_rotary_factor, rotated_width(sizes)
        if not 0 < part <= 1 or width < 2 or width % 2:
            raise ConfigError(
                f"partial_rotary_factor={part:g}: of head_width={sizes.head_width} it must leave an even number of "
                f"dimensions, at least 2 and at most all; {2 / sizes.head_width:g} is the least"
            )
        if sizes.rope_scaling is not None:
            parse_rope_scaling(sizes.rope_scaling)

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        pairs = self.width // 2
        exponents = torch.arange(pairs, device=positions.device, dtype=widest_dtype(positions.device)) / pairs
        inv_freq, scale = inverse_frequencies(exponents, self.theta), 1.0
        if self.scaling is not None:
            inv_freq, scale = self.scaling.inverse_frequencies(inv_freq, self.theta), self.scaling.attention_factor
        angles = positions[:, None, :, None] * inv_freq  # [B, 1, T, pairs]
        cos, sin = angles.cos(), angles.sin()
        if scale != 1:
            cos, sin = scale * cos, scale * sin
        cos, sin = cos.to(dtype), sin.to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        cos, sin = rotation
        turned = x if self.width == x.shape[-1] else x[..., : self.width]
        other = turned.roll(self.width // 2, -1)  # of each dimension the other one of its pair
        y = turned * cos + other * sin
        return y if turned is x else torch.cat((y, x[..., self.width :]), dim=-1)


def rotated_width(sizes: Sizes) -> int:
    """Number of dimensions of a head that rotary positions rotate, the first ones."""
    return int(sizes.head_width * sizes.partial_rotary_factor)


class Alibi(Position):
    """Subtracts from each score the distance times a fixed slope per head (Press et al., 2022)."""

    method = "bias"

    @staticmethod
    def slopes(heads: Tensor, count: int) -> Tensor:
        """A geometric sequence for a power of two; other counts add every second slope of the next power of two."""
        power = 2 ** math.floor(math.log2(count))
        coarse, finer = -8 * (heads + 1) / power, -4 * (2 * (heads - power) + 1) / power
        return 2.0 ** torch.where(heads < power, coarse, finer)

    def bias(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        heads = torch.arange(q.shape[1], device=q.device, dtype=torch.promote_types(q.dtype, torch.float32))
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()  # [B, T, S]
        return (-self.slopes(heads, q.shape[1])[:, None, None] * distance[:, None]).to(q.dtype)


class Relative(Position):
    """The terms of Transformer-XL: with the dot product of the score, (q + u)·k + (q + v)·r, where r encodes the
    distance (Dai et al., 2019, section 3.3), all scaled by 1/√K."""

    method = "bias"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = Sinusoidal(sizes)
        self.project = nn.Linear(sizes.width, sizes.heads * sizes.head_width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(sizes.heads, 1, sizes.head_width))  # u
        self.distance_bias = nn.Parameter(torch.zeros(sizes.heads, 1, sizes.head_width))  # v

    def bias(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        heads, tokens, head_width = q.shape[1:]
        keys = k.shape[2]
        # A key is at most as far back as there are slots, and at most as far ahead as there are new tokens.
        distances = torch.arange(-(tokens - 1), keys, device=q.device)
        r = self.project(self.table.embed(distances).to(self.project.weight.dtype))
        r = r.view(-1, heads, head_width).transpose(0, 1)  # [H, T + S - 1, K]
        by_distance = (q + self.distance_bias) @ r.transpose(-1, -2)  # [B, H, T, T + S - 1]
        index = query_positions[:, :, None] - key_positions[:, None, :] + (tokens - 1)  # [B, T, S]
        index = index.clamp(0, len(distances) - 1)[:, None].expand(len(q), heads, -1, -1)
        by_key = self.content_bias @ k.transpose(-1, -2)  # [B, H, 1, S]
        bias: Tensor = (by_distance.gather(-1, index) + by_key) / math.sqrt(head_width)
        return bias


class RelativeBuckets(Position):
    """A learned bias for each head and range of distances: 16 ranges before and 16 behind a token, of one distance each
    up to 8, then wider and wider up to 128 (Raffel et al., 2020). One table serves all layers of a stack."""

    method = "bias"
    buckets: ClassVar[int] = 32
    max_distance: ClassVar[int] = 128

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table: nn.Embedding = nn.Embedding(self.buckets, sizes.heads)

    def share(self, owner: RelativeBuckets) -> None:
        """Use the table of another layer instead of its own."""
        del self.table
        self.__dict__["table"] = owner.table  # not registered: it exists once, in every copy, file and device

    @classmethod
    def bucket(cls, distance: Tensor) -> Tensor:
        """Number of the range of a distance; positive ones are of keys before the query."""
        side = cls.buckets // 2
        exact = side // 2
        far = distance.abs()
        # In single precision, as in the libraries that trained such tables: some distances are at a border.
        ratio = torch.log(far.clamp(min=1).float() / exact) / math.log(cls.max_distance / exact)
        wide = (exact + (ratio * (side - exact)).long()).clamp(max=side - 1)
        return torch.where(far < exact, far, wide) + side * (distance < 0)

    def bias(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distance = query_positions[:, :, None] - key_positions[:, None, :]  # [B, T, S]
        values: Tensor = self.table(self.bucket(distance))
        return values.permute(0, 3, 1, 2).to(q.dtype)


def check_max_positions(tokens: int, max_positions: int) -> None:
    """Refuse a sequence that is longer than the table of learned positions."""
    if tokens > max_positions:
        raise ConfigError(
            f"{tokens} tokens are more than the {max_positions} learned positions: increase max_positions, shorten "
            f"the text, do not carry the state, or use an unbounded position encoding (sinusoidal, rotary, alibi, "
            f"relative)"
        )


def inverse_frequencies(exponents: Tensor, base: float = 10_000.0) -> Tensor:
    """base^-exponent.

    In double, and computed at each call instead of kept as a buffer: a buffer would follow the model into single
    precision, where the angle of position 100,000 is off by a hundredth of a radian.
    """
    return (exponents * -math.log(base)).exp()


def sinusoids(positions: Tensor, inv_freq: Tensor) -> Tensor:
    """Sine in even dimensions, cosine in odd ones. [...], [D] -> [..., D]"""
    table = positions[..., None] * inv_freq
    table[..., 0::2].sin_()
    table[..., 1::2].cos_()
    return table


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "sinusoidal-unpaired": SinusoidalUnpaired,
    "rotary": Rotary,
    "alibi": Alibi,
    "relative": Relative,
    "relative-buckets": RelativeBuckets,
}

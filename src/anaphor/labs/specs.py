"""Inputs of the labs. Imports no torch, so that `anaphor lab NAME --help` is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from anaphor.config import check_types, look_up
from anaphor.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LabSpec:
    """Inputs of a lab. Their bounds keep it below half a minute and within floating-point range."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in vars(self):
            if any(isinstance(value, float) and not math.isfinite(value) for value in self._values(name)):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be a finite number")
        if not 0 <= (seed := getattr(self, "seed", 0)) < 2**63:
            raise ConfigError(f"seed={seed}: it must be 0 to {2**63 - 1:,}")

    def at_least(self, least: float, *names: str) -> None:
        for name in names:
            if any(value < least for value in self._values(name)):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at least {least:g}")

    def at_most(self, most: int, *names: str) -> None:
        for name in names:
            if any(value > most for value in self._values(name)):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at most {most:,}")

    def _values(self, name: str) -> tuple[Any, ...]:
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,)

    def at_least_distinct(self, least: int, name: str) -> None:
        if len(set(getattr(self, name))) < least:
            raise ConfigError(f"{name}={getattr(self, name)}: give at least {least} different numbers")


@dataclass(frozen=True, kw_only=True)
class SeededSpec(LabSpec):
    """Inputs of a lab that draws random numbers."""

    seed: int = 0
    """Random seed of weights and inputs."""


LARGEST = 10**9  # numerator and denominator in the lab on backpropagation


@dataclass(frozen=True, kw_only=True)
class BackpropSpec(SeededSpec):
    """Backpropagation by hand through a network with one ReLU, in exact fractions, then with vectors."""

    x: str = "1"
    """Input: an integer, a decimal or a fraction."""
    w1: str = "1/4"
    """Weight of the first layer."""
    b1: str = "0"
    """Bias of the first layer."""
    w2: str = "1/3"
    """Weight of the second layer."""
    b2: str = "0"
    """Bias of the second layer."""
    vector_x: tuple[float, ...] = (1, 1)
    """Input of the network with vectors (2 numbers)."""
    vector_w: tuple[float, ...] = (-1, -1, 1, 1)
    """Weights of its first layer (2 × 2, row by row)."""
    vector_b1: tuple[float, ...] = (0, 0)
    """Biases of its first layer."""
    vector_u: tuple[float, ...] = (1, 1)
    """Weights of its second layer."""
    vector_b2: float = 0
    """Bias of its second layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("x", "w1", "b1", "w2", "b2"):
            self.fraction(name)
        for name, count in (("vector_x", 2), ("vector_w", 4), ("vector_b1", 2), ("vector_u", 2)):
            if len(getattr(self, name)) != count:
                raise ConfigError(f"{name} has {len(getattr(self, name))} numbers, but it needs {count}")
        self.at_least(-LARGEST, "vector_x", "vector_w", "vector_b1", "vector_u", "vector_b2")
        self.at_most(LARGEST, "vector_x", "vector_w", "vector_b1", "vector_u", "vector_b2")

    def fraction(self, name: str) -> Fraction:
        given = getattr(self, name)
        try:
            # Reject long exponents first: Fraction would expand them.
            value = Fraction(given) if len(given) <= 40 and len(given.lower().partition("e")[2]) <= 3 else None
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f"{name}={given!r} is not a number: write 2, 0.25 or 1/4") from None
        if value is None or max(abs(value.numerator), value.denominator) > LARGEST:
            raise ConfigError(f"{name}={given!r} is too large: numerator and denominator can be at most {LARGEST:,}")
        return value


@dataclass(frozen=True, kw_only=True)
class KroneckerSpec(SeededSpec):
    """Write self-attention as a fully connected layer, and fit a fully connected layer to attention."""

    tokens: int = 4
    """Sequence length."""
    width: int = 3
    """Width of a token vector."""
    sharpness: float = 3.0
    """Factor of the scores; 0 makes attention a mean, which a fully connected layer can fit."""
    inputs: int = 2000
    """Sequences of the first fit."""
    few: int = 8
    """Sequences of a second, underdetermined fit, which is exact."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(2, "tokens", "width")
        self.at_least(0, "sharpness")
        self.at_least(1, "few")
        self.at_most(100_000, "inputs")
        size = self.tokens * self.width
        if size > 64:
            raise ConfigError(f"tokens={self.tokens} × width={self.width} is more than 64: too large for the figure")
        if self.few >= size:
            raise ConfigError(f"few={self.few}: an exact fit needs fewer than tokens × width = {size}")
        if self.inputs < 4 * size:
            raise ConfigError(f"inputs={self.inputs}: a fit needs at least 4 × tokens × width = {4 * size}")


MAX_DIGITS = 140  # of a power: its square must be finite
MATRICES = {"orthogonal": "a rotation times the radius", "gaussian": "random numbers, scaled to the radius"}


@dataclass(frozen=True, kw_only=True)
class UnrollSpec(SeededSpec):
    """Unroll a linear recurrent network: states as sums, share of the first input, gradients."""

    steps: int = 100
    """Sequence length."""
    inputs: int = 3
    """Input width."""
    hidden: int = 4
    """Width of the hidden state."""
    outputs: int = 2
    """Output width."""
    radii: tuple[float, ...] = (0.9, 1.0, 1.1)
    """Spectral radii of the recurrent matrix."""
    matrix: str = "orthogonal"
    """Recurrent matrix: orthogonal (a rotation times the radius) or gaussian."""
    symbolic: int = 5
    """Steps that are unrolled symbolically."""
    clip: float = 1.0
    """Gradient clipping norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(MATRICES, self.matrix, "matrix")
        self.at_least(1, "inputs", "hidden", "outputs")
        self.at_least(4, "steps")
        self.at_least(3, "symbolic")
        self.at_most(64, "inputs", "hidden", "outputs")
        if not all(0.001 <= radius <= 2 for radius in self.radii) or not self.radii:
            raise ConfigError(f"radii={self.radii}: spectral radii must be from 0.001 to 2")
        if self.steps > 1000 or self.symbolic > 20:
            raise ConfigError(f"steps={self.steps}, symbolic={self.symbolic}: at most 1,000 and 20")
        if any(self.steps * abs(math.log10(radius)) > MAX_DIGITS for radius in self.radii):
            raise ConfigError(f"radii={self.radii} to the power of steps={self.steps} overflows double precision")
        if self.clip <= 0:
            raise ConfigError(f"clip={self.clip}: it must be above 0")


@dataclass(frozen=True, kw_only=True)
class BpttSpec(SeededSpec):
    """Differentiate a recurrent network step by step and compare each formula with autograd."""

    steps: int = 3
    """Sequence length."""
    inputs: int = 3
    """Input width."""
    hidden: int = 4
    """Width of the hidden state."""
    outputs: int = 2
    """Number of classes."""
    reach: int | None = None
    """Steps of truncated backpropagation (all if not given)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "steps", "inputs", "hidden")
        self.at_least(2, "outputs")
        self.at_most(100, "steps")
        self.at_most(256, "inputs", "hidden", "outputs")
        if self.reach is not None and self.reach < 1:
            raise ConfigError(f"reach={self.reach}: it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class ComplexitySpec(SeededSpec):
    """Measure time, memory, operations and depth of sequence layers against length and width. Takes seconds."""

    lengths: tuple[int, ...] = (256, 512, 1024, 1448, 2048, 2896, 4096)
    """Sequence lengths."""
    width: int = 32
    """Width at which the lengths are compared."""
    widths: tuple[int, ...] = (32, 64, 128, 256)
    """Widths."""
    length: int = 512
    """Length at which the widths are compared."""
    large: int = 1024
    """Least length used to fit exponents."""
    rank: int = 32
    """Rank of low-rank attention."""
    chunk: int = 64
    """Chunk length of linear attention."""
    repeats: int = 4
    """Repetitions of each time measurement; the minimum counts."""
    attempts: int = 2
    """Attempts at measuring times if an exponent is out of bounds; every attempt is reported."""
    threads: int = 1
    """CPU threads; with one, CPU time is measured instead of wall time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(16, "lengths", "length")
        self.at_least(4, "width", "widths")
        self.at_least(1, "rank", "chunk", "repeats", "attempts", "threads")
        self.at_least_distinct(3, "widths")
        self.at_most(1024, "rank", "chunk")
        self.at_most(20, "repeats", "attempts")
        self.at_most(256, "threads")
        if len({length for length in self.lengths if length >= self.large}) < 3:
            raise ConfigError(f"large={self.large}: at least 3 different lengths must be this large")
        if max(*self.lengths, self.length) > 16_384 or max(*self.widths, self.width) > 2048:
            raise ConfigError("lengths can be at most 16,384 and widths at most 2,048: more would not fit into memory")


@dataclass(frozen=True, kw_only=True)
class LowRankLabSpec(SeededSpec):
    """Compute attention with low-rank factors, exactly where possible, and measure the rank of trained attention."""

    tokens: int = 256
    """Sequence length."""
    width: int = 32
    """Width of queries, keys and values."""
    rank: int = 8
    """Rank of the attention matrix."""
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Sequence lengths of the time measurement."""
    train: int = 150
    """Training steps of a small model whose attention is analyzed; 0 skips it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(8, "tokens", "lengths")
        self.at_least(1, "width", "rank")
        self.at_least(0, "train")
        self.at_least_distinct(3, "lengths")
        self.at_most(512, "width")
        self.at_most(2000, "train")
        if self.rank > min(self.width, self.tokens) // 2:
            most = min(self.width, self.tokens) // 2
            raise ConfigError(f"rank={self.rank}: it can be at most half of width and tokens, {most}")
        if max(*self.lengths, self.tokens) > 8192:
            raise ConfigError("lengths can be at most 8,192: the full matrix would not fit into memory")


@dataclass(frozen=True, kw_only=True)
class ScalingSpec(SeededSpec):
    """Variance of dot products of random vectors against their width, and its effect on a softmax."""

    mean: float = 0.5
    """Mean μ of the entries of queries and keys."""
    deviation: float = 1.0
    """Standard deviation σ of the entries."""
    widths: tuple[int, ...] = (4, 16, 64, 256)
    """Widths h."""
    samples: int = 20_000
    """Query-key pairs sampled at each width."""
    keys: int = 16
    """Number of keys in the softmax."""
    queries: int = 500
    """Number of queries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "widths")
        self.at_least(100, "samples", "queries")
        self.at_least(2, "keys")
        self.at_least_distinct(2, "widths")
        self.at_least(-1000, "mean")
        self.at_least(0.001, "deviation")
        self.at_most(1000, "mean", "deviation")
        if self.samples * max(self.widths) > 50_000_000 or self.queries * self.keys * max(self.widths) > 50_000_000:
            raise ConfigError("these samples would not fit into memory: reduce samples, queries, keys or widths")


@dataclass(frozen=True, kw_only=True)
class MaskingSpec(SeededSpec):
    """Mask tokens in attention in three ways and show by gradients that they have no influence."""

    tokens: int = 6
    """Sequence length."""
    hidden: int = 3
    """Position of the hidden token, from 0."""
    padding: int = 2
    """Number of padding tokens at the end."""
    width: int = 8
    """Width of a token vector."""
    heads: int = 2
    """Number of heads; must divide the width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(3, "tokens")
        self.at_least(1, "width", "heads", "padding")
        self.at_most(64, "tokens")
        self.at_most(512, "width")
        if self.tokens * self.width > 1024:
            raise ConfigError(f"tokens={self.tokens} × width={self.width} is more than 1,024: it would take minutes")
        if not 0 <= self.hidden < self.tokens:
            raise ConfigError(f"hidden={self.hidden}: the positions are 0 to {self.tokens - 1}")
        if self.padding >= self.tokens:
            raise ConfigError(f"padding={self.padding}: it must be less than tokens={self.tokens}")
        if self.width % self.heads:
            raise ConfigError(f"heads={self.heads} must divide width={self.width}")


@dataclass(frozen=True, kw_only=True)
class ConceptsSpec(SeededSpec):
    """Sixteen questions about language models, each answered by an experiment."""

    question: int | None = None
    """Number of a single question, 1 to 16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.question is not None and not 1 <= self.question <= 16:
            raise ConfigError(f"question={self.question}: it must be 1 to 16")


@dataclass(frozen=True, kw_only=True)
class SelectionSpec(LabSpec):
    """Find queries that select or average given keys, or prove that there are none."""

    keys: tuple[float, ...] = (0.7, 0.3, 0.1, 0.6, -0.2, 0.4, -0.5, 0.4, -0.3, 0.5, -0.3, -0.6)
    """Entries of all keys, key by key."""
    width: int = 3
    """Width of a key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "width")
        if len(self.keys) % self.width or len(self.keys) < 3 * self.width:
            raise ConfigError(f"{len(self.keys)} numbers are not at least three keys of width={self.width}")

"""Inputs of the labs. Imports no torch, so that `anaphor lab NAME --help` is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.typecheck import check_types


@dataclass(frozen=True, kw_only=True)
class LabSpec:
    """Inputs of a lab. Their bounds keep it below half a minute and within floating-point range."""

    claim: ClassVar[str]

    def __post_init__(self) -> None:
        check_types(self)
        for name in vars(self):
            if any(isinstance(value, float) and not math.isfinite(value) for value in self._values(name)):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be a finite number")
        if not 0 <= (seed := getattr(self, "seed", 0)) < 2**63:
            raise ConfigError(f"seed={seed}: it must be 0 to {2**63 - 1:,}")
        self.check()

    def check(self) -> None:
        """Refuse inputs out of bounds."""

    def check_range(self, *names: str, least: float = -math.inf, most: float = math.inf, distinct: int = 0) -> None:
        for name in names:
            if len(set(self._values(name))) < distinct:
                raise ConfigError(f"{name}={getattr(self, name)}: give at least {distinct} different numbers")
            if min(self._values(name), default=least) < least:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at least {least:g}")
            if max(self._values(name), default=most) > most:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at most {most:,}")

    def _values(self, name: str) -> tuple[Any, ...]:
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True, kw_only=True)
class SeededSpec(LabSpec):
    """Inputs of a lab that draws random numbers."""

    seed: int = 0
    """Random seed of weights and inputs."""


MAX_INTEGER = 10**9  # numerator and denominator in the lab on backpropagation


@dataclass(frozen=True, kw_only=True)
class BackpropSpec(SeededSpec):
    """Backpropagation by hand through a network with one ReLU, in exact fractions, then with vectors."""

    claim = "backpropagation by hand, node by node, gives the same gradients as autograd, and exactly so in fractions"
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

    def check(self) -> None:
        self.check_range(
            "vector_x", "vector_w", "vector_b1", "vector_u", "vector_b2", least=-MAX_INTEGER, most=MAX_INTEGER
        )
        for name in ("x", "w1", "b1", "w2", "b2"):
            self.fraction(name)
        for name, count in (("vector_x", 2), ("vector_w", 4), ("vector_b1", 2), ("vector_u", 2)):
            if len(getattr(self, name)) != count:
                raise ConfigError(f"{name} has {len(getattr(self, name))} numbers, but it needs {count}")

    def fraction(self, name: str) -> Fraction:
        given = getattr(self, name)
        try:
            # Reject long exponents first: Fraction would expand them.
            value = Fraction(given) if len(given) <= 40 and len(given.lower().partition("e")[2]) <= 3 else None
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f"{name}={given!r} is not a number: write 2, 0.25 or 1/4") from None
        if value is None or max(abs(value.numerator), value.denominator) > MAX_INTEGER:
            raise ConfigError(
                f"{name}={given!r} is too large: numerator and denominator can be at most {MAX_INTEGER:,}"
            )
        return value


@dataclass(frozen=True, kw_only=True)
class KroneckerSpec(SeededSpec):
    """Write self-attention as a fully connected layer, and fit a fully connected layer to attention."""

    claim = "self-attention is a fully connected layer with the matrix I ⊗ A, which changes with every input"
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

    def check(self) -> None:
        self.check_range("tokens", "width", least=2)
        self.check_range("sharpness", least=0, most=1_000_000)
        self.check_range("few", least=1)
        self.check_range("inputs", most=100_000)
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

    claim = (
        "a linear recurrent network is a sum, h_T = Σ W_h^(T-t) W_x x_t, so the "
        "spectral radius of W_h decides how much of the first input is left"
    )
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

    def check(self) -> None:
        self.check_range("inputs", "hidden", "outputs", least=1, most=64)
        self.check_range("steps", least=4, most=1000)
        self.check_range("symbolic", least=3, most=20)
        look_up(MATRICES, self.matrix, "matrix")
        if not all(0.001 <= radius <= 2 for radius in self.radii) or not self.radii:
            raise ConfigError(f"radii={self.radii}: spectral radii must be from 0.001 to 2")
        if any(self.steps * abs(math.log10(radius)) > MAX_DIGITS for radius in self.radii):
            raise ConfigError(f"radii={self.radii} to the power of steps={self.steps} overflows double precision")
        if self.clip <= 0:
            raise ConfigError(f"clip={self.clip}: it must be above 0")


@dataclass(frozen=True, kw_only=True)
class BpttSpec(SeededSpec):
    """Differentiate a recurrent network step by step and compare each formula with autograd."""

    claim = "backpropagation through time is ŷ − y carried back by the transposed recurrent matrix, summed over steps"
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

    def check(self) -> None:
        self.check_range("steps", least=1, most=100)
        self.check_range("inputs", "hidden", least=1, most=256)
        self.check_range("outputs", least=2, most=256)
        if self.reach is not None:
            self.check_range("reach", least=1)


@dataclass(frozen=True, kw_only=True)
class ComplexitySpec(SeededSpec):
    """Measure time, memory, operations and depth of sequence layers against length and width. Takes seconds."""

    claim = "attention costs n² in the length n; recurrent, pooled, linear and low-rank layers cost n"
    lengths: tuple[int, ...] = (256, 362, 512, 724, 1024)
    """Sequence lengths."""
    width: int = 32
    """Width at which the lengths are compared."""
    widths: tuple[int, ...] = (32, 64, 128, 256)
    """Widths."""
    length: int = 512
    """Length at which the widths are compared."""
    large: int = 256
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
    """CPU threads. With one, processor time is measured; wall time of more decides nothing."""

    def check(self) -> None:
        self.check_range("lengths", "length", least=16)
        self.check_range("width", "widths", least=4)
        self.check_range("rank", "chunk", least=1, most=1024)
        self.check_range("repeats", "attempts", least=1, most=20)
        self.check_range("threads", least=1, most=256)
        self.check_range("widths", distinct=3)
        if len({length for length in self.lengths if length >= self.large}) < 3:
            raise ConfigError(f"large={self.large}: at least 3 different lengths must be this large")
        if max(*self.lengths, self.length) > 16_384 or max(*self.widths, self.width) > 2048:
            raise ConfigError("lengths can be at most 16,384 and widths at most 2,048: more would not fit into memory")


@dataclass(frozen=True, kw_only=True)
class LowRankLabSpec(SeededSpec):
    """Compute attention with low-rank factors, exactly where possible, and measure the rank of trained attention."""

    claim = "an attention matrix of rank k is applied in O(nkd) exactly; with a softmax the projection is not exact"
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

    def check(self) -> None:
        self.check_range("tokens", "lengths", least=8)
        self.check_range("width", least=1, most=512)
        self.check_range("rank", least=1)
        self.check_range("train", least=0, most=2000)
        self.check_range("lengths", distinct=3)
        if self.rank > min(self.width, self.tokens) // 2:
            most = min(self.width, self.tokens) // 2
            raise ConfigError(f"rank={self.rank}: it can be at most half of width and tokens, {most}")
        if max(*self.lengths, self.tokens) > 8192:
            raise ConfigError("lengths can be at most 8,192: the full matrix would not fit into memory")


@dataclass(frozen=True, kw_only=True)
class ScalingSpec(SeededSpec):
    """Variance of dot products of random vectors against their width, and its effect on a softmax."""

    claim = "q·k has mean hμ² and variance h(σ⁴ + 2μ²σ²), so without √h a softmax saturates as h grows"
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

    def check(self) -> None:
        self.check_range("widths", least=1, distinct=2)
        self.check_range("samples", "queries", least=100)
        self.check_range("keys", least=2)
        self.check_range("mean", least=-1000, most=1000)
        self.check_range("deviation", least=0.001, most=1000)
        if self.samples * max(self.widths) > 50_000_000 or self.queries * self.keys * max(self.widths) > 50_000_000:
            raise ConfigError("these samples would not fit into memory: reduce samples, queries, keys or widths")


@dataclass(frozen=True, kw_only=True)
class MaskingSpec(SeededSpec):
    """Mask tokens in attention in three ways and show by gradients that they have no influence."""

    claim = "a masked token has no influence: its weights and gradients are exactly zero"
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

    def check(self) -> None:
        self.check_range("tokens", least=3, most=64)
        self.check_range("width", least=1, most=512)
        self.check_range("heads", "padding", least=1)
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

    claim = "sixteen questions about language models are answered by experiments"
    question: int | None = None
    """Number of a single question, 1 to 16."""

    def check(self) -> None:
        if self.question is not None and not 1 <= self.question <= 16:
            raise ConfigError(f"question={self.question}: it must be 1 to 16")


@dataclass(frozen=True, kw_only=True)
class SelectionSpec(LabSpec):
    """Find queries that select or average given keys, or prove that there are none."""

    claim = "a query can select a key if and only if the key lies outside the convex hull of the others"
    keys: tuple[float, ...] = (0.7, 0.3, 0.1, 0.6, -0.2, 0.4, -0.5, 0.4, -0.3, 0.5, -0.3, -0.6)
    """Entries of all keys, key by key."""
    width: int = 3
    """Width of a key."""

    def check(self) -> None:
        self.check_range("width", least=1)
        if len(self.keys) % self.width or len(self.keys) < 3 * self.width:
            raise ConfigError(f"{len(self.keys)} numbers are not at least three keys of width={self.width}")

"""What can be changed in each lab. Imports no torch: `anaphor lab NAME --help` must be quick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from anaphor.config import check_types, look_up
from anaphor.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LabSpec:
    """The inputs of a lab. Their bounds keep it within half a minute and within what numbers can hold."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in vars(self):
            if any(isinstance(one, float) and not math.isfinite(one) for one in self._each(name)):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be a finite number")
        if not 0 <= getattr(self, "seed", 0) < 2**63:
            raise ConfigError(f"seed={getattr(self, 'seed', 0)}: it must be 0 to {2**63 - 1:,}")

    def at_least(self, least: float, *names: str) -> None:
        for name in names:
            if any(one < least for one in self._each(name)):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at least {least:g}")

    def at_most(self, most: int, *names: str) -> None:
        for name in names:
            if any(one > most for one in self._each(name)):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at most {most:,}")

    def _each(self, name: str) -> tuple[Any, ...]:
        given = getattr(self, name)
        return given if isinstance(given, tuple) else (given,)

    def several(self, least: int, *names: str) -> None:
        for name in names:
            given = getattr(self, name)
            if len(set(given)) < least:
                raise ConfigError(f"{name}={given}: give at least {least} different numbers")


LONGEST = 10**9  # of numbers in the lab on backpropagation


@dataclass(frozen=True, kw_only=True)
class BackpropSpec(LabSpec):
    """Run backpropagation by hand through a network of one ReLU, in exact fractions, then with vectors."""

    x: str = "1"
    """Input, a whole number, a decimal or a fraction."""
    w1: str = "1/4"
    """Weight of the first layer."""
    b1: str = "0"
    """Constant of the first layer."""
    w2: str = "1/3"
    """Weight of the second layer."""
    b2: str = "0"
    """Constant of the second layer."""
    vector_x: tuple[float, ...] = (1, 1)
    """Input of the network with vectors, two numbers."""
    vector_w: tuple[float, ...] = (-1, -1, 1, 1)
    """Its first weights, a matrix of two lines and two columns, line by line."""
    vector_b1: tuple[float, ...] = (0, 0)
    """Its first constants."""
    vector_u: tuple[float, ...] = (1, 1)
    """Its second weights."""
    vector_b2: float = 0
    """Its second constant."""
    seed: int = 0
    """Decides the matrices on which the rule for products is tried."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("x", "w1", "b1", "w2", "b2"):
            self.fraction(name)
        for name, count in (("vector_x", 2), ("vector_w", 4), ("vector_b1", 2), ("vector_u", 2)):
            if len(getattr(self, name)) != count:
                raise ConfigError(f"{name} has {len(getattr(self, name))} numbers, but it needs {count}")
        self.at_least(-LONGEST, "vector_x", "vector_w", "vector_b1", "vector_u", "vector_b2")
        self.at_most(LONGEST, "vector_x", "vector_w", "vector_b1", "vector_u", "vector_b2")

    def fraction(self, name: str) -> Fraction:
        given = getattr(self, name)
        try:
            # An exponent of nine digits would be written out before anybody could say that it is too large.
            value = Fraction(given) if len(given) <= 40 and len(given.lower().partition("e")[2]) <= 3 else None
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f"{name}={given!r} is no number: write 2, 0.25 or 1/4") from None
        if value is None or max(abs(value.numerator), value.denominator) > LONGEST:
            raise ConfigError(f"{name}={given!r} is too long: up to {LONGEST:,} above and below the line")
        return value


@dataclass(frozen=True, kw_only=True)
class KroneckerSpec(LabSpec):
    """Write self-attention as a fully connected layer, and let a fully connected layer try to be attention."""

    tokens: int = 4
    """Length of a sequence."""
    width: int = 3
    """Size of a token vector."""
    sharpness: float = 3.0
    """Factor of the scores; 0 makes attention a plain average, which a fully connected layer can be."""
    inputs: int = 2000
    """Sequences that the fully connected layer is fitted to."""
    few: int = 8
    """Sequences of a second fit that it can match exactly, as it has more weights than there are equations."""
    seed: int = 0
    """Decides weights and inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(2, "tokens", "width")
        self.at_least(0, "sharpness")
        self.at_least(1, "few")
        self.at_most(100_000, "inputs")
        if self.tokens * self.width > 64:
            raise ConfigError(
                f"tokens={self.tokens} × width={self.width} is more than 64: the matrix would not be read"
            )
        if self.few >= self.tokens * self.width:
            raise ConfigError(f"few={self.few}: an exact fit exists below tokens × width = {self.tokens * self.width}")
        if self.inputs < 4 * self.tokens * self.width:
            raise ConfigError(f"inputs={self.inputs}: a fit needs 4 × tokens × width = {4 * self.tokens * self.width}")


FARTHEST = 140  # digits that a power may have: its square must fit as well
MATRICES = {"orthogonal": "a rotation times the radius", "gaussian": "random numbers, scaled to the radius"}


@dataclass(frozen=True, kw_only=True)
class UnrollSpec(LabSpec):
    """Unroll a linear recurrent network: its states as sums, what is left of the first input, what gradients do."""

    steps: int = 100
    """Length of the longest sequence."""
    inputs: int = 3
    """Size of an input."""
    hidden: int = 4
    """Size of the hidden state."""
    outputs: int = 2
    """Size of an output."""
    radii: tuple[float, ...] = (0.9, 1.0, 1.1)
    """Spectral radii of the recurrent matrix."""
    matrix: str = "orthogonal"
    """What the recurrent matrix is: orthogonal (a rotation times the radius) or gaussian."""
    symbolic: int = 5
    """How many steps are unrolled with letters."""
    clip: float = 1.0
    """Largest norm of a clipped gradient."""
    seed: int = 0
    """Decides weights and inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(MATRICES, self.matrix, "matrix")
        self.at_least(1, "inputs", "hidden", "outputs")
        self.at_least(4, "steps")
        self.at_least(3, "symbolic")
        self.at_most(64, "inputs", "hidden", "outputs")
        if not all(0.001 <= radius <= 2 for radius in self.radii) or not self.radii:
            raise ConfigError(f"radii={self.radii}: name spectral radii from 0.001 to 2")
        if self.steps > 1000 or self.symbolic > 20:
            raise ConfigError(f"steps={self.steps}, symbolic={self.symbolic}: at most 1,000 and 20")
        if any(self.steps * abs(math.log10(radius)) > FARTHEST for radius in self.radii):
            raise ConfigError(f"radii={self.radii} to the power of steps={self.steps} is beyond what numbers can hold")
        if self.clip <= 0:
            raise ConfigError(f"clip={self.clip}: it must be above 0")


@dataclass(frozen=True, kw_only=True)
class BpttSpec(LabSpec):
    """Differentiate a recurrent network step by step, and compare each formula with autograd."""

    steps: int = 3
    """Length of the sequence."""
    inputs: int = 3
    """Size of an input."""
    hidden: int = 4
    """Size of the hidden state."""
    outputs: int = 2
    """Classes of the softmax."""
    reach: int | None = None
    """How many steps back the formulae look; None means to the beginning. Fewer is truncated backpropagation."""
    seed: int = 0
    """Decides weights, inputs and targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "steps", "inputs", "hidden")
        self.at_least(2, "outputs")
        self.at_most(100, "steps")
        self.at_most(256, "inputs", "hidden", "outputs")
        if self.reach is not None and self.reach < 1:
            raise ConfigError(f"reach={self.reach}: look back at least 1 step")


@dataclass(frozen=True, kw_only=True)
class ComplexitySpec(LabSpec):
    """Measure time, memory, operations and depth of sequence layers against length and width. Takes seconds."""

    lengths: tuple[int, ...] = (256, 512, 1024, 1448, 2048, 2896, 4096)
    """Lengths that are tried at one width."""
    width: int = 32
    """That width."""
    widths: tuple[int, ...] = (32, 64, 128, 256)
    """Widths that are tried at one length."""
    length: int = 512
    """That length."""
    large: int = 1024
    """Exponents are fitted to lengths from here on."""
    rank: int = 32
    """Directions in time that low-rank attention keeps."""
    chunk: int = 64
    """Tokens that linear attention treats at once."""
    repeats: int = 4
    """How many rounds of times are taken; the shortest time counts, as others may use the machine."""
    attempts: int = 2
    """How often the times are taken anew where an exponent is out of its bounds; every attempt is told."""
    threads: int = 1
    """Processor threads while times are taken; with one, it is the processor's time that is measured."""
    seed: int = 0
    """Decides weights and inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(16, "lengths", "length")
        self.at_least(4, "width", "widths")
        self.at_least(1, "rank", "chunk", "repeats", "attempts", "threads")
        self.several(3, "widths")
        self.at_most(1024, "rank", "chunk")
        self.at_most(20, "repeats", "attempts")
        self.at_most(256, "threads")
        if len({length for length in self.lengths if length >= self.large}) < 3:
            raise ConfigError(f"large={self.large}: an exponent needs at least 3 different lengths from there on")
        if max(*self.lengths, self.length) > 16_384 or max(*self.widths, self.width) > 2048:
            raise ConfigError("lengths go up to 16,384 and widths up to 2,048: more would not fit into memory")


@dataclass(frozen=True, kw_only=True)
class LowRankLabSpec(LabSpec):
    """Compute attention through matrices of low rank, exactly where that is possible, and see how far it carries."""

    tokens: int = 256
    """Length of the sequence."""
    width: int = 32
    """Size of a query, key and value."""
    rank: int = 8
    """Rank of the matrix of weights."""
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Lengths at which the time is taken."""
    train: int = 150
    """Steps for which a small model is trained before its attention is looked at; 0 trains none."""
    seed: int = 0
    """Decides weights and inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(8, "tokens", "lengths")
        self.at_least(1, "width", "rank")
        self.at_least(0, "train")
        self.several(3, "lengths")
        self.at_most(512, "width")
        self.at_most(2000, "train")
        if self.rank > min(self.width, self.tokens) // 2:
            most = min(self.width, self.tokens) // 2
            raise ConfigError(f"rank={self.rank}: low is at most half the width and the length, {most} here")
        if max(*self.lengths, self.tokens) > 8192:
            raise ConfigError("lengths go up to 8,192: the full matrix would not fit into memory")


@dataclass(frozen=True, kw_only=True)
class ScalingSpec(LabSpec):
    """See how dot products of random vectors spread with their width, and what that does to a softmax."""

    mean: float = 0.5
    """Mean μ of each number in a query or key."""
    deviation: float = 1.0
    """Its standard deviation σ."""
    widths: tuple[int, ...] = (4, 16, 64, 256)
    """Widths h that are tried."""
    samples: int = 20_000
    """Pairs of a query and a key that are drawn at each width."""
    keys: int = 16
    """Keys among which the softmax chooses."""
    queries: int = 500
    """Queries whose softmax is looked at."""
    seed: int = 0
    """Decides what is drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "widths")
        self.at_least(100, "samples", "queries")
        self.at_least(2, "keys")
        self.several(2, "widths")
        self.at_least(-1000, "mean")
        self.at_least(0.001, "deviation")
        self.at_most(1000, "mean", "deviation")
        if self.samples * max(self.widths) > 50_000_000 or self.queries * self.keys * max(self.widths) > 50_000_000:
            raise ConfigError("these samples would not fit into memory: draw fewer, or take smaller widths")


@dataclass(frozen=True, kw_only=True)
class MaskingSpec(LabSpec):
    """Hide tokens from attention in three ways, and show by gradients that nothing of them arrives."""

    tokens: int = 6
    """Length of the sequence."""
    hidden: int = 3
    """Position of the hidden token, from 0 on."""
    padding: int = 2
    """How many tokens at the end are padding."""
    width: int = 8
    """Size of a token vector."""
    heads: int = 2
    """Parallel heads; must divide the width."""
    seed: int = 0
    """Decides weights and inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(3, "tokens")
        self.at_least(1, "width", "heads", "padding")
        self.at_most(64, "tokens")
        self.at_most(512, "width")
        if self.tokens * self.width > 1024:
            raise ConfigError(f"tokens={self.tokens} × width={self.width} is more than 1,024: that would take minutes")
        if not 0 <= self.hidden < self.tokens:
            raise ConfigError(f"hidden={self.hidden}: the positions are 0 to {self.tokens - 1}")
        if self.padding >= self.tokens:
            raise ConfigError(f"padding={self.padding}: of {self.tokens} tokens at least one must be real")
        if self.width % self.heads:
            raise ConfigError(f"heads={self.heads} do not divide width={self.width}")


@dataclass(frozen=True, kw_only=True)
class ConceptsSpec(LabSpec):
    """Answer sixteen questions about language models, each with something that runs."""

    question: int | None = None
    """Show one question only, from 1 to 16."""
    seed: int = 0
    """Decides weights and inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.question is not None and not 1 <= self.question <= 16:
            raise ConfigError(f"question={self.question}: they are numbered from 1 to 16")


@dataclass(frozen=True, kw_only=True)
class SelectionSpec(LabSpec):
    """Find queries that select or average given values, or prove that there are none."""

    keys: tuple[float, ...] = (0.7, 0.3, 0.1, 0.6, -0.2, 0.4, -0.5, 0.4, -0.3, 0.5, -0.3, -0.6)
    """Keys, one behind the other."""
    width: int = 3
    """How many numbers a key has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "width")
        if len(self.keys) % self.width or len(self.keys) < 3 * self.width:
            raise ConfigError(f"{len(self.keys)} numbers are not three keys or more of width={self.width}")

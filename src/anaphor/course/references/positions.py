"""Position encodings: sinusoids and learned embeddings that are added, rotary positions, and the biases of ALiBi."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import random_values, same
from anaphor.course.student import describe_returned, match_call
from anaphor.course.weights import Weight

BASE = 10000.0
Exponents = Callable[[Tensor, int], Tensor]
"""Exponent of 10000 for each dimension, of so many."""


def paired(i: Tensor, dim: int) -> Tensor:
    """2m/d for the dimensions 2m and 2m + 1."""
    return i // 2 * 2 / dim


def unpaired(i: Tensor, dim: int) -> Tensor:
    """i/d: each dimension has a frequency of its own."""
    return i / dim


def sine_and_cosine(angles: Tensor) -> Tensor:
    """The sine in even dimensions, the cosine in odd ones."""
    even = torch.arange(angles.shape[-1]) % 2 == 0
    return torch.where(even, angles.sin(), angles.cos())


def cosine_and_sine(angles: Tensor) -> Tensor:
    even = torch.arange(angles.shape[-1]) % 2 == 0
    return torch.where(even, angles.cos(), angles.sin())


def in_halves(angles: Tensor) -> Tensor:
    """A mistake here: all sines first, then all cosines."""
    return torch.cat((angles[:, 0::2].sin(), angles[:, 0::2].cos()), dim=-1)


def halves_of_own_frequencies(angles: Tensor) -> Tensor:
    half = angles.shape[-1] // 2
    return torch.cat((angles[:, :half].sin(), angles[:, half:].cos()), dim=-1)


def count_tokens(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], dtype=torch.float64)


def add(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions


def over_the_batch(x: Tensor, positions: Tensor) -> Tensor:
    """A mistake: rows are numbered, not tokens."""
    return x + positions[:, None]


@dataclass(frozen=True)
class SinusoidalRules:
    """Steps of adding sinusoids."""

    exponents: Exponents = paired
    base: float = BASE
    count: Callable[[Tensor], Tensor] = count_tokens
    """The position of each token; of each row where the axes are swapped."""
    waves: Callable[[Tensor], Tensor] = sine_and_cosine
    join: Callable[[Tensor, Tensor], Tensor] = add
    is_learned: bool = False
    """Whether there is a table that is trained, which is another encoding."""


def compute_sinusoidal(w: Weights, inputs: Mapping[str, Any], rules: SinusoidalRules) -> Outputs:
    x = inputs["x"]
    if rules.is_learned:
        return {"out": rules.join(x, w["table"][: x.shape[1]])}
    dimension = torch.arange(x.shape[-1], dtype=torch.float64)
    angles = rules.count(x)[:, None] * rules.base ** -rules.exponents(dimension, x.shape[-1])
    return {"out": rules.join(x, rules.waves(angles).to(x.dtype))}


def token_cases(dim: str) -> Callable[[Sizes], list[Case]]:
    """Sequences of two lengths."""
    return lambda sizes: [
        Case("of seven tokens", {"x": random_values(5, 7, sizes[dim])}, "for a batch"),
        Case("of one row", {"x": random_values(1, 4, sizes[dim], seed=1)}, "for another batch size and length"),
    ]


def read_waves(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """There is nothing to train; a table that is trained is read to say so."""
    tables = [one.value.squeeze() for one in given if one.value.requires_grad]
    yield {"table": tables[0]} if tables and tables[0].shape[-1:] == (sizes["dim"],) else {}


JOINED_MISTAKES = (
    Mistake("positions-left-out", "the positions are not added", {"join": lambda x, p: x}),
    Mistake("positions-alone", "the positions are returned without the input; return x + positions",
            {"join": lambda x, p: p.expand_as(x)}),
    Mistake("positions-alone", "the positions are returned without the input; return x + positions",
            {"join": lambda x, p: p}),
    Mistake("positions-alone", "the positions are returned without the input; return x + positions",
            {"join": lambda x, p: p[None]}),
    Mistake("positions-multiplied", "the positions are multiplied with the input; add them",
            {"join": lambda x, p: x * p}),
    Mistake("positions-subtracted", "the positions are subtracted from the input; add them",
            {"join": lambda x, p: x - p}),
    Mistake("positions-appended", "the positions are appended to the features, so that the output is wider; add them",
            {"join": lambda x, p: torch.cat((x, p.expand_as(x)), dim=-1)}),
    Mistake("input-scaled", "the input is multiplied by √dim here; embeddings are scaled where they are made, if at "
        "all",
            {"join": lambda x, p: x * math.sqrt(x.shape[-1]) + p}),
    Mistake("positions-averaged", "the mean of the input and the positions is returned; add them",
            {"join": lambda x, p: (x + p) / 2}),
    Mistake("input-detached", "no gradient flows back to the input (detach, .data or no_grad)",
            {"join": lambda x, p: x.detach() + p}),
)  # fmt: skip

SINUSOIDAL = Reference(
    name="PositionalEncoding",
    call="PositionalEncoding(dim, max_seq_len), forward(x [B, T, dim]) -> x + sinusoids [B, T, dim]",
    outputs=("out",),
    arguments=("x",),
    sizes={"dim": 10, "max_seq_len": 20},
    constructors=(("dim", "max_seq_len"), ("dim",)),
    cases=token_cases("dim"),
    read=read_waves,
    compute=compute_sinusoidal,
    designs=(SinusoidalRules(), SinusoidalRules(exponents=unpaired)),
    time_first=("x", "out"),
    mistakes=(
        Mistake("positions-from-one", "positions are counted from 1; the first token has position 0",
                {"count": lambda x: count_tokens(x) + 1}),
        Mistake("positions-reversed", "positions are counted from the end; the first token has position 0",
                {"count": lambda x: count_tokens(x).flip(0)}),
        Mistake("position-of-first-for-all", "all tokens have position 0", {"count": lambda x: 0 * count_tokens(x)}),
        Mistake("positions-relative-to-length", "positions are divided by the number of tokens; count 0, 1, 2, …",
                {"count": lambda x: count_tokens(x) / x.shape[1]}),
        Mistake("batch-and-time-swapped", "the rows of the batch are numbered, not the tokens: x is [B, T, dim]; say "
                "self.batch_first = False if yours is [T, B, dim]",
                {"count": lambda x: torch.arange(len(x), dtype=torch.float64), "join": over_the_batch}),
        Mistake("sine-and-cosine-swapped", "the cosine is in even dimensions; the sine is there, the cosine in odd "
            "ones",
                {"waves": cosine_and_sine}),
        Mistake("sine-and-cosine-in-halves", "all sines come first, then all cosines; they alternate: the sine in even "
                "dimensions, the cosine in odd ones", {"waves": in_halves}),
        Mistake("sine-and-cosine-in-halves", "all sines come first, then all cosines; they alternate: the sine in even "
                "dimensions, the cosine in odd ones", {"waves": halves_of_own_frequencies}),
        Mistake("sine-only", "all dimensions have a sine; odd ones have a cosine", {"waves": torch.sin}),
        Mistake("cosine-only", "all dimensions have a cosine; even ones have a sine", {"waves": torch.cos}),
        Mistake("frequencies-rise", "the frequencies rise with the dimension: divide by 10000^(i/d), do not multiply",
                {"base": 1 / BASE}),
        *(Mistake("another-base", f"the frequencies have the base {base:,.0f}; it is 10,000", {"base": base})
          for base in (10.0, 100.0, 1000.0, 100000.0, math.e)),
        Mistake("exponent-doubled", "the exponent is 2i/d for dimension i; with i = 2m it is 2m/d, where m counts "
            "pairs",
                {"exponents": lambda i, d: 2 * i / d}),
        Mistake("exponent-doubled", "the exponent is 4m/d for the pair m; it is 2m/d",
                {"exponents": lambda i, d: i // 2 * 4 / d}),
        Mistake("exponent-halved", "the exponent is m/d for the pair m; it is 2m/d",
                {"exponents": lambda i, d: i // 2 / d}),
        Mistake("one-frequency", "all dimensions have the same frequency; that of dimension i is 10000^(-i/d)",
                {"exponents": lambda i, d: 0 * i}),
        Mistake("positions-are-trained", "the positions are a table that is trained; sines and cosines are "
            "computed, or "
                "kept by register_buffer", {"is_learned": True}),
        Mistake("frequencies-of-own-width", "the exponents run to 1 (division by d - 1 or d - 2); divide by d",
                {"exponents": lambda i, d: i / (d - 1)}),
        Mistake("frequencies-of-own-width", "the exponents run to 1 (division by d - 1 or d - 2); divide by d",
                {"exponents": lambda i, d: i // 2 * 2 / (d - 2)}),
        *JOINED_MISTAKES,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class LearnedRules:
    """Steps of adding learned embeddings of positions."""

    rows: Callable[[Tensor, Tensor], Tensor] = field(default=lambda table, x: table[: x.shape[1]])
    """The embeddings for the tokens, from the whole table."""
    join: Callable[[Tensor, Tensor], Tensor] = add


def read_table(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """The table [positions, dim]; also the other way round where it is no embedding."""
    most, dim = sizes["max_seq_len"], sizes["dim"]
    if len(given) != 1 or given[0].value.numel() != most * dim:
        return
    value = given[0].value.squeeze()
    if value.shape == (most, dim):
        yield {"table": value}
    elif value.shape == (dim, most):
        yield {"table": value.T}


def compute_learned(w: Weights, inputs: Mapping[str, Any], rules: LearnedRules) -> Outputs:
    return {"out": rules.join(inputs["x"], rules.rows(w["table"], inputs["x"]))}


def first_rows(table: Tensor, x: Tensor) -> Tensor:
    return table[: x.shape[1]]


LEARNED = Reference(
    name="LearnedPositionalEncoding",
    call="LearnedPositionalEncoding(max_seq_len, dim), forward(x [B, T, dim]) -> x + embeddings of 0 … T-1 [B, T, dim]",
    outputs=("out",),
    arguments=("x",),
    sizes={"max_seq_len": 20, "dim": 10},
    constructors=(("max_seq_len", "dim"),),
    cases=token_cases("dim"),
    read=read_table,
    shapes=lambda sizes: {"table": (sizes["max_seq_len"], sizes["dim"])},
    compute=compute_learned,
    designs=(LearnedRules(),),
    time_first=("x", "out"),
    mistakes=(
        Mistake("positions-from-one", "positions are counted from 1; the first token has position 0",
                {"rows": lambda table, x: table[1 : x.shape[1] + 1]}),
        Mistake("positions-reversed", "positions are counted from the end; the first token has position 0",
                {"rows": lambda table, x: first_rows(table, x).flip(0)}),
        Mistake("positions-from-the-end-of-the-table", "the last rows of the table are taken; take the first ones",
                {"rows": lambda table, x: table[-x.shape[1] :]}),
        Mistake("position-of-first-for-all", "all tokens have the embedding of position 0",
                {"rows": lambda table, x: table[:1]}),
        Mistake("position-of-length-for-all", "all tokens have one embedding, that of the number of tokens",
                {"rows": lambda table, x: table[x.shape[1]]}),
        Mistake("position-of-last-for-all", "all tokens have the embedding of the last position",
                {"rows": lambda table, x: table[x.shape[1] - 1]}),
        Mistake("mean-of-positions-for-all", "all tokens have the mean of the embeddings; each has its own",
                {"rows": lambda table, x: first_rows(table, x).mean(0, keepdim=True)}),
        Mistake("batch-and-time-swapped", "the rows of the batch are numbered, not the tokens: x is [B, T, dim]; say "
                "self.batch_first = False if yours is [T, B, dim]",
                {"rows": lambda table, x: table[: len(x)], "join": over_the_batch}),
        Mistake("positions-scaled", "the embeddings are multiplied by √dim; add them as they are",
                {"join": lambda x, p: x + p * math.sqrt(x.shape[-1])}),
        Mistake("positions-detached", "no gradient flows back to the embeddings (detach, .data or no_grad)",
                {"rows": lambda table, x: first_rows(table, x).detach()}),
        *JOINED_MISTAKES,
    ),
)  # fmt: skip


Pairs = Callable[[Tensor], tuple[Tensor, Tensor]]
Unpair = Callable[[Tensor, Tensor], Tensor]


def neighbors(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0::2], x[..., 1::2]


def interleave(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), dim=-1).flatten(-2)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, dim=-1)
    return first, second


def concatenate(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second), dim=-1)


def turn(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, first * sin + second * cos


@dataclass(frozen=True)
class RotaryRules:
    """Steps of rotating pairs of features."""

    split: Pairs = halves
    join: Unpair = concatenate
    angles: Callable[[Tensor, Tensor], Tensor] = field(default=lambda t, inverse: t[:, None] * inverse)
    """From positions and frequencies."""
    exponents: Callable[[int], Tensor] = field(
        default=lambda size: torch.arange(0, size, 2, dtype=torch.float64) / size
    )
    base: float = BASE
    first: float = 0.0
    """Position of the first token."""
    turn: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = turn
    axis: int = 2
    """Of the tokens."""


def compute_rotary(w: Weights, inputs: Mapping[str, Any], rules: RotaryRules) -> Outputs:
    x = inputs["x"].movedim(rules.axis, -2)
    positions = torch.arange(x.shape[-2], dtype=torch.float64) + rules.first
    angles = rules.angles(positions, rules.base ** -rules.exponents(x.shape[-1])).to(x.dtype)
    first, second = rules.split(x)
    out = rules.join(*rules.turn(first, second, angles.cos(), angles.sin()))
    return {"out": out.movedim(-2, rules.axis)}


def full_angles(arrange: Callable[[Tensor], Tensor], rotate: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A mistake: x · cos + rotate(x) · sin, with pairs that are others than those of the angles."""

    def turn(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        x = concatenate(first, second)
        y = x * arrange(cos) + rotate(x) * arrange(sin)
        return halves(y)

    return turn


def doubled(values: Tensor) -> Tensor:
    return torch.cat((values, values), dim=-1)


def repeated(values: Tensor) -> Tensor:
    return values.repeat_interleave(2, dim=-1)


def rotate_halves(x: Tensor) -> Tensor:
    first, second = halves(x)
    return concatenate(-second, first)


def rotate_neighbors(x: Tensor) -> Tensor:
    first, second = neighbors(x)
    return interleave(-second, first)


PAIRS = "the pairs that are rotated are not those that share an angle: halves go with cat((angles, angles)), neighbors "
ROTARY = Reference(
    name="apply_rotary",
    call="apply_rotary(x [B, H, T, K]) -> [B, H, T, K], rotated by the position of each token",
    outputs=("out",),
    arguments=("x",),
    sizes={},
    cases=lambda sizes: [
        Case("of seven tokens", {"x": random_values(5, 3, 7, 12)}, "for a batch"),
        Case("of four tokens", {"x": random_values(2, 1, 4, 6, seed=1)}, "for other sizes"),
    ],
    compute=compute_rotary,
    designs=(RotaryRules(), RotaryRules(split=neighbors, join=interleave)),
    mistakes=(
        Mistake("positions-from-one", "positions are counted from 1; the first token has position 0", {"first": 1.0}),
        Mistake("not-rotated", "nothing is rotated", {"turn": lambda a, b, cos, sin: (a, b)}),
        Mistake("rotated-the-other-way", "the angles have the wrong sign: (a cos - b sin, a sin + b cos)",
                {"turn": lambda a, b, cos, sin: turn(a, b, cos, -sin)}),
        Mistake("mirrored", "a sign is wrong, so that pairs are mirrored: (a cos - b sin, a sin + b cos)",
                {"turn": lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)}),
        Mistake("mirrored", "a sign is wrong, so that pairs are mirrored: (a cos - b sin, a sin + b cos)",
                {"turn": lambda a, b, cos, sin: (a * cos - b * sin, a * sin - b * cos)}),
        Mistake("sine-and-cosine-swapped", "sine and cosine are swapped: (a cos - b sin, a sin + b cos)",
                {"turn": lambda a, b, cos, sin: turn(a, b, sin, cos)}),
        Mistake("cosine-only", "the part with the sine is missing: (a cos - b sin, a sin + b cos)",
                {"turn": lambda a, b, cos, sin: (a * cos, b * cos)}),
        Mistake("half-of-the-pair-rotated", "only the first of each pair is rotated: (a cos - b sin, a sin + b cos)",
                {"turn": lambda a, b, cos, sin: (a * cos - b * sin, b)}),
        Mistake("second-from-rotated-first", "the second of a pair is computed from the first after its change; keep "
                "the old values", {"turn": lambda a, b, cos, sin: (a * cos - b * sin,
                                                                   (a * cos - b * sin) * sin + b * cos)}),
        Mistake("pairs-and-angles-differ", PAIRS + "with repeat_interleave",
                {"split": halves, "join": concatenate, "turn": full_angles(repeated, rotate_halves)}),
        Mistake("pairs-and-angles-differ", PAIRS + "with repeat_interleave",
                {"split": halves, "join": concatenate, "turn": full_angles(doubled, rotate_neighbors)}),
        Mistake("not-put-back", "the pairs are taken from neighbors and written to halves; put them back where they "
            "were",
                {"split": neighbors, "join": concatenate}),
        Mistake("not-put-back", "the pairs are taken from halves and written to neighbors; put them back where they "
            "were",
                {"split": halves, "join": interleave}),
        Mistake("positions-over-the-heads", "the heads are numbered, not the tokens: x is [B, H, T, K]", {"axis": 1}),
        Mistake("positions-over-the-batch", "the rows are numbered, not the tokens: x is [B, H, T, K]", {"axis": 0}),
        Mistake("frequencies-rise", "the frequencies rise: divide by 10000^(2m/K), do not multiply",
            {"base": 1 / BASE}),
        *(Mistake("another-base", f"the frequencies have the base {base:,.0f}; it is 10,000", {"base": base})
          for base in (100.0, 1000.0, 100000.0, 500000.0)),
        Mistake("exponent-halved", "the exponent is m/K for the pair m; it is 2m/K",
                {"exponents": lambda size: torch.arange(size // 2, dtype=torch.float64) / size}),
        Mistake("exponent-doubled", "the exponent is 4m/K for the pair m; it is 2m/K",
                {"exponents": lambda size: 4 * torch.arange(size // 2, dtype=torch.float64) / size}),
        Mistake("one-frequency", "all pairs have the same frequency; that of the pair m is 10000^(-2m/K)",
                {"exponents": lambda size: torch.zeros(size // 2, dtype=torch.float64)}),
        Mistake("input-detached", "no gradient flows back to the input (detach, .data or no_grad)",
                {"turn": lambda a, b, cos, sin: turn(a.detach(), b.detach(), cos, sin)}),
    ),
)  # fmt: skip


def powers_of_two(heads: int) -> Tensor:
    """2^(-8/H), 2^(-16/H), …"""
    return 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


def with_every_second(heads: int) -> Tensor:
    """As the paper's code: where the number is no power of two, every second slope of the next one follows."""
    power = 2 ** math.floor(math.log2(heads))
    return torch.cat((powers_of_two(power), powers_of_two(2 * power)[0::2][: heads - power]))


def back(i: Tensor, j: Tensor) -> Tensor:
    """How far a key is behind a query; negative for later keys."""
    return i - j


def later_hidden(bias: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return bias.masked_fill(j > i, -torch.inf)


def later_zero(bias: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return bias.masked_fill(j > i, 0)


def unchanged(bias: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return bias


@dataclass(frozen=True)
class AlibiRules:
    """Steps of the biases of ALiBi."""

    distance: Callable[[Tensor, Tensor], Tensor] = field(default=lambda i, j: back(i, j).abs())
    later: Callable[[Tensor, Tensor, Tensor], Tensor] = unchanged
    """What later keys get."""
    slopes: Callable[[int], Tensor] = with_every_second
    change: Callable[[Tensor], Tensor] = same
    """A change of the slopes."""
    sign: float = -1.0
    shape: Callable[[Tensor], Tensor] = same
    queries: int | None = None
    """How many; one where all have the same."""


def compute_alibi(w: Weights, inputs: Mapping[str, Any], rules: AlibiRules) -> Outputs:
    heads, length = inputs["num_heads"], inputs["length"]
    i = torch.arange(length, dtype=torch.float64)[: rules.queries, None]
    j = torch.arange(length, dtype=torch.float64)[None, :]
    bias = rules.sign * rules.change(rules.slopes(heads))[:, None, None] * rules.distance(i, j)
    return {"bias": rules.shape(rules.later(bias, i, j)) + 0.0}


def run_alibi(target: Any, case: Case, sizes: Sizes) -> Outputs:
    """Integers have no dtype to follow: the bias is compared in double precision. An axis for the batch is right,
    too."""
    named = match_call(ALIBI, target, getattr(target, "__name__", type(target).__name__))
    given = {named[ours]: value for ours, value in case.inputs.items() if ours in named}
    bias = target(**given) if named else target(*case.inputs.values())
    if not isinstance(bias, Tensor):
        raise TypeError(f"it returned {describe_returned(bias)}; expected: {ALIBI.call}")
    return {"bias": (bias[0] if bias.ndim == 4 and len(bias) == 1 else bias).double()}


def vary_length(inputs: Mapping[str, Any], generator: Generator) -> dict[str, Any]:
    return {**inputs, "length": inputs["length"] + int(torch.randint(9, (), generator=generator))}


ALIBI_DESIGNS = tuple(
    AlibiRules(distance=distance, later=later, slopes=slopes, queries=queries, sign=sign)
    for slopes in (with_every_second, powers_of_two)
    for distance, later, queries, sign in (
        (lambda i, j: back(i, j).abs(), unchanged, None, -1.0),
        (back, later_hidden, None, -1.0),
        (back, later_zero, None, -1.0),
        (back, unchanged, None, -1.0),
        (lambda i, j: j.expand(len(i), -1), unchanged, None, 1.0),
        (lambda i, j: j.expand(len(i), -1), unchanged, 1, 1.0),
        (lambda i, j: j.expand(len(i), -1), later_hidden, None, 1.0),
    )
)
SLOPES = "for 8 heads the slopes are 1/2, 1/4, …, 1/256: 2^(-8h/H) for the head h = 1 … H"
ALIBI = Reference(
    name="alibi_bias",
    call="alibi_bias(num_heads, length) -> bias [H, T, T], to be added to the scores before the softmax",
    outputs=("bias",),
    arguments=("num_heads", "length"),
    sizes={},
    cases=lambda sizes: [
        Case("for 8 heads", {"num_heads": 8, "length": 5}, "for 8 heads"),
        Case("for 4 heads", {"num_heads": 4, "length": 7}, "for 4 heads and another length"),
        Case("for 6 heads", {"num_heads": 6, "length": 3}, "for a number of heads that is no power of two"),
    ],
    vary=vary_length,
    compute=compute_alibi,
    run=run_alibi,
    designs=ALIBI_DESIGNS,
    mistakes=(
        Mistake("sign-inverted", "far keys get larger scores; the slope times the distance is subtracted",
            {"sign": 1.0}),
        Mistake("sign-inverted", "far keys get larger scores; the slope times the distance is subtracted",
                {"distance": lambda i, j: j.expand(len(i), -1), "sign": -1.0}),
        Mistake("slopes-from-one", "the first slope is 1; " + SLOPES,
                {"slopes": lambda n: 2.0 ** (-8 * torch.arange(n, dtype=torch.float64) / n)}),
        Mistake("slopes-for-eight-heads", "the slopes are 1/2, 1/4, … for any number of heads; they are 2^(-8h/H)",
                {"slopes": lambda n: 2.0 ** -torch.arange(1, n + 1, dtype=torch.float64)}),
        Mistake("slopes-reversed", "the slopes rise from head to head; " + SLOPES, {"change": lambda s: s.flip(0)}),
        Mistake("one-slope", "all heads have the same slope; " + SLOPES, {"change": lambda s: s[:1].expand(len(s))}),
        Mistake("one-slope", "all heads have the slope 1; " + SLOPES, {"change": torch.ones_like}),
        Mistake("slopes-linear", "the slopes are h/H; " + SLOPES,
                {"slopes": lambda n: torch.arange(1, n + 1, dtype=torch.float64) / n}),
        Mistake("slopes-harmonic", "the slopes are 1/h; " + SLOPES,
                {"slopes": lambda n: 1 / torch.arange(1, n + 1, dtype=torch.float64)}),
        Mistake("slopes-inverted", "the slopes are 2^(8h/H), without a minus; " + SLOPES, {"change": lambda s: 1 / s}),
        Mistake("slopes-of-e", "the slopes are powers of e; " + SLOPES, {"change": lambda s: s ** (1 / math.log(2))}),
        Mistake("slopes-squared", "the slopes are squared; " + SLOPES, {"change": torch.square}),
        Mistake("slopes-square-root", "the slopes are 2^(-4h/H); " + SLOPES, {"change": torch.sqrt}),
        Mistake("distance-squared", "the distance is squared", {"distance": lambda i, j: back(i, j) ** 2}),
        Mistake("distance-from-one", "a token is at the distance 1 of itself; it is at 0",
                {"distance": lambda i, j: back(i, j).abs() + 1}),
        Mistake("distance-from-one", "a token is at the distance 1 of itself; it is at 0",
                {"distance": lambda i, j: back(i, j) + 1}),
        Mistake("distance-in-logarithms", "the distance goes through a logarithm",
                {"distance": lambda i, j: torch.log1p(back(i, j).abs())}),
        Mistake("queries-and-keys-swapped", "rows are keys; rows are queries, columns keys",
                {"shape": lambda bias: bias.mT}),
        Mistake("heads-last", "the bias is [T, T, H]; return [H, T, T]", {"shape": lambda bias: bias.permute(1, 2, 0)}),
        Mistake("earlier-keys-hidden", "earlier keys are hidden; hide later ones",
                {"later": lambda bias, i, j: bias.masked_fill(j < i, -torch.inf)}),
        Mistake("weights-instead-of-bias", "the softmax is applied; return what is added to the scores",
                {"shape": lambda bias: torch.softmax(bias, -1)}),
        Mistake("summed-over-heads", "the bias is [T, T], the same for all heads; return [H, T, T]",
                {"shape": lambda bias: bias.sum(0)}),
    ),
)  # fmt: skip

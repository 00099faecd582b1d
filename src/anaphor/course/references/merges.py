"""Merges of attention heads: in a random order, rotated by one, and by their norms. [B, H, T, K] -> [B, T, H·K]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import (
    merge,
    merge_by_reshape,
    merge_interleaved,
    merge_mean,
    merge_sum,
    random_values,
    same,
)
from anaphor.course.student import describe_returned

ROWS, HEADS, TOKENS, WIDTH = 5, 3, 7, 4


def head_cases(sizes: Sizes) -> list[Case]:
    return [
        Case("of three heads", {"heads": random_values(ROWS, HEADS, TOKENS, WIDTH)}, "of three heads"),
        Case("of four heads", {"heads": random_values(2, 4, 3, 5, seed=1)}, "for other sizes"),
    ]


@dataclass(frozen=True)
class MergeRules:
    """Steps of a merge."""

    change: Callable[[Tensor], Tensor]
    """Of the heads, before they are concatenated."""
    merge: Callable[[Tensor], Tensor] = merge
    after: Callable[[Tensor], Tensor] = same


def compute_merge(w: Weights, inputs: Mapping[str, Any], rules: MergeRules) -> Outputs:
    return {"out": rules.after(rules.merge(rules.change(inputs["heads"])))}


CONCATENATION = (
    Mistake("heads-merged-without-transpose", "[B, H, T, K] is reshaped to [B, T, H·K] directly, which mixes heads and "
            "tokens; transpose heads and tokens first", {"merge": merge_by_reshape}),
    Mistake("heads-interleaved", "the features of a head are spread out; they stand together, [B, T, H, K]",
            {"merge": merge_interleaved}),
    Mistake("heads-averaged", "the heads are averaged; concatenate them", {"merge": merge_mean}),
    Mistake("heads-summed", "the heads are summed; concatenate them", {"merge": merge_sum}),
    Mistake("not-merged", "the heads are not concatenated: return [B, T, H·K]", {"merge": same}),
    Mistake("not-merged", "the heads are not concatenated: [B, T, H, K] is returned; return [B, T, H·K]",
            {"merge": lambda heads: heads.transpose(1, 2)}),
    Mistake("features-before-tokens", "the output is [B, H·K, T]; return [B, T, H·K]", {"after": lambda out: out.mT}),
    Mistake("heads-along-the-tokens", "the heads are concatenated along the tokens, [B, H·T, K]; concatenate their "
            "features, [B, T, H·K]", {"merge": lambda heads: heads.flatten(1, 2)}),
    Mistake("heads-detached", "no gradient flows back to the heads (detach, .data or no_grad)",
            {"merge": lambda heads: merge(heads.detach())}),
)  # fmt: skip


def rotate(heads: Tensor) -> Tensor:
    return heads.roll(-1, 1)


SHIFT = Reference(
    name="shift",
    call="shift(heads [B, H, T, K]) -> [B, T, H·K], the heads 2, 3, …, H, 1 one after the other",
    outputs=("out",),
    arguments=("heads",),
    sizes={},
    cases=head_cases,
    compute=compute_merge,
    designs=(MergeRules(rotate),),
    mistakes=(
        Mistake("shifted-the-other-way", "the last head comes first; the first one comes last: 2, 3, …, H, 1",
                {"change": lambda heads: heads.roll(1, 1)}),
        Mistake("not-shifted", "the heads are in their own order; it is 2, 3, …, H, 1", {"change": same}),
        Mistake("shifted-by-two", "the heads are shifted by two places; shift them by one",
                {"change": lambda heads: heads.roll(-2, 1)}),
        Mistake("heads-reversed", "the heads are in reversed order; it is 2, 3, …, H, 1",
                {"change": lambda heads: heads.flip(1)}),
        Mistake("two-heads-swapped", "the first two heads are swapped; the order is 2, 3, …, H, 1",
                {"change": lambda heads: heads[:, [1, 0, *range(2, heads.shape[1])]]}),
        Mistake("ends-swapped", "the first and the last head are swapped; the order is 2, 3, …, H, 1",
                {"change": lambda heads: heads[:, [-1, *range(1, heads.shape[1] - 1), 0]]}),
        Mistake("tokens-shifted", "the tokens are shifted; shift the heads, which are axis 1",
                {"change": lambda heads: heads.roll(-1, 2)}),
        Mistake("rows-shifted", "the rows of the batch are shifted; shift the heads, which are axis 1",
                {"change": lambda heads: heads.roll(-1, 0)}),
        Mistake("features-shifted", "the features of each head are shifted; shift the heads, which are axis 1",
                {"change": lambda heads: heads.roll(-1, 3)}),
        Mistake("one-feature-shifted", "the concatenated features are shifted by one; shift them by a head, or the "
            "heads",
                {"change": same, "after": lambda out: out.roll(-1, -1)}),
        Mistake("head-dropped", "the first head is lost; it comes last", {"change": lambda heads: heads[:, 1:]}),
        Mistake("last-head-repeated", "the last head comes twice and the first one is lost: the order is 2, 3, …, H, 1",
                {"change": lambda heads: torch.cat((heads[:, 1:], heads[:, -1:]), 1)}),
        Mistake("zeros-for-the-first", "the last place is zero; the first head comes there",
                {"change": lambda heads: torch.cat((heads[:, 1:], 0 * heads[:, :1]), 1)}),
        *CONCATENATION,
    ),
)  # fmt: skip


Norm = Callable[[Tensor], Tensor]
"""The norms of heads [B, H, T, K], of a shape that goes with them."""


def by_matrix(heads: Tensor) -> Tensor:
    """One for each row and head: over all tokens and features."""
    norm: Tensor = torch.linalg.vector_norm(heads, dim=(2, 3), keepdim=True)
    return norm


def by_token(heads: Tensor) -> Tensor:
    """One for each row, head and token."""
    norm: Tensor = torch.linalg.vector_norm(heads, dim=3, keepdim=True)
    return norm


def largest_singular_value(heads: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(heads, ord=2)[..., None, None]
    return norm


def plain(norm: Tensor) -> Tensor:
    return norm


def by_mean(norm: Tensor) -> Tensor:
    return norm / norm.mean(1, keepdim=True)


def by_share(norm: Tensor) -> Tensor:
    return norm / norm.sum(1, keepdim=True)


def by_softmax(norm: Tensor) -> Tensor:
    return torch.softmax(norm, dim=1)


def by_largest(norm: Tensor) -> Tensor:
    return norm / norm.amax(1, keepdim=True)


@dataclass(frozen=True)
class ReweightRules:
    """Steps of re-weighting."""

    norm: Norm = by_token
    normalize: Callable[[Tensor], Tensor] = by_mean
    """From norms to factors."""
    factor: Callable[[Tensor], Tensor] = same
    """A change of the factors."""
    apply: Callable[[Tensor, Tensor], Tensor] = field(default=lambda heads, factor: heads * factor)
    merge: Callable[[Tensor], Tensor] = merge
    after: Callable[[Tensor], Tensor] = same


def compute_reweight(w: Weights, inputs: Mapping[str, Any], rules: ReweightRules) -> Outputs:
    heads = inputs["heads"]
    factor = rules.factor(rules.normalize(rules.norm(heads)))
    return {"out": rules.after(rules.merge(rules.apply(heads, factor)))}


NORMS = (by_token, by_matrix, largest_singular_value)
SHARES = (by_mean, by_share, plain, by_softmax, by_largest)
REWEIGHT = Reference(
    name="reweight",
    call="reweight(heads [B, H, T, K]) -> [B, T, H·K], each head times its norm, which may be divided by the mean or "
    "the sum of those of all heads",
    outputs=("out",),
    arguments=("heads",),
    sizes={},
    cases=head_cases,
    compute=compute_reweight,
    designs=tuple(ReweightRules(norm, share) for norm, share in product(NORMS, SHARES)),
    pairs=400,
    mistakes=(
        Mistake("not-weighted", "the heads are concatenated as they are; multiply each by its norm",
                {"factor": torch.ones_like}),
        Mistake("divided-by-norm", "a head is divided by its norm, so that the largest counts least; multiply by it",
                {"factor": lambda factor: 1 / factor}),
        Mistake("norm-squared", "the factor is the squared norm; take its root",
                {"norm": lambda heads: by_matrix(heads) ** 2}),
        Mistake("norm-squared", "the factor is the squared norm; take its root",
                {"norm": lambda heads: by_token(heads) ** 2}),
        Mistake("norm-of-order-one", "the factor is the sum of absolute values; take the root of the sum of squares",
                {"norm": lambda heads: heads.abs().sum((2, 3), keepdim=True)}),
        Mistake("norm-of-order-one", "the factor is the sum of absolute values; take the root of the sum of squares",
                {"norm": lambda heads: heads.abs().sum(3, keepdim=True)}),
        Mistake("mean-instead-of-norm", "the factor is the mean of a head; take its norm",
                {"norm": lambda heads: heads.mean((2, 3), keepdim=True)}),
        Mistake("mean-instead-of-norm", "the factor is the mean of a head; take its norm",
                {"norm": lambda heads: heads.mean(3, keepdim=True)}),
        Mistake("norm-over-the-batch", "the norm runs over the rows of the batch, so that the answer for a row "
            "depends on "
                "the others", {"norm": lambda heads: torch.linalg.vector_norm(heads, dim=(0, 2, 3), keepdim=True)}),
        Mistake("norm-over-all-heads", "the norm runs over the heads, so that all of them have the same factor",
                {"norm": lambda heads: torch.linalg.vector_norm(heads, dim=(1, 2, 3), keepdim=True)}),
        Mistake("norm-over-all-heads", "the norm runs over the heads, so that all of them have the same factor",
                {"norm": lambda heads: torch.linalg.vector_norm(heads, dim=1, keepdim=True)}),
        Mistake("norm-over-tokens", "the norm runs over the tokens for each feature; it runs over the features",
                {"norm": lambda heads: torch.linalg.vector_norm(heads, dim=2, keepdim=True)}),
        Mistake("share-of-the-batch", "the norms are divided by the sum over all rows, so that the size of the output "
                "depends on the batch; sum over the heads", {"normalize": lambda norm: norm / norm.sum()}),
        Mistake("share-of-the-batch", "the softmax of the norms runs over the rows; it runs over the heads",
                {"normalize": lambda norm: torch.softmax(norm, 0)}),
        Mistake("softmax-over-tokens", "the softmax of the norms runs over the tokens; it runs over the heads",
                {"normalize": lambda norm: torch.softmax(norm, 2)}),
        Mistake("heads-made-equal", "each head is divided by its norm, so that all count the same; multiply by it",
                {"norm": by_token, "normalize": plain, "factor": lambda factor: 1 / factor}),
        Mistake("factor-of-the-next-head", "each head has the factor of another one",
                {"factor": lambda factor: factor.roll(-1, 1)}),
        Mistake("factor-of-the-next-head", "each head has the factor of another one",
                {"factor": lambda factor: factor.roll(1, 1)}),
        Mistake("factor-added", "the factor is added; multiply by it", {"apply": lambda heads, factor: heads + factor}),
        Mistake("weighted-twice", "the heads are multiplied by their norms twice",
                {"apply": lambda heads, factor: heads * factor**2}),
        Mistake("heads-added", "the heads themselves are added to the weighted ones",
                {"apply": lambda heads, factor: heads * factor + heads}),
        Mistake("weights-detached", "no gradient flows through the norms (detach, .data or no_grad)",
                {"factor": torch.detach}),
        *CONCATENATION,
    ),
)  # fmt: skip


CALLS = 24
NEW = "another at each call"
OWN = "that of the heads"
FIXED = "the same at each call"


def run_shuffle(target: Any, case: Case, sizes: Sizes) -> Outputs:
    """Called many times: the output of the first call with the heads in their own order, and what the orders are."""
    heads = case.inputs["heads"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        called = [target(heads) for _ in range(CALLS)]
    if not all(isinstance(one, Tensor) for one in called):
        raise TypeError(f"it returned {describe_returned(called[0])}; expected: {SHUFFLE.call}")
    orders = [find_order(one, heads) for one in called]
    strange = [one for one in orders if isinstance(one, str)]
    if OTHER in strange:
        return {"out": called[orders.index(OTHER)]}
    if strange:
        return {"out": merge(heads), "order": strange[0]}
    first, own = [*map(int, orders[0])], range(heads.shape[1])
    back = [first.index(number) for number in own]
    out = called[0].unflatten(-1, (len(own), -1))[:, :, back].flatten(2)
    return {"out": out, "order": NEW if len({*orders}) > 1 else OWN if first == [*own] else FIXED}


OTHER = "of no heads"
REPEATED = "with repeated heads"
BY_ROW = "another in each row"
BY_TOKEN = "another at each token"
TOKENS_SHUFFLED = "of tokens"
FEATURES_SHUFFLED = "of features"
ROWS_SHUFFLED = "of rows"
MIXED = "of heads and tokens"
INTERLEAVED = "with spread features"
APART = "of heads that are not concatenated"
AVERAGED = "of the mean of the heads"
SUMMED = "of the sum of the heads"


def find_order(out: Tensor, heads: Tensor) -> tuple[int, ...] | str:
    """Which head is in which place of the output; or what else was shuffled."""
    rows, count, tokens, wide = heads.shape
    own = heads.detach().transpose(1, 2)  # [B, T, H, K]
    out = out.detach().to(own.dtype)
    if out.shape != (rows, tokens, count * wide):
        return _find_shape(out, own)
    order = _order_of_blocks(out.unflatten(-1, (count, wide)), own)
    if order is not None:
        return order
    if isinstance(_order_of_blocks(out.unflatten(-1, (wide, count)).mT, own), tuple):
        return INTERLEAVED
    for name, start, axis in ((FEATURES_SHUFFLED, 2, 2), (TOKENS_SHUFFLED, 2, 1), (ROWS_SHUFFLED, 2, 0), (MIXED, 1, 1)):
        if torch.allclose(own.flatten(start).sort(axis).values, out.flatten(start).sort(axis).values):
            return name
    return OTHER


def _order_of_blocks(blocks: Tensor, own: Tensor) -> tuple[int, ...] | str | None:
    """Which head each block [B, T, place, K] is; None where one is no head of its token."""
    is_head = torch.isclose(blocks[:, :, :, None], own[:, :, None]).all(-1)  # [B, T, place, head]
    if not is_head.any(-1).all():
        return None
    found = is_head.int().argmax(-1)
    if (found == found[:1, :1]).all():
        order = tuple(found[0, 0].tolist())
        return order if sorted(order) == [*range(own.shape[2])] else REPEATED
    if (found.sort(-1).values != torch.arange(own.shape[2])).any():
        return REPEATED
    return BY_ROW if (found == found[:, :1]).all() else BY_TOKEN


def _find_shape(out: Tensor, own: Tensor) -> str:
    """What an output of another shape is."""
    rows, tokens, count, wide = own.shape
    if out.shape in ((rows, count, tokens, wide), (rows, tokens, count, wide)):
        return APART
    if out.shape == (rows, tokens, wide):
        found = [name for name, one in ((AVERAGED, own.mean(2)), (SUMMED, own.sum(2))) if torch.allclose(out, one)]
        return found[0] if found else OTHER
    return OTHER


@dataclass(frozen=True)
class ShuffleRules:
    """What is known of the orders: the heads themselves are compared in their own."""

    order: str = NEW


def compute_shuffle(w: Weights, inputs: Mapping[str, Any], rules: ShuffleRules) -> Outputs:
    return {"out": merge(inputs["heads"]), "order": rules.order}


def order_is(name: str, text: str, order: str) -> Mistake:
    return Mistake(name, text, {"order": order})


SHUFFLE = Reference(
    name="shuffle",
    call="shuffle(heads [B, H, T, K]) -> [B, T, H·K], the heads one after the other in an order drawn at each call",
    outputs=("out", "order"),
    arguments=("heads",),
    sizes={},
    cases=head_cases,
    compute=compute_shuffle,
    run=run_shuffle,
    designs=(ShuffleRules(),),
    mistakes=(
        order_is("not-shuffled", "the heads are in their own order at every call; draw an order with torch.randperm(H)",
                 OWN),
        order_is("order-drawn-once", "the order of the heads is the same at every call; draw it in each (and set no "
            "seed "
                 "there)", FIXED),
        order_is("heads-drawn-with-replacement", "some heads come twice and others not at all: torch.randperm draws a "
                 "permutation, torch.randint does not", REPEATED),
        order_is("order-of-each-row", "each row of the batch has an order of its own; all rows have the same", BY_ROW),
        order_is("order-of-each-token", "each token has an order of its own; all tokens have the same", BY_TOKEN),
        order_is("tokens-shuffled", "the tokens are shuffled; shuffle the heads, which are axis 1", TOKENS_SHUFFLED),
        order_is("features-shuffled", "single features are shuffled; shuffle whole heads", FEATURES_SHUFFLED),
        order_is("rows-shuffled", "the rows of the batch are shuffled; shuffle the heads, which are axis 1",
                 ROWS_SHUFFLED),
        order_is("heads-merged-without-transpose", "[B, H, T, K] is reshaped to [B, T, H·K] directly, which mixes "
            "heads "
                 "and tokens; transpose heads and tokens first", MIXED),
        order_is("heads-interleaved", "the features of a head are spread out; they stand together, [B, T, H, K]",
                 INTERLEAVED),
        order_is("not-merged", "the heads are not concatenated: return [B, T, H·K]", APART),
        order_is("heads-averaged", "the heads are averaged; concatenate them", AVERAGED),
        order_is("heads-summed", "the heads are summed; concatenate them", SUMMED),
    ),
)  # fmt: skip

"""Two steps of a decoder's attention (Luong et al., 2015) as functions: bilinear scores, the attentional vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anaphor.course.reference import Case, Mistake, Outputs, Reference, Weights
from anaphor.course.references.attention import random_values, same


@dataclass(frozen=True)
class ScoreRules:
    """Steps of bilinear scores."""

    project: Callable[[Tensor, Tensor], Tensor] = field(default=lambda Q, W: Q @ W)
    match: Callable[[Tensor, Tensor], Tensor] = field(default=lambda projected, K: projected @ K.mT)
    scale: Callable[[Tensor, Tensor], Tensor] = field(default=lambda scores, K: scores)
    after: Callable[[Tensor], Tensor] = same


def compute_scores(w: Weights, inputs: Mapping[str, Any], rules: ScoreRules) -> Outputs:
    Q, K, W = inputs["Q"], inputs["K"], inputs["W"]
    return {"scores": rules.after(rules.scale(rules.match(rules.project(Q, W), K), K))}


def score_cases(sizes: Mapping[str, int]) -> list[Case]:
    def inputs(rows: int, queries: int, keys: int, seed: int) -> dict[str, Tensor]:
        sized = {"Q": (rows, queries, 4), "K": (rows, keys, 4), "W": (4, 4)}
        return {name: random_values(*shape, seed=seed + place) for place, (name, shape) in enumerate(sized.items())}

    return [
        Case("of 3 queries and 5 keys", inputs(2, 3, 5, 0), "of several rows"),
        Case("of as many queries as keys", inputs(2, 4, 4, 10), "of as many queries as keys"),
        Case("of one query", inputs(1, 1, 6, 20), "of one query"),
    ]


BILINEAR_SCORE = Reference(
    name="bilinear_score",
    call="score(Q [B, T', d], K [B, T, d], W [d, d]) -> scores [B, T', T], Q[l, i] · W K[l, j]",
    outputs=("scores",),
    arguments=("Q", "K", "W"),
    sizes={},
    cases=score_cases,
    compute=compute_scores,
    designs=(ScoreRules(),),
    mistakes=(
        Mistake("matrix-transposed", "W is transposed: the score is Q[i] · W K[j], so queries are multiplied by W "
                "from the right, Q @ W", {"project": lambda Q, W: Q @ W.T}),
        Mistake("matrix-missing", "W is not used: multiply the queries or the keys by it", {"project": lambda Q, W: Q}),
        Mistake("matrix-used-twice", "queries and keys are both multiplied by W; one of them is enough",
                {"project": lambda Q, W: Q @ W @ W.T}),
        Mistake("scaled-by-root", "the scores are divided by √d; bilinear scores are not scaled",
                {"scale": lambda scores, K: scores / K.shape[-1] ** 0.5}),
        Mistake("scaled-by-size", "the scores are divided by d; bilinear scores are not scaled",
                {"scale": lambda scores, K: scores / K.shape[-1]}),
        Mistake("queries-and-keys-swapped", "the scores are [B, T, T'], a row for each key; a row belongs to a query",
                {"after": lambda scores: scores.mT}),
        Mistake("softmax-in-scores", "the scores went through a softmax; return them as they are",
                {"after": lambda scores: torch.softmax(scores, -1)}),
        Mistake("tanh-of-scores", "the scores went through a tanh; return them as they are", {"after": torch.tanh}),
        Mistake("keys-viewed-not-transposed", "the keys are reshaped to [B, d, T], not transposed",
                {"match": lambda projected, K: projected @ K.reshape(K.shape[0], K.shape[2], K.shape[1])}),
        Mistake("rows-mixed", "every query meets the keys of the first row of the batch; use a batched product",
                {"match": lambda projected, K: projected @ K[:1].mT}),
    ),
)  # fmt: skip


def side_by_side(c: Tensor, h: Tensor) -> Tensor:
    return torch.cat((c, h), dim=-1)


@dataclass(frozen=True)
class VectorRules:
    """Steps of the attentional vector."""

    join: Callable[[Tensor, Tensor], Tensor] = side_by_side
    project: Callable[[Tensor, Tensor], Tensor] = field(default=lambda joined, W: joined @ W.T)
    after: Callable[[Tensor], Tensor] = torch.tanh
    finish: Callable[[Tensor, Tensor], Tensor] = field(default=lambda vector, h: vector)


def compute_vector(w: Weights, inputs: Mapping[str, Any], rules: VectorRules) -> Outputs:
    c, h, W = inputs["c"], inputs["h"], inputs["W"]
    return {"vector": rules.finish(rules.after(rules.project(rules.join(c, h), W)), h)}


def vector_cases(sizes: Mapping[str, int]) -> list[Case]:
    def inputs(rows: int, queries: int, seed: int) -> dict[str, Tensor]:
        sized = {"c": (rows, queries, 4), "h": (rows, queries, 4), "W": (4, 8)}
        return {name: random_values(*shape, seed=seed + place) for place, (name, shape) in enumerate(sized.items())}

    return [
        Case("of 3 queries", inputs(2, 3, 0), "of several rows"),
        Case("of one query", inputs(1, 1, 20), "of one query"),
    ]


ATTENTIONAL_VECTOR = Reference(
    name="attentional_vector",
    call="attentional_vector(c [B, T', d], h [B, T', d], W [d, 2d]) -> tanh(W [c; h]) [B, T', d]",
    outputs=("vector",),
    arguments=("c", "h", "W"),
    sizes={},
    cases=vector_cases,
    compute=compute_vector,
    designs=(VectorRules(),),
    mistakes=(
        Mistake("query-first", "the query comes before the context; the context comes first, [c; h]",
                {"join": lambda c, h: torch.cat((h, c), dim=-1)}),
        Mistake("tanh-missing", "the tanh is missing", {"after": same}),
        Mistake("sigmoid-for-tanh", "the result went through a sigmoid; it is a tanh", {"after": torch.sigmoid}),
        Mistake("relu-for-tanh", "the result went through a ReLU; it is a tanh", {"after": torch.relu}),
        Mistake("tanh-twice", "the tanh is applied twice", {"after": lambda vector: vector.tanh().tanh()}),
        Mistake("tanh-before-the-product", "the tanh comes before the product with W; it comes after",
                {"join": lambda c, h: side_by_side(c, h).tanh(), "after": same}),
        Mistake("context-alone", "the query plays no part: join context and query, [c; h]",
                {"join": lambda c, h: side_by_side(c, torch.zeros_like(h))}),
        Mistake("query-alone", "the context plays no part: join context and query, [c; h]",
                {"join": lambda c, h: side_by_side(torch.zeros_like(c), h)}),
        Mistake("context-and-query-interleaved", "the numbers of context and query alternate; put them side by side",
                {"join": lambda c, h: torch.stack((c, h), dim=-1).flatten(-2)}),
        Mistake("matrix-reshaped", "W is reshaped to [2d, d]; transpose it",
                {"project": lambda joined, W: joined @ W.reshape(W.shape[1], W.shape[0])}),
        Mistake("query-added", "the query is added to the result; it is not a residual connection",
                {"finish": lambda vector, h: vector + h}),
    ),
)  # fmt: skip

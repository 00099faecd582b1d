"""Attention: one head, and several with an output projection.

B rows, T tokens, D width, H heads, K width of a head. No two of them are equal, so that a wrong axis shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anaphor.course.reference import Case, DoesNotFit, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.weights import Weight, read_attention

ROWS, TOKENS = 5, 7


def random_values(*shape: int, seed: int = 0) -> Tensor:
    """The same numbers at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_mask(tokens: int) -> Tensor:
    """1 where a token may attend, 0 where it must not. It is not symmetric, and every row and column has both, so that
    it may be inverted or transposed by mistake without a row in which nothing is allowed."""
    drawn = torch.rand(tokens, tokens, generator=torch.Generator().manual_seed(3)) < 0.5
    one = torch.eye(tokens, dtype=torch.bool)
    return ((drawn | one.roll(1, 0)) & ~one.roll(2, 0)).float()


@dataclass(frozen=True)
class Sizing:
    """What a factor of the scores may depend on."""

    size: int
    """Width of a head."""
    dim: int
    heads: int
    tokens: int


def over_keys(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the keys that a query may attend to."""
    return torch.softmax(hide(scores, allowed, -torch.inf), dim=-1)


def hide(scores: Tensor, allowed: Tensor | None, value: float) -> Tensor:
    return scores if allowed is None else scores.masked_fill(allowed == 0, value)


def softmax_over(dim: int, hidden: float = -torch.inf) -> Callable[[Tensor, Tensor | None], Tensor]:
    def weigh(scores: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.softmax(hide(scores, allowed, hidden), dim=dim)

    return weigh


def mask_after(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return hide(torch.softmax(scores, dim=-1), allowed, 0)


def mask_multiplied(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return torch.softmax(hide(scores, allowed, 0), dim=-1)


def mask_added(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return torch.softmax(scores if allowed is None else scores + allowed, dim=-1)


def masked_high(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return torch.softmax(hide(scores, allowed, 1e9), dim=-1)


def masked_by_minus_one(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return torch.softmax(hide(scores, allowed, -1), dim=-1)


def no_softmax(hidden: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    def weigh(scores: Tensor, allowed: Tensor | None) -> Tensor:
        return hide(scores, allowed, hidden)

    return weigh


def detached_weights(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return over_keys(scores, allowed).detach()


def separate_sigmoids(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return hide(torch.sigmoid(scores), allowed, 0)


Vectors = tuple[Tensor, Tensor, Tensor]


def project(w: Weights, x: Tensor) -> Vectors:
    """Queries, keys and values of each head. [B, T, D] -> three of [B, H, T, K]"""
    q, k, v = (
        x[:, None] @ w[name].mT + w[f"b{name}"][:, None] for name in "qkv"
    )  # einsum would take five times as long
    return q, k, v


def values_are_inputs(w: Weights, x: Tensor) -> Vectors:
    q, k, _ = project(w, x)
    return q, k, x[:, None].expand(-1, q.shape[1], -1, -1)


def values_are_keys(w: Weights, x: Tensor) -> Vectors:
    q, k, _ = project(w, x)
    return q, k, k


def values_are_queries(w: Weights, x: Tensor) -> Vectors:
    q, k, _ = project(w, x)
    return q, k, q


def keys_are_queries(w: Weights, x: Tensor) -> Vectors:
    q, _, v = project(w, x)
    return q, q, v


def first_head_for_all(w: Weights, x: Tensor) -> Vectors:
    q, k, v = (one[:, :1].expand(-1, len(w["q"]), -1, -1) for one in project(w, x))
    return q, k, v


def detached_values(w: Weights, x: Tensor) -> Vectors:
    q, k, v = project(w, x)
    return q, k, v.detach()


def interleaved(w: Weights, x: Tensor) -> Vectors:
    """As if a row of a matrix were feature and head, not head and feature."""

    def turn(matrix: Tensor) -> Tensor:
        heads, size = matrix.shape[:2]
        return matrix.reshape(size, heads, *matrix.shape[2:]).transpose(0, 1)

    return project({name: turn(w[name]) for name in ("q", "k", "v", "bq", "bk", "bv")}, x)


def split_by_reshape(w: Weights, x: Tensor) -> Vectors:
    """[B, T, H·K] cut into [B, H, T, K] without a transposition."""
    q, k, v = (one.transpose(1, 2).reshape(one.shape) for one in project(w, x))
    return q, k, v


def average(A: Tensor, v: Tensor) -> Tensor:
    return A @ v


def average_transposed(A: Tensor, v: Tensor) -> Tensor:
    return A.transpose(-1, -2) @ v


def dot(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2)


def swapped_dot(q: Tensor, k: Tensor) -> Tensor:
    return k @ q.transpose(-1, -2)


def same(value: Any) -> Any:
    return value


def inverted(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else (mask == 0).to(torch.float32)


def transposed(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.transpose(-1, -2)


def ignored(mask: Tensor | None) -> Tensor | None:
    return None


def by_head_size(n: Sizing) -> float:
    return float(n.size**-0.5)


def show_weights(scores: Tensor, allowed: Tensor | None, A: Tensor) -> Tensor:
    return A


def show_scores(hidden: float | None) -> Callable[[Tensor, Tensor | None, Tensor], Tensor]:
    def show(scores: Tensor, allowed: Tensor | None, A: Tensor) -> Tensor:
        return scores if hidden is None else hide(scores, allowed, hidden)

    return show


def by_one(n: Sizing) -> float:
    return 1.0


@dataclass(frozen=True)
class Attend:
    """Steps of attention in each head."""

    project: Callable[[Weights, Tensor], Vectors] = project
    score: Callable[[Tensor, Tensor], Tensor] = dot
    scale: Callable[[Sizing], float] = by_head_size
    scale_weights: Callable[[Sizing], float] = by_one
    mask: Callable[[Tensor | None], Tensor | None] = same
    weigh: Callable[[Tensor, Tensor | None], Tensor] = over_keys
    average: Callable[[Tensor, Tensor], Tensor] = average
    shown: Callable[[Tensor, Tensor | None, Tensor], Tensor] = show_weights
    """What is returned as A."""
    axes: tuple[int, int] = (0, 1)
    """Axes of rows and tokens."""


def attend(w: Weights, x: Tensor, mask: Tensor | None, rules: Attend) -> tuple[Tensor, Tensor]:
    """Context vectors [B, H, T, K] and A [B, H, T, T]."""
    if rules.axes == (1, 0):
        x = x.transpose(0, 1)
    q, k, v = rules.project(w, x)
    heads, size, dim = w["q"].shape
    sizing = Sizing(size, dim, heads, x.shape[1])
    scores = rules.score(q, k) * rules.scale(sizing)
    allowed = rules.mask(mask)
    A = rules.weigh(scores, allowed) * rules.scale_weights(sizing)
    context = rules.average(A, v)
    return context.transpose(0, 2) if rules.axes == (1, 0) else context, rules.shown(scores, allowed, A)


ATTENTION_MISTAKES = (
    Mistake("scaled-by-model-width", "the scores are divided by √dim; divide by the root of the width of a head, √d_k",
            {"scale": lambda n: n.dim**-0.5}),
    Mistake("not-scaled", "the scores are not scaled; divide them by √d_k", {"scale": by_one}),
    Mistake("scaled-without-root", "the scores are divided by d_k; divide by its root, √d_k",
            {"scale": lambda n: 1 / n.size}),
    Mistake("multiplied-by-root", "the scores are multiplied by √d_k; divide by it",
            {"scale": lambda n: n.size**0.5}),
    Mistake("scaled-by-length", "the scores are divided by the root of the number of tokens; divide by √d_k",
            {"scale": lambda n: n.tokens**-0.5}),
    Mistake("scaled-after-softmax", "the weights are divided by √d_k after the softmax; divide the scores before it",
            {"scale": by_one, "scale_weights": by_head_size}),
    Mistake("softmax-over-queries", "the softmax runs over the queries; it runs over the keys, the last axis (dim=-1)",
            {"weigh": softmax_over(-2)}),
    Mistake("softmax-over-batch", "the softmax runs over the batch; it runs over the keys, the last axis (dim=-1)",
            {"weigh": softmax_over(0)}),
    Mistake("softmax-over-batch", "the softmax runs over the batch; it runs over the keys, the last axis (dim=-1)",
            {"weigh": softmax_over(0, -1e9)}),
    *(Mistake("no-softmax", "the scores are used as weights without a softmax", {"weigh": no_softmax(hidden)})
      for hidden in (0.0, -torch.inf, -1e9)),
    Mistake("sigmoid-for-softmax", "the weights are sigmoids of the scores; use a softmax, so that they sum to one",
            {"weigh": separate_sigmoids}),
    Mistake("mask-after-softmax", "the mask sets weights to zero after the softmax, so that they no longer sum to one; "
            "set the scores to -inf before it", {"weigh": mask_after}),
    Mistake("masked-with-zero", "masked scores become 0, which has a weight in the softmax; set them to -inf",
            {"weigh": mask_multiplied}),
    Mistake("masked-with-minus-one", "masked scores become -1, which has a weight in the softmax; set them to -inf",
            {"weigh": masked_by_minus_one}),
    Mistake("masked-with-large-value", "masked scores become large and positive, and win the softmax; set them to -inf",
            {"weigh": masked_high}),
    Mistake("mask-added", "the mask of 0 and 1 is added to the scores; where it is 0, set the scores to -inf",
            {"weigh": mask_added}),
    Mistake("mask-ignored", "attn_mask changes nothing; where it is 0, a token must not attend", {"mask": ignored}),
    Mistake("mask-inverted", "the mask hides the wrong side: attn_mask is 1 where a token may attend",
            {"mask": inverted}),
    Mistake("mask-transposed", "the mask is transposed: its rows are queries, its columns keys", {"mask": transposed}),
    Mistake("queries-and-keys-swapped", "the scores are K Qᵀ; rows are queries: Q Kᵀ", {"score": swapped_dot}),
    Mistake("weights-transposed", "the output is Aᵀ V; it is A V", {"average": average_transposed}),
    Mistake("values-not-projected", "the weights average the inputs; they average the values x W_V",
            {"project": values_are_inputs}),
    Mistake("keys-used-as-values", "the weights average the keys; they average the values",
            {"project": values_are_keys}),
    Mistake("queries-used-as-values", "the weights average the queries; they average the values",
            {"project": values_are_queries}),
    Mistake("queries-used-as-keys", "queries are compared with queries; compare them with keys",
            {"project": keys_are_queries}),
    Mistake("batch-and-time-swapped", "it attends over the batch; x is [B, T, D], and a token attends to tokens of its "
            "own row", {"axes": (1, 0)}),
    *(Mistake("returns-scores", "A has the scores before the softmax; return the weights",
              {"shown": show_scores(hidden)})
      for hidden in (None, -torch.inf, -1e9)),
    Mistake("weights-detached", "no gradient flows through the attention weights (detach, .data or no_grad)",
            {"weigh": detached_weights}),
    Mistake("values-detached", "no gradient flows through the values (detach, .data or no_grad)",
            {"project": detached_values}),
)  # fmt: skip


def sequence_cases(dim: int) -> list[Case]:
    """Sequences without a mask, with one, and of another length."""
    band = (torch.ones(4, 4).tril() - torch.ones(4, 4).tril(-2)).float()
    return [
        Case("without a mask", {"x": random_values(ROWS, TOKENS, dim), "attn_mask": None}, "without a mask"),
        Case("with a mask", {"x": random_values(ROWS, TOKENS, dim, seed=1), "attn_mask": random_mask(TOKENS)},
             "with a mask"),
        Case("with a banded mask and other sizes", {"x": random_values(3, 4, dim, seed=2), "attn_mask": band},
             "for another batch size and length"),
    ]  # fmt: skip


def as_bool(name: str, value: Any) -> Any:
    return value.bool() if name == "attn_mask" and isinstance(value, Tensor) else value


def compute_head(w: Weights, inputs: Mapping[str, Any], rules: Attend) -> Outputs:
    context, A = attend(w, inputs["x"], inputs["attn_mask"], rules)
    return {"out": context[:, 0], "A": A[:, 0]}


ATTENTION_HEAD = Reference(
    name="AttentionHead",
    call="AttentionHead(dim, n_hidden), forward(x, attn_mask=None) -> out [B, T, n_hidden], A [B, T, T]",
    outputs=("out", "A"),
    arguments=("x", "attn_mask"),
    optional=("attn_mask",),
    sizes={"dim": 10, "n_hidden": 3},
    constructors=(("dim", "n_hidden"),),
    cases=lambda sizes: sequence_cases(sizes["dim"]),
    read=lambda given, sizes: read_attention(given, 1, sizes["n_hidden"], sizes["dim"], has_output=False),
    shapes=lambda sizes: attention_shapes(1, sizes["n_hidden"], sizes["dim"], has_output=False),
    compute=compute_head,
    designs=(Attend(),),
    mistakes=ATTENTION_MISTAKES,
    forms={"a mask of bool": as_bool},
    time_first=("x", "out"),
)


def attention_shapes(heads: int, size: int, dim: int, has_output: bool = True) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of attention by name."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkv", (heads, size, dim))
    shapes |= {f"b{name}": (heads, size) for name in "qkv"}
    return shapes | ({"o": (dim, heads * size), "bo": (dim,)} if has_output else {})


def merge(context: Tensor) -> Tensor:
    """[B, H, T, K] -> [B, T, H·K]"""
    return context.transpose(1, 2).flatten(2)


def merge_by_reshape(context: Tensor) -> Tensor:
    rows, heads, tokens, size = context.shape
    return context.reshape(rows, tokens, heads * size)


def merge_interleaved(context: Tensor) -> Tensor:
    return context.permute(0, 2, 3, 1).flatten(2)


def merge_mean(context: Tensor) -> Tensor:
    return context.mean(1)


def merge_sum(context: Tensor) -> Tensor:
    return context.sum(1)


def project_out(w: Weights, merged: Tensor, x: Tensor) -> Tensor:
    return merged @ w["o"].T + w["bo"]


def no_projection(w: Weights, merged: Tensor, x: Tensor) -> Tensor:
    return merged


def projection_and_input(w: Weights, merged: Tensor, x: Tensor) -> Tensor:
    return project_out(w, merged, x) + x


def projection_transposed(w: Weights, merged: Tensor, x: Tensor) -> Tensor:
    if w["o"].shape[0] != w["o"].shape[1]:
        raise DoesNotFit
    return merged @ w["o"] + w["bo"]


def projection_of_detached(w: Weights, merged: Tensor, x: Tensor) -> Tensor:
    return project_out(w, merged.detach(), x)


@dataclass(frozen=True)
class MultiHead:
    """Steps around the heads."""

    attend: Attend = field(default_factory=Attend)
    merge: Callable[[Tensor], Tensor] = merge
    out: Callable[[Weights, Tensor, Tensor], Tensor] = project_out
    maps: Callable[[Tensor], Tensor] = same


def multi_head(w: Weights, x: Tensor, mask: Tensor | None, rules: MultiHead) -> tuple[Tensor, Tensor]:
    context, A = attend(w, x, mask, rules.attend)
    return rules.out(w, rules.merge(context), x), rules.maps(A)


HEAD_MISTAKES = (
    Mistake("no-output-projection", "the concatenated heads are returned without the output projection W_O",
            {"out": no_projection}),
    Mistake("heads-merged-without-transpose", "[B, H, T, K] is reshaped to [B, T, H·K] directly, which mixes heads and "
            "tokens; transpose heads and tokens first", {"merge": merge_by_reshape}),
    Mistake("heads-split-without-transpose", "[B, T, H·K] is cut into [B, H, T, K] directly, which mixes heads and "
            "tokens; view it as [B, T, H, K] and transpose", {"attend": {"project": split_by_reshape}}),
    Mistake("heads-split-and-merged-without-transpose", "[B, T, H·K] is cut into [B, H, T, K] and back without a "
            "transposition, so that a head attends over parts of tokens",
            {"attend": {"project": split_by_reshape}, "merge": merge_by_reshape}),
    Mistake("heads-interleaved", "the heads are interleaved: [B, T, H·K] is viewed as [B, T, K, H]; the features of a "
            "head stand together, [B, T, H, K]", {"attend": {"project": interleaved}}),
    Mistake("heads-interleaved", "the heads are interleaved in both directions: [B, T, H·K] is viewed as [B, T, K, H]; "
            "the features of a head stand together, [B, T, H, K]",
            {"attend": {"project": interleaved}, "merge": merge_interleaved}),
    Mistake("heads-interleaved", "the heads are interleaved when they are merged; the features of a head are together",
            {"merge": merge_interleaved}),
    Mistake("scaled-by-all-heads", "the scores are divided by √(H·K), the width of all heads; divide by √K, "
            "that of one head",
            {"attend": {"scale": lambda n: (n.size * n.heads) ** -0.5}}),
    Mistake("first-head-for-all", "all heads have the weights of the first one",
            {"attend": {"project": first_head_for_all}}),
    Mistake("heads-averaged", "the heads are averaged; concatenate them", {"merge": merge_mean}),
    Mistake("heads-summed", "the heads are summed; concatenate them", {"merge": merge_sum}),
    Mistake("input-added", "the input is added to the output; the residual connection stands outside of attention",
            {"out": projection_and_input}),
    Mistake("output-projection-transposed", "the output projection is transposed", {"out": projection_transposed}),
    Mistake("maps-averaged", "A is averaged over the heads; return [B, H, T, T]", {"maps": lambda A: A.mean(1)}),
    Mistake("heads-before-batch", "A is [H, B, T, T]; return [B, H, T, T]", {"maps": lambda A: A.transpose(0, 1)}),
    Mistake("map-of-last-head", "A is that of the last head alone; return [B, H, T, T]", {"maps": lambda A: A[:, -1]}),
    Mistake("heads-detached", "no gradient flows back from the output projection to the heads",
            {"out": projection_of_detached}),
)  # fmt: skip

MULTI_HEAD_MISTAKES = (*(one.inside("attend") for one in ATTENTION_MISTAKES), *HEAD_MISTAKES)


def head_sizes(sizes: Sizes) -> Sizes:
    """The width of a head, which is dim / num_heads where the constructor takes none."""
    if "n_hidden" in sizes:
        return {**sizes}
    if "dim" not in sizes:
        return {**sizes}
    dim = sizes["dim"]
    return {**sizes, "n_hidden": dim // sizes["num_heads"]}


def read_multi_head(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """With an output projection, and also without one."""
    heads, size, dim = sizes["num_heads"], sizes["n_hidden"], sizes["dim"]
    yield from read_attention(given, heads, size, dim)
    yield from read_attention(given, heads, size, dim, has_output=False)


def compute_multi_head(w: Weights, inputs: Mapping[str, Any], rules: MultiHead) -> Outputs:
    out, A = multi_head(w, inputs["x"], inputs["attn_mask"], rules)
    return {"out": out, "A": A}


MULTI_HEAD_ATTENTION = Reference(
    name="MultiHeadAttention",
    call="MultiHeadAttention(dim, n_hidden, num_heads), forward(x, attn_mask=None) -> out [B, T, dim], A [B, H, T, T]",
    outputs=("out", "A"),
    arguments=("x", "attn_mask"),
    optional=("attn_mask",),
    sizes={"dim": 12, "n_hidden": 2, "num_heads": 4},
    constructors=(("dim", "n_hidden", "num_heads"), ("dim", "num_heads")),
    derived=head_sizes,
    cases=lambda sizes: sequence_cases(sizes["dim"]),
    read=read_multi_head,
    shapes=lambda sizes: attention_shapes(sizes["num_heads"], sizes["n_hidden"], sizes["dim"]),
    compute=compute_multi_head,
    designs=(MultiHead(),),
    mistakes=MULTI_HEAD_MISTAKES,
    forms={"a mask of bool": as_bool},
    time_first=("x", "out"),
)

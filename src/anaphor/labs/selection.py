"""Which values can attention return for given keys, and which query returns them?

The score is the dot product of query and key without scaling; weights are the softmax of the scores. A query selects
some keys if their scores are equal and exceed all others by a margin. Both conditions are linear in the query, so the
largest margin solves a linear program, and its dual is the certificate: the margin is the distance between the affine
hull of the wanted keys and the convex hull of the others. If it is zero, there is no such query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from scipy.special import logsumexp, softmax

from anaphor.draw import curves as plot
from anaphor.draw import figure_paths
from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.labs.lab import CURVES, Outcome, at_least, at_most, true
from anaphor.labs.specs import SelectionSpec
from anaphor.mixers import CrossAttentionSpec, Span

Array = NDArray[np.float64]

SELECTED = 0.99  # least weight of a selected key
AVERAGED = 1e-6  # largest deviation from equal weights in an average
LEAK = 1e-7  # weight left to unwanted keys, where floating point allows it
NEGLIGIBLE = 1e-6  # largest margin that counts as zero; relative for keys smaller than 1
ROUNDING = float(np.finfo(float).eps)
MAX_LENGTH, MIN_LENGTH = 1e100, 1e-50  # squares and quotients in this range are finite; smaller numbers are set to zero


@dataclass(frozen=True, eq=False)
class Selection:
    """A query with the requested weights. For the identity: one row for each key."""

    query: Array
    weights: Array
    """Softmax of the scores."""
    margin: float
    """Margin of the wanted scores for the best query with entries in [-1, 1]; `query` is a multiple of it. Infinite if
    all keys are wanted."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """A new key with which the given query has the requested weights."""

    key: Array
    weights: Array
    margin: float
    """Margin of the wanted scores."""


@dataclass(frozen=True, eq=False)
class Impossible:
    """Proof that there is no such query or key."""

    certificate: Array
    """For a query: one multiplier for each key. Those of the wanted keys sum to 1, the others are ≤ 0 and sum to -1,
    and `certificate @ keys == 0`. For the identity: one such row for every key that cannot be selected. For a replaced
    key: the scores with the best allowed key."""
    why: str


def select(keys: ArrayLike, index: int) -> Selection | Impossible:
    """A query that selects one key, with weight at least 0.99."""
    return average(keys, [index])


def average(keys: ArrayLike, subset: Sequence[int] | None = None) -> Selection | Impossible:
    """A query that averages a subset of the keys (default: all), with weights equal to 1e-6."""
    K = _matrix(keys)
    wanted = list(range(len(K))) if subset is None else _indices(subset, len(K), "subset")
    others = _other_indices(wanted, len(K))
    if not others:
        return Selection(np.zeros(K.shape[1]), np.full(len(K), 1 / len(K)), math.inf)
    spread, size = float(np.ptp(K, axis=0).max()), float(np.abs(K).max())
    certificates = []
    # First treat nearly equal keys as equal; if the weights show a difference, retry with a smaller tolerance.
    for nearly in (1e-9, 1e-14):
        direction, margin, certificate = _largest_margin(K, wanted, others, nearly)
        query = _scale_query(direction, margin, K, wanted, others)
        weights = softmax(K @ query)
        if _are_as_requested(weights, wanted):
            return Selection(query, weights, margin)
        certificates.append(certificate)
    certificate = min(certificates, key=lambda multipliers: float(np.abs(multipliers @ K).sum()))
    gap = float(np.abs(certificate @ K).sum())
    if gap <= NEGLIGIBLE * min(1.0, size):
        return Impossible(certificate, _explain(certificate, wanted, others, exact=gap <= 1e-12 * size))
    raise ConfigError(
        f"double precision cannot show the weights: keys as large as {size:.3g} that differ by {spread:.3g} have a "
        f"margin of {gap:.3g}; subtract the mean key from all, which changes no weight, or take keys that differ more"
    )


def identity(keys: ArrayLike) -> Selection | Impossible:
    """A matrix of queries, one for each key, whose attention is the identity: row i selects key i."""
    answers = [select(keys, index) for index in range(len(_matrix(keys)))]
    missing = [answer for answer in answers if isinstance(answer, Impossible)]
    if missing:
        return Impossible(np.stack([a.certificate for a in missing]), "; ".join(a.why for a in missing))
    found = [answer for answer in answers if isinstance(answer, Selection)]
    rows = np.stack([a.query for a in found]), np.stack([a.weights for a in found])
    return Selection(*rows, margin=min(a.margin for a in found))


def replace_key(
    keys: ArrayLike, query: ArrayLike, index: int, wanted: int | Sequence[int], length: float | None = None
) -> Replacement | Impossible:
    """A new key for `index`, so that the given query selects the wanted key or averages the wanted ones.

    They get at least 0.99 of the weight, equal to 1e-6. Without `length`, the result is the nearest such key to the old
    one; with it, the key of that norm with the largest margin, and among those the nearest.
    """
    K, q = _matrix(keys), _matrix(np.atleast_2d(query))[0]
    if len(q) != K.shape[1]:
        raise ConfigError(f"the query has {len(q)} numbers, but a key has {K.shape[1]}")
    if length is not None and not MIN_LENGTH <= length <= MAX_LENGTH:
        raise ConfigError(
            f"length={length}: a key's length is a positive number between {MIN_LENGTH:g} and {MAX_LENGTH:g}"
        )
    (index,) = _indices([index], len(K), "index")
    chosen = _indices(list(np.atleast_1d(wanted)), len(K), "wanted")
    size = float(np.linalg.norm(q))
    # The new key matters only through its score, which lies in [-reach, reach].
    reach = 0.0 if not size else math.inf if length is None else length * size
    scores = K @ q
    aim = _target_score(scores, index, chosen, extreme=length is not None)
    scores[index] = min(max(aim, -reach), reach)
    if len(q) == 1 and length is not None:  # in one dimension only two keys have that norm
        scores[index] = math.copysign(reach, aim)
    if _are_concentrated(softmax(scores), chosen):
        key = _key_with_score(K[index], q, scores[index], length)
        scores[index] = key @ q
        weights, others = softmax(scores), _other_indices(chosen, len(K))
        if _are_concentrated(weights, chosen):
            margin = float(scores[chosen].min() - scores[others].max()) if others else math.inf
            return Replacement(key, weights, margin)
    return Impossible(scores, _explain_no_key(scores, index, chosen, aim, reach))


def attention(keys: ArrayLike, queries: ArrayLike) -> Array:
    """Weights of an attention layer with one head, dot-product score and identity projections."""
    K, Q = torch.from_numpy(_matrix(keys)), torch.from_numpy(_matrix(np.atleast_2d(queries)))
    layer = CrossAttentionSpec(width=K.shape[1], heads=1, score="dot", bias=False).build().double()
    with torch.no_grad(), recorded(layer, "weights") as seen:
        same = torch.eye(K.shape[1], dtype=torch.float64)
        layer.query.weight.copy_(same)
        layer.project.weight.copy_(same.repeat(2, 1))  # keys and values
        layer(Q[None], layer.initial_state(K[None]), Span.whole(Q[None]))
    weights: Array = seen["weights"][0, 0].numpy()
    return weights


def run(spec: SelectionSpec) -> Outcome:
    """Which keys can be selected, and by which query: the given keys, then their mean as a further key."""
    K = _matrix(np.reshape(spec.keys, (-1, spec.width)))
    more = np.vstack([K, K.mean(0)])
    single = {f"key {index}": select(K, index) for index in range(len(K))}
    answers = {**single, "all": average(K), "keys 0 and 1": average(K, [0, 1])}
    designed = {name: answer for name, answer in answers.items() if isinstance(answer, Selection)}
    error = max(float(np.abs(attention(K, a.query)[0] - a.weights).max()) for a in designed.values())
    refused = [(answer, K) for answer in answers.values() if isinstance(answer, Impossible)]
    inner = select(more, len(K))
    refused += [(inner, more)] if isinstance(inner, Impossible) else []
    gaps = [float(np.abs(answer.certificate @ keys).sum()) for answer, keys in refused]
    weights = [answer.weights[index] for index, answer in enumerate(single.values()) if isinstance(answer, Selection)]
    numbers: dict[str, Any] = {
        name: {
            "margin": answer.margin if math.isfinite(answer.margin) else "no others",
            "query": answer.query.tolist(),
            "weights": answer.weights.tolist(),
        }
        if isinstance(answer, Selection)
        else {"margin": 0.0, "query": "none", "weights": answer.why}
        for name, answer in answers.items()
    }
    inner_numbers = inner.certificate.tolist() if isinstance(inner, Impossible) else inner.query.tolist()
    checks = (
        at_least("least weight of a selected key", float(min(weights, default=1.0)), SELECTED),
        at_most("weights, error against an attention layer", error, AVERAGED),
        true("the mean of all keys cannot be selected", isinstance(inner, Impossible)),
        at_most("‖certificate @ keys‖₁, largest", max(gaps, default=0.0), NEGLIGIBLE),
    )
    results = {"queries": numbers, "multipliers for the mean of all keys": inner_numbers, **_new_third_key(K, answers)}
    lengths = np.linspace(0, 1, 60)
    first = next(answer for answer in designed.values() if isinstance(answer, Selection))
    grown = attention(more, lengths[:, None] * first.query)
    curves = {f"key {index}": grown[:, index].tolist() for index in range(len(K))} | {
        "their mean": grown[:, -1].tolist()
    }
    return Outcome("selection", spec.claim, checks, {**results, CURVES: {"lengths": lengths.tolist(), **curves}})


def _new_third_key(K: Array, found: Mapping[str, Selection | Impossible]) -> dict[str, list[float] | str]:
    """A new third key for the query that averages the first two: to average three, and to select the third."""
    names = "average of three, by a new key", "the third, by a new key of length 1"
    two = found["keys 0 and 1"]
    if not isinstance(two, Selection):
        return dict.fromkeys(names, "none, because no query averages keys 0 and 1")
    answers = replace_key(K, two.query, 2, [0, 1, 2]), replace_key(K, two.query, 2, 2, length=1)
    return {
        name: answer.weights.tolist() if isinstance(answer, Replacement) else f"none, because {answer.why}"
        for name, answer in zip(names, answers, strict=True)
    }


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Weights against the norm of the query that selects the first key."""
    weights_by_key = dict(outcome.numbers[CURVES])
    lengths = weights_by_key.pop("lengths")
    lines = {name: (lengths, weights) for name, weights in weights_by_key.items()}
    label = "norm of the query / norm of the solution"
    paths = figure_paths(folder / "selection")
    plot(lines, *paths, x_label=label, y_label="weight")
    return paths


def _largest_margin(K: Array, wanted: list[int], others: list[int], nearly: float) -> tuple[Array, float, Array]:
    """Maximize m over q and m: q · (wanted - other) ≥ m, wanted scores equal, entries of q in [-1, 1].

    Returns q, m and the multipliers of the constraints, which prove that no such q has a margin above
    `abs(certificate @ K).sum()`; that is zero if m is.
    """
    width, spread = K.shape[1], float(np.ptp(K, axis=0).max())
    unit = spread / 1000 or 1.0  # the solver's tolerance is about 1e-9
    center = K[wanted].mean(0)
    inside, outside = (K[wanted] - center) / unit, (K[others] - center) / unit
    left, sizes, along = np.linalg.svd(inside, full_matrices=False)
    rank = int((sizes > nearly * spread / unit).sum())
    left, sizes, along = left[:, :rank], sizes[:rank], along[:rank]  # a basis of the directions within the wanted keys
    for tolerance in (1e-10, 1e-7):  # the solver rarely fails with the first; the result is verified either way
        solution = linprog(
            np.append(np.zeros(width), -1.0),
            A_ub=np.hstack([outside, np.ones((len(others), 1))]),
            b_ub=np.zeros(len(others)),
            A_eq=np.hstack([along, np.zeros((rank, 1))]),
            b_eq=np.zeros(rank),
            bounds=[*((-1, 1) if varies else (0, 0) for varies in np.ptp(K, axis=0)), (None, None)],
            method="highs",
            options={"primal_feasibility_tolerance": tolerance},
        )
        if solution.success:
            break
    assert solution.success, f"a query of zeros is feasible and the margin is bounded: {solution.message}"
    query = solution.x[:width]
    query = query - along.T @ (along @ query)  # exactly equal scores, which the solver does not guarantee
    query = query / max(1.0, float(np.abs(query).max()))
    margin = float((inside @ query).min() - (outside @ query).max()) * unit

    convex = np.maximum(-solution.ineqlin.marginals, 0)
    convex = convex / convex.sum()
    certificate = np.zeros(len(K))
    certificate[others] = -convex
    shift = left @ ((along @ (convex @ outside)) / sizes)
    certificate[wanted] = 1 / len(wanted) + shift - shift.mean()  # the mean is zero but for rounding
    return query, margin, certificate


def _scale_query(direction: Array, margin: float, K: Array, wanted: list[int], others: list[int]) -> Array:
    """Scale the query until unwanted keys get at most LEAK, but not so far that rounding errors of the scores show."""
    if margin <= 0:
        return direction
    enough = math.log(len(others) / len(wanted) / LEAK) / margin
    rounding = ROUNDING * len(direction) * float(np.abs(K).max(0) @ np.abs(direction))
    return direction * min(enough, (1e-3 if len(wanted) == 1 else AVERAGED / 2) / rounding)


def _are_as_requested(weights: Array, wanted: list[int]) -> bool:
    if len(wanted) == 1:
        return bool(weights[wanted[0]] >= SELECTED)
    return bool(np.abs(weights[wanted] - 1 / len(wanted)).max() <= AVERAGED)


def _explain(certificate: Array, wanted: list[int], others: list[int], exact: bool) -> str:
    def mixture(indices: list[int], sign: float) -> str:
        terms = [(sign * certificate[index], index) for index in indices if abs(certificate[index]) > 1e-9]
        return " + ".join(f"key {i}" if abs(part - 1) < 1e-9 else f"{part:.3g} × key {i}" for part, i in terms)

    left, right = mixture(wanted, 1), mixture(others, -1)
    if not exact:
        return f"{left} is so near {right} that the margin is too small for weights in double precision"
    heaviest = float(-certificate[others].min())
    # The exponential of a mean is at most the mean of the exponentials.
    most = heaviest / (1 + len(wanted) * heaviest)
    if len(wanted) == 1:
        return f"{left} = {right}: its score is a mean of scores on the right, so its weight is at most {most:.3g}"
    return (
        f"{left} = {right}: where all scores on the left are equal, they are a mean of scores on the right, "
        f"so each weight is at most {most:.3g}"
    )


def _target_score(scores: Array, index: int, chosen: list[int], extreme: bool) -> float:
    """Score that the new key should have."""
    own, companions = float(scores[index]), [other for other in chosen if other != index]
    if index in chosen and companions:
        return float(scores[companions].mean())
    if index in chosen:
        return math.inf if extreme else max(own, _joint(np.delete(scores, index)) - math.log(LEAK))
    return -math.inf if extreme else min(own, _joint(scores[companions]) + math.log(LEAK))


def _joint(scores: Array) -> float:
    """Score of a single key with the weight of all of these; -inf for none."""
    return float(logsumexp(scores)) if len(scores) else -math.inf


def _key_with_score(old: Array, query: Array, score: float, length: float | None) -> Array:
    """The nearest key to the old one with this score, and with this norm if given."""
    size = float(np.linalg.norm(query))
    unit = query / size if size else query
    along = unit * (score / size) if size else query
    across = old - unit * (unit @ old)
    if length is None:
        return along + across
    if np.linalg.norm(across) <= 1e-12 * np.linalg.norm(old):  # parallel to the query: take any orthogonal direction
        axis = np.eye(len(query))[np.abs(unit).argmin()]
        across = axis - unit * (unit @ axis)
    missing = 1 - float(along @ along) / length**2
    if missing < 1e-14:  # only rounding is left
        return along
    return along + across * (length * math.sqrt(missing) / float(np.linalg.norm(across)))


def _are_concentrated(weights: Array, chosen: list[int]) -> bool:
    return bool(weights[chosen].sum() >= SELECTED and np.ptp(weights[chosen]) <= AVERAGED)


def _explain_no_key(scores: Array, index: int, chosen: list[int], aim: float, reach: float) -> str:
    weights, companions = softmax(scores), [other for other in chosen if other != index]
    if not reach:
        return f"the query is zero: every key has score 0 and every value weight {1 / len(scores):.3g}"
    if companions and np.ptp(softmax(scores[companions])) > AVERAGED:
        values = ", ".join(f"{scores[other]:.6g}" for other in companions)
        return f"the scores of the other wanted keys are {values}: they differ, and key {index} does not change them"
    best = f"key {index} scores {scores[index]:.6g} at best"
    if index in chosen and companions and abs(scores[index] - aim) > AVERAGED:
        return f"{best} with this query, but should score {aim:.6g}"
    share = f"the wanted keys get {weights[chosen].sum():.3g} of the weight"
    unwanted = _other_indices([index, *chosen], len(scores))
    if companions and unwanted:
        heavy = max(unwanted, key=lambda other: float(f"{scores[other]:.6g}"))  # the first of those that look equal
        return f"key {heavy} scores {scores[heavy]:.6g} and key {companions[0]} {scores[companions[0]]:.6g}: {share}"
    return f"{best} with this query: {share}"


def _other_indices(some: list[int], count: int) -> list[int]:
    return [index for index in range(count) if index not in some]


def _matrix(keys: ArrayLike) -> Array:
    K = np.array(np.asarray(keys), dtype=np.float64)  # a copy: small numbers are changed below
    if K.ndim != 2 or not K.size:
        raise ConfigError(f"keys must be a matrix with one key per row, but this has shape {list(K.shape)}")
    if not (np.abs(K) <= MAX_LENGTH).all():
        raise ConfigError(f"keys and queries must be finite numbers up to {MAX_LENGTH:g}")
    K[np.abs(K) < MIN_LENGTH] = 0
    return K


def _indices(given: Sequence[int], count: int, name: str) -> list[int]:
    wrong = [index for index in given if index not in range(count)]
    if wrong:
        raise ConfigError(f"{name}: there is no key {wrong[0]}; the keys are 0 to {count - 1}")
    indices = [int(index) for index in given]
    if not indices or len(set(indices)) < len(indices):
        raise ConfigError(f"{name}={indices}: give at least one key, each once")
    return indices

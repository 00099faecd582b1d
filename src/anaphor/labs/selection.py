"""Selection by design: which values can attention return for given keys, and which query makes it do so?

A score is the plain dot product of query and key, without the square root of the usual layer; weights are the softmax
of the scores. To prefer some keys is to give them equal scores that exceed all others by a margin. Both are linear in
the query, so the largest margin is the solution of a linear programme, and its dual is the certificate: the margin is
the distance between the flat through the wanted keys and the hull of the others. Where it is zero, no query will do.
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
from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.labs.lab import CURVES, Outcome, at_least, at_most, true
from anaphor.labs.specs import SelectionSpec
from anaphor.labs.table import LABS
from anaphor.mixers import CrossAttentionSpec, Span

Array = NDArray[np.float64]

SELECTED = 0.99  # the least weight of a value that counts as returned
AVERAGED = 1e-6  # how far the weights of an average may be from equal
LEAK = 1e-7  # the share of weight that a query leaves to unwanted values, where floating point allows it
NEGLIGIBLE = 1e-6  # a margin that counts as none where the weights do not show it; relative for keys smaller than 1
ROUNDING = float(np.finfo(float).eps)
LARGEST, SMALLEST = 1e100, 1e-50  # squares and quotients of numbers between these are finite; smaller ones are zero


@dataclass(frozen=True, eq=False)
class Selection:
    """A query that does what was asked. For the identity there is one for each key, line by line."""

    query: Array
    weights: Array
    """What attention computes from this query: the softmax of its scores."""
    margin: float
    """How far the wanted scores exceed the others for the best query with entries between -1 and 1; `query` is a
    multiple of that one. Infinite where there are no others."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """A key that makes the unchanged query do what was asked."""

    key: Array
    weights: Array
    margin: float
    """How far the wanted scores exceed the others."""


@dataclass(frozen=True, eq=False)
class Impossible:
    """There is no such query, or no such key."""

    certificate: Array
    """For a query: one number for each key. Those of the wanted keys sum to 1, the others are at most 0 and sum to -1,
    and together they take the keys to zero: `certificate @ keys == 0`. For the identity: such a line for every key that
    cannot be selected. For a replaced key: the scores with the best key that is allowed."""
    why: str


def select(keys: ArrayLike, index: int) -> Selection | Impossible:
    """A query that returns the value of one key, with at least 0.99 of the weight."""
    return average(keys, [index])


def average(keys: ArrayLike, subset: Sequence[int] | None = None) -> Selection | Impossible:
    """A query that averages the values of some keys, or of all: their weights are equal to 1e-6."""
    K = _matrix(keys)
    wanted = list(range(len(K))) if subset is None else _indices(subset, len(K), "subset")
    others = _without(wanted, len(K))
    if not others:
        return Selection(np.zeros(K.shape[1]), np.full(len(K), 1 / len(K)), math.inf)
    spread, size = float(np.ptp(K, axis=0).max()), float(np.abs(K).max())
    certificates = []
    # Keys that nearly coincide are taken for equal first; where the weights tell them apart after all, they are not.
    for nearly in (1e-9, 1e-14):
        direction, margin, certificate = _largest_margin(K, wanted, others, nearly)
        query = _long_enough(direction, margin, K, wanted, others)
        weights = softmax(K @ query)
        if _shows(weights, wanted):
            return Selection(query, weights, margin)
        certificates.append(certificate)
    certificate = min(certificates, key=lambda multipliers: float(np.abs(multipliers @ K).sum()))
    gap = float(np.abs(certificate @ K).sum())
    if gap <= NEGLIGIBLE * min(1.0, size):
        return Impossible(certificate, _why_not(certificate, wanted, others, exact=gap <= 1e-12 * size))
    raise ConfigError(
        f"double precision cannot show the weights: keys as large as {size:.3g} that differ by {spread:.3g} have a "
        f"margin of {gap:.3g}; subtract the mean key from all, which changes no weight, or take keys that differ more"
    )


def identity(keys: ArrayLike) -> Selection | Impossible:
    """A matrix of queries, one for each key, whose attention is the identity: line i returns value i."""
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
    """Another key in place of one, so that the unchanged query returns the wanted value or averages the wanted ones.

    At least 0.99 of the weight goes to them, in parts equal to 1e-6. A free key is the nearest to the old one that does
    so. A key of given length is the one with the largest margin, and among those the nearest.
    """
    K, q = _matrix(keys), _matrix(np.atleast_2d(query))[0]
    if len(q) != K.shape[1]:
        raise ConfigError(f"the query has {len(q)} numbers, but a key has {K.shape[1]}")
    if length is not None and not SMALLEST <= length <= LARGEST:
        raise ConfigError(f"length={length}: a key's length is a positive number between {SMALLEST:g} and {LARGEST:g}")
    (index,) = _indices([index], len(K), "index")
    chosen = _indices(list(np.atleast_1d(wanted)), len(K), "wanted")
    size = float(np.linalg.norm(q))
    # The new key matters through one number only, its score; this is how far that reaches to either side.
    reach = 0.0 if not size else math.inf if length is None else length * size
    scores = K @ q
    aim = _aim(scores, index, chosen, extreme=length is not None)
    scores[index] = min(max(aim, -reach), reach)
    if len(q) == 1 and length is not None:  # on a line, two keys have that length and none lies between
        scores[index] = math.copysign(reach, aim)
    if _concentrated(softmax(scores), chosen):
        key = _key_with_score(K[index], q, scores[index], length)
        scores[index] = key @ q
        weights, others = softmax(scores), _without(chosen, len(K))
        if _concentrated(weights, chosen):
            margin = float(scores[chosen].min() - scores[others].max()) if others else math.inf
            return Replacement(key, weights, margin)
    return Impossible(scores, _why_no_key(scores, index, chosen, aim, reach))


def attention(keys: ArrayLike, queries: ArrayLike) -> Array:
    """The weights a layer of ours gives these queries: one head, score "dot", projections that change nothing."""
    K, Q = torch.from_numpy(_matrix(keys)), torch.from_numpy(_matrix(np.atleast_2d(queries)))
    layer = CrossAttentionSpec(width=K.shape[1], heads=1, score="dot", bias=False).build().double()
    with torch.no_grad(), recorded(layer, "weights") as seen:
        same = torch.eye(K.shape[1], dtype=torch.float64)
        layer.query.weight.copy_(same)
        layer.project.weight.copy_(same.repeat(2, 1))  # keys and values
        layer(Q[None], layer.initial_state(K[None]), Span.whole(Q[None]))
    weights: Array = seen["weights"][0, 0].numpy()
    return weights


def run(spec: SelectionSpec | None = None) -> Outcome:
    """Which keys can be selected, and by which query: those of the lab, then one more in their middle."""
    spec = SelectionSpec() if spec is None else spec
    K = _matrix(np.reshape(spec.keys, (-1, spec.width)))
    more = np.vstack([K, K.mean(0)])
    single = {f"key {index}": select(K, index) for index in range(len(K))}
    found = {**single, "all": average(K), "keys 0 and 1": average(K, [0, 1])}
    designed = {name: answer for name, answer in found.items() if isinstance(answer, Selection)}
    off = max(float(np.abs(attention(K, a.query)[0] - a.weights).max()) for a in designed.values())
    refused = [(answer, K) for answer in found.values() if isinstance(answer, Impossible)]
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
        for name, answer in found.items()
    }
    inner_numbers = inner.certificate.tolist() if isinstance(inner, Impossible) else inner.query.tolist()
    checks = (
        at_least("weight of a selected key, least of all", float(min(weights, default=1.0)), SELECTED),
        at_most("weights off those of an attention layer", off, AVERAGED),
        true("the mean of all keys cannot be selected", isinstance(inner, Impossible)),
        at_most("what certificates leave of the keys", max(gaps, default=0.0), NEGLIGIBLE),
    )
    told = {"queries": numbers, "multipliers for the mean of all keys": inner_numbers, **_replaced(K, found)}
    lengths = np.linspace(0, 1, 60)
    first = next(answer for answer in designed.values() if isinstance(answer, Selection))
    grown = attention(more, lengths[:, None] * first.query)
    curves = {f"key {index}": grown[:, index].tolist() for index in range(len(K))} | {
        "their mean": grown[:, -1].tolist()
    }
    return Outcome(
        "selection", LABS["selection"].claim, checks, {**told, CURVES: {"lengths": lengths.tolist(), **curves}}
    )


def _replaced(K: Array, found: Mapping[str, Selection | Impossible]) -> dict[str, list[float]]:
    """Another third key for the query that averages the first two: three of them averaged, and the third returned."""
    two = found["keys 0 and 1"]
    if not isinstance(two, Selection):
        return {}
    answers = {
        "average of three, by a new key": replace_key(K, two.query, 2, [0, 1, 2]),
        "the third, by a new key of length 1": replace_key(K, two.query, 2, 2, length=1),
    }
    return {name: answer.weights.tolist() for name, answer in answers.items() if isinstance(answer, Replacement)}


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """What happens to the weights while the query that selects the first key grows."""
    found = dict(outcome.numbers[CURVES])
    lengths = found.pop("lengths")
    lines = {name: (lengths, weights) for name, weights in found.items()}
    label = "length of the query, 1 for the designed one"
    return [plot(lines, folder / "selection.png", x_label=label, y_label="weight")]


def _largest_margin(K: Array, wanted: list[int], others: list[int], nearly: float) -> tuple[Array, float, Array]:
    """Maximise m over q and m: q · (wanted - other) ≥ m, wanted scores equal, entries of q between -1 and 1.

    Gives q, m, and the multipliers of the constraints: they show that no such q has a margin above
    `abs(certificate @ K).sum()`, which is zero where m is.
    """
    width, spread = K.shape[1], float(np.ptp(K, axis=0).max())
    unit = spread / 1000 or 1.0  # what the solver takes for zero is about 1e-9
    centre = K[wanted].mean(0)
    inside, outside = (K[wanted] - centre) / unit, (K[others] - centre) / unit
    left, sizes, along = np.linalg.svd(inside, full_matrices=False)
    rank = int((sizes > nearly * spread / unit).sum())
    left, sizes, along = left[:, :rank], sizes[:rank], along[:rank]  # a basis of the directions within the wanted keys
    for tolerance in (1e-10, 1e-7):  # rarely the solver gives up on the first; what it finds is checked in any case
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
    query = query - along.T @ (along @ query)  # equal scores to the last digit, which the solver does not promise
    query = query / max(1.0, float(np.abs(query).max()))
    margin = float((inside @ query).min() - (outside @ query).max()) * unit

    convex = np.maximum(-solution.ineqlin.marginals, 0)
    convex = convex / convex.sum()
    certificate = np.zeros(len(K))
    certificate[others] = -convex
    shift = left @ ((along @ (convex @ outside)) / sizes)
    certificate[wanted] = 1 / len(wanted) + shift - shift.mean()  # the mean is zero but for rounding
    return query, margin, certificate


def _long_enough(direction: Array, margin: float, K: Array, wanted: list[int], others: list[int]) -> Array:
    """The query stretched until unwanted values get no more than LEAK, but not until rounded scores show differences
    that are not there."""
    if margin <= 0:
        return direction
    enough = math.log(len(others) / len(wanted) / LEAK) / margin
    rounding = ROUNDING * len(direction) * float(np.abs(K).max(0) @ np.abs(direction))
    return direction * min(enough, (1e-3 if len(wanted) == 1 else AVERAGED / 2) / rounding)


def _shows(weights: Array, wanted: list[int]) -> bool:
    if len(wanted) == 1:
        return bool(weights[wanted[0]] >= SELECTED)
    return bool(np.abs(weights[wanted] - 1 / len(wanted)).max() <= AVERAGED)


def _why_not(certificate: Array, wanted: list[int], others: list[int], exact: bool) -> str:
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


def _aim(scores: Array, index: int, chosen: list[int], extreme: bool) -> float:
    """The score that the new key should have."""
    own, companions = float(scores[index]), [other for other in chosen if other != index]
    if index in chosen and companions:
        return float(scores[companions].mean())
    if index in chosen:
        return math.inf if extreme else max(own, _joint(np.delete(scores, index)) - math.log(LEAK))
    return -math.inf if extreme else min(own, _joint(scores[companions]) + math.log(LEAK))


def _joint(scores: Array) -> float:
    """The score of one key that would weigh as much as all of these; none weigh nothing."""
    return float(logsumexp(scores)) if len(scores) else -math.inf


def _key_with_score(old: Array, query: Array, score: float, length: float | None) -> Array:
    """The key nearest to the old one that has this score, and this length if one is given."""
    size = float(np.linalg.norm(query))
    unit = query / size if size else query
    along = unit * (score / size) if size else query
    across = old - unit * (unit @ old)
    if length is None:
        return along + across
    if np.linalg.norm(across) <= 1e-12 * np.linalg.norm(old):  # the old key shows no way across: take any
        axis = np.eye(len(query))[np.abs(unit).argmin()]
        across = axis - unit * (unit @ axis)
    missing = 1 - float(along @ along) / length**2
    if missing < 1e-14:  # the rest is rounding, and on a line there is no way across
        return along
    return along + across * (length * math.sqrt(missing) / float(np.linalg.norm(across)))


def _concentrated(weights: Array, chosen: list[int]) -> bool:
    return bool(weights[chosen].sum() >= SELECTED and np.ptp(weights[chosen]) <= AVERAGED)


def _why_no_key(scores: Array, index: int, chosen: list[int], aim: float, reach: float) -> str:
    weights, companions = softmax(scores), [other for other in chosen if other != index]
    if not reach:
        return f"the query is zero: every key has score 0 and every value weight {1 / len(scores):.3g}"
    if companions and np.ptp(softmax(scores[companions])) > AVERAGED:
        told = ", ".join(f"{scores[other]:.6g}" for other in companions)
        return f"the scores of the other wanted keys are {told}: key {index} has no part in them, and they differ"
    best = f"key {index} scores {scores[index]:.6g} at best"
    if index in chosen and companions and abs(scores[index] - aim) > AVERAGED:
        return f"{best} with this query, but should score {aim:.6g}"
    share = f"{weights[chosen].sum():.3g} of the weight goes where it is wanted"
    unwanted = _without([index, *chosen], len(scores))
    if companions and unwanted:
        heavy = max(unwanted, key=lambda other: float(scores[other]))
        return f"key {heavy} scores {scores[heavy]:.6g} and key {companions[0]} {scores[companions[0]]:.6g}: {share}"
    return f"{best} with this query: {share}"


def _without(some: list[int], count: int) -> list[int]:
    return [index for index in range(count) if index not in some]


def _matrix(keys: ArrayLike) -> Array:
    K = np.array(np.asarray(keys), dtype=np.float64)  # a copy: small numbers are changed below
    if K.ndim != 2 or not K.size:
        raise ConfigError(f"keys are a matrix with one key in each line, but this has shape {list(K.shape)}")
    if not (np.abs(K) <= LARGEST).all():
        raise ConfigError(f"keys and queries are finite numbers up to {LARGEST:g}, but one of these is not")
    K[np.abs(K) < SMALLEST] = 0
    return K


def _indices(given: Sequence[int], count: int, name: str) -> list[int]:
    wrong = [index for index in given if index not in range(count)]
    if wrong:
        raise ConfigError(f"{name}: there is no key {wrong[0]}; the keys are 0 to {count - 1}")
    indices = [int(index) for index in given]
    if not indices or len(set(indices)) < len(indices):
        raise ConfigError(f"{name}={indices}: name at least one key, and each once")
    return indices

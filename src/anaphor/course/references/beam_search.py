"""Beam search of one's own: the best sequence of a small made-up language model, and its score.

Right searches differ in details: whether a hypothesis that ended keeps its place in the beam, when the search stops,
and which tokens the length counts. The models here are chosen so that all of these find the same sequence.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor, nn

from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.student import match_call

START, END = 0, 1
CALL = (
    "beam_search(log_probs, start, end, beam_width, max_length, length_penalty=1) -> the best tokens, or "
    "(tokens, score), or a list of these, best first; log_probs(tokens) gives those of the next token [V] for a list "
    "or a tensor of tokens; a score is the log-probability / length ** length_penalty"
)
MODELS = ("model", "net", "network", "lm", "gpt", "decoder", "transformer")
"""Names of an argument that gets a module of logits [B, T, V] for tokens [B, T] instead."""
PREFIXES = ("prefix", "prompt", "start_tokens", "start_ids", "context", "input_ids", "tokens", "ids")
"""Names of an argument that gets a list of tokens to start with."""


@dataclass(frozen=True)
class Table:
    """A language model as a table: log-probabilities [V] of the next token, by the place and the token before."""

    seed: int
    vocabulary: int
    places: int
    end: float
    """What is added to the logits of the end token."""
    order: tuple[int, ...] = ()
    """Which token of the table each token is, where they are exchanged."""

    @property
    def logits(self) -> Tensor:
        return _draw(self)[0]

    @property
    def log_probs(self) -> Tensor:
        return _draw(self)[1]

    def after(self, tokens: Sequence[int]) -> list[float]:
        return _draw(self)[2][min(len(tokens), self.places) - 1][tokens[-1]]


@cache
def _draw(table: Table) -> tuple[Tensor, Tensor, list[list[list[float]]]]:
    """Logits [places, V, V], their log-probabilities, and these as numbers."""
    generator = torch.Generator().manual_seed(table.seed)
    shape = (table.places, table.vocabulary, table.vocabulary)
    logits = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    logits[..., END] += table.end
    logits[..., START] -= 30.0
    logits[:, END, -1] += 8.0  # after the end, where no right search looks, a token is nearly certain
    if table.order:
        logits = logits[:, table.order][..., table.order]
    log_probs = logits.log_softmax(-1)
    return logits, log_probs, log_probs.tolist()


class StepFunction:
    """What a student's search calls: log-probabilities [V] after a list or tensor of tokens [T], and [B, V] after
    several."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __call__(self, tokens: Any, *rest: Any) -> Tensor:
        tokens = torch.as_tensor(tokens).long()
        if tokens.ndim == 0:
            tokens = tokens[None]
        if tokens.ndim == 2:
            return torch.stack([self(row) for row in tokens])
        places = min(len(tokens), len(self.table.log_probs))
        return self.table.log_probs[places - 1, tokens[-1]].clone()


class Model(nn.Module):
    """The same model as a module: logits [B, T, V] for tokens [B, T]."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    def forward(self, input_ids: Tensor) -> Tensor:
        input_ids = torch.as_tensor(input_ids).long()
        if input_ids.ndim == 1:
            return self.forward(input_ids[None])[0]
        places = torch.arange(input_ids.shape[1]).clamp(max=len(self.table.logits) - 1)
        return self.table.logits[places, input_ids]


def run_beam_search(target: Any, case: Case, sizes: Sizes) -> Outputs:
    """The best tokens, without the start and the end, and their score where it is returned."""
    inputs = case.inputs
    if isinstance(target, type):
        target = target()
    arguments = match_call(BEAM_SEARCH, target, getattr(target, "__name__", type(target).__name__))
    table = inputs["table"]
    values = {**inputs, "log_probs": StepFunction(table)}
    if arguments.get("log_probs", "").lower() in MODELS:
        values["log_probs"] = Model(table)
    if inputs["length_penalty"] != 1 and "length_penalty" not in arguments:
        return {}
    if arguments.get("start", "").lower() in PREFIXES:
        values["start"] = [START]
    if not arguments:
        given = list(inspect.signature(target).parameters)
        raise TypeError(f"it takes ({', '.join(given)}); expected: {CALL}")
    returned = target(**{theirs: values[ours] for ours, theirs in arguments.items()})
    tokens, score = _find_best(returned)
    return {"tokens": tokens} if score is None else {"tokens": tokens, "score": score}


def _find_best(returned: Any) -> tuple[list[int], float | None]:
    """The tokens of the best hypothesis and its score, of what was returned."""
    if isinstance(returned, Tensor):
        returned = returned.tolist()
    if isinstance(returned, list | tuple) and returned and all(_is_number(one) for one in returned):
        if len(returned) == 2 and isinstance(returned[0], float) != isinstance(returned[1], float):
            raise TypeError(f"it returned {returned!r}; expected: {CALL}")
        return _strip([int(one) for one in returned]), None
    if isinstance(returned, dict):
        returned = (returned.get("tokens"), returned.get("score"))
    if hasattr(returned, "tokens"):
        returned = (returned.tokens, getattr(returned, "score", None))
    values = list(returned) if isinstance(returned, list | tuple) else []
    if not values:
        return [], None
    if len(values) >= 2 and sum(_is_number(one) for one in values) == 1 and any(_is_tokens(one) for one in values):
        tokens = next(one for one in values if _is_tokens(one))
        return _find_best(tokens)[0], next(float(one) for one in values if _is_number(one))
    if len(values) == 2 and _is_tokens(values[1]) and len(values[1]) == len(values[0]) and not _is_tokens(values[0]):
        return _find_best(values[0][0])[0], float(values[1][0])  # sequences and their scores
    return _find_best(values[0])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0)


def _is_tokens(value: Any) -> bool:
    return (isinstance(value, list | tuple) and all(_is_number(one) for one in value)) or (
        isinstance(value, Tensor) and value.ndim == 1
    )


def _strip(tokens: list[int]) -> list[int]:
    tokens = tokens[1:] if tokens[:1] == [START] else tokens
    return tokens[:-1] if tokens[-1:] == [END] else tokens


@dataclass(frozen=True)
class Beam:
    """A hypothesis while it is searched."""

    tokens: tuple[int, ...]
    """With the start, and the end if it has one."""
    total: float
    is_done: bool = False


@dataclass(frozen=True)
class SearchRules:
    """Steps of beam search."""

    counts: int = 0
    """What the length counts beside the tokens: 0 the end, 1 the start and the end, -1 neither."""
    done: str = "drop"
    """What becomes of those that ended among the best: they are put aside, and the beam has less until the next step
    (drop), is filled up with the next best (refill; of twice as many: twice), is narrower from then on (shrink), or
    they stay in it and compete (keep)."""
    steps: int = 0
    """0 for at most max_length tokens with the end; -1 where the start counts; 1 where the end does not."""
    stops: str = "end"
    """When the search ends: when so many have ended as the beam is wide (width), or never before max_length (end)."""
    prefers_done: bool = False
    """Whether what was cut counts only if nothing ended."""
    normalize: Callable[[float, int, float], float] = lambda total, length, penalty: total / max(length, 1) ** penalty
    add: Callable[[float, float], float] = lambda total, one: total + one
    begin: float = 0.0
    ended: str = "aside"
    """A mistake: what ended is extended as if it had not (extended), or the end is a token like others (ignored)."""
    branch: str = "all"
    """What is extended: all hypotheses by all tokens, the first alone (first), or each by its best token (best)."""
    is_reversed: bool = False
    width: Callable[[int], int] = lambda width: width
    end_counts: bool = True
    """Whether the log-probability of the end is added."""
    first_end: bool = False
    """Whether the first hypothesis that ends is returned."""
    keeps_cut: bool = True
    """Whether a hypothesis that did not end is returned where none did."""
    ranks: str = "total"
    """What decides which hypotheses stay in the beam: the log-probability (total) or the score, where those that ended
    are among them."""
    is_by_score: bool = True
    """Whether the best is the one with the best score; else by log-probability."""
    equal_starts: bool = False
    """Whether the search begins with as many equal hypotheses as the beam is wide."""


def compute_beam_search(w: Weights, inputs: Mapping[str, Any], rules: SearchRules) -> Outputs:
    width, table = rules.width(inputs["beam_width"]), inputs["table"]

    def score(one: Beam) -> float:
        extra = {0: 0, 1: 1, -1: -int(one.is_done)}[rules.counts]
        return rules.normalize(one.total, len(one.tokens) - 1 + extra, inputs["length_penalty"])

    beams = [Beam((START,), rules.begin)] * (width if rules.equal_starts else 1)
    finished: list[Beam] = []
    for _ in range(inputs["max_length"] + rules.steps):
        grown = _extend(table, beams, rules)
        ranked = sorted(grown, key=score if rules.ranks == "score" else _total, reverse=not rules.is_reversed)
        beams, finished = _select(ranked, finished, width, rules)
        is_full = rules.stops == "width" and len(finished) >= width and rules.done != "keep"
        if not beams or all(one.is_done for one in beams) or is_full or (rules.first_end and finished):
            break
    return _choose(beams, finished, rules, score)


def _choose(
    beams: Sequence[Beam], finished: Sequence[Beam], rules: SearchRules, score: Callable[[Beam], float]
) -> Outputs:
    """The best hypothesis in the end."""
    done = [*finished, *(one for one in beams if one.is_done)]
    cut = [one for one in beams if not one.is_done]
    if rules.ended == "ignored":
        done, cut = [], [*done, *cut]
    chosen = done if not rules.keeps_cut or (done and rules.prefers_done) else [*done, *cut]
    if not chosen:
        return {"tokens": [], "score": 0.0}
    is_first = rules.first_end and bool(finished)
    best = chosen[0] if is_first else max(chosen, key=score if rules.is_by_score else _total)
    return {"tokens": _strip(list(best.tokens)), "score": score(best)}


def _total(one: Beam) -> float:
    return one.total


def _extend(table: Table, beams: Sequence[Beam], rules: SearchRules) -> list[Beam]:
    grown: list[Beam] = []
    for number, beam in enumerate(beams):
        if beam.is_done:
            grown.append(beam)
            continue
        if rules.branch == "first" and number:
            continue
        log_probs = table.after(beam.tokens)
        order = range(len(log_probs))
        tokens = [max(order, key=log_probs.__getitem__)] if rules.branch == "best" and len(beams) > 1 else list(order)
        for token in tokens:
            one = 0.0 if token == END and not rules.end_counts else log_probs[token]
            is_done = token == END and rules.ended != "ignored"
            grown.append(Beam((*beam.tokens, token), rules.add(beam.total, one), is_done))
    return grown


def _select(ranked: list[Beam], finished: list[Beam], width: int, rules: SearchRules) -> tuple[list[Beam], list[Beam]]:
    """The hypotheses that go on, and those that have ended."""
    if rules.ended == "extended":
        top = ranked[:width]
        return [Beam(one.tokens, one.total) for one in top], [*finished, *(one for one in top if one.is_done)]
    if rules.done == "keep":
        return ranked[:width], finished
    room = width - len(finished) if rules.done == "shrink" else width
    ended = [one for one in ranked[: 2 * room if rules.done == "twice" else room] if one.is_done]
    among = ranked if rules.done in ("refill", "twice") else ranked[:room]
    return [one for one in among if not one.is_done][:room], [*finished, *ended]


def beam_cases(sizes: Sizes) -> list[Case]:
    def inputs(table: Table, width: int, length: int, penalty: float) -> dict[str, Any]:
        values = {"start": START, "end": END, "beam_width": width, "max_length": length, "length_penalty": penalty}
        return {"table": table, **values}

    unending = Table(969, 6, 5, -60.0)
    return [
        Case("of a beam of four", inputs(Table(330, 7, 6, 0.0), 4, 7, 1.0), "of a beam of four"),
        Case("of a beam of three", inputs(Table(231, 6, 6, 0.5), 3, 7, 1.0), "of a beam of three"),
        Case("of three tokens", inputs(Table(321, 7, 6, 0.0), 4, 7, 1.0), "of three tokens"),
        Case("without an end", inputs(unending, 3, 5, 1.0), "where nothing ends before max_length"),
        Case("without a length penalty", inputs(Table(95, 6, 6, 0.3), 3, 7, 0.0), "with a length penalty of 0"),
        Case("with another length penalty", inputs(Table(398, 6, 6, 0.3), 3, 7, 0.6), "with another length penalty"),
    ]


def exchange_tokens(inputs: Mapping[str, Any], generator: Generator) -> dict[str, Any]:
    """The same model with other numbers for all tokens but the start and the end. So a right search finds other tokens,
    and all right ones still find the same."""
    table = inputs["table"]
    others = 2 + torch.randperm(table.vocabulary - 2, generator=generator)
    return {**inputs, "table": replace(table, order=(START, END, *others.tolist()))}


STYLES = (
    ("drop", "total"), ("refill", "total"), ("twice", "total"), ("shrink", "total"), ("keep", "total"),
    ("keep", "score"),
)  # fmt: skip
DESIGNS = tuple(
    SearchRules(counts=counts, done=done, ranks=ranks, steps=steps)
    for steps in (0, -1, 1)
    for counts in (0, 1, -1)
    for done, ranks in STYLES
)

BEAM_SEARCH = Reference(
    name="beam_search",
    call=CALL,
    outputs=("tokens", "score"),
    arguments=("log_probs", "start", "end", "beam_width", "max_length", "length_penalty"),
    optional=("length_penalty",),
    sizes={},
    cases=beam_cases,
    vary=exchange_tokens,
    compute=compute_beam_search,
    run=run_beam_search,
    takes_class=True,
    designs=DESIGNS,
    pairs=400,
    mistakes=(
        Mistake(
            "length-not-normalized",
            "the log-probability is not divided by the length, so that short sequences win",
            {"normalize": lambda total, length, penalty: total},
        ),
        Mistake(
            "length-normalized-at-the-end-only",
            "the best is chosen by its log-probability, and its score divided by "
            "the length afterwards; choose by the score",
            {"is_by_score": False},
        ),
        Mistake(
            "multiplied-by-length",
            "the log-probability is multiplied by the length; divide",
            {"normalize": lambda total, length, penalty: total * length**penalty},
        ),
        Mistake(
            "finished-extended", "a hypothesis that ended is extended further; put it aside", {"ended": "extended"}
        ),
        Mistake("end-token-ignored", "the end token does not end a hypothesis", {"ended": "ignored"}),
        Mistake(
            "log-probabilities-multiplied",
            "log-probabilities are multiplied; add them",
            {"add": lambda total, one: total * one, "begin": 1.0},
        ),
        Mistake(
            "scores-not-accumulated",
            "a hypothesis has the log-probability of its last token alone; add up those of all",
            {"add": lambda total, one: one},
        ),
        Mistake(
            "probabilities-added",
            "probabilities are added; add log-probabilities",
            {"add": lambda total, one: total + math.exp(one)},
        ),
        Mistake(
            "sign",
            "log-probabilities are subtracted, so that unlikely tokens win",
            {"add": lambda total, one: total - one},
        ),
        Mistake(
            "first-beam-only", "only the first hypothesis is extended; extend all of the beam", {"branch": "first"}
        ),
        Mistake(
            "beams-do-not-branch",
            "each hypothesis is extended by its best token alone; the best of all extensions "
            "stay, and several may have the same start",
            {"branch": "best"},
        ),
        Mistake("worst-kept", "the least likely hypotheses stay; sort from the largest", {"is_reversed": True}),
        Mistake(
            "greedy", "one hypothesis stays at each step; keep as many as the beam is wide", {"width": lambda width: 1}
        ),
        Mistake(
            "one-hypothesis-too-few",
            "one hypothesis less than the beam is wide stays",
            {"width": lambda width: width - 1},
        ),
        Mistake(
            "one-hypothesis-too-many",
            "one hypothesis more than the beam is wide stays",
            {"width": lambda width: width + 1},
        ),
        Mistake("end-not-scored", "the log-probability of the end is not added", {"end_counts": False}),
        Mistake(
            "first-end-returned",
            "the search stops at the first hypothesis that ends; others may be better",
            {"first_end": True},
        ),
        Mistake(
            "cut-hypotheses-lost",
            "where nothing ends before max_length, nothing is returned; return the best that there is",
            {"keeps_cut": False},
        ),
        Mistake(
            "beams-begin-equal",
            "the beam begins with several equal hypotheses, which stay equal: begin with one",
            {"equal_starts": True},
        ),
    ),
)

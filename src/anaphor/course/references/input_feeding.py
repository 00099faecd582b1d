"""A decoder with attention and input feeding (Luong, Pham and Manning, 2015), as sheet 001 has it.

At every step an LSTM cell reads the token and h̃ of the step before; its h attends to the source:

    scores = q W k        c = softmax(scores) · source        h̃ = tanh(W [c; h])
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.course.gate_weights import GATES, read_gates
from anaphor.course.reference import Case, DoesNotFit, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import random_values, same
from anaphor.course.references.recurrent import LSTM_MISTAKES, LSTMRules, cell_shapes, lstm_step
from anaphor.course.student import has_default, match_call
from anaphor.course.weights import Weight, as_matrix, stem_of

CALL = (
    "InputFeedingDecoder(input_size, hidden_size), forward(x [B, T, input_size], source [B, S, hidden_size], "
    "source_mask=None [B, S], state=None) -> out [B, T, hidden_size], A [B, T, S], state; mask, A and state "
    "may be missing"
)
SCORES = re.compile(r"scor|att|align|general|bilinear|linear_in|w_?a(\.|$)|key|quer")


def run_decoder(target: nn.Module, case: Case, sizes: Sizes) -> Outputs:
    """The outputs for all tokens; where a case has two parts, the second begins with the state of the first."""
    inputs = case.inputs
    arguments = match_call(INPUT_FEEDING, target.forward, type(target).__name__)
    mask, source = inputs["source_mask"], inputs["source"]
    given = {"source": source}
    if mask is not None:
        if not {"source_mask", "lengths"} & set(arguments):
            return {}
        given |= {"source_mask": mask, "lengths": mask.sum(1).long()}
    elif "lengths" in arguments and not has_default(target.forward, arguments["lengths"]):
        given["lengths"] = torch.full((len(source),), source.shape[1], device=source.device)
    if inputs["parts"] > 1 and "state" not in arguments:
        return {}
    state, found = None, []
    for part in inputs["x"].chunk(inputs["parts"], dim=1):
        values: dict[str, Any] = {**given, "x": part, "source_mask": given.get("source_mask"), "state": state}
        named = {
            theirs: values[ours]
            for ours, theirs in arguments.items()
            if ours in values and not (values[ours] is None and has_default(target.forward, theirs))
        }
        out, weights, state = _name_returned(target(**named), source.shape[1])
        if inputs["parts"] > 1 and state is None:
            return {}
        found.append({"out": out} if weights is None else {"out": out, "A": weights})
    return {name: torch.cat([one[name] for one in found], dim=1) for name in found[0]}


def _name_returned(returned: Any, length: int) -> tuple[Tensor, Tensor | None, Any]:
    """out, A and the state: what is a tensor with as many columns as the source has tokens is A, another thing the
    state."""
    values = list(returned) if isinstance(returned, tuple | list) else [returned]
    out, weights, state = values[0], None, None
    for value in values[1:]:
        if isinstance(value, list) and value and all(isinstance(one, Tensor) for one in value):
            value = torch.stack(value, dim=1) if value[0].shape[-1] == length else value
        if isinstance(value, Tensor) and value.ndim == 3 and value.shape[-1] == length:
            weights = value
        else:
            state = value
    if isinstance(out, list):
        out = torch.stack(out, dim=1)
    if not isinstance(out, Tensor):
        raise TypeError(f"it returned {type(out).__name__} first; expected: {CALL}")
    return out, weights, state


def decoder_cases(sizes: Sizes) -> list[Case]:
    width, wide = sizes["input_size"], sizes["hidden_size"]

    def inputs(rows: int, steps: int, source: int, lengths: list[int] | None, parts: int = 1) -> dict[str, Any]:
        mask = None if lengths is None else (torch.arange(source) < torch.tensor(lengths)[:, None]).float()
        return {
            "x": random_values(rows, steps, width, seed=rows),
            "source": random_values(rows, source, wide, seed=source),
            "source_mask": mask,
            "parts": parts,
        }

    return [
        Case("without a mask", inputs(3, 4, 6, None), "without a mask"),
        Case("with padding", inputs(3, 2, 5, [3, 5, 2]), "with padding in the source"),
        Case("in two parts", inputs(2, 4, 3, None, parts=2), "in two parts, with the state carried"),
    ]


def read_decoder(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """The matrix of h̃ by its shape, that of the scores by its name or its shape, and the rest as those of a cell."""
    width, wide = sizes["input_size"], sizes["hidden_size"]
    for out in given:
        matrices = as_matrix(out, wide, 2 * wide)
        if not matrices:
            continue
        shift = next((one for one in given if one.is_bias and stem_of(one.name) == stem_of(out.name)), None)
        rest = [one for one in given if one is not out and one is not shift]
        square = [one for one in rest if as_matrix(one, wide, wide)]
        named = [one for one in square if SCORES.search(one.name.lower())]
        choices: list[Weight | None] = [*(named or square), None]
        for score in choices:
            cell = [_without_path(one) for one in rest if one is not score]
            for columns in (width + wide, width):
                for gates in read_gates(cell, 4, columns, wide):
                    for matrix in matrices:
                        found = {**gates, "out": matrix}
                        found |= {} if shift is None else {"bo": shift.value}
                        found |= {} if score is None else {"score": as_matrix(score, wide, wide)[0]}
                        yield found


def _without_path(weight: Weight) -> Weight:
    """torch's own cells have names that say everything; the path before them does not matter."""
    last = weight.name.rpartition(".")[2]
    return replace(weight, name=last) if re.match(r"(weight|bias)_(ih|hh)", last) else weight


def decoder_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    wide = sizes["hidden_size"]
    cell = cell_shapes(GATES)({"input_size": sizes["input_size"] + wide, "hidden_size": wide})
    return {**cell, "score": (wide, wide), "out": (wide, 2 * wide)}


Step = Callable[[Tensor], Tensor]


def hide_padding(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -math.inf)


def over_source(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def unmasked(weights: Tensor, mask: Tensor) -> Tensor:
    return weights


@dataclass(frozen=True)
class DecoderRules:
    """Steps of a decoder with input feeding."""

    join: Callable[[Tensor, Tensor], Tensor] = field(default=lambda x, feed: torch.cat((x, feed), -1))
    """What the cell reads, of the token and what is fed."""
    combine: Callable[[Tensor, Tensor], Tensor] = field(default=lambda c, h: torch.cat((c, h), -1))
    is_query_multiplied: bool = True
    """Whether W belongs to a linear layer of the query, rather than of the keys."""
    has_feed: bool = True
    feed: Callable[[Tensor, Tensor, Tensor], Tensor] = field(default=lambda out, h, c: out)
    """What the next step gets, of h̃, h and the context."""
    follow: Step = same
    """What is fed, on its way to the next step."""
    carry: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], tuple[Tensor, Tensor]] = field(
        default=lambda state, first: state
    )
    """h and c for the next step, from the new ones and the first."""
    is_hidden_replaced: bool = False
    """Whether h̃ takes the place of h in the state."""
    query: Callable[[Tensor, Tensor], Tensor] = field(default=lambda h, before: h)
    score: Callable[[Tensor], Tensor] = same
    """A change of the scores."""
    mask: Callable[[Tensor, Tensor], Tensor] = hide_padding
    normalize: Step = over_source
    hide: Callable[[Tensor, Tensor], Tensor] = unmasked
    """A mask after the softmax."""
    context: Callable[[Tensor, Tensor, Tensor], Tensor] = field(
        default=lambda weights, source, keys: (weights[..., None] * source).sum(1)
    )
    activation: Step = torch.tanh
    returned: Callable[[Tensor, Tensor, Tensor], Tensor] = field(default=lambda out, h, c: out)
    is_feed_carried: bool = True
    """Whether the state of a part has what is fed."""
    is_state_carried: bool = True
    cell: LSTMRules = field(default_factory=LSTMRules)


def compute_decoder(w: Weights, inputs: Mapping[str, Any], rules: DecoderRules) -> Outputs:
    if "W" not in w:  # as `load_reference` got them
        joined = {name: torch.stack([w[f"{name}_{gate}"] for gate in GATES]) for name in ("W", "U", "b")}
        w = {**w, **joined}
    source, mask, x = inputs["source"], inputs["source_mask"], inputs["x"]
    if rules.has_feed != (w["W"].shape[-1] > x.shape[-1]):
        raise DoesNotFit
    projected = source @ w["score"].T if "score" in w else source
    keys = source if rules.is_query_multiplied else projected
    zero = x.new_zeros(len(x), source.shape[-1])
    state, feed = (zero, zero), zero
    outputs, maps = [], []
    for part in x.chunk(inputs["parts"], dim=1):
        state = state if rules.is_state_carried else (zero, zero)
        feed = feed if rules.is_feed_carried else zero
        for step in range(part.shape[1]):
            read = rules.join(part[:, step], rules.follow(feed)) if rules.has_feed else part[:, step]
            before = state[0]
            h, c = lstm_step(w, read, state[0], state[1], rules.cell)
            query = rules.query(h, before)
            query = query @ w["score"].T if "score" in w and rules.is_query_multiplied else query
            scores = rules.score((query[:, None] * keys).sum(-1))
            weights = rules.normalize(scores if mask is None else rules.mask(scores, mask))
            weights = weights if mask is None else rules.hide(weights, mask)
            context = rules.context(weights, source, projected)
            out = rules.activation(rules.combine(context, h) @ w["out"].T + w.get("bo", 0.0))
            feed = rules.feed(out, h, context)
            state = rules.carry((out if rules.is_hidden_replaced else h, c), (zero, zero))
            outputs.append(rules.returned(out, h, context))
            maps.append(weights)
    return {"out": torch.stack(outputs, 1), "A": torch.stack(maps, 1)}


def feed_first(x: Tensor, feed: Tensor) -> Tensor:
    return torch.cat((feed, x), -1)


def hidden_first(c: Tensor, h: Tensor) -> Tensor:
    return torch.cat((h, c), -1)


FEEDS = "input-feeding-missing"
INPUT_FEEDING = Reference(
    name="InputFeedingDecoder",
    call=CALL,
    outputs=("out", "A"),
    arguments=("source", "x", "source_mask", "lengths", "state"),
    optional=("source_mask", "lengths", "state"),
    sizes={"input_size": 5, "hidden_size": 7},
    constructors=(("input_size", "hidden_size"),),
    time_first=("x", "source", "out", "A"),
    cases=decoder_cases,
    compute=compute_decoder,
    read=read_decoder,
    shapes=decoder_shapes,
    run=run_decoder,
    pairs=400,
    designs=tuple(
        DecoderRules(join=join, combine=combine, is_query_multiplied=is_query)
        for join in (DecoderRules().join, feed_first)
        for combine in (DecoderRules().combine, hidden_first)
        for is_query in (True, False)
    ),
    mistakes=(
        Mistake(FEEDS, "the cell reads the token alone: h̃ of the step before is not fed", {"has_feed": False}),
        Mistake(FEEDS, "what is fed is zero at every step; it is h̃ of the step before", {"follow": torch.zeros_like}),
        Mistake("feeds-hidden", "h is fed to the next step; feed h̃ = tanh(W [c; h])", {"feed": lambda out, h, c: h}),
        Mistake(
            "feeds-context",
            "the context is fed to the next step; feed h̃ = tanh(W [c; h])",
            {"feed": lambda out, h, c: c},
        ),
        Mistake(
            "feed-detached",
            "no gradient flows back through what is fed (detach, .data or no_grad)",
            {"follow": torch.detach},
        ),
        Mistake(
            "state-not-carried",
            "h and c are zero again at every step; carry them from step to step",
            {"carry": lambda state, first: first},
        ),
        Mistake(
            "cell-not-carried",
            "c is zero again at every step; carry it from step to step",
            {"carry": lambda state, first: (state[0], first[1])},
        ),
        Mistake(
            "hidden-not-carried",
            "h is zero again at every step; carry it from step to step",
            {"carry": lambda state, first: (first[0], state[1])},
        ),
        Mistake(
            "hidden-replaced",
            "h̃ replaces h in the cell's state; it is fed as an input, and the state stays",
            {"is_hidden_replaced": True},
        ),
        Mistake(
            "state-detached",
            "no gradient flows back through h and c (detach, .data or no_grad)",
            {"carry": lambda state, first: (state[0].detach(), state[1].detach())},
        ),
        Mistake(
            "query-of-the-step-before",
            "h of the step before attends; let the new h attend",
            {"query": lambda h, before: before},
        ),
        Mistake(
            "scores-scaled",
            "the scores are divided by the root of the width; here they are q W k",
            {"score": lambda scores: scores / math.sqrt(7)},
        ),
        Mistake(
            "softmax-over-the-batch",
            "the softmax runs over the batch; it runs over the source, dim=-1",
            {"normalize": lambda scores: scores.softmax(0)},
        ),
        Mistake("softmax-missing", "the scores are used as weights; take their softmax", {"normalize": same}),
        Mistake(
            "sigmoid",
            "each score goes through a sigmoid; take the softmax over the source",
            {"normalize": torch.sigmoid},
        ),
        Mistake(
            "mask-missing",
            "padding of the source gets attention; set its scores to -inf",
            {"mask": lambda scores, mask: scores},
        ),
        Mistake(
            "mask-inverted",
            "the mask hides the real tokens of the source: it is 1 for these",
            {"mask": lambda scores, mask: scores.masked_fill(mask != 0, -math.inf)},
        ),
        Mistake(
            "mask-after-softmax",
            "weights of padding are set to zero after the softmax, so that they no longer sum to "
            "one; set the scores to -inf before it",
            {"mask": lambda scores, mask: scores, "hide": lambda weights, mask: weights * mask},
        ),
        Mistake(
            "mask-as-zero",
            "scores of padding are set to 0; set them to -inf",
            {"mask": lambda scores, mask: scores.masked_fill(mask == 0, 0.0)},
        ),
        Mistake(
            "context-of-keys",
            "the context is an average of the keys W k; average the source itself",
            {"context": lambda weights, source, keys: (weights[..., None] * keys).sum(1)},
        ),
        Mistake(
            "context-unweighted",
            "the context is the mean of the source; weight it with the attention",
            {"context": lambda weights, source, keys: source.mean(1)},
        ),
        Mistake("tanh-missing", "the tanh is missing: h̃ = tanh(W [c; h])", {"activation": same}),
        Mistake("relu-for-tanh", "h̃ goes through a ReLU; it goes through a tanh", {"activation": torch.relu}),
        Mistake("returns-hidden", "h is returned; return h̃ = tanh(W [c; h])", {"returned": lambda out, h, c: h}),
        Mistake(
            "returns-context", "the context is returned; return h̃ = tanh(W [c; h])", {"returned": lambda out, h, c: c}
        ),
        Mistake(
            "feed-not-in-the-state",
            "the state that is returned lacks h̃, so that the next part begins with another input",
            {"is_feed_carried": False},
        ),
        Mistake(
            "cell-state-not-in-the-state",
            "the state that is returned or read lacks h and c",
            {"is_state_carried": False},
        ),
        Mistake(
            "state-ignored",
            "the state is ignored: each part begins anew",
            {"is_state_carried": False, "is_feed_carried": False},
        ),
        *(one.inside("cell") for one in LSTM_MISTAKES[:10]),
    ),
)

"""A hybrid of an LSTM and attention, whose state is carried from segment to segment.

h = LSTM(x, state), and then h + attention(h),
    causal in each segment. What is returned with the output is the state of the
LSTM, detached: gradients do not flow from a segment into the one before.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.course.gate_weights import GATES, read_gates
from anaphor.course.reference import Case, DoesNotFit, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import (
    ATTENTION_MISTAKES,
    HEAD_MISTAKES,
    MultiHead,
    attention_shapes,
    multi_head,
    random_values,
    same,
)
from anaphor.course.references.recurrent import LSTM_MISTAKES, LSTMRules, cell_shapes, lstm_step
from anaphor.course.references.transformer import causal, norm
from anaphor.course.student import describe_returned
from anaphor.course.weights import Weight, read_attention
from anaphor.errors import ConfigError

State = tuple[Tensor, Tensor]
"""h and c of the LSTM."""
Recurrence = Callable[[Weights, Tensor, State, "HybridRules"], tuple[Tensor, list[State]]]
"""Outputs [B, T, H] and the state after each token."""


def over_time(w: Weights, x: Tensor, state: State, rules: HybridRules) -> tuple[Tensor, list[State]]:
    states = []
    for step in range(x.shape[1]):
        states.append(lstm_step(w, x[:, step], *state, rules.cell))
        state = rules.between(states[-1])
    return torch.stack([h for h, _ in states], dim=1), states


def over_the_batch(w: Weights, x: Tensor, state: State, rules: HybridRules) -> tuple[Tensor, list[State]]:
    """A mistake: the rows of the batch are taken for time steps, as torch's LSTM does without batch_first."""
    zeros = x.new_zeros(x.shape[1], w["U"].shape[-1])
    if state[0].shape != zeros.shape:
        if state[0].any():
            raise DoesNotFit
        state = (zeros, zeros)
    h, states = over_time(w, x.transpose(0, 1), state, rules)
    return h.transpose(0, 1), states


def backwards(w: Weights, x: Tensor, state: State, rules: HybridRules) -> tuple[Tensor, list[State]]:
    """A mistake: from the last token to the first."""
    h, states = over_time(w, x.flip(1), state, rules)
    return h.flip(1), states


def restarted(w: Weights, x: Tensor, state: State, rules: HybridRules) -> tuple[Tensor, list[State]]:
    """A mistake: every token begins with the state of the segment."""
    states = [lstm_step(w, x[:, step], *state, rules.cell) for step in range(x.shape[1])]
    return torch.stack([h for h, _ in states], dim=1), states


def detached(state: State) -> State:
    return state[0].detach(), state[1].detach()


def last(states: list[State], given: State) -> State:
    return states[-1]


def add_context(h: Tensor, context: Tensor) -> Tensor:
    return h + context


def normalized(w: Weights, h: Tensor) -> Tensor:
    """Before attention, where there is a norm."""
    return norm(w, "norm", h) if "norm.weight" in w else h


@dataclass(frozen=True)
class HybridRules:
    """Steps of a segment, and of what is carried to the next."""

    cell: LSTMRules = field(default_factory=LSTMRules)
    attention: MultiHead = field(default_factory=MultiHead)
    recur: Recurrence = over_time
    between: Callable[[State], State] = same
    """A change of the state between two tokens."""
    keep: Callable[[list[State], State], State] = last
    """What is returned, of the states after each token and the one given."""
    carry: Callable[[State], State] = detached
    mask: Callable[[int], Tensor | None] = causal
    join: Callable[[Tensor, Tensor], Tensor] = add_context
    prepare: Callable[[Weights, Tensor], Tensor] = normalized
    read: Callable[[Tensor, Tensor], Tensor] = field(default=lambda x, h: h)
    """What attention reads: the outputs of the LSTM."""


def compute_hybrid(w: Weights, inputs: Mapping[str, Any], rules: HybridRules) -> Outputs:
    if "W" not in w:  # as `load_reference` got them
        w = {**w, **{name: torch.stack([w[f"{name}_{gate}"] for gate in GATES]) for name in ("W", "U", "b")}}
    zeros = inputs["x1"].new_zeros(len(inputs["x1"]), w["U"].shape[-1])
    state: State = (zeros, zeros)
    outputs: Outputs = {}
    for number, name in enumerate(sorted(inputs), start=1):
        x = inputs[name]
        h, states = rules.recur(w, x, state, rules)
        context, _ = multi_head(w, rules.prepare(w, rules.read(x, h)), rules.mask(x.shape[1]), rules.attention)
        outputs[f"y{number}"] = rules.join(h, context)
        state = rules.carry(rules.keep(states, state))
    return outputs


def run_hybrid(target: Any, case: Case, sizes: Sizes) -> Outputs:
    """One segment after the other; what is returned beside the output is given back, whatever it is."""
    function = target.forward if isinstance(target, nn.Module) else target
    names = [*inspect.signature(function).parameters]
    if len(names) < 2:
        raise ConfigError(f"forward({', '.join(names)}) has other arguments than expected: {HYBRID.call}")
    has_default = inspect.signature(function).parameters[names[1]].default is not inspect.Parameter.empty
    outputs: Outputs = {}
    state: Any = None
    for number, name in enumerate(sorted(case.inputs), start=1):
        x = case.inputs[name]
        returned = target(x) if number == 1 and has_default else target(x, state)
        if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[0], Tensor):
            raise TypeError(f"it returned {describe_returned(returned)}; expected: {HYBRID.call}")
        outputs[f"y{number}"], state = returned
    return outputs


def hybrid_cases(sizes: Sizes) -> list[Case]:
    dim = sizes["input_size"]

    def segments(rows: int, lengths: Sequence[int], seed: int) -> dict[str, Tensor]:
        return {
            f"x{number}": random_values(rows, length, dim, seed=seed + number)
            for number, length in enumerate(lengths, start=1)
        }

    return [
        Case("of a segment", segments(5, [4], 0), "with causality"),
        Case("of two segments", segments(5, [7, 7], 10), "with the state carried"),
        Case("of three segments", segments(2, [6, 1, 3], 20), "for another batch size and lengths"),
    ]


def read_hybrid(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """The weights of the LSTM are those that come before attention, in one module or by their shapes; those of a norm
    have its name."""
    inputs, hidden, heads = sizes["input_size"], sizes["hidden_size"], sizes["num_heads"]
    norms = [one for one in given if one.is_norm]
    scales = [one.value for one in norms if not one.is_bias]
    shifts = [one.value for one in norms if one.is_bias]
    if len(scales) > 1:
        return
    own: Weights = {}
    if scales:
        own = {"norm.weight": scales[0], "norm.bias": shifts[0] if shifts else torch.zeros_like(scales[0])}
    cell, rest = split_cell([one for one in given if not one.is_norm], inputs, hidden)
    for attention in islice(read_attention(rest, heads, hidden // heads, hidden), 24):
        for gates in read_gates(cell, 4, inputs, hidden):
            yield own | attention | gates


def split_cell(given: Sequence[Weight], inputs: int, hidden: int) -> tuple[list[Weight], list[Weight]]:
    """The weights of the LSTM and the rest: those in a part of the module that has the size of the input, or of all
    gates, or a name that says it."""
    telling = {inputs + hidden, 4 * hidden} | ({inputs} if inputs != hidden else set())

    def parts(depth: int) -> list[str]:
        return [".".join(one.name.split(".")[:depth]) for one in given]

    depth = 1 if len({*parts(1)}) > 1 else 2
    inside = {
        part
        for part, one in zip(parts(depth), given, strict=True)
        if telling & {*one.value.shape} or re.search(r"lstm|rnn|recur|cell", part.lower())
    }
    pairs = list(zip(parts(depth), given, strict=True))
    return [one for part, one in pairs if part in inside], [one for part, one in pairs if part not in inside]


def hybrid_sizes(sizes: Sizes) -> Sizes:
    """With one width for all where the constructor takes one."""
    if "dim" in sizes:
        return {**sizes, "input_size": sizes["dim"], "hidden_size": sizes["dim"]}
    return {**sizes}


def hybrid_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    return cell_shapes(GATES)(sizes) | attention_shapes(heads, hidden // heads, hidden)


STATE_MISTAKES = (
    Mistake("state-not-carried", "every segment begins with a state of zeros; begin with the state that is given",
            {"carry": lambda state: (0 * state[0].detach(), 0 * state[1].detach())}),
    Mistake("cell-state-not-carried", "c begins at zero in every segment; carry h and c",
            {"carry": lambda state: (state[0].detach(), 0 * state[1].detach())}),
    Mistake("hidden-state-not-carried", "h begins at zero in every segment; carry h and c",
            {"carry": lambda state: (0 * state[0].detach(), state[1].detach())}),
    Mistake("state-of-the-first-token", "the state after the first token is returned; return that after the last one",
            {"keep": lambda states, given: states[0]}),
    Mistake("state-one-token-early", "the state before the last token is returned; return that after it",
            {"keep": lambda states, given: [given, *states][-2]}),
    Mistake("state-of-the-first-row", "all rows get the state of the first one",
            {"carry": lambda state: (state[0].detach()[:1].expand_as(state[0]),
                                     state[1].detach()[:1].expand_as(state[1]))}),
    Mistake("hidden-and-cell-swapped", "h and c are swapped between two segments",
            {"carry": lambda state: (state[1].detach(), state[0].detach())}),
    Mistake("state-not-detached", "the state that is carried has its history, so that the backward pass goes "
        "through all "
            "segments before; detach h and c", {"carry": same}),
    Mistake("state-not-detached", "c is carried with its history, so that the backward pass goes through all segments "
            "before; detach it, too", {"carry": lambda state: (state[0].detach(), state[1])}),
    Mistake("state-not-detached", "h is carried with its history, so that the backward pass goes through all segments "
            "before; detach it, too", {"carry": lambda state: (state[0], state[1].detach())}),
    Mistake("state-detached-between-tokens", "no gradient flows from a token to the one before; detach the state "
        "between "
            "segments alone", {"between": detached}),
    Mistake("every-token-restarts", "each token begins with the state of the segment; it begins with that of the token "
            "before", {"recur": restarted}),
    Mistake("batch-and-time-swapped", "the rows of the batch are taken for time steps: x is [B, T, D], so torch's LSTM "
            "needs batch_first=True", {"recur": over_the_batch}),
    Mistake("from-the-end", "the LSTM reads from the last token to the first", {"recur": backwards}),
    Mistake("no-causal-mask", "a token attends to later ones: pass a causal mask", {"mask": lambda n: None}),
    Mistake("mask-for-the-wrong-side", "a token attends to itself and later ones: the mask is 1 on and below the "
            "diagonal (torch.tril)", {"mask": lambda n: torch.ones(n, n).triu()}),
    Mistake("mask-one-too-far", "a token attends to the next one, too: torch.tril(…, 0)",
            {"mask": lambda n: torch.ones(n, n).tril(1)}),
    Mistake("no-residual", "the output of the LSTM is not added to that of attention",
            {"join": lambda h, context: context}),
    Mistake("attention-left-out", "the output is that of the LSTM; add that of attention", {"join": lambda h,
        context: h}),
    Mistake("multiplied", "the outputs of the LSTM and of attention are multiplied; add them",
            {"join": lambda h, context: h * context}),
    Mistake("averaged", "the mean of the outputs of the LSTM and of attention is returned; add them",
            {"join": lambda h, context: (h + context) / 2}),
    Mistake("residual-detached", "no gradient flows through the residual connection",
            {"join": lambda h, context: h.detach() + context}),
    Mistake("norm-left-out", "the norm has weights and is not applied", {"prepare": lambda w, h: h}),
)  # fmt: skip

HYBRID = Reference(
    name="Hybrid",
    call="Hybrid(input_size, hidden_size, num_heads), forward(x [B, T, input_size], state=None) -> y [B, T, "
    "hidden_size], "
    "state",
    outputs=("y1", "y2", "y3"),
    arguments=("x", "state"),
    sizes={"input_size": 10, "hidden_size": 12, "num_heads": 4, "dim": 12},
    constructors=(("input_size", "hidden_size", "num_heads"), ("dim", "num_heads")),
    derived=hybrid_sizes,
    cases=hybrid_cases,
    read=read_hybrid,
    shapes=hybrid_shapes,
    compute=compute_hybrid,
    run=run_hybrid,
    designs=(HybridRules(),),
    mistakes=(
        *STATE_MISTAKES,
        *(one.inside("cell") for one in LSTM_MISTAKES if one.name != "state-detached" and "returned" not in one.change),
        *(one.inside("attention") for one in HEAD_MISTAKES),
        *(one.inside("attention", "attend") for one in ATTENTION_MISTAKES),
    ),
    pairs=200,
    tried=8,
    time_first=("x1", "x2", "x3", "y1", "y2", "y3"),
)

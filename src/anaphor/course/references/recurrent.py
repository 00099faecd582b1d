"""Cells of recurrent networks: a simple one and that of an LSTM, one step and several."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.course.gate_weights import GATES, read_gates
from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import random_values, same
from anaphor.course.student import describe_returned, match_name
from anaphor.course.weights import Weight
from anaphor.errors import ConfigError

Step = Callable[[Tensor], Tensor]
TUPLES = {"state", "states", "hc", "hx", "hidden_states", "carry", "prev_state"}
"""Names of an argument that is the whole state."""
CELL_SIZES = {"input_size": 7, "hidden_size": 5}


def cell_cases(states: Sequence[str]) -> Callable[[Sizes], list[Case]]:
    """One step, one of another batch size, and several, in which every step gets the state of the one before."""

    def cases(sizes: Sizes) -> list[Case]:
        found = []
        for number, (name, steps, rows, checks) in enumerate((
            ("after a step", 1, 6, "of a step"),
            ("after a step of two rows", 1, 2, "for another batch size"),
            ("after four steps", 4, 3, "with the state carried for four steps"),
        )):  # fmt: skip
            inputs: dict[str, Any] = {"x": random_values(steps, rows, sizes["input_size"], seed=number)}
            for seed, state in enumerate(states, 10 * number + 10):
                inputs[state] = random_values(rows, sizes["hidden_size"], seed=seed)
            found.append(Case(name, inputs, checks))
        return found

    return cases


def step_arguments(target: Any, states: Sequence[str], call: str) -> Callable[..., dict[str, Any] | list[Any]]:
    """How a student's cell takes an input and a state: by the names of its arguments, else in their order; the state
    in one tuple, or one argument for each part."""
    function = target.forward if isinstance(target, nn.Module) else target
    parameters = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    names = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]
    required = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    is_one = len(names) < 1 + len(states) or (len(required) < 3 and names[1] in TUPLES and len(states) > 1)
    count = max(len(required), 2 if is_one else 1 + len(states))
    if (len(names) < count and len(names) == len(parameters)) or len(required) > 1 + len(states):
        raise ConfigError(f"forward({', '.join(names)}) has other arguments than expected: {call}")
    is_split = count == 1 + len(states)
    known = ["x", *states] if is_split else ["x", "state"]
    matched: dict[str, str] = {}
    for name in names[:count]:
        ours = match_name(name, [one for one in known if one not in matched])
        matched |= {} if ours is None else {ours: name}

    def arrange(x: Tensor, *state: Tensor) -> dict[str, Any] | list[Any]:
        values = [x, *state] if is_split else [x, state if len(state) > 1 else state[0]]
        if len(matched) == len(known):
            return {matched[ours]: value for ours, value in zip(known, values, strict=True)}
        return values

    return arrange


def call_step(target: Any, given: dict[str, Any] | list[Any]) -> Any:
    return target(**given) if isinstance(given, dict) else target(*given)


RNN_CALL = "RNNCell(input_size, hidden_size), forward(x [B, input_size], h [B, hidden_size]) -> h [B, hidden_size]"
LSTM_CALL = (
    "LSTMCell(input_size, hidden_size), forward(x [B, input_size], (h, c)) -> h, c [B, hidden_size]; forward(x, h, "
    "c) is "
    "right, too"
)


def run_rnn_cell(target: Any, case: Case, sizes: Sizes) -> Outputs:
    arrange, h = step_arguments(target, ["h"], RNN_CALL), case.inputs["h"]
    for x in case.inputs["x"]:
        returned = call_step(target, arrange(x, h))
        h = returned[-1] if isinstance(returned, tuple | list) and returned else returned
        if not isinstance(h, Tensor):
            raise TypeError(f"it returned {describe_returned(returned)}; expected: {RNN_CALL}")
    return {"h": h}


def run_lstm_cell(target: Any, case: Case, sizes: Sizes) -> Outputs:
    arrange, h, c = step_arguments(target, ["h", "c"], LSTM_CALL), case.inputs["h"], case.inputs["c"]
    for x in case.inputs["x"]:
        h, c = state_of(call_step(target, arrange(x, h, c)), LSTM_CALL)
    return {"h": h, "c": c}


def state_of(returned: Any, call: str) -> tuple[Tensor, Tensor]:
    """h and c of what a cell returned: (h, c), (out, (h, c)) or (out, h, c)."""
    values = list(returned) if isinstance(returned, tuple | list) else []
    if values and isinstance(values[-1], tuple | list):
        values = list(values[-1])
    values = values[-2:]
    if len(values) != 2 or not all(isinstance(one, Tensor) for one in values):
        raise TypeError(f"it returned {describe_returned(returned)}; expected: {call}")
    return values[0], values[1]


def read_cell(gates: int) -> Callable[[Sequence[Weight], Sizes], Iterator[Weights]]:
    return lambda given, sizes: read_gates(given, gates, sizes["input_size"], sizes["hidden_size"])


def cell_shapes(gates: str) -> Callable[[Sizes], dict[str, tuple[int, ...]]]:
    """By the names of the gates: W_i, U_i, b_i …; W, U and b for a cell without gates."""

    def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
        wide, inputs = sizes["hidden_size"], sizes["input_size"]
        found: dict[str, tuple[int, ...]] = {}
        for gate in [f"_{one}" for one in gates] or [""]:
            found |= {f"W{gate}": (wide, inputs), f"U{gate}": (wide, wide), f"b{gate}": (wide,)}
        return found

    return shapes


def by_sum(x: Tensor, h: Tensor, b: Tensor) -> Tensor:
    return x + h + b


@dataclass(frozen=True)
class RNNRules:
    """Steps of a simple recurrent cell."""

    activation: Step = torch.tanh
    join: Callable[[Tensor, Tensor, Tensor], Tensor] = by_sum
    """The input and the state, both multiplied with their matrices, and the bias."""
    input: Step = same
    state: Step = same
    matrix: Step = same
    """That of the state."""
    finish: Callable[[Tensor, Tensor], Tensor] = field(default=lambda new, old: new)
    """What is returned, of the new and the old state."""
    carry: Callable[[Tensor, Tensor], Tensor] = field(default=lambda new, first: new)
    """What the next step gets."""


def compute_rnn_cell(w: Weights, inputs: Mapping[str, Any], rules: RNNRules) -> Outputs:
    first = state = new = inputs["h"]
    for x in inputs["x"]:
        from_input, from_state = rules.input(x) @ w["W"].T, rules.state(state) @ rules.matrix(w["U"]).T
        new = rules.finish(rules.activation(rules.join(from_input, from_state, w["b"])), state)
        state = rules.carry(new, first)
    return {"h": new}


RNN_MISTAKES = (
    Mistake("no-activation", "the sum is returned without an activation; the new state is its tanh",
            {"activation": same}),
    Mistake("sigmoid-for-tanh", "the activation is a sigmoid; it is a tanh", {"activation": torch.sigmoid}),
    Mistake("activation-twice", "the activation is applied twice",
            {"activation": lambda x: torch.tanh(torch.tanh(x))}),
    Mistake("activation-before-the-sum", "the input and the state go through the activation one by one; add them first",
            {"activation": same, "join": lambda x, h, b: torch.tanh(x) + torch.tanh(h) + b}),
    Mistake("activation-before-the-sum", "the input and the state go through the activation one by one; add them first",
            {"activation": same, "join": lambda x, h, b: torch.tanh(x + b) + torch.tanh(h)}),
    Mistake("activation-of-the-state-only", "only what comes from the state goes through the activation; add first",
            {"activation": same, "join": lambda x, h, b: x + torch.tanh(h + b)}),
    Mistake("state-ignored", "the new state does not depend on the old one: W_h h is missing",
            {"join": lambda x, h, b: x + b}),
    Mistake("input-ignored", "the new state does not depend on the input: W_x x is missing",
            {"join": lambda x, h, b: h + b}),
    Mistake("input-ignored", "the new state does not depend on the input: W_x x is missing",
            {"join": lambda x, h, b: h}),
    Mistake("bias-left-out", "there is a bias, and it is not added", {"join": lambda x, h, b: x + h}),
    Mistake("bias-outside-of-activation", "the bias is added after the activation; add it before",
            {"activation": same, "join": lambda x, h, b: torch.tanh(x + h) + b}),
    Mistake("multiplied", "the input and the state are multiplied; add them", {"join": lambda x, h, b: x * h + b}),
    Mistake("multiplied", "the input and the state are multiplied; add them", {"join": lambda x, h, b: (x + b) * h}),
    Mistake("state-subtracted", "the state is subtracted; add it", {"join": lambda x, h, b: x - h + b}),
    Mistake("old-state-added", "the old state is added to the new one", {"finish": lambda new, old: new + old}),
    Mistake("old-state-averaged", "the mean of the old and the new state is returned; return the new one",
            {"finish": lambda new, old: (new + old) / 2}),
    Mistake("returns-old-state", "the old state is returned; return the new one", {"finish": lambda new, old: old}),
    Mistake("recurrent-matrix-transposed", "the matrix of the state is transposed", {"matrix": lambda u: u.T}),
    Mistake("state-not-carried", "every step begins with the first state; give it the state of the step before",
            {"carry": lambda new, first: first}),
    Mistake("state-detached", "no gradient flows back through the state (detach, .data or no_grad)",
            {"state": torch.detach}),
    Mistake("input-detached", "no gradient flows back to the input (detach, .data or no_grad)",
            {"input": torch.detach}),
)  # fmt: skip

RNN_CELL = Reference(
    name="RNNCell",
    call=RNN_CALL,
    outputs=("h",),
    arguments=("x", "h"),
    sizes=CELL_SIZES,
    constructors=(("input_size", "hidden_size"),),
    cases=cell_cases(["h"]),
    read=lambda given, sizes: read_simple(read_cell(1)(given, sizes)),
    shapes=cell_shapes(""),
    compute=compute_rnn_cell,
    run=run_rnn_cell,
    designs=(RNNRules(), RNNRules(activation=torch.relu)),
    mistakes=RNN_MISTAKES,
)


def read_simple(readings: Iterator[Weights]) -> Iterator[Weights]:
    """Weights of one gate, without the axis of gates."""
    for one in readings:
        yield {"W": one["W"][0], "U": one["U"][0], "b": one["b"][0]}


Gates = tuple[Tensor, Tensor, Tensor, Tensor]
"""i, f, g and o before their activations."""


def add_all(x: Tensor, h: Tensor, b: Tensor) -> Tensor:
    return x + h + b


def keep_and_write(c: Tensor, i: Tensor, f: Tensor, g: Tensor) -> Tensor:
    return f * c + i * g


def show_cell(o: Tensor, c: Tensor, old: Tensor) -> Tensor:
    return o * torch.tanh(c)


@dataclass(frozen=True)
class LSTMRules:
    """Steps of an LSTM cell."""

    order: tuple[int, ...] = (0, 1, 2, 3)
    """Which of the four blocks i, f, g and o is taken for each of them."""
    join: Callable[[Tensor, Tensor, Tensor], Tensor] = add_all
    gate: Step = torch.sigmoid
    candidate: Step = torch.tanh
    forget: Step = same
    """A change of f before its sigmoid."""
    cell: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = keep_and_write
    show: Callable[[Tensor, Tensor, Tensor], Tensor] = show_cell
    """h, from o, the new and the old cell."""
    hidden: Step = same
    memory: Step = same
    input: Step = same
    returned: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = field(default=lambda h, c: (h, c))


def lstm_step(w: Weights, x: Tensor, h: Tensor, c: Tensor, rules: LSTMRules) -> tuple[Tensor, Tensor]:
    from_input, from_state = rules.input(x) @ w["W"].mT, rules.hidden(h) @ w["U"].mT  # [gates, B, H]
    blocks = rules.join(from_input, from_state, w["b"][:, None])
    i, f, g, o = (blocks[number] for number in rules.order)
    i, f, g, o = rules.gate(i), rules.gate(rules.forget(f)), rules.candidate(g), rules.gate(o)
    c = rules.memory(c)
    new = rules.cell(c, i, f, g)
    return rules.show(o, new, c), new


def compute_lstm_cell(w: Weights, inputs: Mapping[str, Any], rules: LSTMRules) -> Outputs:
    if "W" not in w:  # as `load_reference` got them
        w = {name: torch.stack([w[f"{name}_{gate}"] for gate in GATES]) for name in ("W", "U", "b")}
    h, c = inputs["h"], inputs["c"]
    for x in inputs["x"]:
        h, c = rules.returned(*lstm_step(w, x, h, c, rules))
    return {"h": h, "c": c}


def order_mistake(order: tuple[int, ...]) -> Mistake:
    """A mistake in the order of the gates; weights of torch's names, or of a gate's, say which one is right."""
    listed = ", ".join("ifgo"[order.index(number)] for number in range(4))
    if order == (1, 0, 2, 3):
        text = "the input gate i and the forget gate f are swapped: c = f · c + i · g"
        return Mistake("input-and-forget-gates-swapped", text, {"order": order})
    text = (
        f"the weights of the gates i, f, g, o are used as {listed}: weights of torch's have this order, others a name"
    )
    return Mistake("gates-in-another-order", text, {"order": order})


LSTM_MISTAKES = (
    Mistake("no-tanh-on-the-cell", "the tanh is missing where the cell is shown: h = o · tanh(c)",
            {"show": lambda o, c, old: o * c}),
    Mistake("sigmoid-on-the-cell", "the cell goes through a sigmoid where it is shown: h = o · tanh(c)",
            {"show": lambda o, c, old: o * torch.sigmoid(c)}),
    Mistake("no-output-gate", "the output gate is missing: h = o · tanh(c)",
            {"show": lambda o, c, old: torch.tanh(c)}),
    Mistake("old-cell-shown", "the output shows the old cell; show the new one: h = o · tanh(c)",
            {"show": lambda o, c, old: o * torch.tanh(old)}),
    Mistake("candidate-without-tanh", "the candidate g has no activation; it goes through a tanh", {"candidate": same}),
    Mistake("sigmoid-for-candidate", "the candidate g goes through a sigmoid; it goes through a tanh",
            {"candidate": torch.sigmoid}),
    Mistake("tanh-for-gates", "the gates go through a tanh; they go through a sigmoid, so that they are between 0 "
            "and 1", {"gate": torch.tanh}),
    Mistake("gates-without-sigmoid", "the gates have no activation; they go through a sigmoid", {"gate": same}),
    Mistake("no-forget-gate", "the forget gate is missing: c = f · c + i · g",
            {"cell": lambda c, i, f, g: c + i * g}),
    Mistake("no-input-gate", "the input gate is missing: c = f · c + i · g",
            {"cell": lambda c, i, f, g: f * c + g}),
    Mistake("old-cell-dropped", "the new cell does not depend on the old one: c = f · c + i · g",
            {"cell": lambda c, i, f, g: i * g}),
    Mistake("forget-gate-inverted", "1 - f keeps the cell; f does: c = f · c + i · g",
            {"cell": lambda c, i, f, g: (1 - f) * c + i * g}),
    Mistake("forget-gate-from-input-gate", "1 - i is used for the forget gate, which has weights of its own",
            {"cell": lambda c, i, f, g: (1 - i) * c + i * g}),
    Mistake("input-gate-from-forget-gate", "1 - f is used for the input gate, which has weights of its own",
            {"cell": lambda c, i, f, g: f * c + (1 - f) * g}),
    Mistake("cell-multiplied", "the parts of the new cell are multiplied; add them: c = f · c + i · g",
            {"cell": lambda c, i, f, g: f * c * i * g}),
    Mistake("tanh-kept-in-the-cell", "the new cell is tanh(f · c + i · g); the tanh belongs to the output alone: "
            "h = o · tanh(c)",
            {"cell": lambda c, i, f, g: torch.tanh(f * c + i * g), "show": lambda o, c, old: o * c}),
    Mistake("tanh-kept-in-the-cell", "the new cell is tanh(f · c + i · g); the tanh belongs to the output alone: "
            "h = o · tanh(c)", {"cell": lambda c, i, f, g: torch.tanh(f * c + i * g)}),
    Mistake("one-added-to-forget-gate", "1 is added to the forget gate at every step; set its bias when you make the "
            "cell, if you want that", {"forget": lambda f: f + 1}),
    Mistake("state-ignored", "the gates do not depend on h: U h is missing", {"join": lambda x, h, b: x + b}),
    Mistake("input-ignored", "the gates do not depend on x: W x is missing", {"join": lambda x, h, b: h + b}),
    Mistake("input-ignored", "the gates do not depend on x: W x is missing", {"join": lambda x, h, b: h}),
    Mistake("bias-left-out", "there is a bias, and it is not added", {"join": lambda x, h, b: x + h}),
    Mistake("cell-returned-first", "c is returned first; return h, c", {"returned": lambda h, c: (c, h)}),
    Mistake("returns-hidden-twice", "h is returned as c, too; return h, c", {"returned": lambda h, c: (h, h)}),
    Mistake("returns-cell-twice", "c is returned as h, too; return h, c", {"returned": lambda h, c: (c, c)}),
    Mistake("cell-detached", "no gradient flows back through c (detach, .data or no_grad)", {"memory": torch.detach}),
    Mistake("state-detached", "no gradient flows back through h (detach, .data or no_grad)", {"hidden": torch.detach}),
    Mistake("state-detached", "no gradient flows back through h and c (detach, .data or no_grad)",
            {"hidden": torch.detach, "memory": torch.detach}),
    Mistake("input-detached", "no gradient flows back to the input (detach, .data or no_grad)",
            {"input": torch.detach}),
    *(order_mistake(order) for order in permutations(range(4)) if order != (0, 1, 2, 3)),
)  # fmt: skip

LSTM_CELL = Reference(
    name="LSTMCell",
    call=LSTM_CALL,
    outputs=("h", "c"),
    arguments=("x", "h", "c"),
    sizes=CELL_SIZES,
    constructors=(("input_size", "hidden_size"),),
    cases=cell_cases(["h", "c"]),
    read=read_cell(4),
    shapes=cell_shapes(GATES),
    compute=compute_lstm_cell,
    run=run_lstm_cell,
    designs=(LSTMRules(),),
    mistakes=LSTM_MISTAKES,
    pairs=600,
)

"""The weights of a recurrent cell, and how they are found in a student's module.

Every gate has a matrix W for the input,
    a matrix U for the state and a bias. A student may have them in one matrix for all
gates, for the input and the state together, or one by one. The name of a weight says whose it is, or its place does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import permutations

import torch
from torch import Tensor

from anaphor.course.weights import Weight, stem_of

GATES = "ifgo"
"""Input, forget, candidate and output: torch's order."""
WORDS = {
    "i": {"input", "in", "inp", "write", "ingate", "inputgate"},
    "f": {"forget", "forgetgate", "remember", "keep"},
    "g": {"candidate", "cand", "cell", "modulation", "update", "new", "cellgate", "tilde", "memory"},
    "o": {"output", "out", "outgate", "outputgate", "read", "show"},
}
TORCH_NAMES = re.compile(r"(^|[._])weight_?(ih|hh)(_l0)?$")
Cell = dict[str, Tensor]
"""W [gates, H, D], U [gates, H, H] and b [gates, H]."""


def gate_of(name: str) -> int | None:
    """The gate that the name of a weight says: `W_hi` and `input_gate.weight` are of gate 0."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    name = re.sub(r"[._](weight|bias)$", "", name).lower()
    for word in reversed(re.split(r"[._\d]+", name)):
        for number, gate in enumerate(GATES):
            if word in WORDS[gate]:
                return number
        short = re.fullmatch(r"[wubv]?[xhi]?([ifgco])|[wubv]?([ifgco])[xh]", word)
        if short:
            return GATES.index((short[1] or short[2]).replace("c", "g"))
    return None


def reads_state(name: str) -> bool | None:
    """Whether a matrix is that of the state, by its name; None where it does not say."""
    last = re.sub(r"[._](weight|bias)(_l0)?$", "", name).lower()
    if re.search(r"(hh|h2h|hid|recur|state|(^|[._])u[._]?\w?$|w?h[ifgco]$)", last):
        return True
    if re.search(r"(ih|xh|x2h|i2h|inp|(^|[._])w[._]?x?\w?$|w?[xi][ifgco]$)", last):
        return False
    return None


def read_gates(given: Sequence[Weight], gates: int, inputs: int, hidden: int) -> Iterator[Cell]:
    """Every way to read weights as those of a cell with so many gates."""
    biases = [one for one in given if _is_bias(one, gates, hidden)]
    matrices = [one for one in given if not _is_bias(one, gates, hidden)]
    for count in dict.fromkeys((gates, 1)):
        per_matrix = 1 if count == gates else gates
        for parts in _split(matrices, per_matrix, count, inputs, hidden):
            shifts = _read_biases(parts, biases, gates, hidden)
            if shifts is None:
                continue
            for orders in _orders(parts, gates):
                yield _arrange(parts, shifts, orders)


def _is_bias(weight: Weight, gates: int, hidden: int) -> bool:
    """Whether it has as many numbers as gates have outputs; the name says it where a matrix has as many."""
    count = weight.value.numel()
    return weight.value.ndim == 1 or (count in (hidden, gates * hidden) and (weight.is_bias or count != hidden**2))


class Part:
    """The matrices of the input or of the state, or of both in one: [gates, H, columns], as they are stored."""

    def __init__(self, weights: Sequence[Weight], value: Tensor, source: str) -> None:
        self.weights, self.value, self.source = weights, value, source

    @property
    def order(self) -> list[int] | None:
        """Which gate is stored where, if the names say it."""
        if len(self.weights) == 1:
            is_known = len(self.value) == 1 or TORCH_NAMES.search(self.weights[0].name)
            return [*range(len(self.value))] if is_known else None
        found = [gate_of(one.name) for one in self.weights]
        named = [one for one in found if one is not None]
        return named if sorted(named) == [*range(len(self.value))] else None


def _split(matrices: list[Weight], many: int, count: int, inputs: int, hidden: int) -> Iterator[list[Part]]:
    """The matrices as one part for both input and state, or as one for each."""
    if len(matrices) == many:
        for columns in ("xh", "hx"):
            for value in _stack(matrices, count, hidden, inputs + hidden):
                yield [Part(matrices, value, columns)]
    if len(matrices) == 2 * many:
        for of_input, of_state in _by_source(matrices, inputs, hidden):
            for first in _stack(of_input, count, hidden, inputs):
                for second in _stack(of_state, count, hidden, hidden):
                    yield [Part(of_input, first, "x"), Part(of_state, second, "h")]


def _by_source(matrices: list[Weight], inputs: int, hidden: int) -> Iterator[tuple[list[Weight], list[Weight]]]:
    """The matrices of the input and those of the state: by shape, by name, and by order."""
    half = len(matrices) // 2
    if inputs != hidden:
        of_input = [one for one in matrices if inputs in one.value.shape]
        if len(of_input) == half:
            yield of_input, [one for one in matrices if inputs not in one.value.shape]
        return
    sides = [reads_state(one.name) for one in matrices]
    if None not in sides and sum(map(bool, sides)) == half:
        yield (
            [one for one, side in zip(matrices, sides, strict=True) if not side],
            [one for one, side in zip(matrices, sides, strict=True) if side],
        )
        return
    for pair in ((matrices[:half], matrices[half:]), (matrices[::2], matrices[1::2])):
        yield pair
        yield pair[1], pair[0]


def _stack(weights: list[Weight], count: int, hidden: int, columns: int) -> list[Tensor]:
    """Matrices of one gate each, or one of all gates, as [gates, H, columns]: in every orientation that fits all."""
    each = [_blocks(one, count, hidden, columns) for one in weights]
    return [torch.cat([one[at] for one in each]) for at in range(min(map(len, each)))]


def _blocks(weight: Weight, count: int, hidden: int, columns: int) -> list[Tensor]:
    value, found = weight.value, []
    if value.ndim == 3:
        turned = [value.permute(order) for order in permutations(range(3))]
        return [one for one in turned if tuple(one.shape) == (count, hidden, columns)]
    if value.shape == (count * hidden, columns):
        found.append(value.view(count, hidden, columns))
    if value.shape == (columns, count * hidden) and not weight.is_linear:
        found.append(value.T.reshape(count, hidden, columns))
    return found


Shift = tuple[Part, Tensor, list[int] | None]
"""A bias [gates, H], the matrices that it stands beside, and its own order where names say it."""


def _read_biases(parts: list[Part], biases: list[Weight], gates: int, hidden: int) -> list[Shift] | None:
    """The biases beside each part. None may be left over."""
    rest = list(biases)
    found: list[Shift] = []
    for part in parts:
        own = [next((b for b in rest if stem_of(b.name) == stem_of(w.name)), None) for w in part.weights]
        if all(one is not None for one in own):
            value = torch.cat([one.value.reshape(-1, hidden) for one in own if one is not None])
            found.append((part, value, None))
            rest = [one for one in rest if all(one is not other for other in own)]
    for one in [one for one in rest if one.value.numel() == gates * hidden]:
        found.append((parts[0], one.value.reshape(gates, hidden), None))
        rest.remove(one)
    by_gate = [[one for one in rest if gate_of(one.name) == number] for number in range(gates)]
    if gates > 1 and rest and len({*map(len, by_gate)}) == 1 and sum(map(len, by_gate)) == len(rest):
        if any(one.value.numel() != hidden for one in rest):
            return None
        total = torch.stack([torch.stack([one.value.reshape(hidden) for one in own]).sum(0) for own in by_gate])
        return [*found, (parts[0], total, [*range(gates)])]
    while len(rest) >= gates:
        group, rest = rest[:gates], rest[gates:]
        if any(one.value.numel() != hidden for one in group):
            return None
        found.append((parts[0], torch.stack([one.value.reshape(hidden) for one in group]), None))
    return None if rest else found


def _orders(parts: list[Part], gates: int) -> Iterator[list[list[int]]]:
    """Which gate is stored where, for each part: the same order for all of those whose names do not say it."""
    known = [part.order for part in parts]
    if all(known):
        yield [one for one in known if one is not None]
        return
    for order in permutations(range(gates)):
        yield [list(order) if one is None else one for one in known]


def _arrange(parts: list[Part], shifts: list[Shift], orders: list[list[int]]) -> Cell:
    """The weights in torch's order of the gates."""
    found: Cell = {}
    hidden = parts[0].value.shape[1]
    for part, order in zip(parts, orders, strict=True):
        value = part.value[_inverse(order)]
        wide = value.shape[-1]
        if part.source in "xh" and len(part.source) == 1:
            found["W" if part.source == "x" else "U"] = value
        elif part.source == "xh":
            found["W"], found["U"] = value[..., : wide - hidden], value[..., wide - hidden :]
        else:
            found["U"], found["W"] = value[..., :hidden], value[..., hidden:]
    total = parts[0].value.new_zeros(parts[0].value.shape[:2])
    for part, value, own in shifts:
        total = total + value[_inverse(own or orders[parts.index(part)])]
    return found | {"b": total}


def _inverse(order: list[int]) -> list[int]:
    return [order.index(number) for number in range(len(order))]

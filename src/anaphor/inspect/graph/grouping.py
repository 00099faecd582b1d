"""One node of a drawing: a tensor, and the calls between it and the tensors it is drawn to be made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anaphor.inspect.graph import operations
from anaphor.inspect.graph.program import Call, ModuleCall, Program

LONGEST = 72
"""Letters in a formula that is written out."""
DEEPEST = 24
"""Calls within one another in such a formula."""
SIGNS = tuple("×+−÷@·^<>≤≥=≠")


class Group:
    """A shown tensor, with the calls that lead to it from other shown tensors."""

    def __init__(self, program: Program, number: int, shown: set[int], whole: set[ModuleCall]) -> None:
        self.program, self.number, self.shown = program, number, shown
        self.held, self.last = program.held[number], program.maker(number)
        self.calls = [] if self.last is None else program.before([number], shown)[1]
        calls = [program.calls[one] for one in self.calls]
        self.working = [call for call in calls if not is_passage(call)] or calls[-1:]
        modules = {outermost(call, whole) for call in self.working}
        self.whole = modules.pop() if len(modules) == 1 else None
        """The one module that it stands for."""

    @property
    def module(self) -> str:
        """Path of the module it was made in."""
        if self.last is None:
            return _home(self.program, self.number)
        if self.whole is not None:
            return self.whole.path
        named_here = self.held.name is not None and len(self.working) == 1
        common = _common([self.last.modules] if named_here else [call.modules for call in self.working])
        return common[-1].path if common else ""

    @property
    def operation(self) -> tuple[str, str]:
        """Name and sign of what it does."""
        if self.last is None:
            return self.held.kind, self.held.kind
        if self.whole is not None:
            return self.whole.kind, self.whole.kind
        if len(self.working) == 1:
            return operations.canonical(self.working[0].op), self._label(self.working[0])
        signs = dict.fromkeys(self._label(call) for call in self.working)
        return "group", " ".join(signs) if len(signs) <= 3 else f"{len(self.working)} operations"

    def formula(self, names: Mapping[int, str]) -> str:
        """How it is made from shown tensors: `w1 × x`, `ReLU(z2)`, `W @ x + b`."""
        if self.last is None:
            return self.held.kind
        read = ", ".join(names[one] + route for one, route in self.entering())
        if self.whole is not None:
            return f"{self.whole.kind}({read})"
        return self._written(self.number, names) or f"{self.operation[1]}({read})"

    def _written(self, number: int, names: Mapping[int, str], depth: int = 0) -> str | None:
        """None where it gets too long."""
        call = self.program.maker(number)
        assert call is not None, "leaves are written by those who read them"
        operands: list[str] = []
        for before in call.sources:
            if before in self.shown:
                operands.append(names[before])
            elif self.program.maker(before) is not None:
                inner = self._written(before, names, depth + 1) if depth < DEEPEST else None
                if inner is None:
                    return None
                operands.append(inner)
        if is_passage(call):
            whole = operands[0] if operands else call.op
            route = operations.route_of(call, self.program.held[number].position)
            written = f"{_enclosed(whole)}{route}" if route else whole
        else:
            written = written_out(self._label(call), operands)
        return written if len(written) <= LONGEST else None

    def entering(self) -> Iterator[tuple[int, str]]:
        """Shown tensors that it is made from, in the order of arguments, with what happened on the way."""
        if self.last is None:
            return
        # Where several calls are one node, how often it reads something says nothing.
        once = len(self.working) > 1
        seen: set[tuple[int, str]] = set()
        waiting = list(self._read(self.number, ""))
        while waiting:
            number, route = waiting.pop(0)
            inner = number not in self.shown
            mark = (number, "inner" if inner else route)
            if (inner and self.program.maker(number) is None) or (once and mark in seen):
                continue
            seen.add(mark)
            if inner:
                waiting[:0] = self._read(number, route)
            else:
                yield number, route

    def _read(self, number: int, route: str) -> list[tuple[int, str]]:
        """What the call that makes a tensor reads, and the route from there on."""
        call = self.program.maker(number)
        assert call is not None, "leaves are not entered"
        here = operations.route_of(call, self.program.held[number].position) + route if is_passage(call) else ""
        return [(before, here) for before in call.sources]

    def _label(self, call: Call) -> str:
        if is_passage(call):
            return operations.route_of(call, self.held.position) or call.op
        return operations.label_of(call, self._folded, lambda one: self.program.held[one].tensor.ndim)

    def _folded(self, number: int) -> str | None:
        held = self.program.held[number]
        if number in self.shown or held.kind != "constant" or held.tensor.numel() != 1:
            return None
        return f"{held.tensor.item():.4g}"


def is_passage(call: Call) -> bool:
    """Whether it only hands numbers on, in another shape or not all of them."""
    picks = call.op in operations.PICKING and len(call.sources) == 1
    return picks or call.op in operations.ARRANGING or operations.passes_on(call)


def _common(chains: Sequence[tuple[ModuleCall, ...]]) -> tuple[ModuleCall, ...]:
    first, *others = chains
    length = 0
    while length < len(first) and all(len(one) > length and one[length] is first[length] for one in others):
        length += 1
    return first[:length]


def _home(program: Program, number: int) -> str:
    """The module that reads a leaf, when it is one and the leaf is its own."""
    homes = {call.modules[-1].path if call.modules else "" for call in program.calls if number in call.sources}
    home = homes.pop() if len(homes) == 1 else ""
    return home if (program.held[number].name or "").startswith(f"{home}.") else ""


def outermost(call: Call, collapsed: set[ModuleCall]) -> ModuleCall | None:
    return next((module for module in call.modules if module in collapsed), None)


def written_out(sign: str, operands: Sequence[str]) -> str:
    """A sign and what it is applied to, as one writes it: `a + b`, `1 − a`, `ReLU(a)`."""
    if sign == "−" and len(operands) == 1:
        return f"−{_enclosed(operands[0])}"
    if len(operands) == 2 and sign in SIGNS:
        left, right = operands
        if sign not in "+−":
            left = _enclosed(left)
        return f"{left} {sign} {right if sign == '+' else _enclosed(right)}"
    if len(operands) == 1 and " " in sign:
        if sign.startswith(SIGNS):
            return f"{operands[0] if sign[0] in '+−' else _enclosed(operands[0])} {sign}"
        if sign.endswith(SIGNS):
            return f"{sign} {_enclosed(operands[0])}"
    return f"{sign}({', '.join(operands)})"


def _enclosed(text: str) -> str:
    """In parentheses, unless it is one thing already."""
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == " " and depth == 0:
            return f"({text})"
    return text

"""One node of a graph: a shown tensor, and the calls between it and the shown tensors it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anaphor.trace import program as operations
from anaphor.trace.program import Call, ModuleCall, Program

MAX_FORMULA = 72
"""Characters of a formula."""
MAX_DEPTH = 24
"""Nested calls of a formula."""
SIGNS = tuple("×+−÷@·^<>≤≥=≠")


class Group:
    """A shown tensor with the calls that compute it from other shown tensors."""

    def __init__(self, program: Program, number: int, shown: set[int], whole: set[ModuleCall]) -> None:
        self.program, self.number, self.shown = program, number, shown
        self.traced, self.last = program.tensors[number], program.producer(number)
        self.calls = [] if self.last is None else program.ancestors([number], shown)[1]
        calls = [program.calls[one] for one in self.calls]
        self.working = [call for call in calls if not is_view_like(call)] or calls[-1:]
        modules = {outermost_module(call, whole) for call in self.working}
        self.whole = modules.pop() if len(modules) == 1 else None
        """The collapsed module that it stands for."""

    @property
    def module(self) -> str:
        """Path of the module that computed it."""
        if self.last is None:
            return _owner(self.program, self.number)
        if self.whole is not None:
            return self.whole.path
        named_here = self.traced.name is not None and len(self.working) == 1
        common = _common_prefix([self.last.modules] if named_here else [call.modules for call in self.working])
        return common[-1].path if common else ""

    @property
    def operation(self) -> tuple[str, str]:
        """Name and symbol of the operation."""
        if self.last is None:
            return self.traced.kind, self.traced.kind
        if self.whole is not None:
            return self.whole.kind, self.whole.kind
        if len(self.working) == 1:
            return operations.canonical_name(self.working[0].op), self._label(self.working[0])
        signs = list(dict.fromkeys(self._label(call) for call in self.working))
        return "group", " ".join(signs if len(signs) <= 3 else (signs[0], "…", signs[-1]))

    def formula(self, names: Mapping[int, str]) -> str:
        """How it is computed from shown tensors: `w1 × x`, `ReLU(z2)`, `W @ x + b`."""
        if self.last is None:
            return self.traced.kind
        read = ", ".join(names[one] + route for one, route in self.find_inputs())
        if self.whole is not None:
            return f"{self.whole.kind}({read})"
        return self._format_expression(self.number, names) or f"{self.operation[1]}({read})"

    def _format_expression(self, number: int, names: Mapping[int, str], depth: int = 0) -> str | None:
        """None if it gets too long."""
        call = self.program.producer(number)
        assert call is not None, "leaves have no formula"
        operands: list[str] = []
        for before in call.sources:
            if before in self.shown:
                operands.append(names[before])
            elif self.program.producer(before) is not None:
                inner = self._format_expression(before, names, depth + 1) if depth < MAX_DEPTH else None
                if inner is None:
                    return None
                operands.append(inner)
        if is_view_like(call):
            whole = operands[0] if operands else call.op
            route = operations.edge_label(call, self.program.tensors[number].position)
            written = f"{_parenthesize(whole)}{route}" if route else whole
        else:
            written = format_operation(self._label(call), operands)
        return written if len(written) <= MAX_FORMULA else None

    def find_inputs(self) -> Iterator[tuple[int, str]]:
        """Shown tensors that it reads, in the order of arguments, with the views on the way."""
        if self.last is None:
            return
        # If several calls are one node, repeated reads are dropped.
        once = len(self.working) > 1
        seen: set[tuple[int, str]] = set()
        waiting = list(self._read(self.number, ""))
        while waiting:
            number, route = waiting.pop(0)
            inner = number not in self.shown
            mark = (number, "inner" if inner else route)
            if (inner and self.program.producer(number) is None) or (once and mark in seen):
                continue
            seen.add(mark)
            if inner:
                waiting[:0] = self._read(number, route)
            else:
                yield number, route

    def _read(self, number: int, route: str) -> list[tuple[int, str]]:
        """Inputs of the call that computes a tensor, with the views from there on."""
        call = self.program.producer(number)
        assert call is not None, "leaves read nothing"
        here = operations.edge_label(call, self.program.tensors[number].position) + route if is_view_like(call) else ""
        return [(before, here) for before in call.sources]

    def _label(self, call: Call) -> str:
        if is_view_like(call):
            return operations.edge_label(call, self.traced.position) or call.op
        return operations.call_label(call, self._format_constant, lambda one: self.program.tensors[one].tensor.ndim)

    def _format_constant(self, number: int) -> str | None:
        traced = self.program.tensors[number]
        if number in self.shown or traced.kind != "constant" or traced.tensor.numel() != 1:
            return None
        return f"{traced.tensor.item():.4g}"


def is_view_like(call: Call) -> bool:
    """Whether it only reshapes or selects numbers."""
    selects = call.op in operations.INDEXING and len(call.sources) == 1
    return selects or call.op in operations.RESHAPING or operations.is_identity(call)


def _common_prefix(chains: Sequence[tuple[ModuleCall, ...]]) -> tuple[ModuleCall, ...]:
    first, *others = chains
    length = 0
    while length < len(first) and all(len(one) > length and one[length] is first[length] for one in others):
        length += 1
    return first[:length]


def _owner(program: Program, number: int) -> str:
    """The module that owns and alone reads a leaf."""
    homes = {call.modules[-1].path if call.modules else "" for call in program.calls if number in call.sources}
    home = homes.pop() if len(homes) == 1 else ""
    return home if (program.tensors[number].name or "").startswith(f"{home}.") else ""


def outermost_module(call: Call, collapsed: set[ModuleCall]) -> ModuleCall | None:
    return next((module for module in call.modules if module in collapsed), None)


def format_operation(sign: str, operands: Sequence[str]) -> str:
    """An operation and its operands as a formula: `a + b`, `1 − a`, `ReLU(a)`."""
    if sign == "−" and len(operands) == 1:
        return f"−{_parenthesize(operands[0])}"
    if len(operands) == 2 and sign in SIGNS:
        left, right = operands
        if sign not in "+−":
            left = _parenthesize(left)
        return f"{left} {sign} {right if sign == '+' else _parenthesize(right)}"
    if len(operands) == 1 and " " in sign:
        if sign.startswith(SIGNS):
            return f"{operands[0] if sign[0] in '+−' else _parenthesize(operands[0])} {sign}"
        if sign.endswith(SIGNS):
            return f"{sign} {_parenthesize(operands[0])}"
    return f"{sign}({', '.join(operands)})"


def _parenthesize(text: str) -> str:
    """In parentheses, unless it is a single term."""
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == " " and depth == 0:
            return f"({text})"
    return text

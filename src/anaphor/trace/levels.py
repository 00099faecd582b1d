"""From a recorded program to a graph. A level selects tensors; each becomes a node, together with the calls between it
and the selected tensors that it depends on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from anaphor.config import look_up, nearest
from anaphor.errors import ConfigError
from anaphor.trace import program as operations
from anaphor.trace.gradients import ProgramGradients, differentiate
from anaphor.trace.graph import Edge, Graph, Node
from anaphor.trace.grouping import Group, is_view_like, outermost_module
from anaphor.trace.program import Call, ModuleCall, Program


def build_graph(program: Program, level: str, output: str | None) -> Graph:
    """The graph of a program with the gradients of the named output, or of what it returns."""
    look_up(LEVELS, level, "level")
    of = _default_outputs(program)
    if output is not None:
        # Names at this level take precedence: with more nodes, more names get a number.
        numbers: dict[str, int] = {}
        for shown in (LEVELS[level](program), _everything(program)):
            groups = {number: Group(program, number, shown, set()) for number in sorted(shown)}
            for number, (name, _) in _names(program, groups).items():
                numbers.setdefault(name, number)
        of = (look_up(numbers, output, "output"),)
        if not program.tensors[of[0]].differentiable:
            raise ConfigError(f"output {output!r} has no gradient: it is not a floating-point result of the inputs")
    return graph_at_level(differentiate(program, of), level)


def graph_at_level(source: ProgramGradients, level: str, collapsed: Sequence[str] = ()) -> Graph:
    """`collapsed` are patterns of module paths that become one node each."""
    program = source.program
    shown = look_up(LEVELS, level, "level")(program)
    whole = (_innermost(program) if level == "modules" else set()) | _matching(program, collapsed)
    if whole:
        shown = _collapse(program, shown, whole)
    shown |= set(source.of)
    # Inputs first, in the order of the parameters; the rest in order of computation.
    ordered = sorted(shown, key=lambda number: (program.tensors[number].kind != "input", number))
    groups = {number: Group(program, number, shown, whole) for number in ordered}
    ids = {number: place for place, number in enumerate(ordered)}
    names = _names(program, groups)
    relative = {number: names[number][0].removeprefix(f"{group.module}.") for number, group in groups.items()}
    nodes, edges = [], []
    for number, group in groups.items():
        entering = list(group.find_inputs())
        inputs = tuple(ids[one] for one, _ in entering)
        nodes.append(_node(source, group, inputs, ids[number], names[number], group.formula(relative)))
        edges += [Edge(ids[one], ids[number], label) for one, label in entering]
    outputs = [*source.of, *(number for number in program.outputs if number not in source.of)]
    output_ids = tuple(ids[number] for number in outputs if number in ids)
    described, notes = _describe_outputs(source, names), tuple(program.notes)
    return Graph(program.name, tuple(nodes), tuple(edges), output_ids, described, level, notes, source)


def _default_outputs(program: Program) -> tuple[int, ...]:
    differentiable = [number for number in dict.fromkeys(program.outputs) if program.tensors[number].differentiable]
    scalars = [number for number in differentiable if program.tensors[number].tensor.numel() == 1]
    return tuple(scalars or differentiable or program.outputs[:1])


def _describe_outputs(source: ProgramGradients, names: dict[int, tuple[str, bool]]) -> str:
    if not source.gradients:
        return "nothing: the output does not depend on an input by differentiable operations"
    outputs = [names[number][0] for number in source.of]
    scalar = all(source.program.tensors[number].tensor.numel() == 1 for number in source.of)
    return " + ".join(outputs) if scalar else f"the sum of all numbers in {' and '.join(outputs)}"


# ---- which tensors are shown


def _everything(program: Program) -> set[int]:
    return program.live() | _inputs(program)


def _inputs(program: Program) -> set[int]:
    return {number for number, traced in enumerate(program.tensors) if traced.kind == "input"}


def _operations(program: Program) -> set[int]:
    """As drawn by hand: without reshaping, type conversions and unnamed constants."""
    live = program.live()
    readers = _readers(program, live)
    shown = _inputs(program)
    for number in sorted(live):
        traced, call = program.tensors[number], program.producer(number)
        if call is None:
            if traced.kind != "constant" or (traced.central and (traced.name or traced.tensor.numel() > 1)):
                shown.add(number)
        elif call.op in operations.RESHAPING or operations.is_identity(call):
            before = call.sources[0]
            if before in shown and _is_reshaped_by(program, before, readers[before], call):
                shown.remove(before)
                shown.add(number)
            elif number in program.outputs:
                shown.add(number)
        elif call.op in operations.INDEXING and len(call.sources) == 1:
            if (traced.central and traced.name) or number in program.outputs:
                shown.add(number)
        else:
            shown.add(number)
    return shown


def _is_reshaped_by(program: Program, number: int, readers: set[int], call: Call) -> bool:
    """Whether an unnamed result is read only by this call, which gives it its final shape, in the same module."""
    producer, traced = program.producer(number), program.tensors[number]
    if producer is None or traced.name is not None or number in program.outputs or len(readers) > 1:
        return False
    return producer.modules[: len(call.modules)] == call.modules


def _variables(program: Program) -> set[int]:
    """Variables only: unnamed results become part of the node that uses them."""
    shown = _operations(program)
    return {
        number
        for number in shown
        if program.tensors[number].call is None or program.tensors[number].name or number in program.outputs
    }


def _innermost(program: Program) -> set[ModuleCall]:
    """Calls of modules that call no other module."""
    around = {module for call in program.calls for module in call.modules[:-1]}
    return {module for call in program.calls for module in call.modules[-1:]} - around


LEVELS: dict[str, Callable[[Program], set[int]]] = {
    "everything": _everything,
    "operations": _operations,
    "names": _variables,
    "modules": _operations,  # with every innermost module as one node
}


def _matching(program: Program, patterns: Sequence[str]) -> set[ModuleCall]:
    by_path = {module.path: module for call in program.calls for module in call.modules}
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in by_path):
            some = (
                f"known: {', '.join(list(by_path)[:8])}{' …' if len(by_path) > 8 else ''}"
                if by_path
                else "there are none"
            )
            raise ConfigError(f"no module is called {pattern!r}{nearest(pattern, by_path)} ({some})")
    modules = {module for call in program.calls for module in call.modules}
    return {module for module in modules if any(fnmatchcase(module.path, pattern) for pattern in patterns)}


def _collapse(program: Program, shown: set[int], collapsed: set[ModuleCall]) -> set[int]:
    """Of the tensors computed in a collapsed module, keep only those that are used outside."""
    live = program.live()
    readers = _readers(program, live)
    inside = [outermost_module(call, collapsed) for call in program.calls]
    kept = set()
    for number in shown | live:
        traced = program.tensors[number]
        homes = {inside[reader] for reader in readers[number]}
        if traced.call is None:
            if number in shown and (traced.kind == "input" or not homes or None in homes):
                kept.add(number)
            continue
        own = inside[traced.call]
        if own is None:
            kept |= {number} & shown
        elif number in program.outputs or (homes - {own} and not _is_rearranged(program, number, readers, shown)):
            kept.add(number)
    return kept


def _is_rearranged(program: Program, number: int, readers: dict[int, set[int]], shown: set[int]) -> bool:
    """Whether it is only reshaped, and shown in its new shape."""
    while True:
        if len(readers[number]) != 1:
            return False
        (reader,) = readers[number]
        if not is_view_like(program.calls[reader]) or len(program.calls[reader].results) > 1:
            return False
        (number,) = program.calls[reader].results
        if number in shown:
            return True


def _readers(program: Program, live: set[int]) -> dict[int, set[int]]:
    """Calls that read each tensor and that an output depends on."""
    readers: dict[int, set[int]] = defaultdict(set)
    for index, call in enumerate(program.calls):
        if live.intersection(call.results):
            for number in call.sources:
                readers[number].add(index)
    return readers


# ---- nodes and names


def _node(
    source: ProgramGradients, group: Group, inputs: tuple[int, ...], id_: int, name: tuple[str, bool], formula: str
) -> Node:
    op, label = group.operation
    return Node(
        id=id_,
        name=name[0],
        op=op,
        label=label,
        formula=formula,
        inputs=inputs,
        value=group.traced.tensor.detach(),
        gradient=source.gradients.get(group.number),
        exact_value=source.exact.values.get(group.number),
        exact_gradient=source.exact.gradients.get(group.number),
        named=name[1],
        module=group.module,
        where="" if group.last is None else group.last.where,
        number=group.number,
        calls=tuple(group.calls),
    )


def _names(program: Program, groups: dict[int, Group]) -> dict[int, tuple[str, bool]]:
    """A unique name for each node, and whether it is a variable. Repeated names are numbered, except inputs."""
    wanted: dict[int, tuple[str, bool]] = {}
    for number, group in groups.items():
        traced = group.traced
        if traced.name is not None and (traced.central or group.last is None):
            wanted[number] = traced.name, True
        elif group.whole is not None:
            wanted[number] = group.whole.path, True
        else:
            plain = traced.name or group.operation[0]
            wanted[number] = ".".join(filter(None, (group.module, plain))), traced.name is not None
    counts = Counter(name for name, _ in wanted.values())
    taken = {
        name for number, (name, _) in wanted.items() if counts[name] == 1 or program.tensors[number].kind == "input"
    }
    given: dict[int, tuple[str, bool]] = {}
    following: Counter[str] = Counter()
    for number, (name, named) in wanted.items():
        unique = name
        if counts[name] > 1 and program.tensors[number].kind != "input":
            while unique in taken or unique == name:
                following[name] += 1
                unique = f"{name}_{following[name]}"
            taken.add(unique)
        given[number] = unique, named
    return given

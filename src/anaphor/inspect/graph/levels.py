"""From all that ran to what is drawn. A level is a choice of tensors; each becomes a node, together with the calls
between it and the chosen tensors that it is made of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from anaphor.config import look_up, nearest
from anaphor.errors import ConfigError
from anaphor.inspect.graph import operations
from anaphor.inspect.graph.differentiate import Differentiated, differentiated
from anaphor.inspect.graph.graph import Edge, Graph, Node
from anaphor.inspect.graph.grouping import Group, is_passage, outermost
from anaphor.inspect.graph.program import Call, ModuleCall, Program


def drawn(program: Program, level: str, output: str | None) -> Graph:
    """The graph of a program, differentiated by the output of that name, or by what it returns."""
    look_up(LEVELS, level, "level")
    of = _default_outputs(program)
    if output is not None:
        # Names as this level has them go first: with more nodes, more of them are numbered.
        known: dict[str, int] = {}
        for shown in (LEVELS[level](program), _everything(program)):
            groups = {number: Group(program, number, shown, set()) for number in sorted(shown)}
            for number, (name, _) in _names(program, groups).items():
                known.setdefault(name, number)
        of = (look_up(known, output, "output"),)
        if not program.held[of[0]].differentiable:
            raise ConfigError(f"output {output!r} has no gradient: it is no floating-point result of the inputs")
    return at_level(differentiated(program, of), level)


def at_level(source: Differentiated, level: str, collapsed: Sequence[str] = ()) -> Graph:
    """`collapsed` are patterns of module paths that become one node each."""
    program = source.program
    shown = look_up(LEVELS, level, "level")(program)
    whole = _innermost(program) if level == "modules" else set()
    if collapsed:
        whole |= _matching(program, collapsed)
    if whole:
        shown = _collapse(program, shown, whole)
    shown |= set(source.of)
    # Inputs first, as the function has them; everything else when it was met, which is its number.
    ordered = sorted(shown, key=lambda number: (program.held[number].kind != "input", number))
    groups = {number: Group(program, number, shown, whole) for number in ordered}
    ids = {number: place for place, number in enumerate(ordered)}
    names = _names(program, groups)
    short = {number: _short(names[number][0], group.module) for number, group in groups.items()}
    nodes, edges = [], []
    for number, group in groups.items():
        entering = list(group.entering())
        inputs = tuple(ids[one] for one, _ in entering)
        nodes.append(_node(source, group, inputs, ids[number], names[number], group.formula(short)))
        edges += [Edge(ids[one], ids[number], label) for one, label in entering]
    outputs = [*source.of, *(number for number in program.outputs if number not in source.of)]
    return Graph(
        program.name,
        tuple(nodes),
        tuple(edges),
        tuple(ids[number] for number in outputs if number in ids),
        _differentiated_in_words(source, names),
        level,
        tuple(program.notes),
        source,
    )


def _default_outputs(program: Program) -> tuple[int, ...]:
    smooth = [number for number in dict.fromkeys(program.outputs) if program.held[number].differentiable]
    scalars = [number for number in smooth if program.held[number].tensor.numel() == 1]
    return tuple(scalars or smooth or program.outputs[:1])


def _differentiated_in_words(source: Differentiated, names: dict[int, tuple[str, bool]]) -> str:
    if not source.gradients:
        return "nothing: no gradient leads from it to an input"
    written = [names[number][0] for number in source.of]
    if all(source.program.held[number].tensor.numel() == 1 for number in source.of):
        return " + ".join(written)
    return f"the sum of all numbers in {' and '.join(written)}"


# ---- which tensors are shown


def _everything(program: Program) -> set[int]:
    return program.live() | _inputs(program)


def _inputs(program: Program) -> set[int]:
    return {number for number, held in enumerate(program.held) if held.kind == "input"}


def _operations(program: Program) -> set[int]:
    """As one would draw it by hand: no shapes, no types, no constants that nobody named."""
    live = program.live()
    readers = _readers(program, live)
    shown = _inputs(program)
    for number in sorted(live):
        held, call = program.held[number], program.maker(number)
        if call is None:
            if held.kind != "constant" or (held.central and (held.name or held.tensor.numel() > 1)):
                shown.add(number)
        elif call.op in operations.ARRANGING or operations.passes_on(call):
            before = call.sources[0]
            if before in shown and _is_made_for(program, before, readers[before], call):
                shown.remove(before)
                shown.add(number)
            elif number in program.outputs:
                shown.add(number)
        elif call.op in operations.PICKING and len(call.sources) == 1:
            if (held.central and held.name) or number in program.outputs:
                shown.add(number)
        else:
            shown.add(number)
    return shown


def _is_made_for(program: Program, number: int, readers: set[int], call: Call) -> bool:
    """Whether a result has no name and is read by nothing but this call, which gives it its final shape. A call in
    another module does not: the tensor would move there."""
    made, held = program.maker(number), program.held[number]
    if made is None or held.name is not None or number in program.outputs or len(readers) > 1:
        return False
    return made.modules[: len(call.modules)] == call.modules


def _named(program: Program) -> set[int]:
    """Variables only: what has no name is part of what it is made for."""
    shown = _operations(program)
    return {
        number
        for number in shown
        if program.held[number].call is None or program.held[number].name or number in program.outputs
    }


def _innermost(program: Program) -> set[ModuleCall]:
    """Calls of modules in which no other module is called."""
    around = {module for call in program.calls for module in call.modules[:-1]}
    return {module for call in program.calls for module in call.modules[-1:]} - around


LEVELS: dict[str, Callable[[Program], set[int]]] = {
    "everything": _everything,
    "operations": _operations,
    "names": _named,
    "modules": _operations,  # with every innermost module as one node
}


def _matching(program: Program, patterns: Sequence[str]) -> set[ModuleCall]:
    known = {module.path: module for call in program.calls for module in call.modules}
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in known):
            some = f"known: {', '.join(list(known)[:8])}{' …' if len(known) > 8 else ''}" if known else "there is none"
            raise ConfigError(f"no module is called {pattern!r}{nearest(pattern, known)} ({some})")
    modules = {module for call in program.calls for module in call.modules}
    return {module for module in modules if any(fnmatchcase(module.path, pattern) for pattern in patterns)}


def _collapse(program: Program, shown: set[int], collapsed: set[ModuleCall]) -> set[int]:
    """Of what is made in a collapsed module, only what leaves it stays."""
    live = program.live()
    readers = _readers(program, live)
    inside = [outermost(call, collapsed) for call in program.calls]
    kept = set()
    for number in shown | live:
        held = program.held[number]
        homes = {inside[reader] for reader in readers[number]}
        if held.call is None:
            if number in shown and (held.kind == "input" or not homes or None in homes):
                kept.add(number)
            continue
        own = inside[held.call]
        if own is None:
            kept |= {number} & shown
        elif number in program.outputs or (homes - {own} and not _is_rearranged(program, number, readers, shown)):
            kept.add(number)
    return kept


def _is_rearranged(program: Program, number: int, readers: dict[int, set[int]], shown: set[int]) -> bool:
    """Whether all that is done with it is to give it a new shape, under which it is shown."""
    while True:
        if len(readers[number]) != 1:
            return False
        (reader,) = readers[number]
        if not is_passage(program.calls[reader]) or len(program.calls[reader].results) > 1:
            return False
        (number,) = program.calls[reader].results
        if number in shown:
            return True


def _readers(program: Program, live: set[int]) -> dict[int, set[int]]:
    """Calls that read each tensor and lead to an output."""
    readers: dict[int, set[int]] = defaultdict(set)
    for index, call in enumerate(program.calls):
        if live.intersection(call.results):
            for number in call.sources:
                readers[number].add(index)
    return readers


# ---- nodes and names


def _short(name: str, module: str) -> str:
    return name.removeprefix(f"{module}.") if module else name


def _node(
    source: Differentiated,
    group: Group,
    inputs: tuple[int, ...],
    id_: int,
    name: tuple[str, bool],
    formula: str,
) -> Node:
    op, label = group.operation
    return Node(
        id=id_,
        name=name[0],
        op=op,
        label=label,
        formula=formula,
        inputs=inputs,
        value=group.held.tensor.detach(),
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
    """A name for each, and whether somebody chose it. Names that come again are numbered, but for inputs."""
    wanted: dict[int, tuple[str, bool]] = {}
    for number, group in groups.items():
        held = group.held
        if held.name is not None and (held.central or group.last is None):
            wanted[number] = held.name, True
        elif group.whole is not None:
            wanted[number] = group.whole.path, True
        else:
            plain = held.name or group.operation[0]
            wanted[number] = ".".join(filter(None, (group.module, plain))), held.name is not None
    counts = Counter(name for name, _ in wanted.values())
    taken = {name for number, (name, _) in wanted.items() if counts[name] == 1 or program.held[number].kind == "input"}
    given: dict[int, tuple[str, bool]] = {}
    following: Counter[str] = Counter()
    for number, (name, named) in wanted.items():
        unique = name
        if counts[name] > 1 and program.held[number].kind != "input":
            while unique in taken or unique == name:
                following[name] += 1
                unique = f"{name}_{following[name]}"
            taken.add(unique)
        given[number] = unique, named
    return given

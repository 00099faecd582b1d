"""`anaphor trace FILE::FUNCTION`: the computation graph of a function, with a value and a gradient at every node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from anaphor.errors import ConfigError
from anaphor.flags import Positional, parse
from anaphor.shipped_files import EXAMPLES, find_file
from anaphor.user_paths import writing_to

if TYPE_CHECKING:
    from anaphor.trace.gradients import Check
    from anaphor.trace.graph import Graph

LEVELS = ("operations", "names", "modules", "everything")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Computation graph of a Python function on tensors, with a value and a gradient at every node.

    The function's default arguments are its inputs: numbers, fractions, lists of numbers, tensors and modules.
    Gradients are those of the sum of the returned scalars, or of all returned tensors if none is a scalar.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor trace graph.py::loss",
        "anaphor trace graph.py::loss --check --out traced",
    )

    target: Annotated[str, Positional("FILE::FUNCTION")]
    """Function to trace; the file is run."""
    output: str | None = None
    """Name of the tensor to differentiate, instead of the returned ones."""
    level: str = "operations"
    """Level of detail: operations, names (variables only), modules (innermost as one node) or everything."""
    collapse: tuple[str, ...] = ()
    """Modules to show as one node each; `layers.*` is a pattern."""
    check: bool = False
    """Compare the gradients with finite differences in double precision."""
    out: Path | None = None
    """Folder for graph.svg, graph.png and graph.html (interactive page)."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    json: bool = False
    """Print one JSON value: nodes with id, name, op, inputs, value and gradient, and the id of the output."""

    def __post_init__(self) -> None:
        if "::" not in self.target or not all(self.target.rsplit("::", 1)):
            raise ConfigError(f"{self.target!r} is not of the form FILE::FUNCTION, for example model.py::loss")
        if self.level not in LEVELS:
            raise ConfigError(f"unknown level {self.level!r} (known: {', '.join(LEVELS)})")


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor trace")

    from anaphor.trace.inputs import trace_file
    from anaphor.training.device import set_threads

    set_threads(options.threads)

    file, function = options.target.rsplit("::", 1)
    graph = trace_file(find_file(file, ".py", EXAMPLES), function, level=options.level, output=options.output)
    if options.collapse:
        graph = graph.collapsed(*options.collapse)
    check = graph.check() if options.check else None
    written: list[Path] = []
    if options.out is not None:
        with writing_to(options.out):
            written = list(graph.draw(*(options.out / f"graph.{ending}" for ending in ("svg", "png", "html"))))
    if options.json:
        print(json.dumps(_plain(graph, check, written), allow_nan=False))
    else:
        print(graph.text())
        for line in (*([check] if check is not None else []), *written):
            print(line)
    return 0 if check is None or check.agrees else 1


def _plain(graph: Graph, check: Check | None, written: Sequence[Path]) -> dict[str, Any]:
    """The graph, and the check and the written files if requested."""
    return {
        **graph.plain(),
        **({} if check is None else {"check": check.plain()}),
        **({"written": [str(path) for path in written]} if written else {}),
    }

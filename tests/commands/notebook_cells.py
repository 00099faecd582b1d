"""Run the cells of a notebook in order, as Jupyter does, without it."""

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

from anaphor.cli.main import main

PIP = re.compile(r"^(\s*)%pip .*$", re.MULTILINE)
SHELL = re.compile(r"^!anaphor (.*)$", re.MULTILINE)


def read_cells(path: Path, kind: str = "code") -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def to_python(source: str) -> str:
    """A cell without the two things that are no Python: the installation, and commands after `!`."""
    source = PIP.sub(r"\1raise AssertionError('it is installed')", source)
    return SHELL.sub(lambda match: f"_run({match[1]!r})", source)


def run_command(line: str) -> None:
    assert main(shlex.split(line)) == 0, line


def run_cells(path: Path) -> list[Any]:
    """What the last expression of each cell is; None where a cell ends with a statement."""
    namespace: dict[str, Any] = {"__name__": "__main__", "_run": run_command}
    shown = []
    for number, source in enumerate(read_cells(path)):
        tree = ast.parse(to_python(source))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}, cell {number}", "exec"), namespace)
        value = ast.Expression(last.value) if last is not None else None
        shown.append(None if value is None else eval(compile(value, f"{path.name}, cell {number}", "eval"), namespace))
    return shown

"""The part of a reference that calls a student's own: sent into the sandbox without the answers.

A reference has the right computation and its known mistakes beside the functions that make inputs (`cases`), derive
sizes and run a student's own. Only the latter are needed where the student's code runs. So their source is cut out of
their module, with all that they use, and the module in the sandbox has that and no more.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anaphor.course import references
from anaphor.course.reference import Reference
from anaphor.errors import ConfigError

FIELDS = ("run", "derived")
"""Functions of a reference that the sandbox needs."""
WITH_CASES = "cases"
"""Needed where inputs are made there, because a message cannot have them."""


@dataclass
class Slices:
    """Source of modules, cut down to what was asked for."""

    names: dict[str, set[str]] = field(default_factory=dict)
    """Top-level names that are kept, by module."""
    added: dict[str, dict[str, str]] = field(default_factory=dict)
    """Names that are added, with their expression, by module."""

    def add(self, module: str, names: Iterable[str]) -> None:
        """Keep names of a module, and all that they use."""
        waiting = [(module, name) for name in names]
        while waiting:
            place, name = waiting.pop()
            kept = self.names.setdefault(place, set())
            if name in kept:
                continue
            kept.add(name)
            waiting += _used_by(place, _definitions(place).get(name, []))

    def add_expression(self, module: str, name: str, expression: ast.expr) -> None:
        """Keep what an expression uses, and give its value a name."""
        self.added.setdefault(module, {})[name] = ast.unparse(expression)
        for place, used in _used_by(module, [expression]):
            self.add(place, [used])
        self.names.setdefault(module, set())

    def sources(self) -> dict[str, str]:
        """The source of every module."""
        return {module: self._source(module) for module in self.names}

    def _source(self, module: str) -> str:
        lines = ["from __future__ import annotations"]
        kept = self.names[module]
        for node in _tree(module).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines += _keep_import(node, kept)
            elif set(_defined(node)) & kept:
                lines.append(ast.unparse(node))
        lines += [f"{name} = {text}" for name, text in self.added.get(module, {}).items()]
        return "\n".join(lines) + "\n"


def describe_reference(reference: Reference, slices: Slices, *, with_cases: bool) -> dict[str, Any]:
    """What the sandbox needs of a reference, as plain values; its functions are kept in the slices, and named."""
    functions = {}
    for name in (*FIELDS, *([WITH_CASES] if with_cases else [])):
        value = getattr(reference, name)
        if value is not None and value is not dict:
            functions[name] = _place(reference, name, value, slices)
    return {
        "name": reference.name,
        "call": reference.call,
        "outputs": [*reference.outputs],
        "arguments": [*reference.arguments],
        "sizes": dict(reference.sizes),
        "constructors": [[*form] for form in reference.constructors],
        "optional": [*reference.optional],
        "time_first": [*reference.time_first],
        "forms": [*reference.forms],
        "functions": functions,
    }


def _place(reference: Reference, field_name: str, value: Callable[..., Any], slices: Slices) -> str:
    """Where a function of a reference is in the sandbox: "module:name"."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if module.startswith(references.__name__) and name in _definitions(module):
        slices.add(module, [name])
        return f"{module}:{name}"
    for module, tree in _reference_modules().items():
        for node in tree.body:
            call = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if not isinstance(call, ast.Call) or getattr(sys.modules[module], _defined(node)[0], None) is not reference:
                continue
            expression = next((one.value for one in call.keywords if one.arg == field_name), None)
            if expression is not None:
                own = f"{_defined(node)[0]}_{field_name}"
                slices.add_expression(module, own, expression)
                return f"{module}:{own}"
    raise ConfigError(f"{reference.name}: its function {field_name} must have a name in its module, to be sent")


def _reference_modules() -> Mapping[str, ast.Module]:
    names = [name for name in sys.modules if name.startswith(f"{references.__name__}.")]
    return {name: _tree(name) for name in names}


_TREES: dict[str, ast.Module] = {}


def _tree(module: str) -> ast.Module:
    if module not in _TREES:
        file = inspect.getsourcefile(sys.modules[module])
        assert file is not None, "references are plain files"
        _TREES[module] = ast.parse(Path(file).read_text(encoding="utf-8"))
    return _TREES[module]


def _defined(node: ast.AST) -> list[str]:
    """Names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.id for target in targets if target is not None for one in ast.walk(target) if isinstance(one, ast.Name)]


def _definitions(module: str) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in _tree(module).body:
        for name in _defined(node):
            found.setdefault(name, []).append(node)
    return found


def _used_by(module: str, nodes: Iterable[ast.AST]) -> list[tuple[str, str]]:
    """Modules and top-level names that statements use, those of other modules of references included."""
    used = {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
    found = [(module, name) for name in used & _definitions(module).keys()]
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{references.__name__}."):
            found += [(str(node.module), one.name) for one in node.names if (one.asname or one.name) in used]
    found += [(module, name) for name in used if name in _imported(module)]
    return found


def _imported(module: str) -> set[str]:
    nodes = [node for node in _tree(module).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(one.asname or one.name.partition(".")[0]) for node in nodes for one in node.names}


def _keep_import(node: ast.Import | ast.ImportFrom, kept: set[str]) -> list[str]:
    names = [one for one in node.names if (one.asname or one.name.partition(".")[0]) in kept]
    if not names or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
        return []
    part = ast.Import(names) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, names, node.level)
    return [ast.unparse(part)]

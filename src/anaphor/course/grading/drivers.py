"""The part of a reference that calls a student's own: sent into the sandbox without the answers.

A reference has the right computation and its known mistakes beside the functions that make inputs (`cases`), derive
sizes and run a student's own. Only the latter are needed where the student's code runs. So their source is cut out of
their module, with all that they use, and the module in the sandbox has that, a reference that cannot compute, and no
more.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from anaphor.course import references
from anaphor.course.reference import Reference
from anaphor.errors import ConfigError

ANSWERS: Mapping[str, str] = {
    "compute": "None", "designs": "()", "mistakes": "()", "read": "None", "shapes": "None", "forms": "{}",
    "cases": "None", "vary": "None",
}  # fmt: skip
"""Fields of a reference that stay outside, and what is there instead."""
HEAD = """\
from __future__ import annotations
from functools import partial as _partial
import torch as _torch
from anaphor.course.reference import Reference as _Reference
"""


@dataclass
class Slices:
    """Source of modules, cut down to what was asked for."""

    names: dict[str, set[str]] = field(default_factory=dict)
    """Top-level names that are kept, by module."""
    stubs: dict[str, dict[str, str]] = field(default_factory=dict)
    """References that cannot compute: their expressions by name, by module."""

    def add(self, module: str, names: Iterable[str]) -> None:
        """Keep names of a module, and all that they use."""
        waiting = [(module, name) for name in names]
        while waiting:
            place, name = waiting.pop()
            kept = self.names.setdefault(place, set())
            value = getattr(sys.modules[place], name, None)
            if name in kept:
                continue
            if isinstance(value, Reference) and name in _definitions(place):
                self.add_reference(place, name, value, with_cases=False)
                continue
            kept.add(name)
            waiting += _find_used(place, _definitions(place).get(name, []))

    def add_reference(self, module: str, name: str, reference: Reference, *, with_cases: bool) -> None:
        """A reference under its name, without its answers."""
        stubs = self.stubs.setdefault(module, {})
        if name in stubs and not with_cases:
            return
        self.names.setdefault(module, set())
        stubs[name] = "None"  # while its parts are looked at, which may name it
        values = {**ANSWERS}
        if with_cases:  # inputs are made there
            del values["cases"], values["vary"], values["forms"]
        for one in fields(Reference):
            if one.name not in values:
                values[one.name] = self._render(getattr(reference, one.name), f"{reference.name}.{one.name}")
        stubs[name] = f"_Reference({', '.join(f'{key}={value}' for key, value in values.items())})"

    def _render(self, value: Any, what: str) -> str:
        """An expression that gives a value in the sandbox."""
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, tuple | list):
            parts = "".join(f"{self._render(one, what)}, " for one in value)
            return f"({parts})" if isinstance(value, tuple) else f"[{parts}]"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{key!r}: {self._render(one, what)}" for key, one in value.items()) + "}"
        if isinstance(value, partial):
            words = [self._render(one, what) for one in (value.func, *value.args)]
            words += [f"{name}={self._render(one, what)}" for name, one in value.keywords.items()]
            return f"_partial({', '.join(words)})"
        if value is dict:
            return "dict"
        module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
        if module.startswith(f"{references.__name__}.") and name in _definitions(module):
            self.add(module, [name])
            return f'__import__("importlib").import_module({module!r}).{name}'
        own: str = getattr(value, "__name__", "")
        for owner, place in ((torch, "_torch"), (functional, "_torch.nn.functional")):
            if getattr(owner, own, None) is value:
                return f"{place}.{own}"
        raise ConfigError(f"{what} must be a function with a name in its module, so that it can be sent to a sandbox")

    def sources(self) -> dict[str, str]:
        """The source of every module."""
        return {module: self._source(module) for module in self.names}

    def _source(self, module: str) -> str:
        lines = [HEAD]
        kept = self.names[module]
        for node in _tree(module).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines += _keep_import(node, kept)
            elif {*_defined_names(node)} & kept:
                lines.append(ast.unparse(node))
        lines += [f"{name} = {text}" for name, text in self.stubs.get(module, {}).items()]
        return "\n".join(lines) + "\n"


_TREES: dict[str, ast.Module] = {}


def _tree(module: str) -> ast.Module:
    if module not in _TREES:
        file = inspect.getsourcefile(sys.modules[module])
        assert file is not None, "references are plain files"
        _TREES[module] = ast.parse(Path(file).read_text(encoding="utf-8"))
    return _TREES[module]


def _defined_names(node: ast.AST) -> list[str]:
    """Names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.id for target in targets if target is not None for one in ast.walk(target) if isinstance(one, ast.Name)]


def _definitions(module: str) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in _tree(module).body:
        for name in _defined_names(node):
            found.setdefault(name, []).append(node)
    return found


def _find_used(module: str, nodes: Iterable[ast.AST]) -> list[tuple[str, str]]:
    """Modules and top-level names that statements use, those of other modules of references included."""
    used = {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
    found = [(module, name) for name in used & (_definitions(module).keys() | _imported_names(module))]
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{references.__name__}."):
            found += [(str(node.module), one.name) for one in node.names if (one.asname or one.name) in used]
    return found


def _imported_names(module: str) -> set[str]:
    nodes = [node for node in _tree(module).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {_bound(one) for node in nodes for one in node.names}


def _bound(name: ast.alias) -> str:
    return name.asname or name.name.partition(".")[0]


def _keep_import(node: ast.Import | ast.ImportFrom, kept: set[str]) -> list[str]:
    names = [one for one in node.names if _bound(one) in kept]
    if not names or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
        return []
    part = ast.Import(names) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, names, node.level)
    return [ast.unparse(part)]

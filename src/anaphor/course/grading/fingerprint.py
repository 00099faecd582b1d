"""What is the same in two programs whose names differ: a digest of each class and function of a file.

Names that the file gives are replaced by their order of appearance; docstrings, annotations and comments are left out.
Names of libraries stay, and so do numbers.
"""

from __future__ import annotations

import ast
import hashlib
import warnings

MIN_NODES = 90
"""Parts of a program with fewer nodes in their tree are written alike by many."""
MAX_BYTES = 300_000
"""Of a file that is parsed."""


def fingerprints(source: bytes) -> dict[str, str]:
    """A digest by the name of every class and function at the top of a file; of those long enough to tell."""
    if len(source) > MAX_BYTES:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    own = _own_names(tree)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
            parts = _Normalizer(own).lines(node)
            if len(parts) >= MIN_NODES:
                found[name] = hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return found


def _own_names(tree: ast.Module) -> set[str]:
    """Names that the file gives to what it defines: variables, arguments, functions, classes and attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names - {"forward", "__init__"}


class _Normalizer:
    """A tree as lines: the kind of each node, and the names and values in it."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.numbers: dict[str, int] = {}

    def lines(self, node: ast.AST) -> list[str]:
        found = [type(node).__name__]
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "ctx", "decorator_list"):
                continue
            if name == "body" and isinstance(value, list):
                value = [one for one in value if not _is_text(one)]
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    found += self.lines(one)
                elif one is not None:
                    found.append(self._name(one) if isinstance(one, str) else repr(one))
        return found

    def _name(self, name: str) -> str:
        return f"own {self.numbers.setdefault(name, len(self.numbers))}" if name in self.own else name


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

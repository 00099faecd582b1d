"""What the code of an exercise is built on, and the teacher's solution in place of those parts that are wrong.

A student's `MultiHeadAttention` is made of their `AttentionHead`. So that a mistake there costs once, what is built on
it is graded with the solution of `AttentionHead` in its place. Which parts there are is read from the solutions, never
from what a student wrote; of the solutions, those parts alone are sent into the sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from anaphor.course.sheet import Sheet, read_sheet

PREFIX = "anaphor_solution_"
"""How the module with parts of a solution is called, beside a student's files."""


@dataclass(frozen=True, order=True)
class Part:
    """A class or function of a sheet's code, by its file."""

    file: str
    name: str


@dataclass(frozen=True)
class Written:
    """What is written into a file of the copy of a submission."""

    text: str
    is_added: bool
    """At the end of the file; otherwise in place of it."""


class Solutions:
    """The solutions of a sheet: their top-level definitions, and what each of them uses."""

    def __init__(self, sheet: Sheet) -> None:
        paths = sorted((sheet.folder / "solutions").glob("*.py"))
        self.trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
        self.checked = {
            Part(exercise.file, check.name) for exercise in sheet.exercises for check in exercise.checks
        } & {Part(file, name) for file in self.trees for name in self._definitions(file)}

    def built_on(self, part: Part) -> set[Part]:
        """The parts with a check of their own that a part is made of, at any depth."""
        return (self._reach([part]) - {part}) & self.checked

    def files_below(self, file: str) -> set[str]:
        """The files that a file imports, at any depth."""
        found: set[str] = set()
        waiting = [file]
        while waiting:
            new = {origin.file for origin in self._imported(waiting.pop()).values()} - found - {file}
            found |= new
            waiting += new
        return found

    def replace(self, parts: Iterable[Part], whole: Iterable[str] = ()) -> dict[str, Written]:
        """What is written into a submission so that it has the solution of these parts.

        Args:
            parts: What is replaced: the name that comes last in a file is the one that counts.
            whole: Files of which nothing can be kept, since they cannot be imported. All their parts are replaced.
        """
        whole = {*whole}
        by_file: dict[str, list[str]] = {}
        for part in sorted({*parts, *(part for part in self.checked if part.file in whole)}):
            by_file.setdefault(part.file, []).append(part.name)
        files = {
            file: Written(f"from {module_name(file)} import {', '.join(names)}\n", file not in whole)
            for file, names in by_file.items()
        }
        reached = self._reach(Part(file, name) for file, names in by_file.items() for name in names)
        for file in sorted({part.file for part in reached}):
            files[f"{module_name(file)}.py"] = Written(self._cut(file, reached), is_added=False)
        return files

    def _reach(self, parts: Iterable[Part]) -> set[Part]:
        found: set[Part] = set()
        waiting = list(parts)
        while waiting:
            part = waiting.pop()
            if part not in found:
                found.add(part)
                waiting += self._used(part)
        return found

    def _used(self, part: Part) -> list[Part]:
        """Definitions that a definition names: of its file, and of those that it imports."""
        nodes = [node for node in self._statements(part.file) if part.name in _names(node)]
        named = {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
        imported = self._imported(part.file)
        own = [Part(part.file, name) for name in named & self._definitions(part.file)]
        return own + [imported[name] for name in named & imported.keys()]

    def _definitions(self, file: str) -> set[str]:
        return {name for node in self._statements(file) for name in _names(node)}

    def _statements(self, file: str) -> list[ast.stmt]:
        return self.trees[file].body if file in self.trees else []

    def _imported(self, file: str) -> dict[str, Part]:
        """Names that a file imports from the others."""
        return {
            name.asname or name.name: Part(f"{node.module}.py", name.name)
            for node in self._statements(file)
            if isinstance(node, ast.ImportFrom) and f"{node.module}.py" in self.trees
            for name in node.names
        }

    def _cut(self, file: str, reached: set[Part]) -> str:
        """The source of those definitions of a file that are reached, with imports for them."""
        lines = []
        for node in self.trees[file].body:
            if isinstance(node, ast.ImportFrom) and f"{node.module}.py" in self.trees:
                names = [name for name in node.names if Part(f"{node.module}.py", name.name) in reached]
                if names:
                    lines.append(ast.unparse(ast.ImportFrom(module_name(f"{node.module}.py"), names, 0)))
            elif isinstance(node, ast.Import | ast.ImportFrom) or {Part(file, name) for name in _names(node)} & reached:
                lines.append(ast.unparse(node))
        return "\n".join(lines) + "\n"


@cache
def solutions_of(number: str) -> Solutions:
    """The solutions of the sheet of that number."""
    return Solutions(read_sheet(number))


def module_name(file: str) -> str:
    return f"{PREFIX}{Path(file).stem}"


def _names(node: ast.stmt) -> list[str]:
    """Names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.id for target in targets if target is not None for one in ast.walk(target) if isinstance(one, ast.Name)]


def as_message(files: Mapping[str, Written]) -> dict[str, list[str | bool]]:
    """The files as a message into the sandbox has them."""
    return {name: [one.text, one.is_added] for name, one in files.items()}

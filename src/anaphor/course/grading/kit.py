"""The modules of Anaphor that a sandbox may import: those that call a student's code, without reference or answer."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anaphor.course import references
from anaphor.course.catalog import CATALOG, find_reference, has_reference
from anaphor.course.grading.drivers import Slices
from anaphor.course.grading.remote import can_send
from anaphor.course.grading.sandbox import PACKAGE
from anaphor.course.reference import Reference
from anaphor.course.sheet import Sheet
from anaphor.errors import ConfigError

INSIDE = "anaphor.course.grading.inside"
FORBIDDEN = ("anaphor.course.references.", "anaphor.course.numbers.", "anaphor.course.sheets")
"""Modules that are never sent as they are."""
_LIST = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps([name for name in sys.modules if name == "anaphor" or name.startswith("anaphor.")]))
"""


def make_kit(folder: Path, sheets: Iterable[Sheet]) -> dict[str, dict[str, Any]]:
    """Write the modules into a folder, and return for each reference of the sheets its `place` in the sandbox, and
    whether the grader `sends_inputs`. A reference that does not exist is left out."""
    sheets = list(sheets)
    slices, described = Slices(), dict[str, dict[str, Any]]()
    for name in sorted({check.reference for sheet in sheets for one in sheet.exercises for check in one.checks}):
        if not has_reference(name):
            continue
        described[name] = add_to(slices, find_reference(name))
    sources = slices.sources()
    wanted = [INSIDE, "anaphor.course.catalog", *(name for text in sources.values() for name in _imports_of(text))]
    for module in _needed_modules(sheets, [name for name in wanted if not name.startswith(FORBIDDEN)]):
        if not module.startswith(FORBIDDEN):
            _copy(module, folder)
    _copy(references.__name__, folder)
    for module, source in sources.items():
        _path(module, folder).write_text(source, encoding="utf-8")
    return described


def add_to(slices: Slices, reference: Reference) -> dict[str, Any]:
    """Add what the sandbox needs of a reference, and say where it is there."""
    full = {**reference.sizes}
    forms = [{size: full[size] for size in form if size in full} for form in reference.constructors]
    cases = reference.cases(reference.derived(forms[0] if forms else full))
    sends = all(can_send(case.inputs) for case in cases)
    module, _, attribute = CATALOG[reference.name].reference.partition(":")
    slices.add_reference(module, attribute, reference, with_cases=not sends)
    return {"place": f"{module}:{attribute}", "sends_inputs": sends}


def _needed_modules(sheets: Iterable[Sheet], wanted: list[str]) -> list[str]:
    """Modules that these and the stubs import, themselves included."""
    for sheet in sheets:
        for stub in sorted((sheet.folder / "stubs").rglob("*.py")):
            wanted += _imports_of(stub.read_text(encoding="utf-8"))
    argv = [sys.executable, "-c", _LIST, json.dumps(wanted)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *sys.path])}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise ConfigError(f"the program of the sandbox cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    modules: list[str] = json.loads(done.stdout)
    return modules


def _imports_of(source: str) -> list[str]:
    found = list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return [name for name in found if name.split(".")[0] == "anaphor"]


def _source_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _path(module: str, folder: Path) -> Path:
    path = folder / _source_of(module).relative_to(PACKAGE.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _copy(module: str, folder: Path) -> None:
    source = _source_of(module)
    if source.is_file():  # not a file of a user
        _path(module, folder).write_bytes(source.read_bytes())

"""Rules of the house: one direction of imports, every module alone, nothing unsafe, nothing unfinished."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anaphor.registry import SHELVES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "anaphor"
SHEETS = SOURCE / "course" / "sheets"  # files of students, which import those beside them
MODULES = sorted(path for path in SOURCE.rglob("*.py") if not path.is_relative_to(SHEETS))
CORE = ["errors", "deprecated", "processor", "precision", "file_locks", "files", "user_paths", "shipped_files",
        "plain_values",
        "yaml_files", "config",
        "typecheck", "flags", "imported_files", "registry", "operations", "row_draws", "draw", "taps", "mixers",
        "cuda_graphs", "models", "progress_listener", "data", "metrics", "evaluation", "generate", "beam_search",
        "inspect", "training", "tasks", "progress", "cli", "api", "__main__"]  # fmt: skip
ORDER = [*CORE, *SHELVES, "examples"]
MAY_USE = {("labs", "trace"), ("web", "studies")}
"""Shelves that have less to offer where another one is missing."""


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "anaphor"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    own = name_of(path).split(".")
    if len(own) == 1:
        return
    for imported in imports_of(path):
        parts = imported.split(".")
        if len(parts) > 1:
            assert ORDER.index(parts[1]) <= ORDER.index(own[1]), f"{name_of(path)} imports {imported}"
            are_shelves = {own[1], parts[1]} <= {*SHELVES} and own[1] != parts[1]
            assert not are_shelves or (own[1], parts[1]) in MAY_USE, f"{name_of(path)} imports {imported}"


def test_every_package_has_its_place_in_the_order():
    packages = {name_of(path).split(".")[1] for path in MODULES if "." in name_of(path)}
    assert packages <= set(ORDER), "add the new package to the order"


def test_no_file_is_a_drawer_for_odds_and_ends():
    assert not [path for path in MODULES if path.stem in ("utils", "helpers", "common", "misc")]


@pytest.mark.slow
def test_every_module_imports_alone():
    """Each from a clean slate of its own part. Parts import one way, so what other parts hold cannot help it."""
    script = (
        "import functools, importlib, sys\n"
        "from importlib.machinery import SourceFileLoader\n"
        "SourceFileLoader.get_code = functools.cache(SourceFileLoader.get_code)\n"  # executed often, compiled once
        "for name in sys.argv[1:]:\n"
        "    part = name.split('.')[:2]\n"
        "    for loaded in [m for m in sys.modules if m.split('.')[:2] == part or m == 'anaphor']:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(name_of, MODULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_unsafe_and_nothing_unfinished(path):
    """What ruff has no rule for; it refuses `pickle`, `eval`, `exec` and bare `except`."""
    text = path.read_text(encoding="utf-8")
    banned = r"allow_pickle(?! *= *False)|torch\.load\(|weights_only *= *False|\b(TODO|FIXME|XXX)\b"
    assert not re.findall(banned, text)


def test_the_version_is_told_once():
    from anaphor import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_no_two_test_files_have_one_name():
    """The test runner knows them by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_browser_tests_wait_for_elements_not_for_scripts():
    """Our pages forbid evaluated strings. Playwright's first look is exempt, later ones fail: on a slow machine."""
    waits = re.compile(r"\.wait_for_function\(")
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert [name for name, text in files.items() if waits.search(text)] == []

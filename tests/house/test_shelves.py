"""Shelves: each may be deleted, and all of them. What remains lists its own verbs, trains, and passes its tests."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anaphor.registry import SHELVES, has_shelf

ROOT = Path(__file__).parents[2]
VERBS = {
    "interchange": ("convert", "export"),
    "studies": ("study",),
    "trace": ("trace",),
    "labs": ("lab",),
    "course": ("adapter", "bundle", "check", "grade", "handout", "hint", "leaderboard"),
    "web": ("runs", "serve", "report"),
}
FUNCTIONS = {
    "interchange": ("convert", "export", "interchange"),
    "studies": ("StudyResult", "StudySpec", "read_study", "study"),
    "trace": ("trace",),
    "labs": ("LABS",),
    "web": ("compare_runs",),
}
USERS = {"trace": ("anaphor.labs.backprop", "anaphor.labs.bptt"), "studies": ("anaphor.web.study_view",)}
"""Modules that another shelf uses only where this one is there."""
SCRIPT = """
import importlib, json, pkgutil, sys
import anaphor
from anaphor.cli.main import main

folder, (names, users) = sys.argv[1], json.loads(sys.argv[2])

assert main(["--help"]) == 0
print("no such verb:", main(["nothing"]), file=sys.stderr)
for name in names:
    assert not hasattr(anaphor, name), name
    assert name not in dir(anaphor), name
    try:
        getattr(anaphor, name)
    except anaphor.ConfigError as error:
        print(error)
for name in dir(anaphor):
    assert getattr(anaphor, name) is not None, name
for module in pkgutil.walk_packages(anaphor.__path__, "anaphor."):
    if module.name not in users:
        importlib.import_module(module.name)
words = "train lm --data grammar --model lstm --width 8 --layers 1 --steps 2 --device cpu --json".split()
assert main([*words, "--out", folder]) == 0
assert main(["evaluate", folder, "--device", "cpu"]) == 0
assert main(["score", folder, "a b", "--device", "cpu"]) == 0
"""
WITH_EXTRAS = [
    ("train", "lm", "--recipe", "wikitext-2-pointer", "--dry-run"),
    ("train", "translate", "--recipe", "multi30k-transformer", "--dry-run"),
    ("train", "lm", "--data", "grammar", "--pointer-memory", "8", "--dry-run"),
    ("evaluate", "tests/extras/old_runs/lm-pointer"),
    ("train", "lm", "--resume", "--out", "tests/extras/old_runs/lm-pointer"),
]
"""A recipe, a flag and a run with settings of extras."""
A_PART = ["test_config.py", "training/test_run_spec.py"]
"""Tests that run often without any shelf."""

THERE = tuple(filter(has_shelf, SHELVES))
ONE_BY_ONE = [pytest.param((shelf,), marks=pytest.mark.slow, id=shelf) for shelf in THERE]
ALL = pytest.param(THERE, id="all")

pytestmark = pytest.mark.skipif(not THERE, reason="all shelves were deleted")


@pytest.fixture
def tree(deleted, tmp_path):
    """A copy of the project without some shelves and their tests."""
    hidden, made = ".*", ("__pycache__", "site", "dist", "runs")
    tree = shutil.copytree(ROOT, tmp_path / "tree", ignore=shutil.ignore_patterns(hidden, *made))
    for shelf in deleted:
        for folder in (tree / "src" / "anaphor" / shelf, tree / "tests" / shelf):
            shutil.rmtree(folder)
    return tree


def run_python(tree, *words):
    """Run Python in a copy of the project, as from a shell."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tree,
        env=environment | {"PYTHONPATH": str(tree / "src")},
    )  # fmt: skip


def run_tests(tree, *paths, processes=2):
    """The tests of a copy, on two cores; but not this file, which would copy the copy."""
    options = ["-n", str(processes), "-p", "no:cacheprovider", "--ignore", "tests/house/test_shelves.py"]
    options += ["--tb", "short"]
    return run_python(tree, "-m", "pytest", *options, "--basetemp", str(tree.with_name("tests")), *paths)


@pytest.mark.parametrize("deleted", [*ONE_BY_ONE, ALL])
def test_without_shelves_the_rest_works(deleted, tree, tmp_path):
    functions, users = ([name for shelf in deleted for name in table.get(shelf, ())] for table in (FUNCTIONS, USERS))
    done = run_python(tree, "-W", "error", "-c", SCRIPT, str(tmp_path / "run"), json.dumps([functions, users]))
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    for shelf, verbs in VERBS.items():
        for verb in verbs:
            assert (verb in listed) is (shelf in THERE and shelf not in deleted)
            assert (f" {verb}," in done.stderr) is (shelf in THERE and shelf not in deleted)
    told = [line for line in done.stdout.splitlines() if line.startswith("anaphor.")]
    assert [line.split()[0] for line in told] == [f"anaphor.{name}" for name in functions]
    assert all(line.endswith("is not installed") for line in told)


@pytest.mark.skipif("extras" not in THERE, reason="the extras were deleted")
@pytest.mark.parametrize("deleted", [pytest.param(("extras",), id="extras")])
def test_what_needs_a_missing_extra_is_refused_in_one_line(deleted, tree):
    shutil.copytree(ROOT / "tests" / "extras" / "old_runs", tree / "tests" / "extras" / "old_runs")
    script = (
        "import json, sys; from anaphor.cli.main import main; print([main(words) for words in json.loads(sys.argv[1])])"
    )
    done = run_python(tree, "-c", script, json.dumps(WITH_EXTRAS))
    assert done.stdout == f"{[2] * len(WITH_EXTRAS)}\n"
    lines = done.stderr.splitlines()
    assert len(lines) == len(WITH_EXTRAS)
    assert all("settings of an extra need the extra: pass --import FILE, or install it" in line for line in lines)


@pytest.mark.parametrize("deleted", [ALL])
def test_without_shelves_a_part_of_the_tests_passes(deleted, tree):
    done = run_tests(tree, *(f"tests/{name}" for name in A_PART), processes=0)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [ALL])
def test_without_shelves_the_tests_of_the_rest_pass(deleted, tree):
    done = run_tests(tree)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]


def list_tests_of_shelves(tree):
    """What is gone or skipped where there is no shelf at all: the tests of shelves, and files elsewhere that ask for
    one. All other tests are shown to pass without any."""
    folders = [tree / "tests" / shelf for shelf in THERE if (tree / "tests" / shelf).is_dir()]
    files = [path for path in (tree / "tests").rglob("test_*.py") if not folders.count(path.parent)]
    asking = [path for path in files if re.search(r"\bneeds\(|has_shelf\(", path.read_text(encoding="utf-8"))]
    return [str(path.relative_to(tree)) for path in (*folders, *sorted(asking))]


@pytest.mark.slow
@pytest.mark.parametrize("deleted", ONE_BY_ONE)
def test_without_a_shelf_the_tests_of_the_others_pass(deleted, tree):
    done = run_tests(tree, *list_tests_of_shelves(tree))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]

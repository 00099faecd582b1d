"""Shelves: each may be deleted, and all of them. What remains is imported, lists its own verbs, and trains."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import anaphor
from anaphor.registry import SHELVES

SOURCE = Path(anaphor.__file__).parent
VERBS = {
    "interchange": ("convert", "export"),
    "studies": ("study",),
    "trace": ("trace",),
    "labs": ("lab",),
    "web": ("runs", "serve", "report"),
}
FUNCTIONS = {
    "interchange": ("convert", "export", "interchange"),
    "studies": ("StudySpec", "read_study"),
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


@pytest.mark.parametrize(
    "deleted",
    [pytest.param((shelf,), marks=pytest.mark.slow, id=shelf) for shelf in SHELVES] + [pytest.param(SHELVES, id="all")],
)
def test_without_shelves_the_rest_works(deleted, tmp_path):
    shutil.copytree(SOURCE, tmp_path / "anaphor", ignore=shutil.ignore_patterns("__pycache__"))
    for shelf in deleted:
        shutil.rmtree(tmp_path / "anaphor" / shelf)
    functions, users = ([name for shelf in deleted for name in table.get(shelf, ())] for table in (FUNCTIONS, USERS))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path / "run"), json.dumps([functions, users])],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    for shelf, verbs in VERBS.items():
        for verb in verbs:
            assert (verb in listed) is (shelf not in deleted)
            assert (f" {verb}," in done.stderr) is (shelf not in deleted)
    told = [line for line in done.stdout.splitlines() if line.startswith("anaphor.")]
    assert [line.split()[0] for line in told] == [f"anaphor.{name}" for name in functions]
    assert all(line.endswith("is not installed") for line in told)

"""What the documentation shows works with the wheel alone, in an empty folder, without the repository."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

from commands.test_docs import LONG, PAGES, snippets

ROOT = Path(__file__).parents[2]
QUICK = [one for one in snippets() if one.id not in LONG]
RUN = """
import sys
from pathlib import Path

import torch

import anaphor
from commands.pages import agrees, outputs

installed, page = Path(sys.argv[1]), Path(sys.argv[2])
assert Path(anaphor.__file__).is_relative_to(installed), anaphor.__file__
torch.set_num_threads(1)
for _, _, shown, printed in outputs(page.read_text(encoding="utf-8")):
    assert agrees(shown, printed), f"the page shows\\n{shown}\\nbut this is printed:\\n{printed}"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package as its wheel installs it."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel: `pip install -e '.[test]'`")
    wheels, packages = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT], check=True)
    (wheel,) = wheels.glob("anaphor-*.whl")
    subprocess.run([*pip, "install", "--no-index", "--no-deps", "--target", packages, wheel], check=True)
    return packages


def test_two_builds_of_a_tree_are_equal_byte_by_byte(tmp_path):
    """Whatever the times of the files are, and wherever the tree is."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel: `pip install -e '.[test]'`")
    wheels = []
    for name, seconds in (("first", 10**9), ("second", 1.5e9)):
        tree = tmp_path / name
        tree.mkdir()
        for part in ("src", "docs", "pyproject.toml", "README.md", "LICENSE"):
            place, ignored = ROOT / part, shutil.ignore_patterns("__pycache__")
            if place.is_dir():
                shutil.copytree(place, tree / part, ignore=ignored)
            else:
                shutil.copy(place, tree / part)
        for path in tree.rglob("*"):
            os.utime(path, (seconds, seconds))
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
        subprocess.run(build, cwd=tree, capture_output=True, check=True)
        (wheel,) = (tree / "dist").glob("*.whl")
        wheels.append(wheel.read_bytes())
    assert wheels[0] == wheels[1]


def test_the_page_on_installation_has_every_dependency_with_its_licence():
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        name = re.split(r"[<>=,]", requirement)[0]
        found = metadata(name)
        stated = [found.get("License-Expression"), found.get("License"), *(found.get_all("Classifier") or ())]
        row = re.search(rf"^\| {name} \| [^|]+ \| ([^|]+) \|$", page, flags=re.MULTILINE)
        assert row is not None, name
        assert any(row[1] in one for one in stated if one), f"{name}: {row[1]}"
    extras = project["optional-dependencies"]
    inside = set(re.split(r"[\[\],]", extras["all"][0])[1:-1])
    assert inside == extras.keys() - {"all", "test", "oracles", "lint", "docs"}
    assert all(f"'.[{name}]'" in page for name in inside | {"all"})


@pytest.mark.slow
@pytest.mark.parametrize("path", QUICK)
def test_every_quick_page_is_right_with_the_wheel_in_an_empty_folder(path, installed, tmp_path):
    assert path in PAGES
    paths = os.pathsep.join([str(installed), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}
    ended = subprocess.run(
        [sys.executable, "-c", RUN, installed, path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]

"""What the documentation shows works with the wheel alone, in an empty folder, without the repository."""

import os
import subprocess
import sys
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

"""The picture of the core and its shelves shows the order that imports keep."""

import importlib.util
from itertools import pairwise
from pathlib import Path

from anaphor.registry import SHELVES
from house.test_house import CORE

SCRIPT = Path(__file__).parents[2] / "docs" / "figures" / "architecture.py"


def read_script():
    spec = importlib.util.spec_from_file_location("architecture", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_of_the_picture_is_above_what_it_imports():
    rows = [[CORE.index(name) for name in names] for _, names in read_script().CORE]
    for above, below in pairwise(rows):
        assert min(above) > max(below)


def test_the_picture_has_every_shelf():
    assert sorted(name for name, _ in read_script().SHELVES) == sorted(SHELVES)

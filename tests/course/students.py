"""What tests of checks share: a student's file is written, and one class or function of it is checked."""

import itertools

from anaphor.course.catalog import find_reference
from anaphor.course.check import check
from anaphor.course.student import load_subject

HEADER = "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"
NUMBERS = itertools.count()


def check_source(folder, source, name, reference=None):
    """The report on a class or function in a file of this source."""
    path = folder / f"student_{next(NUMBERS)}.py"
    path.write_text(HEADER + source, encoding="utf-8")
    return check(find_reference(reference or name), load_subject(f"{path}::{name}"))


def names_of(report):
    return {mistake.name for mistake in report.mistakes}


def plant(source, old, new):
    """The source with a mistake."""
    assert source.count(old) >= 1, f"{old!r} is not in the source"
    return source.replace(old, new)

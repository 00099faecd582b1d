"""Numbers of sheet 003."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anaphor.course.numbers.values import Numbers

NUMBERS: Mapping[str, Callable[[str], Numbers]] = {}

"""Values as YAML and JSON hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain_value(value: Any) -> Any:
    """A value as YAML and JSON hold it: tuples become lists, paths become strings, those of numpy become Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def replace_nonfinite(value: Any) -> Any:
    """A value for JSON, which has no name for numbers that are not finite: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(child) for child in value]
    return value

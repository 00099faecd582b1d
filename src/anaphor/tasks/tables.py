"""Cells and columns of tables, as text. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text, columns aligned on the right. Rows may be shorter than the first one."""
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]


def join_layers(mixers: Sequence[str]) -> str:
    """'lstm, 3 × attention' for a stack of four layers."""
    runs = [(name, len(list(same))) for name, same in groupby(mixers)]
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in runs)


def format_size(width: int, parameters: int) -> dict[str, str]:
    """The columns of a table of models that all tasks have."""
    return {"width": f"{width:,}", "parameters": f"{parameters / 1e6:,.1f} M"}

"""A study as one table: Markdown to read, CSV to go on with, LaTeX to print."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_low

from anaphor.errors import DataError
from anaphor.studies.groups import Axes, Group, Metric, is_numeric, told
from anaphor.studies.statistics import Interval, decimals, interval
from anaphor.training.files import replace_file

Columns = Mapping[str, Sequence[Interval | int | None]]
Row = Sequence[str]

EXACT = ".10g"
MARKDOWN = str.maketrans({"\\": r"\\", "|": r"\|", "<": r"\<", "\n": "<br>"})
# What TeX takes for a command, as every TeX prints it without a package.
TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", '"': r"\symbol{34}", "±": r"$\pm$", "\n": " ",
    }
)  # fmt: skip


def write_tables(groups: Sequence[Group], axes: Axes, metric: Metric, columns: Columns, folder: Path) -> str:
    """`table.md`, `table.csv` and `table.tex` in a folder; gives the one in Markdown."""
    header, rows = table(groups, axes, metric, shown(columns), places(groups))
    right = [is_numeric(values) for values in axes.values()] + [True] * (3 + len(columns))
    made = {
        "md": markdown(header, rows, right),
        "csv": comma_separated(*table(groups, axes, metric, exact(columns), EXACT)),
        "tex": latex(header, rows, right),
    }
    for ending, text in made.items():
        path = folder / f"table.{ending}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise DataError(f"cannot write the table to {path}: {error.strerror or error}") from None
    return made["md"]


def table(
    groups: Sequence[Group], axes: Axes, metric: Metric, columns: Mapping[str, Row], written: str
) -> tuple[list[str], list[list[str]]]:
    """Names of columns, and a row for each group: axes, mean, half-width of its interval, seeds, what else is given.

    Notes come last, if there are any. `written` is the format of mean and half-width.
    """
    header = [*axes, metric.name, "±", "seeds", *columns]
    rows = []
    for place, group in enumerate(groups):
        of = interval(group.values) if group.values else None
        mean = "" if of is None else format(of.mean, written)
        half = "" if of is None or of.half is None else format(of.half, written)
        seeds = f"{len(group.seeds)} of {len(group.seeds) + group.failed}" if group.failed else str(len(group.seeds))
        more = [cells[place] for cells in columns.values()]
        rows.append([*(told(group.parameters[name]) for name in axes), mean, half, seeds, *more])
    if any(group.note for group in groups):
        header.append("note")
        for row, group in zip(rows, groups, strict=True):
            row.append(group.note)
    return header, rows


def shown(columns: Columns) -> dict[str, Row]:
    """As people read them: an interval in one cell, a count with its thousands apart."""
    return {
        name: ["" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
        for name, cells in columns.items()
    }


def exact(columns: Columns) -> dict[str, Row]:
    """As programs read them: one number in each cell, so that a mean's half-width has a column of its own."""
    made: dict[str, Row] = {}
    for name, cells in columns.items():
        made[name] = [
            "" if cell is None else str(cell) if isinstance(cell, int) else format(cell.mean, EXACT) for cell in cells
        ]
        if any(isinstance(cell, Interval) for cell in cells):
            halves = [cell.half if isinstance(cell, Interval) else None for cell in cells]
            made[f"{name} ±"] = ["" if half is None else format(half, EXACT) for half in halves]
    return made


def places(groups: Sequence[Group]) -> str:
    """One format for all, since they stand below each other; it suits the interval in the middle."""
    found = [interval(group.values) for group in groups if group.values]
    chosen = [of for of in found if of.half is not None] or found
    return f".{median_low([decimals(of.mean, of.half) for of in chosen])}f" if chosen else ".2f"


def markdown(header: Row, rows: Sequence[Row], right: Sequence[bool]) -> str:
    """Columns are as wide as they need be, so that it can be read as it is. `right` says which hold numbers; those
    beyond it are text."""
    cells = [[cell.translate(MARKDOWN) for cell in row] for row in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [*right, *(False for _ in widths[len(right) :])]
    rule = [f"{'-' * (width - 1)}:" if number else "-" * width for width, number in zip(widths, aligned, strict=True)]

    def padded(row: Row) -> Row:
        each = zip(row, widths, aligned, strict=True)
        return [cell.rjust(width) if number else cell.ljust(width) for cell, width, number in each]

    return "".join(f"| {' | '.join(row)} |\n" for row in (padded(cells[0]), rule, *map(padded, cells[1:])))


def comma_separated(header: Row, rows: Sequence[Row]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([header, *rows])
    return written.getvalue()


def latex(header: Row, rows: Sequence[Row], right: Sequence[bool]) -> str:
    """A plain tabular that needs no package."""
    shape = "".join("r" if number else "l" for number in right) + "l" * (len(header) - len(right))
    lines = [" & ".join(cell.translate(TEX) for cell in row) + r" \\" for row in (header, *rows)]
    body = "\n".join([r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"])
    return f"\\begin{{tabular}}{{{shape}}}\n{body}\n\\end{{tabular}}\n"

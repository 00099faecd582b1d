"""Tables of a study: Markdown, CSV with all digits, and LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from anaphor.errors import DataError
from anaphor.files import replace_file
from anaphor.metrics.labels import label_setting
from anaphor.metrics.statistics import Interval, confidence_interval
from anaphor.studies.axes import format_value
from anaphor.studies.groups import Axes, Group, Objective, is_numeric

TableCell = Interval | int | str | None
Columns = Mapping[str, Sequence[TableCell]]
Row = Sequence[str]

EXACT = ".10g"
MARKDOWN = str.maketrans({"\\": r"\\", "|": r"\|", "<": r"\<", "\n": "<br>"})
# Special characters of TeX, by commands that need no further package.
TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", '"': r"\symbol{34}", "±": r"$\pm$", "×": r"$\times$", "−": r"$-$", "\n": " ",
    }
)  # fmt: skip
PACKAGE = "% needs \\usepackage{booktabs}"


def write_tables(
    groups: Sequence[Group],
    axes: Axes,
    objective: Objective,
    columns: Columns,
    folder: Path,
    best: Mapping[str, Collection[int]] | None = None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Write `table.md`, `table.csv` and `table.tex` to a folder. Returns the Markdown.

    People read labels with units; the columns of the CSV have the names of settings and metrics. `best` has the rows
    that LaTeX shows in bold, by the name of their column; `labels` are what people read instead of such a name.
    """
    shown, exact = format_columns(columns), exact_columns(columns)
    right = [is_numeric(values) for values in axes.values()]
    numbers = [all(not isinstance(cell, str) for cell in cells) for cells in columns.values()]
    header, rows = build_table(groups, axes, objective, shown, shown_mean)
    labels = {**{name: label_setting(name).text for name in axes}, objective.title: objective.axis, **(labels or {})}
    header = [labels.get(name, name) for name in header]
    best = {labels.get(name, name): rows for name, rows in (best or {}).items()}
    merged = merge_halves(header, rows, len(axes))
    texts = {
        "md": to_markdown(header, rows, [*right, True, True, True, *numbers]),
        "csv": to_csv(*build_table(groups, axes, objective, exact, exact_mean)),
        "tex": to_latex(*merged, best, [*right, True, True, *numbers]),
    }
    for suffix, text in texts.items():
        path = folder / f"table.{suffix}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise DataError(f"cannot write the table to {path}: {error.strerror or error}") from None
    return texts["md"]


def build_table(
    groups: Sequence[Group],
    axes: Axes,
    objective: Objective,
    columns: Mapping[str, Row],
    format_interval: Callable[[Interval], tuple[str, str]],
) -> tuple[list[str], list[list[str]]]:
    """Header, and a row for each group: axes, mean, half-width, seeds, further columns, and notes if any."""
    header = [*axes, objective.title, "±", "seeds", *columns]
    rows = []
    for index, group in enumerate(groups):
        mean, half = format_interval(confidence_interval(group.values)) if group.values else ("", "")
        seeds = f"{len(group.seeds)} of {len(group.seeds) + group.failed}" if group.failed else str(len(group.seeds))
        more = [cells[index] for cells in columns.values()]
        rows.append([*(format_value(group.parameters[name]) for name in axes), mean, half, seeds, *more])
    if any(group.note for group in groups):
        header.append("note")
        for row, group in zip(rows, groups, strict=True):
            row.append(group.note)
    return header, rows


def shown_mean(found: Interval) -> tuple[str, str]:
    """Mean and half-width with the digits that the interval supports."""
    mean, _, half = str(found).partition(" ± ")
    return mean, half


def exact_mean(found: Interval) -> tuple[str, str]:
    """Mean and half-width with all digits."""
    return format(found.mean, EXACT), "" if found.half_width is None else format(found.half_width, EXACT)


def format_columns(columns: Columns) -> dict[str, Row]:
    """For people: an interval in one cell, counts with separators."""
    return {
        name: ["" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
        for name, cells in columns.items()
    }


def exact_columns(columns: Columns) -> dict[str, Row]:
    """For programs: one number in each cell, so that a half-width has a column of its own."""
    exact: dict[str, Row] = {}
    for name, cells in columns.items():
        exact[name] = [
            "" if cell is None else format(cell.mean, EXACT) if isinstance(cell, Interval) else str(cell)
            for cell in cells
        ]
        if any(isinstance(cell, Interval) for cell in cells):
            halves = [cell.half_width if isinstance(cell, Interval) else None for cell in cells]
            exact[f"{name} ±"] = ["" if half is None else format(half, EXACT) for half in halves]
    return exact


def to_markdown(header: Row, rows: Sequence[Row], right: Sequence[bool]) -> str:
    """Aligned columns. `right` says which ones hold numbers; those beyond it are text."""
    cells = [[cell.translate(MARKDOWN) for cell in row] for row in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [*right, *(False for _ in widths[len(right) :])]
    rule = [f"{'-' * (width - 1)}:" if number else "-" * width for width, number in zip(widths, aligned, strict=True)]

    def pad_cells(row: Row) -> Row:
        each = zip(row, widths, aligned, strict=True)
        return [cell.rjust(width) if number else cell.ljust(width) for cell, width, number in each]

    return "".join(f"| {' | '.join(row)} |\n" for row in (pad_cells(cells[0]), rule, *map(pad_cells, cells[1:])))


def to_csv(header: Row, rows: Sequence[Row]) -> str:
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows([header, *rows])
    return output.getvalue()


def merge_halves(header: Row, rows: Sequence[Row], at: int) -> tuple[list[str], list[list[str]]]:
    """The table with the mean at this column and the half-width after it in one, as papers have them."""
    merged = [[*row[:at], " ± ".join(filter(None, row[at : at + 2])), *row[at + 2 :]] for row in rows]
    return [*header[: at + 1], *header[at + 2 :]], merged


def to_latex(header: Row, rows: Sequence[Row], best: Mapping[str, Collection[int]], right: Sequence[bool]) -> str:
    """A tabular in the style of booktabs."""
    shape = "".join("r" if number else "l" for number in right) + "l" * (len(header) - len(right))
    lines = [_latex_line(header, [False] * len(header))]
    lines += [_latex_line(row, [index in best.get(name, ()) for name in header]) for index, row in enumerate(rows)]
    body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    return f"{PACKAGE}\n\\begin{{tabular}}{{{shape}}}\n{body}\n\\end{{tabular}}\n"


def _latex_line(row: Row, bold: Sequence[bool]) -> str:
    """Of an interval the mean alone is bold."""
    cells = []
    for cell, is_bold in zip(row, bold, strict=True):
        mean, sign, half = cell.partition(" ± ")
        texts = [part.translate(TEX) for part in (mean, sign, half)]
        cells.append(f"\\textbf{{{texts[0]}}}{''.join(texts[1:])}" if is_bold and mean else "".join(texts))
    return " & ".join(cells) + r" \\"

"""The result of a study in Python: rows to work with, and what a notebook shows."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, overload

from anaphor.errors import ConfigError

FIGURE = "study.svg"
Row = Mapping[str, Any]


@dataclass(frozen=True, repr=False, eq=False)
class StudyResult(Sequence[Row]):
    """What a study found, as rows: one for each run.

    A row has the values on the axes, `seed`, `status`, the numbers of its results as `valid_perplexity` and
    `test_perplexity`, `seconds`, and the folder of the run as `run`. A study that tunes has a row for every value that
    was tried, and `chosen` says which ones are compared.

    `pandas.DataFrame(result)` and `result.to_pandas()` are the same. A notebook shows question, table, findings and
    figure.
    """

    folder: Path
    question: str
    """What the study's file is about."""
    plain: Mapping[str, Any]
    """All that the study found, as `result.json` has it."""

    @property
    def rows(self) -> list[Row]:
        """A row for each run."""
        return [make_row(cell) for cell in self.cells]

    @property
    def cells(self) -> tuple[dict[str, Any], ...]:
        """Setting, seed, status and results of every run."""
        return tuple(self.plain["cells"])

    @property
    def best(self) -> dict[str, Any] | None:
        """The selected setting: its `parameters`, and `valid` and `test` with mean and interval. None where no setting
        has a result for all its seeds."""
        found: dict[str, Any] | None = self.plain["best"]
        return found

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences that the numbers support, the best setting first."""
        return tuple(self.plain["findings"])

    @property
    def table(self) -> str:
        """A row for each setting, as Markdown; `table.csv` in the folder has all digits, `table.tex` is LaTeX."""
        return str(self.plain["table"]).rstrip("\n")

    @property
    def figures(self) -> list[Path]:
        """Files of all figures."""
        return [Path(path) for path in self.plain["figures"]]

    def to_pandas(self) -> Any:
        """The rows as a data frame of pandas."""
        try:
            pandas: Any = import_module("pandas")
        except ImportError:
            raise ConfigError("to_pandas() needs pandas: pip install pandas; `rows` needs nothing") from None
        return pandas.DataFrame(self.rows)

    def __len__(self) -> int:
        return len(self.cells)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __repr__(self) -> str:
        return "\n".join([self.table, *self.findings])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        parts = [f"<h4>{escape(self.question or self.folder.name)}</h4>", to_html(self.table)]
        parts += [f"<p>{escape(finding)}</p>" for finding in self.findings]
        figure = self.folder / FIGURE
        if figure.is_file():
            code = base64.b64encode(figure.read_bytes()).decode()
            # As an image a drawing runs no script and loads nothing.
            parts.append(f'<img alt="{escape(self.question)}" src="data:image/svg+xml;base64,{code}">')
        return "\n".join(parts)


def make_row(cell: Mapping[str, Any]) -> Row:
    """A run as one flat row. Of its results only numbers, and what was not measured."""
    row = {**cell["parameters"], "seed": cell["seed"], "status": cell["status"]}
    if "chosen" in cell:
        row["chosen"] = cell["chosen"]
    for split in ("valid", "test"):
        for name, value in (cell.get(split) or {}).items():
            if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                row[f"{split}_{name}"] = value
    return {**row, "seconds": cell["seconds"], "run": cell["run"]}


def to_html(table: str) -> str:
    """A table of Markdown as HTML."""
    header, _, *rows = ([cell.strip() for cell in split_cells(line)] for line in table.splitlines())
    return "\n".join(["<table>", _to_row(header, "th"), *(_to_row(row, "td") for row in rows), "</table>"])


def split_cells(line: str) -> list[str]:
    """The cells of a row of Markdown, in which other bars have a backslash."""
    return re.findall(r"((?:\\.|[^\\|])*)\|", line.strip().removeprefix("|"))


def _to_row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{_to_cell(cell)}</{tag}>" for cell in cells) + "</tr>"


def _to_cell(cell: str) -> str:
    """A cell as HTML: a backslash protects a character, and `<br>` is a new line."""
    parts = (re.sub(r"\\(.)", r"\1", part) for part in re.split(r"(?<!\\)<br>", cell))
    return "<br>".join(map(escape, parts))

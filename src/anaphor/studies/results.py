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
from anaphor.studies.spec import StudySpec

Row = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class StudyResult(Sequence[Row]):
    """The runs of a study as rows: the values on its axes, `seed`, `status`, metrics as `valid_perplexity` and
    `test_perplexity`, `seconds`, and the folder as `run`. A study that tunes has a row for every value that was tried,
    and `chosen` says which ones are compared.

    `pandas.DataFrame(result)` and `result.to_pandas()` are the same. A notebook shows table, findings and figure.
    """

    folder: Path
    spec: StudySpec
    plain: Mapping[str, Any]
    """All that the study found, as `result.json` has it."""

    @property
    def rows(self) -> list[Row]:
        """A row for each run."""
        return [self._make_row(cell) for cell in self.plain["cells"]]

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The selected setting: its `parameters`, and `valid` and `test` with mean and interval."""
        found: Mapping[str, Any] | None = self.plain["best"]
        return found

    @property
    def findings(self) -> list[str]:
        """What the numbers support, in sentences."""
        return list(self.plain["findings"])

    @property
    def table(self) -> str:
        """A row for each setting, as Markdown; `table.csv` in the folder has all digits, `table.tex` is LaTeX."""
        return str(self.plain["table"])

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

    def _make_row(self, cell: Mapping[str, Any]) -> Row:
        names = [metric.name for metric in self.spec.definition.metrics]
        names += [one.metric.name for one in self.spec.reported if one.metric.name not in names]
        scores = {
            f"{split}_{name}": cell[split][name]
            for split in ("valid", "test")
            for name in names
            if name in (cell.get(split) or {})
        }
        row = {**cell["parameters"], "seed": cell["seed"], "status": cell["status"]}
        if "chosen" in cell:
            row["chosen"] = cell["chosen"]
        return {**row, **scores, "seconds": cell["seconds"], "run": cell["run"]}

    def __len__(self) -> int:
        return len(self.plain["cells"])

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __repr__(self) -> str:
        return "\n".join([self.table, *self.findings, f"study: {self.folder}"])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        title = f"<p>{escape(self.spec.about)}</p>" if self.spec.about else ""
        findings = "".join(f"<li>{escape(line)}</li>" for line in self.findings)
        figures = (path for path in self.figures if path.parent == self.folder and path.name.startswith("study"))
        images = "".join(map(embed_image, (path for path in figures if path.suffix == ".png")))
        return f"{title}{to_html(self.table)}<ul>{findings}</ul>{images}<p><code>{escape(str(self.folder))}</code></p>"


def to_html(table: str) -> str:
    """A table of Markdown as HTML; numbers are right-aligned."""
    header, rule, *rows = ([cell.strip() for cell in split_cells(line)] for line in table.splitlines())
    styles = ["text-align: right" if cell.endswith(":") else "text-align: left" for cell in rule]

    def to_row(cells: Sequence[str], tag: str) -> str:
        each = zip(cells, styles, strict=True)
        inner = "".join(f'<{tag} style="{style}">{to_cell(cell)}</{tag}>' for cell, style in each)
        return f"<tr>{inner}</tr>"

    body = "".join(to_row(row, "td") for row in rows)
    return f"<table><thead>{to_row(header, 'th')}</thead><tbody>{body}</tbody></table>"


def split_cells(line: str) -> list[str]:
    """The cells of a row of Markdown, in which other bars have a backslash."""
    return re.findall(r"((?:\\.|[^\\|])*)\|", line.strip().removeprefix("|"))


def to_cell(cell: str) -> str:
    """A cell as HTML: backslashes protect characters, and `<br>` is a new line."""
    parts = (re.sub(r"\\(.)", r"\1", part) for part in re.split(r"(?<!\\)<br>", cell))
    return "<br>".join(map(escape, parts))


def embed_image(path: Path) -> str:
    """A figure as part of a page; empty where its file is gone."""
    try:
        content = base64.b64encode(path.read_bytes()).decode()
    except OSError:
        return ""
    return f'<img alt="{escape(path.stem)}" style="max-width: 100%" src="data:image/png;base64,{content}">'

"""A study that is done, read from its folder."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from anaphor.errors import DataError
from anaphor.studies.cell import read_json
from anaphor.training.run_folder import STUDY
from anaphor.user_paths import user_path
from anaphor.yaml_files import read_mapping

FIGURE, RESULT = "study.svg", "result.json"


@dataclass(frozen=True)
class StudyResult:
    """What a study found. A notebook shows its question, table, findings and figure."""

    folder: Path
    question: str
    """What the study's file is about."""
    best: dict[str, Any] | None
    """The setting that was chosen, with its values; None if no cell was finished."""
    findings: tuple[str, ...]
    """Sentences, the best setting first."""
    cells: tuple[dict[str, Any], ...] = field(repr=False)
    """Setting, seed, status and scores of every run."""
    table: str = field(repr=False)
    """In Markdown, with a row for each setting."""

    def __str__(self) -> str:
        return "\n".join([self.table, *self.findings])

    def _repr_html_(self) -> str:
        header, _, *rows = [_cells_of(line) for line in self.table.splitlines()]
        parts = [f"<h4>{escape(self.question or self.folder.name)}</h4>", "<table>", _row(header, "th")]
        parts += [*(_row(row, "td") for row in rows), "</table>"]
        parts += [f"<p>{escape(finding)}</p>" for finding in self.findings]
        figure = self.folder / FIGURE
        if figure.is_file():
            code = base64.b64encode(figure.read_bytes()).decode()
            # As an image a drawing runs no script and loads nothing.
            parts.append(f'<img alt="{escape(self.question)}" src="data:image/svg+xml;base64,{code}">')
        return "\n".join(parts)


def _cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" |")]


def _row(cells: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def load_study(folder: Path | str) -> StudyResult:
    """The result of a study that `anaphor study` has finished.

    Raises:
        DataError: The folder has no result of a study.
    """
    folder = user_path(folder)
    result = read_json(folder / RESULT)
    if not {"table", "findings", "cells", "best"} <= result.keys():
        raise DataError(f"{folder} is no finished study: `anaphor study FILE --out {folder}` makes one")
    spec = read_mapping(folder / STUDY) if (folder / STUDY).is_file() else {}
    return StudyResult(
        folder=folder,
        question=str(spec.get("about") or ""),
        best=result["best"],
        findings=tuple(result["findings"]),
        cells=tuple(result["cells"]),
        table=str(result["table"]).rstrip("\n"),
    )

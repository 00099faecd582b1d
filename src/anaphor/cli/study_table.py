"""How a study goes: one live table on stderr, or a line for each change where there is no terminal."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from anaphor.cli.progress import duration
from anaphor.studies.cell import Cell
from anaphor.studies.groups import label
from anaphor.studies.spec import Setting, StudySpec
from anaphor.training.run_folder import RunFolder

SIGNS = {
    "running": "…",
    "finished": "●",
    "diverged": "✗",
    "failed": "✗",
    "stopped": "–",
    "tested": "◉",
    "untested": "✗",
}


class Lines:
    """A line for each change, with what is left."""

    def __init__(self, spec: StudySpec, cells: int | None, slots: int) -> None:
        self.spec, self.cells, self.slots = spec, cells, slots
        self.status: dict[str, str] = {}
        self.began: dict[str, float] = {}
        self.took: list[float] = []

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def changed(self, cell: Cell, status: str, reason: str = "") -> None:
        self._note(cell, status)
        if status == "running" and reason == "":
            return
        told = f"{label(cell.setting.parameters)}, seed {cell.seed}: {status}"
        told += f" ({reason})" if reason else score_of(cell, self.spec) if status == "finished" else ""
        print("; ".join([told, *self._left()]), file=sys.stderr)

    def waited(self, running: list[Cell]) -> None:
        pass

    def _note(self, cell: Cell, status: str) -> None:
        self.status[cell.key] = status
        if status == "running":
            self.began[cell.key] = time.monotonic()
        elif status == "finished" and cell.key in self.began:
            self.took.append(time.monotonic() - self.began.pop(cell.key))

    def _left(self) -> list[str]:
        """How many cells are over, and how long the others will take if they are like those so far."""
        over = sum(status != "running" for status in self.status.values())
        if self.cells is None:
            return [f"{over} cells over"]
        left = self.cells - over
        pace = [f"about {duration(left * statistics.fmean(self.took) / self.slots)} left"] if self.took and left else []
        return [f"{over} of {self.cells} cells over", *pace]


class Table(Lines):
    """All settings with their seeds, redrawn as they change."""

    def __init__(self, spec: StudySpec, settings: Sequence[Setting] | None, slots: int) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(spec, None if settings is None else len(settings) * len(spec.seeds), slots)
        self.rows: dict[str, dict[int, Cell]] = {}
        self.reasons: list[str] = []
        self.live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Table:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()
        for reason in self.reasons:
            print(reason, file=sys.stderr)

    def changed(self, cell: Cell, status: str, reason: str = "") -> None:
        self._note(cell, status)
        self.rows.setdefault(label(cell.setting.parameters), {})[cell.seed] = cell
        if reason:
            self.reasons.append(f"{label(cell.setting.parameters)}, seed {cell.seed}: {status} ({reason})")
        self._draw()

    def waited(self, running: list[Cell]) -> None:
        self._draw()

    def _draw(self) -> None:
        from rich.table import Table as RichTable

        table = RichTable(title=self.spec.about or self.spec.name, caption=", ".join(self._left()))
        table.add_column("setting")
        table.add_column("seeds")
        table.add_column(self.spec.metric, justify="right")
        # Those that run and those that ran last: a terminal has only so many lines.
        room = max(5, (self.live.console.height or 30) - 8)
        for name, cells in list(self.rows.items())[-room:]:
            signs = " ".join(SIGNS.get(self.status[cell.key], "·") for _, cell in sorted(cells.items()))
            values = [value for cell in cells.values() if (value := last_value(cell, self.spec)) is not None]
            table.add_row(name, signs, f"{statistics.fmean(values):.2f}" if values else "")
        self.live.update(table, refresh=True)


def last_value(cell: Cell, spec: StudySpec) -> float | None:
    """The newest validation score of a cell."""
    lines = RunFolder(cell.folder).read_metrics()
    value = lines[-1]["valid"].get(spec.metric.partition(".")[2]) if lines else None
    return None if value is None else float(value)


def score_of(cell: Cell, spec: StudySpec) -> str:
    value = cell.value(spec)
    return "" if value is None else f", {spec.metric.partition('.')[2].replace('_', ' ')} {value:.2f}"


def table_for(spec: StudySpec, settings: Sequence[Setting] | None, slots: int) -> Any:
    if sys.stderr.isatty():
        return Table(spec, settings, slots)
    return Lines(spec, None if settings is None else len(settings) * len(spec.seeds), slots)

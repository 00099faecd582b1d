"""Progress of a study on stderr: a live table, or a line for each change where there is no terminal."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Self

from anaphor.cli.table import for_terminal
from anaphor.errors import count_noun
from anaphor.progress import duration
from anaphor.studies.axes import format_setting
from anaphor.studies.cell import Cell
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


class LineProgress:
    """A line for each change, with the remaining time."""

    def __init__(self, spec: StudySpec, cells: int | None, slots: int) -> None:
        self.spec, self.cells, self.slots = spec, cells, slots
        self.status: dict[str, str] = {}
        self.start_times: dict[str, float] = {}
        self.durations: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def on_status(self, cell: Cell, status: str, reason: str = "") -> None:
        self._record(cell, status)
        if status == "running" and reason == "":
            return
        line = f"{format_setting(cell.setting.labels)}, seed {cell.seed}: {status}"
        line += f" ({reason})" if reason else format_score(cell, self.spec) if status == "finished" else ""
        print("; ".join([line, *self._describe_rest()]), file=sys.stderr)

    def on_wait(self, running: list[Cell]) -> None:
        pass

    def _record(self, cell: Cell, status: str) -> None:
        self.status[cell.key] = status
        if status == "running":
            self.start_times[cell.key] = time.monotonic()
        elif status == "finished" and cell.key in self.start_times:
            self.durations.append(time.monotonic() - self.start_times.pop(cell.key))

    def _describe_rest(self) -> list[str]:
        """Number of cells that are done, and the time for the others at the same speed."""
        done = sum(status != "running" for status in self.status.values())
        if self.cells is None:
            return [f"{count_noun(done, 'cell')} done"]
        left = self.cells - done
        if not self.durations or not left:
            return [f"{done} of {count_noun(self.cells, 'cell')} done"]
        seconds = left * statistics.fmean(self.durations) / self.slots
        return [f"{done} of {count_noun(self.cells, 'cell')} done", f"about {duration(seconds)} left"]


class NoProgress(LineProgress):
    """Nothing is shown."""

    def on_status(self, cell: Cell, status: str, reason: str = "") -> None:
        pass


class TableProgress(LineProgress):
    """All settings with their seeds in a table that is redrawn on changes."""

    def __init__(self, spec: StudySpec, settings: Sequence[Setting] | None, slots: int) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(spec, None if settings is None else spec.count_cells(), slots)
        self.rows: dict[str, dict[int, Cell]] = {}
        self.reasons: list[str] = []
        self.live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.live.stop()
        for reason in self.reasons:
            print(for_terminal(reason, sys.stderr), file=sys.stderr)

    def on_status(self, cell: Cell, status: str, reason: str = "") -> None:
        self._record(cell, status)
        self.rows.setdefault(format_setting(cell.setting.labels), {})[cell.seed] = cell
        if reason:
            self.reasons.append(f"{format_setting(cell.setting.labels)}, seed {cell.seed}: {status} ({reason})")
        self._draw()

    def on_wait(self, running: list[Cell]) -> None:
        self._draw()

    def _draw(self) -> None:
        from rich.table import Table as RichTable

        table = RichTable(title=self.spec.about or self.spec.name, caption=", ".join(self._describe_rest()))
        table.add_column("setting")
        table.add_column("seeds")
        table.add_column(self.spec.metric, justify="right")
        # Only the last ones fit into a terminal.
        height = max(5, (self.live.console.height or 30) - 8)
        for name, cells in list(self.rows.items())[-height:]:
            signs = " ".join(SIGNS.get(self.status[cell.key], "·") for _, cell in sorted(cells.items()))
            values = [value for cell in cells.values() if (value := last_value(cell, self.spec)) is not None]
            table.add_row(name, signs, f"{statistics.fmean(values):.{self.spec.target.digits}f}" if values else "")
        self.live.update(table, refresh=True)


def last_value(cell: Cell, spec: StudySpec) -> float | None:
    """Value of the last validation of a cell."""
    lines = RunFolder(cell.folder).read_metrics()
    return spec.support.value(lines[-1]["valid"], spec.target) if lines else None


def format_score(cell: Cell, spec: StudySpec) -> str:
    value = cell.value(spec)
    return "" if value is None else f", {spec.target.format(value)}"


def make_progress(spec: StudySpec, settings: Sequence[Setting] | None, slots: int) -> LineProgress:
    if sys.stderr.isatty():
        return TableProgress(spec, settings, slots)
    return LineProgress(spec, None if settings is None else spec.count_cells(), slots)


def make_no_progress(spec: StudySpec, settings: Sequence[Setting] | None, slots: int) -> LineProgress:
    """The same, where none is to be shown."""
    return NoProgress(spec, None if settings is None else spec.count_cells(), slots)

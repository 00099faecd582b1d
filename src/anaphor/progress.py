"""Progress: one bar on stderr with loss, speed and remaining time; plain lines where there is no terminal."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar

from anaphor.metrics.result import format_values
from anaphor.training.pace import Pace
from anaphor.training.task import TaskDefinition

if TYPE_CHECKING:
    from rich.progress import Progress

    from anaphor.training.callbacks import EvaluationInfo, StepInfo

LINE_SECONDS = 10.0  # between two lines of progress, where no bar can be drawn
FIRST_SECONDS = 3.0  # of training before the first one
MAX_SECONDS = 60.0  # between two lines of a long training


def duration(seconds: float) -> str:
    """Seconds for people: 26 s, 4 min 10 s, 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def terminal_progress() -> Progress | None:
    """Bars on stderr; None where it is no terminal."""
    # Without a terminal and without the variables by which rich takes one for granted, it need not be imported.
    if not (sys.stderr.isatty() or {"FORCE_COLOR", "TTY_COMPATIBLE"} & set(os.environ)):
        return None

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console, transient=True) if console.is_terminal else None


class Bar:
    """A callback that shows the progress of training. It redraws a few times a second, however short a step is."""

    shows_values_only: ClassVar[bool] = True
    """It computes nothing with torch, so that nothing needs to be restored after it."""

    def __init__(self, title: str, task: TaskDefinition | None = None) -> None:
        self.progress = terminal_progress()
        """None: plain lines."""
        self.line: Any = None if self.progress is None else self.progress.add_task(title, total=1.0, note="")
        self.task = task
        self.pace: Pace | None = None
        self.mean: float | None = None
        self.start: float | None = None
        """When the first step was made."""
        self.last_line: float | None = None
        self.last_result: float | None = None
        self.withheld: str | None = None

    def __enter__(self) -> Bar:
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.progress is not None:
            self.progress.stop()
        if self.withheld is not None:
            print(self.withheld, file=sys.stderr)

    def inform(self, line: str) -> None:
        """Print a line at once, above the bar where there is one."""
        print(line, file=sys.stderr)

    def print_line(self, line: str, is_result: bool = False) -> None:
        """A line where there is no terminal: one in ten seconds at most, and a result ten seconds after the last one. A
        result that is withheld is printed when the next line is due, or at the end, unless a later one was printed."""
        now = time.monotonic()
        last = self.last_result if is_result else self.last_line
        if last is not None and now - last < LINE_SECONDS:
            self.withheld = line if is_result else self.withheld
            return
        self.last_line = now
        if is_result:
            self.last_result, self.withheld = now, None
        print(line, file=sys.stderr)

    def on_step(self, info: StepInfo, /) -> None:
        progress, count = info.progress, info.count
        self.mean = info.loss if self.mean is None else 0.95 * self.mean + 0.05 * info.loss
        now = time.perf_counter()
        # From the first step on, which is slow, and which may be far into a resumed run.
        self.pace = self.pace or Pace(now, progress, count)
        self.pace.on_step(now, progress, count)
        if self.progress is not None:
            note = f"loss {self.mean:.3f} · {self._speed(self.pace)}"
            self.progress.update(self.line, completed=min(progress, 1.0), note=note)
        elif self._is_line_due():
            line = f"step {info.step:,}: training loss {self.mean:.4f}"
            line = "; ".join([line, *self._remaining()]) if self.withheld is None else self.withheld
            self.print_line(line, is_result=self.withheld is not None)

    def _is_line_due(self) -> bool:
        """Whether it is time for a line about training: soon after the start, then more and more rarely, and never
        later than a minute after the last one."""
        now = time.monotonic()
        if self.start is None:
            self.start = now
        if self.last_line is None:
            return now - self.start >= FIRST_SECONDS
        if self.withheld is not None:
            return now - self.last_line >= LINE_SECONDS
        return now - self.last_line >= min(max(LINE_SECONDS, (now - self.start) / 20), MAX_SECONDS)

    def on_evaluation(self, info: EvaluationInfo, /) -> None:
        trained = "" if info.train_loss is None else f"training loss {info.train_loss:.4f}, "
        metrics = () if self.task is None else self.task.metrics
        measured = {name: value for name, value in info.result.values.items() if value is not None}
        values = format_values(metrics, measured)
        passed = f"{info.epoch:.2f}".rstrip("0").rstrip(".")
        if passed == "0":
            passed = f"{info.epoch:.1g}"  # the first steps of a long text
        line = f"epoch {passed}: {trained}valid {values}"
        line += " (best so far)" if info.is_best else ""
        if self.pace is not None:
            self.pace.on_evaluation(time.perf_counter())
        if self.progress is not None:
            self.progress.console.print(line)
        else:
            self.print_line("; ".join([line, *self._remaining()]), is_result=True)

    def _speed(self, pace: Pace) -> str:
        return f"{pace.speed:,.0f} {'items' if self.task is None else self.task.unit}/s"

    def _remaining(self) -> list[str]:
        """What a bar would show, where there is none."""
        if self.pace is None or not self.pace.speed:
            return []
        left = self.pace.left
        return [self._speed(self.pace) + ("" if left is None else f", {duration(left)} left")]


class SecondBar:
    """A progress listener: a second bar while something is scored, or a bar alone; plain lines without a terminal."""

    def __init__(self, bar: Bar, alone: bool = False) -> None:
        if bar.progress is not None:
            bar.progress.update(bar.line, visible=not alone)
        self.bar = bar
        self.line: tuple[str, Any] | None = None
        self.start, self.first, self.share = time.monotonic(), 0.0, 0.0

    def __call__(self, what: str, share: float) -> None:
        if self.line is None or self.line[0] != what or share < self.share:  # less than before: it begins anew
            self._clear()
            progress = self.bar.progress
            task: Any = None if progress is None else progress.add_task(what, total=1.0, note="")
            self.line = what, task
            self.start, self.first = time.monotonic(), share
        self.share = share
        if self.bar.progress is not None:
            self.bar.progress.update(self.line[1], completed=share)
        spent = time.monotonic() - self.start
        if self.bar.progress is None and spent > LINE_SECONDS and self.first < share < 1:
            self.bar.print_line(f"{what}: {share:.0%}, {duration(spent * (1 - share) / (share - self.first))} left")
        if share == 1:
            self._clear()

    def _clear(self) -> None:
        if self.line is not None and self.bar.progress is not None:
            self.bar.progress.remove_task(self.line[1])
        self.line = None

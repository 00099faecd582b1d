"""Progress: one bar on stderr with loss, perplexity, speed and what is left; plain lines where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any

from anaphor.metrics.perplexity import Score, format_perplexity

PATIENCE = 10.0  # seconds between two lines that tell how far long work is, where no bar can be drawn


class Pace:
    """How fast it goes and how long it will take, from what was done since `began`."""

    def __init__(self, began: float, progress: float, tokens: int) -> None:
        self.began, self.now = began, began
        self.first_progress, self.progress = progress, progress
        self.first_tokens, self.tokens = tokens, tokens
        self.evaluating = 0.0
        """Seconds that went into validation."""

    def stepped(self, now: float, progress: float, tokens: int) -> None:
        self.now, self.progress, self.tokens = now, progress, tokens

    def evaluated(self, now: float) -> None:
        self.evaluating += now - self.now
        self.now = now

    @property
    def speed(self) -> float:
        """Tokens a second of training, validation not counted; 0 while nobody knows."""
        spent = self.now - self.began - self.evaluating
        return (self.tokens - self.first_tokens) / spent if spent > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until the budget is spent, validations like those so far counted; None at the end."""
        done = self.progress - self.first_progress
        if self.progress >= 1 or done <= 0:
            return None
        return (self.now - self.began) * (1 - self.progress) / done


def duration(seconds: float) -> str:
    """As precise as a guess deserves: 26 s, 4 min 10 s, 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


class Bar:
    """Told by the trainer how it goes. Redraws a few times a second, however short a step is."""

    def __init__(self, title: str, called: str = "perplexity") -> None:
        """`called` is what the exponential of the loss is called: it is a perplexity unless later tokens were seen."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task: Any = self.progress.add_task(title, total=1.0, note="")
        self.called = called
        self.pace: Pace | None = None
        self.mean: float | None = None

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def stepped(self, progress: float, loss: float, tokens: int) -> None:
        self.mean = loss if self.mean is None else 0.95 * self.mean + 0.05 * loss
        now = time.perf_counter()
        # From the first step on, which is slow and may be far into a run that goes on.
        self.pace = self.pace or Pace(now, progress, tokens)
        self.pace.stepped(now, progress, tokens)
        exponential = f"{self.called} {math.exp(min(self.mean, 50)):.1f}"
        note = f"loss {self.mean:.3f} · {exponential} · {self.pace.speed:,.0f} tokens/s"
        self.progress.update(self.task, completed=min(progress, 1.0), note=note)

    def evaluated(self, epoch: float, trained: float | None, score: Score, best: bool) -> None:
        reached = f"{epoch:.2f}".rstrip("0").rstrip(".")
        learnt = "" if trained is None else f"training loss {trained:.4f}, "
        line = (
            f"epoch {reached}: {learnt}valid loss {score.total.loss:.4f}, {format_perplexity(score.total.perplexity)}"
        )
        line += "".join(f", {name.upper()} {value:.2f}" for name, value in score.others.items())
        line += " (best so far)" if best else ""
        if self.pace is not None:
            self.pace.evaluated(time.perf_counter())
        if self.console.is_terminal:
            self.console.print(line)
        else:
            print("; ".join([line, *self._pace()]), file=sys.stderr)

    def _pace(self) -> list[str]:
        """What a bar would show, where there is none."""
        if self.pace is None or not self.pace.speed:
            return []
        left = self.pace.left
        return [f"{self.pace.speed:,.0f} tokens/s" + ("" if left is None else f", {duration(left)} left")]


class Under:
    """A second line under a bar while a text is scored or translated, or a line alone; a plain one now and then where
    there is no terminal."""

    def __init__(self, bar: Bar, alone: bool = False) -> None:
        bar.progress.update(bar.task, visible=not alone)
        self.bar = bar
        self.line: tuple[str, Any] | None = None
        self.told = time.monotonic()

    def __call__(self, what: str, share: float) -> None:
        if self.line is None or self.line[0] != what:
            self._clear()
            self.line = what, self.bar.progress.add_task(what, total=1.0, note="")
            self.told = time.monotonic()
        self.bar.progress.update(self.line[1], completed=share)
        if not self.bar.console.is_terminal and time.monotonic() - self.told > PATIENCE:
            print(f"{what}: {share:.0%}", file=sys.stderr)
            self.told = time.monotonic()
        if share == 1:
            self._clear()

    def _clear(self) -> None:
        if self.line is not None:
            self.bar.progress.remove_task(self.line[1])
            self.line = None

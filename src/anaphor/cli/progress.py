"""Progress: one bar on stderr with loss, perplexity, speed and what is left; plain lines where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any

from anaphor.metrics.perplexity import Score


class Bar:
    """Told by the trainer how it goes. Redraws a few times a second, however short a step is."""

    def __init__(self, title: str) -> None:
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
        self.began, self.first = time.perf_counter(), 0
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
        if not self.first:
            self.first, self.began = tokens, time.perf_counter()
        speed = (tokens - self.first) / max(time.perf_counter() - self.began, 1e-9)
        note = f"loss {self.mean:.3f} · perplexity {math.exp(min(self.mean, 50)):.1f} · {speed:,.0f} tokens/s"
        self.progress.update(self.task, completed=min(progress, 1.0), note=note)

    def evaluated(self, epoch: float, score: Score, best: bool) -> None:
        line = f"epoch {epoch}: valid loss {score.total.loss:.4f}, perplexity {score.total.perplexity:.2f}"
        line += " (best so far)" if best else ""
        if self.console.is_terminal:
            self.console.print(line)
        else:
            print(line, file=sys.stderr)

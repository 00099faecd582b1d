"""`anaphor bench`: speed as ratios, each against a named peer in the same run."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anaphor.config import parse
from anaphor.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure speed side by side with what people use instead. Takes minutes; leave the machine alone meanwhile."""

    pairs: int = 60
    """How many pairs a ratio is taken from; the two of a pair run right after each other."""
    threads: int = 0
    """CPU threads; 0 leaves the choice to torch."""
    out: Path | None = None
    """Folder for the figure of time per token."""
    json: bool = False
    """Print one JSON value instead of a table."""

    def __post_init__(self) -> None:
        if self.pairs < 2:
            raise ConfigError(f"pairs={self.pairs}: an interval needs at least 2")
        if self.threads < 0:
            raise ConfigError(f"threads={self.threads}: it must be at least 1, or 0 for torch's choice")


def run(words: Sequence[str]) -> None:
    options = parse(Options, words, program="anaphor bench")

    import torch
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from anaphor.bench import generation, overhead
    from anaphor.draw import curves

    if options.threads:
        torch.set_num_threads(options.threads)
    total = 7 * options.pairs + 3 + generation.TOKENS
    columns = (
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=total, now="")

        def tick(now: str) -> None:
            progress.update(task, advance=1, now=now)

        findings = overhead.measure(options.pairs, tick)
        more, times = generation.measure(options.pairs, tick)
        findings += more

    figure = None
    if options.out is not None:
        series = {name: smoothed(seconds) for name, seconds in times.items()}
        figure = curves(
            series,
            options.out / "generation.png",
            x_label="tokens written so far",
            y_label="ms for the next token",
            title="Carried state: the past is never read again",
            log_y=True,
        )
    machine = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "processor": platform.machine(),
    }
    if options.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"machine": machine, "findings": rows, "figure": None if figure is None else str(figure)}))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("measured", "against", "ratio", "promise", "kept", "how"):
        table.add_column(heading)
    for finding in findings:
        interval = "" if finding.low is None else f" [{finding.low:.2f}, {finding.high:.2f}]"
        table.add_row(
            finding.what,
            finding.peer,
            f"{finding.value:.2f}{interval}",
            finding.promise,
            "yes" if finding.kept else "no",
            finding.detail,
        )
    console = Console()
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
    if figure is not None:
        console.print(f"figure: {figure}")


def smoothed(seconds: Sequence[float], size: int = 16) -> tuple[list[float], list[float]]:
    """Milliseconds, as medians of pieces: single tokens are too noisy to draw."""
    from statistics import median

    pieces = range(0, len(seconds) - size + 1, size)
    return [start + size / 2 for start in pieces], [1e3 * median(seconds[start : start + size]) for start in pieces]

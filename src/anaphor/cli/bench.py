"""`anaphor bench`: speed as ratios, each against a named peer in the same run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anaphor.bench import DEFAULT_PARTS, PARTS, count_ticks, measure
from anaphor.cli.table import print_table
from anaphor.config import create_folder, look_up, writing_to
from anaphor.errors import ConfigError
from anaphor.flags import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure speed against peers in the same run. Takes minutes; run nothing else meanwhile."""

    pairs: int = 60
    """Pairs of timings per ratio; ours and the peer run alternately."""
    parts: tuple[str, ...] = DEFAULT_PARTS
    """Benchmarks (all but decoding, finetune, packing and web if not given)."""
    device: str = "cpu"
    """Device of decoding, training, images, finetune, feeding and packing: auto, cpu or cuda; others use the CPU."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    out: Path | None = None
    """Folder for speed.md, speed.json and the figure of time per token."""
    json: bool = False
    """Print one JSON value instead of a table."""

    def __post_init__(self) -> None:
        if self.pairs < 2:
            raise ConfigError(f"pairs={self.pairs}: an interval needs at least 2")
        for part in self.parts:
            look_up(PARTS, part, "part")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor bench")

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from anaphor.bench.timing import describe_machine, render_page
    from anaphor.draw import curves
    from anaphor.training.experiment import choose_device, set_threads

    set_threads(options.threads)
    device = choose_device(options.device)
    if options.out is not None:
        create_folder(options.out)
    columns = (
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=count_ticks(options.parts, options.pairs, device), now="")

        def tick(now: str) -> None:
            progress.update(task, advance=1, now=now)

        findings, times = measure(options.parts, options.pairs, device, tick)

    exit_code = 0 if all(finding.kept for finding in findings) else 1
    machine = describe_machine(device)
    report = {"machine": machine, "findings": [dataclasses.asdict(finding) for finding in findings]}
    written: list[Path] = []
    if options.out is not None:
        with writing_to(options.out):
            figure = None
            if times:
                figure = curves(
                    {name: smooth(seconds) for name, seconds in times.items()},
                    options.out / "generation.png",
                    x_label="tokens generated so far",
                    y_label="ms for the next token",
                    title="With carried state the past is not read again",
                    log_y=True,
                )
            command = " ".join(["anaphor bench", *words])
            (options.out / "speed.md").write_text(render_page(findings, machine, command, figure), encoding="utf-8")
            (options.out / "speed.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            written = [*([figure] if figure else []), options.out / "speed.md", options.out / "speed.json"]
    if options.json:
        print(json.dumps({**report, "files": [str(path) for path in written]}))
        return exit_code
    table = Table(box=None, pad_edge=False)
    for heading in ("measured", "against", "ratio", "target", "met"):
        table.add_column(heading, no_wrap=heading == "ratio")
    for finding in findings:
        met = "yes" if finding.kept else "no"
        table.add_row(finding.what, finding.peer, finding.ratio, finding.promise, met)
    console = Console()
    print_table(console, table)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
    for path in written:
        console.print(f"wrote {path}")
    return exit_code


def smooth(seconds: Sequence[float], size: int = 16) -> tuple[list[float], list[float]]:
    """Milliseconds, as medians of windows: single tokens are too noisy to draw."""
    from statistics import median

    starts = range(0, len(seconds) - size + 1, size)
    return [start + size / 2 for start in starts], [1e3 * median(seconds[start : start + size]) for start in starts]

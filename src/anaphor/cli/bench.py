"""`anaphor bench`: speed as ratios, each against a named peer in the same run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anaphor.cli.table import print_table
from anaphor.cli.writing import make, writing
from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.flags import parse

PARTS = {
    "overhead": "what the contract costs",
    "generation": "writing with carried state",
    "recording": "what looking inside costs",
    "training": "the recipes against a plain loop",
    "feeding": "a translator with input feeding against a loop over cells",
    "bleu": "BLEU against sacreBLEU",
    "packing": "several runs of a study on one device",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure speed side by side with what people use instead. Takes minutes; leave the machine alone meanwhile."""

    pairs: int = 60
    """How many pairs a ratio is taken from; the two of a pair run right after each other."""
    parts: tuple[str, ...] = ("overhead", "generation", "recording", "training", "feeding", "bleu")
    """What is measured: overhead, generation, recording, training, feeding, bleu; packing too, if asked for."""
    device: str = "cpu"
    """Where training, feeding and packing are measured: auto, cpu or cuda. The other parts stay on the CPU."""
    threads: int = 0
    """CPU threads; 0 leaves the choice to torch."""
    out: Path | None = None
    """Folder for the findings as a page and as JSON, and for the figure of time per token."""
    json: bool = False
    """Print one JSON value instead of a table."""

    def __post_init__(self) -> None:
        if self.pairs < 2:
            raise ConfigError(f"pairs={self.pairs}: an interval needs at least 2")
        for part in self.parts:
            look_up(PARTS, part, "part")
        if self.threads < 0:
            raise ConfigError(f"threads={self.threads}: it must be at least 1, or 0 for torch's choice")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor bench")

    import torch
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from anaphor.bench import bleu, feeding, generation, overhead, packing, record, recording, training
    from anaphor.bench.finding import Finding
    from anaphor.draw import curves
    from anaphor.training.device import choose_device

    if options.threads:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    if options.out is not None:
        make(options.out)
    sizes = {"overhead": 4 * options.pairs, "generation": 3 * options.pairs + 3 + generation.TOKENS}
    sizes |= {"recording": 2 * options.pairs, "training": training.comparisons(device) * options.pairs}
    sizes |= {"feeding": options.pairs, "bleu": options.pairs, "packing": packing.ticks(device)}
    total = sum(sizes[part] for part in options.parts)
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

        findings: list[Finding] = []
        times: dict[str, list[float]] = {}
        if "overhead" in options.parts:
            findings += overhead.measure(options.pairs, tick)
        if "generation" in options.parts:
            more, times = generation.measure(options.pairs, tick)
            findings += more
        if "recording" in options.parts:
            findings += recording.measure(options.pairs, tick)
        if "training" in options.parts:
            findings += training.measure(options.pairs, device, tick)
        if "feeding" in options.parts:
            findings += feeding.measure(options.pairs, device, tick)
        if "bleu" in options.parts:
            findings += bleu.measure(options.pairs, tick)
        if "packing" in options.parts:
            findings += packing.measure(device, tick)

    exit_code = 0 if all(finding.kept for finding in findings) else 1
    made_on = record.machine(device)
    rows = {"machine": made_on, "findings": [dataclasses.asdict(finding) for finding in findings]}
    written: list[Path] = []
    if options.out is not None:
        with writing(options.out):
            figure = None
            if times:
                figure = curves(
                    {name: smoothed(seconds) for name, seconds in times.items()},
                    options.out / "generation.png",
                    x_label="tokens written so far",
                    y_label="ms for the next token",
                    title="With carried state the past is never read again",
                    log_y=True,
                )
            command = " ".join(["anaphor bench", *words])
            (options.out / "speed.md").write_text(record.page(findings, made_on, command, figure), encoding="utf-8")
            (options.out / "speed.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            written = [*([figure] if figure else []), options.out / "speed.md", options.out / "speed.json"]
    if options.json:
        print(json.dumps({**rows, "files": [str(path) for path in written]}))
        return exit_code
    table = Table(box=None, pad_edge=False)
    for heading in ("measured", "against", "ratio", "promise", "kept"):
        table.add_column(heading, no_wrap=heading == "ratio")
    for finding in findings:
        interval = "" if finding.low is None else f" [{finding.low:.2f}, {finding.high:.2f}]"
        table.add_row(
            finding.what,
            finding.peer,
            f"{finding.value:.2f}{interval}",
            finding.promise,
            "yes" if finding.kept else "no",
        )
    console = Console()
    print_table(console, table)
    console.print(", ".join(f"{key} {value}" for key, value in made_on.items()), style="dim")
    for path in written:
        console.print(f"wrote {path}")
    return exit_code


def smoothed(seconds: Sequence[float], size: int = 16) -> tuple[list[float], list[float]]:
    """Milliseconds, as medians of pieces: single tokens are too noisy to draw."""
    from statistics import median

    pieces = range(0, len(seconds) - size + 1, size)
    return [start + size / 2 for start in pieces], [1e3 * median(seconds[start : start + size]) for start in pieces]

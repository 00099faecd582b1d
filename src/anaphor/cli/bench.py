"""`anaphor bench`: speed as ratios, each against a named peer in the same run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anaphor.cli.table import print_table
from anaphor.config import look_up
from anaphor.errors import ConfigError, create_folder, writing_to
from anaphor.flags import parse

PARTS = {
    "overhead": "our stacks against torch.nn",
    "generation": "generation with carried state",
    "recording": "cost of taps and of recording",
    "training": "the recipes against a plain loop",
    "feeding": "a translation model with input feeding against a loop over cells",
    "bleu": "BLEU against sacreBLEU",
    "packing": "several runs of a study on one device",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure speed against peers in the same run. Takes minutes; run nothing else meanwhile."""

    pairs: int = 60
    """Pairs of timings per ratio; ours and the peer run alternately."""
    parts: tuple[str, ...] = ("overhead", "generation", "recording", "training", "feeding", "bleu")
    """Benchmarks: overhead, generation, recording, training, feeding, bleu; packing only if named."""
    device: str = "cpu"
    """Device of training, feeding and packing: auto, cpu or cuda. The other parts use the CPU."""
    threads: int = 0
    """CPU threads; 0 for torch's default."""
    out: Path | None = None
    """Folder for speed.md, speed.json and the figure of time per token."""
    json: bool = False
    """Print one JSON value instead of a table."""

    def __post_init__(self) -> None:
        if self.pairs < 2:
            raise ConfigError(f"pairs={self.pairs}: an interval needs at least 2")
        for part in self.parts:
            look_up(PARTS, part, "part")
        if self.threads < 0:
            raise ConfigError(f"threads={self.threads}: it must be at least 1, or 0 for torch's default")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor bench")

    import torch
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from anaphor.bench import bleu, feeding, generation, overhead, packing, training
    from anaphor.bench.timing import Finding, describe_machine, render_page
    from anaphor.draw import curves
    from anaphor.training.experiment import choose_device

    if options.threads:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    if options.out is not None:
        create_folder(options.out)
    sizes = {"overhead": 4 * options.pairs, "generation": 3 * options.pairs + 3 + generation.TOKENS}
    sizes |= {"recording": 2 * options.pairs, "training": training.count_comparisons(device) * options.pairs}
    sizes |= {"feeding": options.pairs, "bleu": options.pairs, "packing": packing.count_ticks(device)}
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
            findings += overhead.measure_recording(options.pairs, tick)
        if "training" in options.parts:
            findings += training.measure(options.pairs, device, tick)
        if "feeding" in options.parts:
            findings += feeding.measure(options.pairs, device, tick)
        if "bleu" in options.parts:
            findings += bleu.measure(options.pairs, tick)
        if "packing" in options.parts:
            findings += packing.measure(device, tick)

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

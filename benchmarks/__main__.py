"""The command of the benchmarks: which parts, on which device, and where the report goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anaphor.cli.table import print_table  # first of all that imports torch: Anaphor bounds the spinning of threads
from anaphor.config import create_folder, look_up, writing_to
from anaphor.errors import AnaphorError, ConfigError
from anaphor.flags import parse
from anaphor.training.experiment import choose_device, set_threads
from benchmarks import report, scaling, scaling_report
from benchmarks.parts import DEFAULT_PARTS, PARTS, SCALING, Tick, count_ticks, measure

PROGRAM = "python -m benchmarks"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure speed against peers in the same run. Takes minutes; run nothing else meanwhile."""

    pairs: int = 60
    """Pairs of timings per ratio; ours and the peer run alternately."""
    parts: tuple[str, ...] = DEFAULT_PARTS
    """Benchmarks (all but decoding, finetune, packing, web and scaling if not given)."""
    recipes: tuple[str, ...] = ()
    """Recipes of the part scaling (all if not given)."""
    device: str = "cpu"
    """Device of decoding, training, adaptation, images, finetune, feeding, start, packing and scaling: auto, cpu or
    cuda; others use the CPU."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    out: Path | None = None
    """Folder for speed.md, speed.json and the figure of time per token; of scaling for scaling.md, .json and .png."""
    json: bool = False
    """Print one JSON value instead of a table."""

    def __post_init__(self) -> None:
        if self.pairs < 2:
            raise ConfigError(f"pairs={self.pairs}: an interval needs at least 2")
        for part in self.parts:
            look_up({**PARTS, SCALING: scaling}, part, "part")
        if self.recipes and SCALING not in self.parts:
            raise ConfigError(f"recipes={' '.join(self.recipes)} has no effect: only --parts scaling uses it")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit code, which is 1 where a target is missed."""
    words = sys.argv[1:] if words is None else words
    try:
        return run(parse(Options, words, program=PROGRAM), " ".join([PROGRAM, *words]))
    except AnaphorError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code


def run(options: Options, command: str) -> int:
    set_threads(options.threads)
    device = choose_device(options.device)
    has_scaling = SCALING in options.parts
    if options.out is not None:
        create_folder(options.out)
    total = count_ticks(options.parts, options.pairs, device)
    total += scaling.count_ticks(options.recipes, device) if has_scaling else 0
    with progress_bar(total) as tick:
        findings = measure(options.parts, options.pairs, device, tick)
        costs = scaling.measure(options.recipes, device, tick) if has_scaling else None
    machine = report.describe_machine(device)
    written: list[Path] = []
    if options.out is not None:
        with writing_to(options.out):
            if options.parts != (SCALING,):
                written += report.write_report(options.out, findings, machine, command)
            if costs is not None:
                written += scaling_report.write_report(options.out, costs, machine, command)
    if options.json:
        plain: dict[str, Any] = {"machine": machine, "findings": [finding.to_plain() for finding in findings]}
        plain |= {} if costs is None else {"scaling": costs.to_plain()}
        print(json.dumps({**plain, "files": [str(path) for path in written]}))
    else:
        console = Console()
        if findings:
            print_table(console, report.build_table(findings))
        if costs is not None:
            scaling_report.print_report(console, costs)
        console.print(", ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
        for path in written:
            console.print(f"wrote {path}")
    has_failed = costs is not None and costs.failed
    return 0 if all(finding.kept for finding in findings) and not has_failed else 1


@contextmanager
def progress_bar(total: int) -> Iterator[Tick]:
    """A bar on stderr for so many ticks, with what was timed last."""
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

        yield tick


if __name__ == "__main__":
    sys.exit(main())

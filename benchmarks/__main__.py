"""The command of the benchmarks: which parts, on which device, and where the report goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anaphor.cli.table import print_table
from anaphor.config import look_up
from anaphor.errors import AnaphorError, ConfigError
from anaphor.flags import parse
from anaphor.training.device import choose_device, set_threads
from anaphor.user_paths import create_folder, writing_to
from benchmarks import report, scaling, scaling_report, trees
from benchmarks.parts import DEFAULT_PARTS, PARTS, SCALING, Tick, count_ticks, measure
from benchmarks.scaling_report import Scaling
from benchmarks.timing import Finding

PROGRAM = "python -m benchmarks"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure speed against peers in the same run. Takes minutes; run nothing else meanwhile."""

    pairs: int = 60
    """Pairs of timings per ratio; ours and the peer run alternately."""
    parts: tuple[str, ...] = ()
    """Benchmarks (all but decoding, finetune, kernels, packing, recurrences, smollm2, web and scaling)."""
    against: Path | None = None
    """Folder of another source tree, such as that of an earlier commit: it takes the place of all peers, and the parts
    are start and training."""
    recipes: tuple[str, ...] = ()
    """Recipes of the part scaling (all if not given), and of training with --against."""
    device: str = "cpu"
    """Device of decoding, training, adaptation, images, finetune, feeding, kernels, start, packing, recurrences and
    scaling: auto, cpu or cuda; others use the CPU."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    out: Path | None = None
    """Folder for speed.md, speed.json and the figure of time per token; of scaling for scaling.md, .json and .png."""
    json: bool = False
    """Print one JSON value instead of a table."""

    def __post_init__(self) -> None:
        if self.pairs < 2:
            raise ConfigError(f"pairs={self.pairs}: an interval needs at least 2")
        parts = {**PARTS, SCALING: scaling}
        for part in self.parts:
            look_up(parts if self.against is None else {name: parts[name] for name in trees.PARTS}, part, "part")
        if self.recipes and self.against is None and SCALING not in self.parts:
            raise ConfigError(
                f"recipes={' '.join(self.recipes)} has no effect: only --parts scaling and --against use it"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit code, which is 1 where a target is missed."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return run(parse(Options, argv, program=PROGRAM), " ".join([PROGRAM, *argv]))
    except AnaphorError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code


def run(options: Options, command: str) -> int:
    """Measure, write what `--out` asks for, and print. `command` is how the report says it was made."""
    set_threads(options.threads)
    device = choose_device(options.device)
    if options.out is not None:
        create_folder(options.out)
    machine = report.describe_machine(device)
    costs: Scaling | None = None
    if options.against is not None:
        source = trees.find_source(options.against)
        machine["against"] = f"{source} at {report.read_commit(source)}"
        findings = compare_trees(options, source, device)
    else:
        findings, costs = compare_with_peers(options, device)
    written: list[Path] = []
    if options.out is not None:
        with writing_to(options.out):
            if findings:
                written += report.write_report(options.out, findings, machine, command)
            if costs is not None:
                written += scaling_report.write_report(options.out, costs, machine, command)
    if options.json:
        plain: dict[str, Any] = {"machine": machine, "findings": [finding.to_plain() for finding in findings]}
        plain |= {} if costs is None else {"scaling": costs.to_plain()}
        print(json.dumps({**plain, "files": [str(path) for path in written]}))
    else:
        print_report(findings, costs, machine, written)
    has_failed = costs is not None and costs.failed
    return 0 if all(finding.kept for finding in findings) and not has_failed else 1


def compare_with_peers(options: Options, device: torch.device) -> tuple[list[Finding], Scaling | None]:
    """The findings of the parts, and the costs where scaling is among them."""
    parts = options.parts or DEFAULT_PARTS
    total = count_ticks(parts, options.pairs, device)
    if SCALING not in parts:
        with progress_bar(total) as tick:
            return measure(parts, options.pairs, device, tick), None
    with progress_bar(total + scaling.count_ticks(options.recipes, device)) as tick:
        return measure(parts, options.pairs, device, tick), scaling.measure(options.recipes, device, tick)


def compare_trees(options: Options, source: Path, device: torch.device) -> list[Finding]:
    parts = options.parts or trees.PARTS
    with progress_bar(trees.count_ticks(parts, options.recipes, options.pairs, device)) as tick:
        return trees.measure(source, parts, options.recipes, options.pairs, device, tick)


def print_report(
    findings: Sequence[Finding], costs: Scaling | None, machine: Mapping[str, str | int], written: Sequence[Path]
) -> None:
    console = Console()
    if findings:
        print_table(console, report.build_table(findings))
    if costs is not None:
        scaling_report.print_report(console, costs)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
    for path in written:
        console.print(f"wrote {path}")


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

"""`anaphor bench`: speed as ratios, each against a named peer in the same run; and what larger batches cost."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.bench import DEFAULT_PARTS, PARTS, SCALING, count_ticks, measure
from anaphor.cli.table import print_table
from anaphor.config import create_folder, look_up, writing_to
from anaphor.errors import ConfigError
from anaphor.flags import parse

if TYPE_CHECKING:
    from rich.table import Table

    from anaphor.bench.scaling_report import Scaling
    from anaphor.bench.timing import Finding


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
            look_up(PARTS, part, "part")
        if self.recipes and SCALING not in self.parts:
            raise ConfigError(f"recipes={' '.join(self.recipes)} has no effect: only --parts scaling uses it")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor bench")

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from anaphor.bench import scaling
    from anaphor.bench.timing import describe_machine
    from anaphor.training.experiment import choose_device, set_threads

    set_threads(options.threads)
    device = choose_device(options.device)
    total = count_ticks(options.parts, options.pairs, device)
    total += scaling.count_ticks(options.recipes, device) if SCALING in options.parts else 0
    if options.out is not None:
        create_folder(options.out)
    columns = (
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    costs: Scaling | None = None
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=total, now="")

        def tick(now: str) -> None:
            progress.update(task, advance=1, now=now)

        findings, times = measure(options.parts, options.pairs, device, tick)
        if SCALING in options.parts:
            costs = scaling.measure(options.recipes, device, tick)

    is_good = all(finding.kept for finding in findings) and not (costs is not None and costs.failed)
    exit_code = 0 if is_good else 1
    machine = describe_machine(device)
    report: dict[str, Any] = {"machine": machine, "findings": [dataclasses.asdict(finding) for finding in findings]}
    written: list[Path] = []
    if options.out is not None:
        command = " ".join(["anaphor bench", *words])
        with writing_to(options.out):
            if options.parts != (SCALING,):
                written += _write_speed(options.out, findings, times, machine, command)
            if costs is not None:
                written += _write_scaling(options.out, costs, machine, command)
    if costs is not None:
        report["scaling"] = costs.to_plain()
    if options.json:
        print(json.dumps({**report, "files": [str(path) for path in written]}))
        return exit_code
    console = Console()
    if findings:
        print_table(console, _speed_table(findings))
    if costs is not None:
        print_table(console, _scaling_table(costs))
        for name, reason in costs.left_out.items():
            console.print(f"{name} is left out: {reason}")
        if costs.largest is not None:
            model = costs.largest
            console.print(
                f"largest model: {model.parameters:,} parameters, {model.tokens_per_second_accumulated:,.0f} tokens/s"
            )
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
    for path in written:
        console.print(f"wrote {path}")
    return exit_code


def _write_speed(
    out: Path,
    findings: Sequence[Finding],
    times: Mapping[str, Sequence[float]],
    machine: Mapping[str, str | int],
    command: str,
) -> list[Path]:
    from anaphor.bench.timing import render_page
    from anaphor.draw import curves

    figure = None
    if times:
        figure = curves(
            {name: smooth(seconds) for name, seconds in times.items()},
            out / "generation.png",
            x_label="tokens generated so far",
            y_label="ms for the next token",
            title="With carried state the past is not read again",
            log_y=True,
        )
    plain = {"machine": machine, "findings": [dataclasses.asdict(finding) for finding in findings]}
    (out / "speed.md").write_text(render_page(findings, machine, command, figure), encoding="utf-8")
    (out / "speed.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return [*([figure] if figure else []), out / "speed.md", out / "speed.json"]


def _write_scaling(out: Path, costs: Scaling, machine: Mapping[str, str | int], command: str) -> list[Path]:
    from anaphor.bench.scaling_report import draw_figure, render_page

    figure = draw_figure(costs, out / "scaling.png")
    plain = {"command": command, "machine": machine, **costs.to_plain()}
    (out / "scaling.md").write_text(render_page(costs, machine, command, figure), encoding="utf-8")
    (out / "scaling.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return [*([figure] if figure else []), out / "scaling.md", out / "scaling.json"]


def _speed_table(findings: Sequence[Finding]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("measured", "against", "ratio", "target", "met"):
        table.add_column(heading, no_wrap=heading == "ratio")
    for finding in findings:
        met = "yes" if finding.kept else "no"
        table.add_row(finding.what, finding.peer, finding.ratio, finding.promise, met)
    return table


def _scaling_table(costs: Scaling) -> Table:
    """Seconds per million items at each batch size."""
    from rich.table import Table

    from anaphor.bench.scaling import MULTIPLES
    from anaphor.bench.scaling_report import format_number

    table = Table(box=None, pad_edge=False)
    table.add_column("recipe")
    table.add_column("seconds per million")
    for multiple in MULTIPLES:
        table.add_column(f"{multiple} ×", justify="right")
    for cost in costs.costs:
        values = [point.reason or format_number(point.seconds_per_million) for point in cost.points]
        table.add_row(cost.recipe, cost.counted, *values)
    return table


def smooth(seconds: Sequence[float], size: int = 16) -> tuple[list[float], list[float]]:
    """Milliseconds, as medians of windows: single tokens are too noisy to draw."""
    from statistics import median

    starts = range(0, len(seconds) - size + 1, size)
    return [start + size / 2 for start in starts], [1e3 * median(seconds[start : start + size]) for start in starts]

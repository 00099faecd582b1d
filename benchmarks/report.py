"""Findings as a table for the terminal; as a page with command, machine and figure; and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.table import Table

from anaphor import __version__, draw
from benchmarks.timing import Finding


def describe_machine(device: torch.device) -> dict[str, str | int]:
    """Versions and hardware behind the numbers."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        "anaphor": __version__,
        "commit": read_commit(Path(__file__).parent),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _read_processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        **gpu,
    }


def build_table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("measured", "against", "ratio", "target", "met"):
        table.add_column(heading, no_wrap=heading == "ratio")
    for finding in findings:
        met = "yes" if finding.kept else "no"
        table.add_row(finding.what, finding.peer, finding.ratio, finding.promise, met)
    return table


def write_report(out: Path, findings: Sequence[Finding], machine: Mapping[str, str | int], command: str) -> list[Path]:
    """Write speed.md, speed.json and, where tokens were timed one by one, the figure. Returns their paths."""
    figure = draw_token_seconds(findings, out / "generation.png")
    plain = {"machine": machine, "findings": [finding.to_plain() for finding in findings]}
    (out / "speed.md").write_text(render_page(findings, machine, command, figure), encoding="utf-8")
    (out / "speed.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return [*([figure] if figure else []), out / "speed.md", out / "speed.json"]


def render_page(
    findings: Sequence[Finding], machine: Mapping[str, str | int], command: str, figure: Path | None
) -> str:
    """The findings as a Markdown page, with command and machine."""
    rows = ["| measured | against | ratio | target | met | how |", "| --- | --- | --- | --- | --- | --- |"]
    for finding in findings:
        value, _, interval = finding.ratio.partition(" ")
        ratio = f"**{value}** {interval}".rstrip()
        met = "yes" if finding.kept else "no"
        rows.append(f"| {' | '.join((finding.what, finding.peer, ratio, finding.promise, met, finding.detail))} |")
    image = (
        "" if figure is None else f"\n![Time for the next token against the tokens generated so far]({figure.name})\n"
    )
    details = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    table = "\n".join(rows)
    return (
        "# Speed\n\n"
        "Ratios above one mean that ours is faster; for the growth along a text, how much more a late token costs than "
        "an early one. In brackets the 95 % t-interval over pairs that ran alternately. Weights and tokens are drawn "
        f"with seed 0.\n\n- command: `{command}`\n{details}\n\n{table}\n{image}"
    )


def draw_token_seconds(findings: Sequence[Finding], path: Path) -> Path | None:
    curves = {name: smooth(seconds) for finding in findings for name, seconds in finding.token_seconds.items()}
    if not curves:
        return None
    return draw.curves(
        curves,
        path,
        x_label="tokens generated so far",
        y_label="ms for the next token",
        title="With carried state the past is not read again",
        log_y=True,
    )


def smooth(seconds: Sequence[float], size: int = 16) -> tuple[list[float], list[float]]:
    """Milliseconds, as medians of windows: single tokens are too noisy to draw."""
    starts = range(0, len(seconds) - size + 1, size)
    return [start + size / 2 for start in starts], [
        1e3 * statistics.median(seconds[start : start + size]) for start in starts
    ]


def read_commit(folder: Path) -> str:
    """The commit of the repository that a folder is in, and whether files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _read_processor() -> str:
    cpu_file = Path("/proc/cpuinfo")
    if cpu_file.is_file():
        for line in cpu_file.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

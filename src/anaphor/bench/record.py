"""What a benchmark leaves behind: where it ran, and its findings as a page."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from anaphor import __version__
from anaphor.bench.finding import Finding


def machine(device: torch.device) -> dict[str, str | int]:
    """Everything that a reader needs to judge the numbers."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        "anaphor": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        **gpu,
    }


def table(findings: Sequence[Finding]) -> str:
    """The findings as a Markdown table."""
    rows = ["| measured | against | ratio | promise | kept | how |", "| --- | --- | --- | --- | --- | --- |"]
    for finding in findings:
        interval = "" if finding.low is None else f" [{finding.low:.2f}, {finding.high:.2f}]"
        kept = "yes" if finding.kept else "no"
        cells = (
            finding.what,
            finding.peer,
            f"**{finding.value:.2f}**{interval}",
            finding.promise,
            kept,
            finding.detail,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def page(findings: Sequence[Finding], made_on: Mapping[str, str | int], command: str, figure: Path | None) -> str:
    """A page that says what was run, where, and what came out."""
    picture = (
        "" if figure is None else f"\n![Time for the next token against the tokens written so far]({figure.name})\n"
    )
    facts = "\n".join(f"- {key}: {value}" for key, value in made_on.items())
    return (
        "# Speed\n\n"
        "Ratios above one mean that ours is the faster; for a text's growth, how much more a late token costs than an "
        "early one. In brackets the 95 % t-interval over pairs that were run in turns. Weights and tokens are drawn "
        "with seed 0.\n\n"
        f"- command: `{command}`\n{facts}\n\n"
        f"{table(findings)}\n{picture}"
    )


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

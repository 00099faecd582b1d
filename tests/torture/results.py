"""`results/faults.md`: for each fault how often it was tried and survived, and the seed that repeats a failure."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

import anaphor

if TYPE_CHECKING:
    from torture.experiment import Report

HEAD = """# Faults

How often Anaphor was hit by each kind of fault, and how often it survived. Every try follows from its seed. A kill
comes after a drawn share of the time that the run takes, so that it hits another step on another machine.

- command: `make torture` ({hours:.0f} min)
- anaphor: {version}, commit {commit}
- torch: {torch}
- python: {python}
- processor: {processor}, {cores} cores
"""


def faults_page(reports: Sequence[Report]) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    lines = [
        HEAD.format(
            hours=sum(report.seconds for report in reports) / 60,
            version=anaphor.__version__,
            commit=commit.stdout.strip() or "unknown",
            torch=torch.__version__,
            python=platform.python_version(),
            processor=processor_name(),
            cores=os.cpu_count(),
        ),
        "| fault | promise | tried | survived | how they ended |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for report in reports:
        tried = f"{report.count:,}" if report.missing is None else "skipped"
        cells = (
            report.fault.name,
            report.fault.promise,
            tried,
            f"{report.survived:,}",
            report.missing or report.describe_ends(),
        )
        lines.append(f"| {' | '.join(cells)} |")
    failures = [(report.key, seed, outcome) for report in reports for seed, outcome in report.failures]
    if failures:
        lines += ["", "## Failures", "", "| fault | seed | how it ended | repeat with |", "| --- | ---: | --- | --- |"]
        lines += [
            f"| {key} | {seed} | {outcome.how} | `python -m torture --fault {key} --seed {seed} --tries 1` |"
            for key, seed, outcome in failures
        ]
    return "\n".join(lines) + "\n"


def processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"

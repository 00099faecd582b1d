"""Start of the command: the seconds that a training of one step takes beyond the import of torch."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from anaphor.bench.timing import Finding, time_alternately

MAX_SECONDS = 1.5
COMMAND = "train lm --data grammar --model lstm --width 16 --steps 1 --no-test --device cpu"


def run_python(*words: str) -> None:
    # Modules are compiled once and for all, as those of an installed package are.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *words], check=True, capture_output=True, env={**kept, "PYTHONSAFEPATH": "1"})


def measure(pairs: int, tick: Callable[[str], None]) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        words = [*COMMAND.split(), "--out", str(Path(folder) / "run"), "--overwrite"]
        train = partial(run_python, "-m", "anaphor.cli.main", *words)
        times = time_alternately(train, partial(run_python, "-c", "import torch"), pairs, partial(tick, "start"))
    seconds = [ours - torch for ours, torch in times]
    mean = statistics.fmean(seconds)
    # Two standard errors: there is no ratio whose interval could be taken.
    around = 2 * statistics.stdev(seconds) / math.sqrt(len(seconds)) if len(seconds) > 1 else math.inf
    ours, torch = (statistics.fmean(column) for column in zip(*times, strict=True))
    return [
        Finding(
            "seconds of the command beyond `import torch`",
            "import torch",
            mean,
            mean - around,
            mean + around,
            promise=f"at most {MAX_SECONDS} s",
            kept=mean <= MAX_SECONDS,
            detail=f"`{COMMAND}`: {ours:.2f} s against {torch:.2f} s; {len(times)} pairs, alternately",
        )
    ]

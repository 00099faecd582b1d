"""The start of the command against `import torch`; with a GPU, its time outside of training."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.processes import run_python
from benchmarks.timing import Finding, time_rounds

ROUNDS = 10
"""At most so many rounds: each takes as long as a hundred pairs of other parts."""
IMPORT = "import torch"
RUN = "import sys; from anaphor.cli.main import main; sys.exit(main())"
"""The command, also of versions that `python -m anaphor` does not know."""
HELPS = ("--help", "train lm --help")
TRAININGS = (
    "train lm --data grammar --model lstm --width 16 --steps 1 --no-test --device cpu",
    "train lm --data grammar --steps 2 --device cpu",
)
"""The first is as small as a training can be; the second has the model, validation and test that are the defaults."""
MAX_HELP_SECONDS = 0.5
MAX_SECONDS_BEYOND_IMPORT = {TRAININGS[0]: 1.5}
GPU_TRAINING = "train lm --data grammar --model lstm --width 200 --epochs 4 --device cuda"
MAX_SECONDS_OUTSIDE = 8.0


def count_ticks(pairs: int, device: torch.device) -> int:
    return pairs + 1 if device.type == "cuda" else min(pairs, ROUNDS)


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """Seconds of help, and of small trainings beyond the import; with a GPU those of a training around its steps."""
    if device.type == "cuda":
        return [_measure_time_outside(pairs, tick)]
    seconds = time_start(min(pairs, ROUNDS), tick)
    return [
        *(_describe_help(command, seconds[command], seconds[IMPORT]) for command in HELPS),
        *(_describe_training(command, seconds[command], seconds[IMPORT]) for command in TRAININGS),
    ]


def time_start(rounds: int, tick: Callable[[str], None]) -> dict[str, list[float]]:
    """Seconds of the import and of each command, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        functions = {IMPORT: import_torch, **list_commands(Path(folder) / "run")}
        return time_rounds(functions, rounds, partial(tick, "start"))


def import_torch() -> object:
    return run_python("-c", IMPORT)


def list_commands(out: Path, source: Path | None = None) -> dict[str, Callable[[], object]]:
    """What runs each command. Trainings write to `out`; `source` is the folder of another package `anaphor`."""
    commands = dict.fromkeys(HELPS) | dict.fromkeys(TRAININGS, out)
    return {command: partial(run_command, command, out, source=source) for command, out in commands.items()}


def run_command(command: str, out: Path | None = None, *, source: Path | None = None) -> str:
    """What the command prints."""
    more = [] if out is None else ["--out", str(out), "--overwrite"]
    return run_python("-c", RUN, *command.split(), *more, source=source)


def subtract(seconds: Sequence[float], imported: Sequence[float]) -> list[float]:
    """Seconds beyond those of the import in the same round."""
    return [one - other for one, other in zip(seconds, imported, strict=True)]


def _describe_help(command: str, seconds: Sequence[float], imported: Sequence[float]) -> Finding:
    value = statistics.median(seconds)
    return Finding(
        f"`anaphor {command}`: seconds", f"`{IMPORT}`: {statistics.median(imported):.2f} s", value, None, None,
        promise=f"under {MAX_HELP_SECONDS} s", kept=value < MAX_HELP_SECONDS, detail=_describe_rounds(seconds),
    )  # fmt: skip


def _describe_training(command: str, seconds: Sequence[float], imported: Sequence[float]) -> Finding:
    beyond = subtract(seconds, imported)
    value, limit = statistics.median(beyond), MAX_SECONDS_BEYOND_IMPORT.get(command)
    medians = f"{statistics.median(seconds):.2f} s against {statistics.median(imported):.2f} s"
    return Finding(
        f"`anaphor {command}`: seconds beyond `{IMPORT}`", f"`{IMPORT}`", value, None, None,
        promise="none: compare with another tree" if limit is None else f"at most {limit} s",
        kept=limit is None or value <= limit, detail=f"{medians}; {_describe_rounds(beyond)}",
    )  # fmt: skip


def _describe_rounds(seconds: Sequence[float]) -> str:
    return f"median of {len(seconds)}, from {min(seconds):.2f} to {max(seconds):.2f} s"


def _measure_time_outside(pairs: int, tick: Callable[[str], None]) -> Finding:
    """Import, data, validations, test, figures and files. The first run fills the caches and does not count."""
    outside = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(pairs + 1):
            start = time.perf_counter()
            output = run_command(f"{GPU_TRAINING} --json", Path(folder) / "run")
            outside.append(time.perf_counter() - start - json.loads(output)["seconds"])
            tick("start")
    value = statistics.median(outside[1:])
    return Finding(
        "seconds of the command outside training, on a GPU", "none: by the clock, less the seconds of training",
        value, None, None, promise=f"at most {MAX_SECONDS_OUTSIDE:g} s", kept=value <= MAX_SECONDS_OUTSIDE,
        detail=f"`{GPU_TRAINING}`, caches warm; {_describe_rounds(outside[1:])}",
    )  # fmt: skip

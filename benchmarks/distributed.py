"""Two processes against one with two threads: the speed of training on the same CPU cores.

    python -m benchmarks.distributed --pairs 5
    python -m benchmarks.distributed --cpu-time

Each pair trains the same run twice, in turns: once in one process with as many threads as there are ranks, once by
torchrun. Speed is that of the second half of the steps. With `--cpu-time` the work of a step is counted instead, in
seconds of all cores, also of one thread alone: for a machine that others use, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = {
    "lstm": ["--model", "lstm", "--width", "256", "--dropout", "0.2"],
    "transformer": ["--model", "transformer", "--width", "256", "--dropout", "0.1"],
}


def train(out: Path, model: str, ranks: int, threads: int, steps: int) -> None:
    """Train in one process, or in several, with two validations."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    words = ["train", "lm", "--data", "grammar", *MODELS[model], "--batch-size", "32", "--steps", str(steps)]
    words += ["--eval-every", str(steps // 2), "--eval-batch-size", "64", "--no-test", "--device", "cpu"]
    words += ["--threads", str(threads), "--out", str(out)]
    command = [sys.executable, *launcher, "-m", "anaphor", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, env=environment, check=True, capture_output=True)


def measure_speed(folder: Path, model: str, ranks: int, threads: int, steps: int) -> float:
    """Tokens per second of the second half."""
    out = folder / f"{ranks}-{threads}"
    train(out, model, ranks, threads, steps)
    first, second = (json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return float((second["tokens"] - first["tokens"]) / (second["seconds"] - first["seconds"]))


def measure_cpu_time(folder: Path, model: str, ranks: int, threads: int, steps: int) -> float:
    """Milliseconds of all cores for a step: what a longer training needs more than a shorter one."""
    spent = []
    for count in (steps // 4, steps):
        before = os.times()
        train(folder / f"{ranks}-{threads}-{count}", model, ranks, threads, count)
        after = os.times()
        spent.append(sum(after[2:4]) - sum(before[2:4]))
    return 1000 * (spent[1] - spent[0]) / (steps - steps // 4)


def compare_cpu_time(model: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ways = {"one thread": (1, 1), "threads": (1, options.ranks), "ranks": (options.ranks, 1)}
        found = {name: measure_cpu_time(Path(folder), model, *way, options.steps) for name, way in ways.items()}
    print(f"{model}: " + ", ".join(f"{name} {value:.1f} ms" for name, value in found.items()) + " of CPU time a step")


def compare_speed(model: str, options: argparse.Namespace) -> None:
    ratios = []
    for number in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            one = measure_speed(Path(folder), model, 1, options.ranks, options.steps)
            several = measure_speed(Path(folder), model, options.ranks, 1, options.steps)
        ratios.append(several / one)
        print(f"{model}, pair {number}: {one:,.0f} and {several:,.0f} tokens/s, ratio {ratios[-1]:.2f}", flush=True)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{model}: {options.ranks} ranks / 1 process: median {statistics.median(ratios):.2f} ({spread})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    for model in MODELS:
        (compare_cpu_time if options.cpu_time else compare_speed)(model, options)


if __name__ == "__main__":
    main()

"""Two processes against one with two threads: the speed of training on the same CPU cores.

    python -m benchmarks.distributed --pairs 5

Each pair trains the same run twice, in turns: once in one process with as many threads as there are ranks, once by
torchrun. Speed is that of the second half of the steps.
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
    "transformer": ["--model", "transformer", "--width", "256", "--dropout", "0.1", "--optimizer", "adamw"],
}


def measure(out: Path, model: str, ranks: int, threads: int, steps: int) -> float:
    """Tokens per second of one training."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    words = ["train", "lm", "--data", "grammar", *MODELS[model], "--batch-size", "32", "--steps", str(steps)]
    words += ["--eval-every", str(steps // 2), "--eval-batch-size", "64", "--no-test", "--device", "cpu"]
    words += ["--threads", str(threads), "--out", str(out)]
    command = [sys.executable, *launcher, "-m", "anaphor", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    first, second = (json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return float((second["tokens"] - first["tokens"]) / (second["seconds"] - first["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    for model in MODELS:
        ratios = []
        for number in range(options.pairs):
            with tempfile.TemporaryDirectory() as folder:
                one = measure(Path(folder) / "one", model, 1, options.ranks, options.steps)
                several = measure(Path(folder) / "several", model, options.ranks, 1, options.steps)
            ratios.append(several / one)
            print(f"{model}, pair {number}: {one:,.0f} and {several:,.0f} tokens/s, ratio {ratios[-1]:.2f}", flush=True)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{model}: {options.ranks} ranks / 1 process: median {statistics.median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()

"""Train an LSTM, a transformer with a carried memory and a hybrid, of equal size, on the same text for the same time.

`make demo` runs it in under two minutes on two cores. The text is the language reference that comes with CPython.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anaphor

# Tuned on the validation split. Each model trains for as many epochs as it can read in the same time.
COMMON: dict[str, Any] = {
    "data": "python-reference", "width": 128, "layers": 2, "tied": True,
    "batch_size": 20, "bptt": 20, "random_offset": True, "optimizer": "muon",
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"model": "lstm", "dropout": 0.2, "lr": 0.02, "weight_decay": 0.2, "epochs": 7},
    "transformer": {
        "model": "transformer", "position": "alibi", "memory": 64, "feedforward": 256,
        "dropout": 0.05, "lr": 0.003, "weight_decay": 0.2, "epochs": 5,
    },
    "hybrid": {
        "model": "hybrid", "memory": 64, "feedforward": 128,
        "dropout": 0.1, "lr": 0.004, "weight_decay": 0.1, "epochs": 5,
    },
}  # fmt: skip


class PrintEpochs(anaphor.NullCallback):
    """Prints one line for each validation."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_evaluation(self, info: anaphor.EvaluationInfo, /) -> None:
        perplexity = info.result.values["perplexity"]
        print(f"{self.name}: epoch {info.epoch:g}, validation perplexity {perplexity:.1f}", file=sys.stderr)


def train(name: str, settings: Mapping[str, Any], folder: Path) -> anaphor.Run:
    run = anaphor.train("lm", out=folder, overwrite=True, callback=PrintEpochs(name), **{**COMMON, **settings})
    if run.result["status"] != "finished":
        sys.exit(130)  # Ctrl-C
    return run


def format_table(runs: Mapping[str, anaphor.Run]) -> str:
    lines = [f"{'model':<12} {'test perplexity':>15} {'parameters':>11} {'tokens/s':>9}"]
    for name, run in runs.items():
        result = run.result
        lines.append(
            f"{name:<12} {result['test']['perplexity']:>15.1f} {result['parameters']:>11,} "
            f"{result['tokens_per_second']:>9,.0f}"
        )
    signatures = dict.fromkeys(run.result["test"]["signature"] for run in runs.values())
    return "\n".join([*lines, *(f"({signature})" for signature in signatures)])


def demo(folder: Path, models: Mapping[str, Mapping[str, Any]]) -> Path:
    """Train the models, print a table and a sample of each. Returns the path of the figure."""
    start = time.perf_counter()
    runs = {name: train(name, settings, folder / name) for name, settings in models.items()}
    print(format_table(runs))
    for name, run in runs.items():
        print(f"\n{name} writes:\n{run.generate(tokens=30, temperature=0.7, seed=1)}")
    rows = {name: [row for row in run.metrics if "valid" in row] for name, run in runs.items()}
    figure: Path = anaphor.draw.curves(
        {
            name: ([row["epoch"] for row in some], [row["valid"]["perplexity"] for row in some])
            for name, some in rows.items()
        },
        folder / "demo.png",
        x_label="epoch",
        y_label="validation perplexity",
        title="The same text, the same number of parameters",
    )
    print(f"\nfigure: {figure}\n{time.perf_counter() - start:.0f} s")
    return figure


if __name__ == "__main__":
    demo(Path("runs/demo"), MODELS)

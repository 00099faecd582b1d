"""An LSTM, a transformer that carries its memory and a hybrid, of equal size, learn the same text for as long.

`make demo` runs it in under two minutes on two cores. The text is the language reference that every CPython brings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anaphor
from anaphor.generate import Sampler, generate

# Chosen on the validation split. The number of epochs is what each of them reads in the same time.
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


@dataclass
class Told:
    """Hears how training goes, and says so in one line an epoch."""

    name: str
    perplexities: list[float] = field(default_factory=list)

    def stepped(self, progress: float, loss: float, tokens: int) -> None:
        pass

    def evaluated(self, epoch: float, trained: float | None, score: Any, best: bool) -> None:
        self.perplexities.append(score.total.perplexity)
        print(f"{self.name}: epoch {epoch:g}, validation perplexity {self.perplexities[-1]:.1f}", file=sys.stderr)


@dataclass(frozen=True)
class Trained:
    """What is shown of a model."""

    name: str
    result: dict[str, Any]
    perplexities: list[float]
    sample: str


def spec_of(settings: Mapping[str, Any]) -> anaphor.LanguageRunSpec:
    return anaphor.LanguageRunSpec(**{**COMMON, **settings})


def train(name: str, settings: Mapping[str, Any], folder: Path) -> Trained:
    told = Told(name)
    result, code = anaphor.execute(spec_of(settings), folder, told, force=True)
    if code:
        sys.exit(code)  # somebody pressed Ctrl-C
    with anaphor.opened(folder) as made:
        sampler = Sampler(temperature=0.7)
        ids = list(generate(made.model, [made.tokenizer.boundary], 30, sampler, seed=1))
        return Trained(name, result, told.perplexities, made.tokenizer.decode(ids))


def table(models: list[Trained]) -> str:
    lines = [f"{'model':<12} {'test perplexity':>15} {'parameters':>11} {'tokens/s':>9}"]
    for model in models:
        result = model.result
        lines.append(
            f"{model.name:<12} {result['test']['perplexity']:>15.1f} {result['parameters']:>11,} "
            f"{result['tokens_per_second']:>9,.0f}"
        )
    signatures = dict.fromkeys(model.result["test"]["signature"] for model in models)
    return "\n".join([*lines, *(f"({signature})" for signature in signatures)])


def demo(folder: Path, models: Mapping[str, Mapping[str, Any]]) -> Path:
    """Train them all, print what came out, and give the path of the figure."""
    began = time.perf_counter()
    trained = [train(name, settings, folder / name) for name, settings in models.items()]
    print(table(trained))
    for model in trained:
        print(f"\n{model.name} writes:\n{model.sample}")
    figure: Path = anaphor.draw.curves(
        {model.name: (range(1, len(model.perplexities) + 1), model.perplexities) for model in trained},
        folder / "demo.png",
        x_label="epoch",
        y_label="validation perplexity",
        title="The same text, the same number of parameters",
    )
    print(f"\nfigure: {figure}\n{time.perf_counter() - began:.0f} s")
    return figure


if __name__ == "__main__":
    demo(Path("runs/demo"), MODELS)

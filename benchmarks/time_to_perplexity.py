"""Seconds of training to a perplexity on validation, for runs of Anaphor and for the loop of PyTorch's example.

    python -m benchmarks.time_to_perplexity train lstm runs/example-lstm
    python -m benchmarks.time_to_perplexity train transformer runs/example-transformer
    anaphor train lm --recipe wikitext-2-lstm --out runs/wikitext-2-lstm
    python -m benchmarks.time_to_perplexity draw runs/time.png runs/example-lstm runs/example-transformer \\
        runs/wikitext-2-lstm

The example is word_language_model, written anew in `benchmarks.training`: a plain loop, every kernel launched from
Python. Data, segments and scoring are those of our recipes of the same name. Validation does not count as training.
A run that shared its machine has no seconds of its own: `draw … --step-ms example-lstm=6.2` counts its steps instead,
each as long as it takes alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.nn import functional as F

from anaphor import draw
from anaphor.data.batches import IGNORE_INDEX, Batch
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training.build import build_experiment
from benchmarks.training import PlainLoop, build_peer, load_recipe

GOALS = (200, 150, 120, 100, 80, 70, 65)
METRICS = "metrics.jsonl"


def train(model: str, out: Path, *, data: str | None, epochs: int | None, device: str) -> None:
    """As the example's script: validate after each epoch, divide the learning rate by 4 where that is no better."""
    recipe = load_recipe(f"word-language-model-{model}")
    spec = dataclasses.replace(recipe, data=data or recipe.data, device=device)
    experiment = build_experiment(spec)
    assert isinstance(experiment, StreamExperiment)
    torch.manual_seed(spec.seed)
    peer = build_peer(spec).to(experiment.device)
    validation = list(map(transpose, experiment.eval_batches("valid", experiment.protocol)))
    lr, best, seconds, steps = spec.lr or 1.0, math.inf, 0.0, 0
    out.mkdir(parents=True, exist_ok=True)
    with (out / METRICS).open("w", encoding="utf-8") as file:
        for epoch in range(1, (epochs or int(spec.epochs or 1)) + 1):
            peer.train()
            batches = list(map(transpose, experiment.batches(epoch - 1)))
            loop = PlainLoop(peer, iter(batches), lr=lr, clip=spec.clip)
            start = time.perf_counter()
            losses = [loop.step() for _ in batches]
            seconds += time.perf_counter() - start
            steps += len(losses)
            perplexity = math.exp(score(peer, validation))
            line = {
                "step": steps, "epoch": epoch, "seconds": seconds, "train_loss": sum(losses) / len(losses), "lr": lr,
                "valid": {"perplexity": perplexity},
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"epoch {epoch}, {seconds:.1f} s, {1000 * seconds / steps:.2f} ms a step, valid {perplexity:.2f}")
            best, lr = (perplexity, lr) if perplexity < best else (best, lr / 4)


def transpose(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """As the example's models read it: tokens [T, B] and targets [T · B]."""
    return batch.input_ids.t().contiguous(), batch.targets.t().flatten()


@torch.no_grad()
def score(model: torch.nn.Module, batches: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Mean loss of all tokens."""
    model.eval()
    total, count, state = 0.0, 0, None
    for tokens, targets in batches:
        output, state = model(tokens, state)
        total += F.nll_loss(output, targets, reduction="sum").item()
        count += int((targets != IGNORE_INDEX).sum())  # rows of the last segment may have padding
    return total / count


def read_points(run: Path, step_ms: float | None = None) -> list[tuple[float, float]]:
    """Seconds and validation perplexities of a run; with milliseconds of a step, the seconds of its steps."""
    if not (run / METRICS).is_file():
        raise SystemExit(f"{run} has no {METRICS}: it is not the folder of a run")
    lines = map(json.loads, (run / METRICS).read_text(encoding="utf-8").splitlines())
    validated = [line for line in lines if line.get("valid")]
    if not validated:
        raise SystemExit(f"{run} has no validation yet")
    seconds = [line["seconds"] if step_ms is None else line["step"] * step_ms / 1000 for line in validated]
    return [(x, line["valid"]["perplexity"]) for x, line in zip(seconds, validated, strict=True)]


def read_step_ms(pairs: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Milliseconds of a step by the name of a run."""
    found = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise SystemExit(f"--step-ms {pair}: give a run and its milliseconds, such as {names[0]}=6.2")
        if name not in names:
            raise SystemExit(f"--step-ms {pair}: no run has that name, only {', '.join(names)}")
    return found


def reach(points: Sequence[tuple[float, float]], goals: Sequence[float] = GOALS) -> list[float | None]:
    """Seconds to the first validation that is at most each goal."""
    return [next((seconds for seconds, value in points if value <= goal), None) for goal in goals]


def show(found: Mapping[str, Sequence[tuple[float, float]]], figure: Path) -> None:
    """Print a table, and draw all curves."""
    print(f"| seconds to a validation perplexity of | {' | '.join(map(str, GOALS))} | best |")
    print(f"| --- |{' ---: |' * (len(GOALS) + 1)}")
    for name, points in found.items():
        cells = ["never" if seconds is None else f"{seconds:.0f}" for seconds in reach(points)]
        print(f"| `{name}` | {' | '.join(cells)} | {min(value for _, value in points):.2f} |")
    series = {name: ([x for x, _ in points], [y for _, y in points]) for name, points in found.items()}
    x_label, y_label = "seconds of training", "validation perplexity"
    print(f"figure: {draw.curves(series, figure, x_label=x_label, y_label=y_label, log_x=True, log_y=True)}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train", help="train by the example's loop")
    training.add_argument("model", choices=("lstm", "transformer"))
    training.add_argument("out", type=Path)
    training.add_argument("--data", help="name or folder; that of the recipe if not given")
    training.add_argument("--epochs", type=int, help="40 if not given")
    training.add_argument("--device", default="auto")
    drawing = verbs.add_parser("draw", help="print the table and draw the curves of runs")
    drawing.add_argument("figure", type=Path)
    drawing.add_argument("runs", type=Path, nargs="+")
    drawing.add_argument(
        "--step-ms", nargs="+", default=[], metavar="NAME=MS", help="of runs that shared their machine"
    )
    options = parser.parse_args(argv)
    if options.verb == "train":
        train(options.model, options.out, data=options.data, epochs=options.epochs, device=options.device)
    else:
        names = [run.name for run in options.runs]
        for name in names:
            if names.count(name) > 1:
                raise SystemExit(f"two runs are called {name}: rename the folder of one")
        step_ms = read_step_ms(options.step_ms, names)
        show({run.name: read_points(run, step_ms.get(run.name)) for run in options.runs}, options.figure)


if __name__ == "__main__":
    main()

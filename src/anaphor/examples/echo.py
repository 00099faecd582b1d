"""Attention of a model that copies sentences: where it looks, and how fast it learns to look there.

    anaphor study echo --device cpu --out runs/echo
    python -m anaphor.examples.echo curves runs/echo runs/echo-curves.png

    anaphor train translate --data echo-fit --width 128 --batch-size 16 --lr 0.005 --epochs 40 --device cpu \\
        --no-test --out runs/echo-attention
    python -m anaphor.examples.echo alignment runs/echo-attention runs/echo-alignment.png

Source and target are the same sentence, so the right alignment is known: target token t belongs to source token t. The
end of a sentence has no source token and is not counted.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

import anaphor
from anaphor import draw
from anaphor.inspect.alignment import Alignment, alignment, as_text, draw_alignment, weight_at
from anaphor.tasks.translate.experiment import TranslationExperiment

SHOWN = range(6, 11)  # tokens of the sentence that is printed and drawn, unless one is given


def show_alignment(run: Path, figure: Path, split: str, sentence: str | None) -> float:
    """Print how much of the weight is on the token to be predicted, over a whole split, and show one sentence."""
    experiment = anaphor.load_run(run, device="cpu").experiment
    assert isinstance(experiment, TranslationExperiment)
    model, tokenizers = experiment.model, experiment.tokenizers

    def echo(text: str) -> Alignment:
        return alignment(model, tokenizers, text, tokenizers.target.encode_sentence(text).tolist())

    texts = [source for source, _ in experiment.source.rows(split).values]
    found = [echo(text) for text in texts]
    shown = echo(sentence if sentence is not None else example(texts))
    weights = [weight_at(one, range(len(one.source))) for one in found]
    on, first, later = (torch.cat([row[part] for row in weights]) for part in (slice(None), slice(1), slice(1, None)))
    print(f"{split}: {len(found):,} sentences, {len(on):,} tokens; a sentence's end has no place in its source")
    print(f"mean weight on the token to be predicted: {on.mean():.3f}")
    print(f"  of first tokens {first.mean():.3f}, of later ones {later.mean():.3f}")
    print(f"largest weight: {', '.join(f'{name} {share:.1%}' for name, share in largest(found).items())}")
    print(as_text(shown))
    figure.parent.mkdir(parents=True, exist_ok=True)
    for path in draw_alignment(shown, figure.with_suffix("")):
        print(f"figure: {path}")
    return float(on.mean())


def example(texts: Sequence[str]) -> str:
    """The first sentence that is neither short nor long and has no token twice, so that one place only is right."""
    fitting = [text for text in texts if len(text.split()) in SHOWN and len(set(text.split())) == len(text.split())]
    return (fitting or texts)[0]


def largest(found: Sequence[Alignment]) -> dict[str, float]:
    """Where the largest weight is, seen from the token to be predicted."""
    names = {0: "on it", 1: "one later", -1: "one earlier"}
    tops = (one.weights[: len(one.source)].argmax(-1) - torch.arange(len(one.source)) for one in found)
    counts = Counter(names.get(away, "elsewhere") for top in tops for away in top.tolist())
    return {name: counts[name] / counts.total() for name in (*names.values(), "elsewhere")}


def draw_curves(study: Path, figure: Path) -> None:
    """Draw the validation perplexity of each condition after each epoch, mean and range over seeds."""
    cells = json.loads((study / "result.json").read_text(encoding="utf-8"))["cells"]
    runs: dict[str, list[Mapping[float, float]]] = {}
    for cell in cells:
        runs.setdefault(cell["parameters"]["condition"], []).append(perplexities(Path(cell["run"])))
    lines = []
    for condition, curves in runs.items():
        epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = [[curve[epoch] for curve in curves] for epoch in epochs]
        lows, highs = list(map(min, values)), list(map(max, values))
        lines.append(draw.Line(condition, epochs, list(map(fmean, values)), lows, highs))
    figure.parent.mkdir(parents=True, exist_ok=True)
    draw.bands({"": lines}, [figure], x_label="epoch", y_label="perplexity", log_y=True)
    print(f"figure: {figure}")


def perplexities(run: Path) -> dict[float, float]:
    """After each epoch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["epoch"]: line["valid"]["perplexity"] for line in lines if "valid" in line}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    look, learn = verbs.add_parser("alignment"), verbs.add_parser("curves")
    look.add_argument("run", type=Path)
    learn.add_argument("study", type=Path)
    for verb in (look, learn):
        verb.add_argument("figure", type=Path)
    look.add_argument("--split", default="valid")
    look.add_argument("--sentence")
    given = parser.parse_args()
    if given.verb == "alignment":
        show_alignment(given.run, given.figure, given.split, given.sentence)
    else:
        draw_curves(given.study, given.figure)


if __name__ == "__main__":
    main()

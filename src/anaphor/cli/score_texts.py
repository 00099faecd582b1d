"""What `anaphor score` does: loss and perplexity of independent sentences, token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from anaphor.cli.run_options import load_experiment, warn
from anaphor.cli.score import Options
from anaphor.cli.table import print_line
from anaphor.data.text import read_lines
from anaphor.errors import count_noun
from anaphor.evaluation import ScoredText, score_sentences
from anaphor.inspect.figures import token_labels
from anaphor.plain_values import replace_nonfinite
from anaphor.tasks.lm import describe_unknown
from anaphor.tasks.metrics import LOSS, PERPLEXITY, format_text_values


def print_scores(options: Options) -> int:
    """Print the scores. Returns the exit code."""
    texts = options.texts if options.file is None else read_lines(options.file)
    experiment = load_experiment(options, task="lm")
    scores = score_sentences(experiment.model, experiment.tokenizer, [text for text in texts if text.strip()])
    scored = [next(scores) if text.strip() else ScoredText(text, (), (), ()) for text in texts]
    unknown, tokens = sum(sum(one.unknown) for one in scored), sum(len(one.tokens) for one in scored)
    for line in describe_unknown(unknown, tokens, "text"):
        warn(line)
    if options.json:
        print(json.dumps(replace_nonfinite([_plain(one) for one in scored])))
    else:
        _print_scores(scored)
    return 0


def _plain(one: ScoredText) -> dict[str, Any]:
    return {
        "text": one.text,
        "loss": one.total.loss if one.tokens else None,
        "perplexity": one.total.perplexity if one.tokens else None,
        "tokens": [
            {"token": token, "loss": loss, "unknown": unknown}
            for token, loss, unknown in zip(one.tokens, one.losses, one.unknown, strict=True)
        ],
    }


def _print_scores(scored: Sequence[ScoredText]) -> None:
    """Two lines for each sentence: its tokens with their losses, and its total."""
    console = Console(highlight=False)
    for one in scored:
        tokens = [
            Text.assemble((token, f"{color(loss)}{' underline' if unknown else ''}"), (f"/{loss:.2f}", "dim"))
            for token, loss, unknown in zip(token_labels(one.tokens), one.losses, one.unknown, strict=True)
        ]
        print_line(console, Text(" ").join(tokens))
        if not one.tokens:
            print("  no tokens")
            continue
        values = format_text_values((LOSS, PERPLEXITY), {"loss": one.total.loss, "perplexity": one.total.perplexity})
        print(f"  {values}, {count_noun(one.total.tokens, 'token')}")


def color(loss: float) -> str:
    """Color of a token by its loss, which is printed beside it."""
    for bound, name in ((1, "green"), (3, "cyan"), (6, "yellow"), (9, "magenta")):
        if loss < bound:
            return name
    return "bold red"

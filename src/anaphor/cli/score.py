"""`anaphor score RUN TEXT…`: loss and perplexity of independent sentences, token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.cli.run_options import RunOptions, load_experiment, parse_options, warn
from anaphor.cli.table import print_line
from anaphor.config import finite
from anaphor.data.files import read_lines
from anaphor.errors import count_noun
from anaphor.flags import Positional
from anaphor.tasks import LOSS, PERPLEXITY, check_texts, format_text_values
from anaphor.tasks.lm import describe_unknown

if TYPE_CHECKING:
    from anaphor.evaluation import ScoredText


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Score sentences with a trained language model, each on its own."""

    texts: Annotated[tuple[str, ...], Positional("TEXT…")] = ()
    """Sentences to score."""
    file: Path | None = None
    """File with a sentence on each line; - is standard input. Blank lines have no score."""

    def __post_init__(self) -> None:
        check_texts(self.texts, self.file)


def run(words: Sequence[str]) -> int:
    options = parse_options("score", words, Options)

    from anaphor.evaluation import ScoredText, score_sentences

    texts = options.texts if options.file is None else read_lines(options.file)
    experiment = load_experiment(options, task="lm")
    scores = score_sentences(experiment.model, experiment.tokenizer, [text for text in texts if text.strip()])
    scored = [next(scores) if text.strip() else ScoredText(text, (), (), ()) for text in texts]
    unknown, tokens = sum(sum(one.unknown) for one in scored), sum(len(one.tokens) for one in scored)
    for line in describe_unknown(unknown, tokens, "text"):
        warn(line)
    if options.json:
        print(json.dumps(finite([_plain(one) for one in scored])))
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
    from rich.console import Console
    from rich.text import Text

    from anaphor.inspect.figures import token_labels

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

"""`anaphor score RUN TEXT…`: loss and perplexity of independent sentences, token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from anaphor.config import finite, parse
from anaphor.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Score sentences with a trained model, each by itself."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    texts: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Sentences to score."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON list instead of coloured text."""

    def __post_init__(self) -> None:
        if not self.texts:
            raise ConfigError("there is nothing to score: write a sentence behind the run")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor score")

    from anaphor.tasks.scoring import score_sentences
    from anaphor.training.run import opened_language

    with opened_language(options.run, options.device) as made:
        found = list(score_sentences(made.model, made.tokenizer, options.texts))
    if options.json:
        print(
            json.dumps(
                finite(
                    [
                        {
                            "text": one.text,
                            "loss": one.total.loss,
                            "perplexity": one.total.perplexity,
                            "tokens": [
                                {"token": token, "loss": loss, "unknown": unknown}
                                for token, loss, unknown in zip(one.tokens, one.losses, one.unknown, strict=True)
                            ],
                        }
                        for one in found
                    ]
                )
            )
        )
        return 0

    from rich.console import Console
    from rich.text import Text

    from anaphor.metrics.perplexity import perplexity_in_words

    console = Console(highlight=False)
    for one in found:
        line = Text()
        for token, loss, unknown in zip(one.tokens, one.losses, one.unknown, strict=True):
            line.append(token, style=f"{colour(loss)}{' underline' if unknown else ''}")
            line.append(f"/{loss:.2f} ", style="dim")
        console.print(line)
        total = one.total
        console.print(f"  loss {total.loss:.4f}, {perplexity_in_words(total.perplexity)}, {total.tokens} tokens")
    return 0


def colour(loss: float) -> str:
    """From calm to loud as a token gets more surprising; the numbers beside say the same to whoever sees no colours."""
    for bound, name in ((1, "green"), (3, "cyan"), (6, "yellow"), (9, "magenta")):
        if loss < bound:
            return name
    return "bold red"

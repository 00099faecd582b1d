"""`anaphor score RUN TEXT…`: loss and perplexity of independent sentences, token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from anaphor.cli.lines import read_lines
from anaphor.cli.train import warn_of_unknown
from anaphor.config import finite, parse
from anaphor.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Score sentences with a trained model, each by itself."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    texts: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Sentences to score."""
    file: Path | None = None
    """A file with a sentence on each line; - means standard input."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON list instead of coloured text."""

    def __post_init__(self) -> None:
        if bool(self.texts) == (self.file is not None):
            raise ConfigError("score sentences or a file: write sentences behind the run, or name one with --file")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor score")

    from anaphor.tasks.scoring import score_sentences
    from anaphor.training.run import opened_language

    texts = options.texts if options.file is None else _sentences(options.file)
    with opened_language(options.run, options.device) as made:
        found = list(score_sentences(made.model, made.tokenizer, texts))
    warn_of_unknown(sum(sum(one.unknown) for one in found), sum(len(one.tokens) for one in found), "text")
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
        tokens = f"{total.tokens} token{'s' if total.tokens != 1 else ''}"
        console.print(f"  loss {total.loss:.4f}, {perplexity_in_words(total.perplexity)}, {tokens}")
    return 0


def _sentences(path: Path) -> list[str]:
    """A blank line is none."""
    found = [line for line in read_lines(path) if line.strip()]
    if not found:
        raise DataError(f"{path} holds no sentence")
    return found


def colour(loss: float) -> str:
    """From calm to loud as a token gets more surprising; the numbers beside say the same to whoever sees no colours."""
    for bound, name in ((1, "green"), (3, "cyan"), (6, "yellow"), (9, "magenta")):
        if loss < bound:
            return name
    return "bold red"

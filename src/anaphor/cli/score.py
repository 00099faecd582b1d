"""`anaphor score RUN TEXT…`: loss and perplexity of independent sentences, token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anaphor.cli.lines import read_lines
from anaphor.cli.table import print_line
from anaphor.cli.train import warn_of_unknown
from anaphor.config import finite
from anaphor.errors import ConfigError
from anaphor.flags import parse

if TYPE_CHECKING:
    from anaphor.evaluation import ScoredText


@dataclass(frozen=True, kw_only=True)
class Options:
    """Score sentences with a trained model, each by itself."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    texts: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Sentences to score."""
    file: Path | None = None
    """A file with a sentence on each line; - means standard input. Blank lines keep their place and have no score."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON list instead of coloured text."""

    def __post_init__(self) -> None:
        if bool(self.texts) == (self.file is not None):
            raise ConfigError("score sentences or a file: write sentences behind the run, or name one with --file")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor score")

    from anaphor.evaluation import ScoredText, score_sentences
    from anaphor.training.run import opened_language

    texts = options.texts if options.file is None else read_lines(options.file)
    with opened_language(options.run, options.device) as made:
        real = score_sentences(made.model, made.tokenizer, [text for text in texts if text.strip()])
        found = [next(real) if text.strip() else ScoredText(text, (), (), ()) for text in texts]
    warn_of_unknown(sum(sum(one.unknown) for one in found), sum(len(one.tokens) for one in found), "text")
    if options.json:
        print(json.dumps(finite([_plain(one) for one in found])))
    else:
        _tell(found)
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


def _tell(found: Sequence[ScoredText]) -> None:
    """Two lines for each sentence: its tokens, and what they come to."""
    from rich.console import Console
    from rich.text import Text

    from anaphor.inspect.tokens import shown
    from anaphor.metrics.perplexity import format_perplexity

    console = Console(highlight=False)
    for one in found:
        tokens = [
            Text.assemble((token, f"{colour(loss)}{' underline' if unknown else ''}"), (f"/{loss:.2f}", "dim"))
            for token, loss, unknown in zip(shown(one.tokens), one.losses, one.unknown, strict=True)
        ]
        print_line(console, Text(" ").join(tokens))
        if not one.tokens:
            print("  no tokens")
            continue
        total = one.total
        count = f"{total.tokens} token{'s' if total.tokens != 1 else ''}"
        print(f"  loss {total.loss:.4f}, {format_perplexity(total.perplexity)}, {count}")


def colour(loss: float) -> str:
    """From calm to loud as a token gets more surprising; the numbers beside say the same to whoever sees no colours."""
    for bound, name in ((1, "green"), (3, "cyan"), (6, "yellow"), (9, "magenta")):
        if loss < bound:
            return name
    return "bold red"

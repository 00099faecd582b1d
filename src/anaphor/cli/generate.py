"""`anaphor generate RUN`: write with a trained model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from anaphor.cli.train import warn_of_unknown
from anaphor.errors import ConfigError
from anaphor.flags import parse
from anaphor.training.spec import check_seed

if TYPE_CHECKING:
    from anaphor.data.tokenizer import Tokenizer

LONGEST_CHARACTER = 4
"""Bytes in UTF-8; no token has less than one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write with a trained model, token by token as they are chosen."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    prompt: str = ""
    """Text to go on from; empty means to begin anew."""
    tokens: int = 100
    """How many tokens to write."""
    temperature: float = 1.0
    """Above one flattens the odds, below one sharpens them; 0 always takes the most likely token."""
    top_k: int | None = None
    """Choose among so many most likely tokens only."""
    top_p: float | None = None
    """Choose among the most likely tokens that together have this probability."""
    beam: int | None = None
    """Search for the most probable text with so many beams, instead of drawing one."""
    seed: int = 0
    """Decides every random draw."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON value instead of the text alone."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens={self.tokens}: write at least 1")
        check_seed(self.seed)
        for name in ("temperature", "top_k", "top_p", "seed"):
            given = getattr(self, name)
            if self.beam is not None and given != getattr(Options, name):
                raise ConfigError(f"{name}={given} means nothing to a beam search, which draws no token")


def run(words: Sequence[str]) -> int:
    if "--greedy" in words:
        raise ConfigError("there is no --greedy: --temperature 0 always takes the most likely token")
    options = parse(Options, words, program="anaphor generate")

    from anaphor.generate import Choice, beam_search, generate
    from anaphor.training.run import opened_language

    choice = Choice(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    with opened_language(options.run, options.device) as made:
        tokenizer = made.tokenizer
        prompt = [tokenizer.boundary, *tokenizer.encode_sentence(options.prompt).tolist()]
        warn_of_unknown(prompt.count(tokenizer.unknown), len(prompt) - 1, "prompt")
        if options.beam is not None:
            ids = beam_search(made.model, prompt, options.tokens, options.beam)[0].tokens
            if not options.json:
                print(tokenizer.decode(ids))
        else:
            tokens = generate(made.model, prompt, options.tokens, choice, seed=options.seed)
            if options.json:
                ids = list(tokens)
            else:
                for text in as_written(tokenizer, tokens):
                    print(text, end="", flush=True)
                print()
        if options.json:
            print(
                json.dumps(
                    {"prompt": options.prompt, "text": tokenizer.decode(ids), "tokens": ids, "seed": options.seed}
                )
            )
    return 0


def as_written(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """What each token adds to the text, which in the end is that of all tokens decoded at once.

    A token is decoded behind the last few only. They decide what it adds: what stands between two tokens is the
    tokenizer's business, and a character may have begun in them. One that is not complete looks like a broken one, and
    is held back until the next token tells.
    """
    last: list[int] = []
    held = 0
    text = ""
    for token in tokens:
        shown = len(tokenizer.decode(last)) - held
        last.append(token)
        text = tokenizer.decode(last)
        held = int(text.endswith("\ufffd"))
        yield text[shown : len(text) - held]
        last = last[-LONGEST_CHARACTER:]
    yield text[len(text) - held :]

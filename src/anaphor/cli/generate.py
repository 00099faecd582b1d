"""`anaphor generate RUN`: generate text with a trained language model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anaphor.cli.run_options import RunOptions, load_experiment, parse_options, warn
from anaphor.cli.table import for_terminal
from anaphor.errors import ConfigError
from anaphor.tasks.lm import describe_unknown
from anaphor.training.spec import check_seed

if TYPE_CHECKING:
    from anaphor.data.tokenizer import Tokenizer

FIRST = 8
"""Tokens shown of a text that is blank."""
LONGEST_CHARACTER = 4
"""Bytes in UTF-8; no token has less than one."""


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Generate text with a trained language model, token by token."""

    prompt: str = ""
    """Text to continue; empty for none."""
    tokens: int = 100
    """Number of tokens to generate."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from the k most likely tokens only."""
    top_p: float | None = None
    """Sample from the most likely tokens with this total probability (nucleus sampling)."""
    beam: int | None = None
    """Beam search of this width in place of sampling."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens={self.tokens}: it must be at least 1")
        check_seed(self.seed)
        for name in ("temperature", "top_k", "top_p", "seed"):
            given = getattr(self, name)
            if self.beam is not None and given != getattr(Options, name):
                raise ConfigError(f"{name}={given} has no effect with --beam, which does not sample")


def run(words: Sequence[str]) -> int:
    if "--greedy" in words:
        raise ConfigError("there is no --greedy: use --temperature 0")
    options = parse_options("generate", words, Options)

    from anaphor.generate import Sampler, beam_search, generate

    choice = Sampler(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    experiment = load_experiment(options, task="lm")
    model, tokenizer = experiment.model, experiment.tokenizer
    prompt = tokenizer.encode_prompt(options.prompt)
    for line in describe_unknown(prompt.count(tokenizer.unknown), len(prompt) - 1, "prompt"):
        warn(line)
    if options.beam is not None:
        ids: Iterable[int] = beam_search(model, prompt, options.tokens, options.beam)[0].tokens
    else:
        ids = generate(model, prompt, options.tokens, choice, seed=options.seed)
    if options.json:
        ids = list(ids)
        print(
            json.dumps({"prompt": options.prompt, "text": tokenizer.decode(ids), "tokens": ids, "seed": options.seed})
        )
        return 0
    generated: list[int] = []
    is_blank = True
    for text in decode_stream(tokenizer, _keep(ids, generated)):
        is_blank = is_blank and not text.strip()
        print(for_terminal(text, sys.stdout), end="", flush=True)
    print()
    if is_blank:
        is_greedy = options.temperature == 0 or options.beam is not None
        warn(describe_blank(tokenizer, generated, is_greedy=is_greedy))
    return 0


def _keep(ids: Iterable[int], kept: list[int]) -> Iterator[int]:
    for token in ids:
        kept.append(token)
        yield token


def describe_blank(tokenizer: Tokenizer, ids: Sequence[int], *, is_greedy: bool) -> str:
    """What to say of a text that shows nothing."""
    first = " ".join(repr(tokenizer.tokens[token]) for token in ids[:FIRST])
    more = " …" if len(ids) > FIRST else ""
    why = ": no other token was likelier at any step" if is_greedy else ""
    advice = "train longer, or sample with --temperature 1" if is_greedy else "train longer, or try another --seed"
    return f"only line ends and spaces were generated{why} (first tokens: {first}{more}); {advice}"


def decode_stream(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """What each token adds to the text. Joined, it is the text of all tokens decoded at once.

    A token is decoded together with the last few only, which decide about white space and may hold the beginning of a
    character. An incomplete character is held back until the next token completes it.
    """
    recent: list[int] = []
    held = 0
    text = ""
    for token in tokens:
        shown = len(tokenizer.decode(recent)) - held
        recent.append(token)
        text = tokenizer.decode(recent)
        held = int(text.endswith("\ufffd"))
        yield text[shown : len(text) - held]
        recent = recent[-LONGEST_CHARACTER:]
    yield text[len(text) - held :]

"""What `anaphor generate` does: print texts of a trained language model, a single one while it is generated."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from anaphor.beam_search import beam_search
from anaphor.cli.generate import Options
from anaphor.cli.run_options import load_experiment, warn
from anaphor.cli.table import for_terminal
from anaphor.data.text import read_lines
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError, DataError
from anaphor.generate import Sampler, generate, generate_texts
from anaphor.models import LanguageModel
from anaphor.tasks.lm import describe_unknown

FIRST = 8
"""Tokens shown of a text that is blank."""
MAX_UTF8_BYTES = 4
"""Bytes in UTF-8; no token has less than one."""


def print_texts(options: Options) -> int:
    """Print the texts. Returns the exit code."""
    choice = Sampler(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    texts = [options.prompt] if options.file is None else read_lines(options.file)
    if not texts:
        raise DataError(f"{options.file} has no lines: give a prompt on each, or an empty line for none")
    experiment = load_experiment(options, task="lm")
    model, tokenizer = experiment.model, experiment.tokenizer
    if options.cuda_graph and experiment.device.type != "cuda":
        raise ConfigError(f"--cuda-graph needs a GPU, but the device is {experiment.device.type}")
    prompts = [tokenizer.encode_prompt(text) for text in texts]
    encoded = [token for prompt in prompts for token in prompt[1:]]
    what = "prompt" if options.file is None else "prompts"
    for line in describe_unknown(encoded.count(tokenizer.unknown), len(encoded), what):
        warn(line)
    if options.file is not None or options.samples > 1:
        return _generate_several(options, texts, prompts, model, tokenizer, choice)
    prompt = prompts[0]
    if options.beam is not None:
        ids: Iterable[int] = beam_search(model, prompt, options.tokens, options.beam)[0].tokens
    else:
        ids = generate(model, prompt, options.tokens, choice, seed=options.seed, cuda_graph=options.cuda_graph)
    ids = tokenizer.until_end(ids)
    if options.json:
        print(json.dumps(to_plain(tokenizer, options.prompt, list(ids), options.seed)))
        return 0
    generated: list[int] = []
    is_blank, has_output = True, False
    try:
        for text in decode_stream(tokenizer, _keep(ids, generated)):
            is_blank = is_blank and not text.strip()
            print(for_terminal(text, sys.stdout), end="", flush=True)
            has_output = True
    finally:  # after Ctrl-C and errors, too: what is printed next has a line of its own
        if has_output:
            print(flush=True)
    if is_blank:
        is_greedy = options.temperature == 0 or options.beam is not None
        warn(describe_blank(tokenizer, generated, is_greedy=is_greedy))
    return 0


def _generate_several(
    options: Options,
    texts: Sequence[str],
    prompts: Sequence[Sequence[int]],
    model: LanguageModel,
    tokenizer: Tokenizer,
    sampler: Sampler,
) -> int:
    """Texts that are generated at once: each below a line with its number, or one JSON value for all of them."""
    places = [place for place in range(len(prompts)) for _ in range(options.samples)]
    if options.samples > 1 and options.temperature == 0:
        warn("--temperature 0 is greedy: all samples of a prompt are equal")
    found: Iterable[list[int]]
    if options.beam is not None:
        searched = (beam_search(model, prompt, options.tokens, options.beam)[0].tokens for prompt in prompts)
        found = (list(tokenizer.until_end(ids)) for ids in searched)
    else:
        found = generate_texts(
            model, [prompts[place] for place in places], options.tokens, sampler,
            seed=options.seed, batch_size=options.batch_size, cuda_graph=options.cuda_graph, ends=tokenizer.ends,
        )  # fmt: skip
    plain = []
    for number, (place, ids) in enumerate(zip(places, found, strict=True)):
        one = to_plain(tokenizer, texts[place], ids, options.seed + number)
        if options.json:
            plain.append(one)
            continue
        line = [] if options.file is None else [f"line {place + 1}"]
        sample = [] if options.samples == 1 else [f"sample {number % options.samples + 1}"]
        print(f"--- {', '.join([*line, *sample])}")
        print(for_terminal(one["text"], sys.stdout), flush=True)
    if options.json:
        print(json.dumps({"samples": plain}))
    return 0


def to_plain(tokenizer: Tokenizer, prompt: str, ids: list[int], seed: int) -> dict[str, Any]:
    return {"prompt": prompt, "text": tokenizer.decode(ids), "tokens": ids, "seed": seed}


def _keep(ids: Iterable[int], kept: list[int]) -> Iterator[int]:
    for token in ids:
        kept.append(token)
        yield token


def describe_blank(tokenizer: Tokenizer, ids: Sequence[int], *, is_greedy: bool) -> str:
    """What to say of a text that shows nothing."""
    if not ids:
        return "nothing was generated: the first token was one that ends a text"
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
        recent = recent[-MAX_UTF8_BYTES:]
    yield text[len(text) - held :]

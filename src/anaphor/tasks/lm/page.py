"""What the live page shows of language models: a look inside, the loss of each token, and continuations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError
from anaphor.evaluation import chunk_slices, eval_mode, score_sentences
from anaphor.generate import Sampler, generate
from anaphor.inspect import compare_losses
from anaphor.inspect.parts import LookParts, check_tokens, split_look
from anaphor.models.language_model import LanguageModel
from anaphor.tasks.lm import describe_unknown
from anaphor.tasks.lm.experiment import LanguageModelExperiment
from anaphor.tasks.lm.look import LookOptions
from anaphor.tasks.lm.token_losses import read_split

EXPECTED = 5
"""Next tokens that are shown at every place."""


def look(
    experiment: LanguageModelExperiment,
    *,
    text: str | None = None,
    example: int | None = None,
    length: int = 64,
    image: str | None = None,
) -> LookParts:
    """A text inside the model. `example` is a passage of validation: the index of its first token."""
    if image is not None:
        raise ConfigError("a language model reads no images: give a text")
    if text is None:
        assert example is not None, "one of them was given"
        ids = read_split(experiment, "valid")[0]
        if example >= len(ids):
            raise ConfigError(f"example={example}: validation has the tokens 0 to {len(ids) - 1:,}")
        text = experiment.tokenizer.decode(ids[example : example + length])
    prompt = experiment.tokenizer.encode_prompt(text)
    check_tokens(len(prompt) - 1)
    notes: list[str] = []
    found = LookOptions(text=text).look_at(experiment, notes.append)
    expected = expect_tokens(experiment.model, experiment.tokenizer, prompt) if experiment.model.causal else None
    return split_look(found, kind="text", text=text, next=expected, notes=[*notes, *found.notes])


def expect_tokens(model: LanguageModel, tokenizer: Tokenizer, prompt: list[int]) -> list[list[dict[str, Any]]]:
    """The most probable next tokens after each token of a prompt."""
    read, state = torch.tensor([prompt], device=model.device), None
    found: list[tuple[list[int], list[float]]] = []
    count = min(EXPECTED, len(tokenizer))
    with eval_mode(model), torch.inference_mode():
        for chunk in chunk_slices(len(tokenizer), len(prompt)):  # the logits are the largest tensor here
            x, state = model.features(read[:, chunk], state)
            best = model.predict(x, state)[0].double().softmax(-1).topk(count)
            found += zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        [{"token": tokenizer.tokens[token], "probability": value} for token, value in zip(*place, strict=True)]
        for place in found
    ]


def score(experiments: Mapping[str, LanguageModelExperiment], *, text: str) -> dict[str, Any]:
    """The loss of each token of a text in one or two runs, as `anaphor score` gives it."""
    scored = {}
    for name, experiment in experiments.items():
        check_tokens(len(experiment.tokenizer.encode_sentence(text)))
        (scored[name],) = score_sentences(experiment.model, experiment.tokenizer, [text])
    first, *others = scored.values()
    one = next(iter(experiments.values()))
    return {
        "tokens": first.tokens,
        "joined": one.tokenizer.is_joined,
        "unknown": first.unknown,
        "losses": {name: found.losses for name, found in scored.items()},
        "totals": {
            name: {"loss": found.total.loss, "perplexity": found.total.perplexity, "tokens": found.total.tokens}
            for name, found in scored.items()
        },
        "difference": compare_losses(first, others[0]) if others else None,
        "notes": describe_unknown(sum(first.unknown), len(first.tokens), "text"),
    }


def continue_text(
    experiment: LanguageModelExperiment,
    *,
    text: str,
    at: int | None = None,
    tokens: int = 40,
    temperature: float = 1.0,
    seed: int = 0,
) -> dict[str, Any]:
    """New text after a token of a text, as `anaphor generate` gives it; 0 is the boundary before the first token."""
    tokenizer = experiment.tokenizer
    prompt = tokenizer.encode_prompt(text)
    check_tokens(len(prompt) - 1)
    if at is not None and at >= len(prompt):
        raise ConfigError(f"at={at}: the text has the tokens 0 to {len(prompt) - 1:,}")
    prompt = prompt if at is None else prompt[: at + 1]
    found = list(generate(experiment.model, prompt, tokens, Sampler(temperature=temperature), seed=seed))
    return {
        "text": tokenizer.decode(found),
        "tokens": [tokenizer.tokens[token] for token in found],
        "joined": tokenizer.is_joined,
        "prompt": tokenizer.decode(prompt[1:]),
    }

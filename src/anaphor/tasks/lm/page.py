"""What the live page shows of language models: a look inside, the loss of each token, and continuations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError
from anaphor.evaluation import ScoredText, chunk_slices, eval_mode, score_sentences
from anaphor.generate import Sampler, generate
from anaphor.inspect import compare_losses
from anaphor.inspect.parts import LookParts, check_tokens, split_look
from anaphor.models.language_model import LanguageModel
from anaphor.precision import to_double
from anaphor.tasks.lm import describe_unknown
from anaphor.tasks.lm.experiment import LanguageModelExperiment
from anaphor.tasks.lm.look import TextModel, look_at
from anaphor.tasks.lm.piece_losses import ScoredTokens, align_pieces
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
        if experiment.model.max_positions is not None:
            length = min(
                length, experiment.model.max_positions - 1
            )  # the boundary before the text has a position as well
        text = experiment.tokenizer.decode(ids[example : example + length])
    return look_at_text(experiment, text)


def look_at_text(experiment: TextModel, text: str) -> LookParts:
    """A text inside a language model."""
    prompt = experiment.tokenizer.encode_prompt(text)
    check_tokens(len(prompt) - 1)
    notes: list[str] = []
    found = look_at(experiment, text, (), notes.append)
    expected = expect_tokens(experiment.model, experiment.tokenizer, prompt) if experiment.model.causal else None
    return split_look(found, kind="text", text=text, next=expected, notes=[*notes, *found.notes])


def expect_tokens(model: LanguageModel, tokenizer: Tokenizer, prompt: list[int]) -> list[list[dict[str, Any]]]:
    """The most probable next tokens after each token of a prompt."""
    read, state = torch.tensor([prompt], device=model.device), None
    found: list[tuple[list[int], list[float]]] = []
    count = min(EXPECTED, len(tokenizer))
    with eval_mode(model), torch.inference_mode():
        for chunk in chunk_slices(len(tokenizer), len(prompt)):  # the logits are the largest tensor here
            x, state = model.compute_hidden_states(read[:, chunk], state)
            best = to_double(model.predict(x, state)[0]).softmax(-1).topk(count)
            found += zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        [{"token": tokenizer.tokens[token], "probability": value} for token, value in zip(*place, strict=True)]
        for place in found
    ]


def score(experiments: Mapping[str, TextModel], *, text: str) -> dict[str, Any]:
    """The loss of each token of a text in one or two runs, as `anaphor score` gives it. Where the tokens differ, losses
    are summed over common pieces of the text."""
    scored = {}
    for name, experiment in experiments.items():
        check_tokens(len(experiment.tokenizer.encode_sentence(text)))
        (scored[name],) = score_sentences(experiment.model, experiment.tokenizer, [text])
    first, *others = scored.values()
    pieces = score_pieces(experiments, scored) if any(first.tokens != other.tokens for other in others) else None
    return {
        "tokens": first.tokens,
        "joined": next(iter(experiments.values())).tokenizer.is_joined,
        "unknown": first.unknown,
        "losses": {name: found.losses for name, found in scored.items()},
        "difference": compare_losses(first, others[0]) if others and pieces is None else None,
        "notes": describe_unknown(sum(first.unknown), len(first.tokens), "text"),
        "totals": {
            name: {"loss": found.total.loss, "perplexity": found.total.perplexity, "tokens": found.total.tokens}
            for name, found in scored.items()
        },
        **(pieces or {}),
    }


def score_pieces(experiments: Mapping[str, TextModel], scored: Mapping[str, ScoredText]) -> dict[str, Any]:
    """The losses of two runs with different tokens, over the pieces of text between common ends of tokens."""
    one, two = scored.values()
    text, tokens = one.text.rstrip("\n"), []
    for experiment, found in zip(experiments.values(), scored.values(), strict=True):
        tokenizer = experiment.tokenizer
        ends = tokenizer.byte_ends(text, tokenizer.encode_sentence(text))
        if ends is None:
            compare_losses(one, two)  # raises: the tokens differ
        else:
            # `encode` ends the last line, a sentence has no end.
            losses, unknown = np.array(found.losses, np.float32), np.array(found.unknown)
            tokens.append(ScoredTokens(losses, ends[: len(losses)], unknown, {}, ()))
    if not len(np.intersect1d(tokens[0].ends, tokens[1].ends)):
        compare_losses(one, two)  # raises, as above
    raw = text.encode("utf-8", "surrogateescape")
    first, second = align_pieces(raw, *tokens)
    has_rest = first.ends[-1] < len(raw)  # a tokenizer of words has no token for it
    own, other = first.losses.tolist(), second.losses.tolist()
    unknown = first.groups["class"].codes == first.groups["class"].labels.index("unknown")
    return {
        "tokens": first.show(0, len(own))["tokens"],
        "joined": True,
        "unknown": unknown.tolist(),
        "losses": dict(zip(scored, (own, other), strict=True)),
        "difference": [b - a for a, b in zip(own, other, strict=True)],
        "notes": [*first.notes, *(["Not compared: white space at the end of the text."] if has_rest else ())],
    }


def continue_text(
    experiment: TextModel,
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
    new = generate(experiment.model, prompt, tokens, Sampler(temperature=temperature), seed=seed)
    found = list(tokenizer.until_end(new))
    return {
        "text": tokenizer.decode(found),
        "tokens": [tokenizer.tokens[token] for token in found],
        "joined": tokenizer.is_joined,
        "prompt": tokenizer.decode(prompt[1:]),
    }

"""What a study measures on a trained language model besides its validation result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from anaphor.data.files import split_lines
from anaphor.evaluation import losses_by_batch, score_sentences
from anaphor.metrics.perplexity import LossResult, Tally
from anaphor.tasks.lm.experiment import LanguageModelExperiment, StreamExperiment
from anaphor.tasks.lm.length import losses_by_length

LOSSES = "losses.safetensors"
TOKENS_PER_LINE = 40  # where a text has no lines


def measure(experiment: LanguageModelExperiment, folder: Path, split: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements as plain data, by name. `wanted` may have `train` (whether to score training text), `lengths` (of
    segments), `samples` (texts by name) and `long_lines` (how many). On valid the loss of every token goes to a file,
    to compare two models by."""
    if split == "valid":
        save_losses(experiment, folder, split)
    lines = {str(number): text for number, text in enumerate(longest_lines(experiment, split, wanted["long_lines"]))}
    return {
        "train": score_train(experiment, split).to_plain() if wanted["train"] else None,
        "lengths": by_length(experiment, split, wanted["lengths"]),
        "samples": score_texts(experiment, wanted["samples"]),
        "long_lines": list(score_texts(experiment, lines).values()),
    }


def measure_test(experiment: LanguageModelExperiment, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements on test: the segment lengths of the study."""
    return {"lengths": by_length(experiment, "test", wanted["lengths"])}


def score_train(experiment: LanguageModelExperiment, like: str) -> LossResult:
    """The beginning of the training text, as much of it as the other split has."""
    if not isinstance(experiment, StreamExperiment):
        return experiment.evaluate("train")
    protocol, unknown = experiment.protocol, experiment.tokenizer.unknown
    tokens = experiment.split("train").tokens[: len(experiment.split(like).tokens)]
    tally = Tally(causal=experiment.model.causal)
    batches = protocol.batches(tokens, experiment.tokenizer.boundary)
    for batch, losses in losses_by_batch(experiment.model, batches, protocol.carry):
        tally.add(losses.double().sum(), batch.count)
    total = tally.read(0)
    unknowns = 0 if unknown is None else int((tokens == unknown).sum())
    from anaphor.metrics.perplexity import loss_result

    return loss_result(total, {**protocol.facts(), **experiment.common_facts(total.tokens, unknowns)})


def score_texts(experiment: LanguageModelExperiment, texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Each text scored on its own."""
    scored = score_sentences(experiment.model, experiment.tokenizer, list(texts.values()))
    return {
        name: {
            "loss": one.total.loss,
            "perplexity": one.total.perplexity,
            "tokens": one.total.tokens,
            "unknown": sum(one.unknown),
        }
        for name, one in zip(texts, scored, strict=True)
    }


def longest_lines(experiment: LanguageModelExperiment, split: str, count: int) -> list[str]:
    """The longest lines that are not blank and fit into the model, longest first."""
    if not count:
        return []
    source, tokenizer = experiment.source, experiment.tokenizer
    text = tokenizer.as_text(source.read(split), where=source.where(split), offset=source.byte_offset(split))
    lines = sorted({line.strip() for line in split_lines(text)}, key=lambda line: (-len(line), line))
    limit = math.inf if experiment.model.limit is None else experiment.model.limit
    fitting = (line for line in lines if 0 < len(tokenizer.encode_sentence(line)) <= limit)
    return list(islice(fitting, count))


def by_length(experiment: LanguageModelExperiment, split: str, lengths: Sequence[int]) -> list[dict[str, Any]]:
    if not lengths:
        return []
    return [score.to_plain() for score in losses_by_length(experiment, split, lengths, (True, False))]


def save_losses(experiment: LanguageModelExperiment, folder: Path, split: str) -> None:
    """The loss of every token in the order of the text, and the number of its line."""
    if not isinstance(experiment, StreamExperiment):
        return
    boundary, tokens = experiment.tokenizer.boundary, experiment.split(split).tokens
    protocol = replace(experiment.protocol, complete=True)
    rows: list[list[NDArray[Any]]] = []
    for batch, losses in losses_by_batch(experiment.model, protocol.batches(tokens, boundary), protocol.carry):
        valid = (batch.targets >= 0).cpu().numpy()
        for row, (values, mask) in enumerate(zip(losses.float().cpu().numpy(), valid, strict=True)):
            if row == len(rows):
                rows.append([])
            rows[row].append(values[mask])
    text = tokens.cpu().numpy()
    ends = np.cumsum(text == boundary)
    lines = np.concatenate(([0], ends[:-1])) if ends[-1] > 1 else np.arange(len(text)) // TOKENS_PER_LINE
    save_file(
        {"losses": np.concatenate([part for row in rows for part in row]), "lines": lines.astype(np.int32)},
        folder / LOSSES,
    )

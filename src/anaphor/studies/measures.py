"""What is measured on a trained model of a study, besides its validation score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from anaphor.data.files import split_lines
from anaphor.evaluation import losses_by_batch, score_sentences
from anaphor.metrics.perplexity import Score
from anaphor.studies.length import losses_by_length
from anaphor.tasks.language_modelling import LanguageModelling, Protocol, Split
from anaphor.training.language import PreparedLanguage
from anaphor.training.prepared import Prepared

LOSSES = "losses.safetensors"
WITHOUT_LINES = 40  # tokens that stand for a line where a text has none


def measure(
    made: Prepared,
    folder: Path,
    split: str,
    *,
    train: bool,
    lengths: Sequence[int],
    samples: Mapping[str, str],
    long_lines: int,
) -> dict[str, Any]:
    """Scores as plain data; the loss of every token goes to a file beside them. For language models only."""
    if not isinstance(made, PreparedLanguage):
        return {}
    save_losses(made, folder, split)
    lines = {str(number): text for number, text in enumerate(longest_lines(made, split, long_lines))}
    return {
        "train": train_score(made, split).to_plain() if train else None,
        "lengths": by_length(made, split, lengths),
        "samples": one_by_one(made, samples),
        "long_lines": list(one_by_one(made, lines).values()),
    }


def train_score(made: PreparedLanguage, like: str) -> Score:
    """The beginning of the training text, as much of it as the other split has."""
    if not isinstance(made.task, LanguageModelling):
        return made.task.evaluate(made.model, "train")
    task = made.task
    whole = task.splits("train")
    tokens = whole.tokens[: len(task.splits(like).tokens)]
    part = Split(tokens, 0, int((tokens == (-1 if task.tokenizer.unknown is None else task.tokenizer.unknown)).sum()))
    return replace_splits(task, part).evaluate(made.model, "train")


def replace_splits(task: LanguageModelling, split: Split) -> LanguageModelling:
    """The same task on one text only."""
    return LanguageModelling(
        task.tokenizer,
        lambda name: split,
        rows=task.rows,
        bptt=task.bptt,
        carry=task.carry,
        shift=task.shift,
        protocol=task.protocol,
    )


def one_by_one(made: PreparedLanguage, texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Each text scored by itself."""
    scored = score_sentences(made.model, made.tokenizer, list(texts.values()))
    return {
        name: {
            "loss": one.total.loss,
            "perplexity": one.total.perplexity,
            "tokens": one.total.tokens,
            "unknown": sum(one.unknown),
        }
        for name, one in zip(texts, scored, strict=True)
    }


def longest_lines(made: PreparedLanguage, split: str, count: int) -> list[str]:
    """The longest lines with anything in them that the model can read whole, longest first."""
    if not count:
        return []
    source = made.source
    text = made.tokenizer.as_text(source.read(split), where=source.where(split), offset=source.byte_offset(split))
    lines = sorted({line.strip() for line in split_lines(text)}, key=lambda line: (-len(line), line))
    limit = math.inf if made.model.limit is None else made.model.limit
    fitting = (line for line in lines if 0 < len(made.tokenizer.encode_sentence(line)) <= limit)
    return list(islice(fitting, count))


def test_scores(made: Prepared, lengths: Sequence[int]) -> dict[str, Any]:
    """The score on test, and at the lengths of the study."""
    score = made.score("test")
    return {**score, "lengths": by_length(made, "test", lengths) if isinstance(made, PreparedLanguage) else []}


def by_length(made: PreparedLanguage, split: str, lengths: Sequence[int]) -> list[dict[str, Any]]:
    return [score.to_plain() for score in losses_by_length(made, split, lengths, (True, False))] if lengths else []


def save_losses(made: PreparedLanguage, folder: Path, split: str) -> None:
    """The loss of every token in the order of the text, and the line it stands in, to compare two models by."""
    if not isinstance(made.task, LanguageModelling):
        return
    task, protocol = made.task, made.task.protocol
    tokens = task.splits(split).tokens
    batches = Protocol(protocol.rows, protocol.bptt, protocol.carry).batches(tokens, task.tokenizer.boundary)
    rows: list[list[NDArray[Any]]] = []
    for batch, losses in losses_by_batch(made.model, batches, protocol.carry):
        real = (batch.targets >= 0).cpu().numpy()
        for row, (values, there) in enumerate(zip(losses.float().cpu().numpy(), real, strict=True)):
            if row == len(rows):
                rows.append([])
            rows[row].append(values[there])
    text = tokens.cpu().numpy()
    ends = np.cumsum(text == task.tokenizer.boundary)
    lines = np.concatenate(([0], ends[:-1])) if ends[-1] > 1 else np.arange(len(text)) // WITHOUT_LINES
    save_file(
        {"losses": np.concatenate([part for row in rows for part in row]), "lines": lines.astype(np.int32)},
        folder / LOSSES,
    )


def read_losses(folder: Path) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """The losses and the lines they stand in; None where there are none."""
    if not (folder / LOSSES).is_file():
        return None
    found = load_file(folder / LOSSES)
    return found["losses"], found["lines"]

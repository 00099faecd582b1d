"""What a study measures on a trained language model besides its validation result."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from anaphor.data.text import split_lines
from anaphor.errors import count_noun
from anaphor.evaluation import losses_by_batch, score_sentences
from anaphor.files import default_permissions
from anaphor.generate import Sampler, generate
from anaphor.metrics.losses import LossMeter, LossResult, LossTotal, loss_result
from anaphor.precision import to_double
from anaphor.tasks.lm.experiment import LanguageModelExperiment, StreamExperiment
from anaphor.tasks.lm.length import losses_by_length
from anaphor.tasks.lm.study import SPEED_COLUMNS, STATE_TOKENS, long_lines_column
from anaphor.tasks.lm.token_losses import number_lines, score_tokens
from anaphor.training.run_folder import RunFolder

LOSSES = "losses.safetensors"
TIMED_TOKENS = 64
"""Tokens that are generated to measure how long one takes."""


def measure(experiment: LanguageModelExperiment, folder: Path, split: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements as plain data, see `StudySupport.options`; `wanted` are `MeasureOptions`. On test only the segment
    lengths are measured. On valid the loss of every token goes to a file, to compare two models by."""
    tables = {"length": by_length(experiment, split, wanted["lengths"])} if wanted["lengths"] else {}
    if split == "test":
        return {"tables": tables}
    columns: dict[str, Any] = {"train": score_train(experiment, split).to_plain()} if wanted["train_score"] else {}
    columns |= score_texts(experiment, wanted["samples"])
    if wanted["long_lines"]:
        lines = longest_lines(experiment, split, wanted["long_lines"])
        columns[long_lines_column(wanted["long_lines"])] = score_together(experiment, lines)
    numbers = measure_speed(experiment, folder) if wanted["speed"] else {}
    return {"columns": columns, "numbers": numbers, "tables": tables, **save_losses(experiment, folder, split)}


def measure_speed(experiment: LanguageModelExperiment, folder: Path) -> dict[str, float | int | None]:
    """Tokens per second of the training that is over and of greedy generation for one row, and the bytes of a row's
    state: one token after another, as at the end of a long text where the state does not grow."""
    model = experiment.model
    trained = json.loads(RunFolder(folder).result.read_bytes()).get("tokens_per_second")
    reach = STATE_TOKENS if model.max_positions is None else min(STATE_TOKENS, model.max_positions)
    count = min(TIMED_TOKENS, reach - 1)
    times, prompt = [], [experiment.tokenizer.boundary or 0]
    for _ in generate(model, prompt, count, Sampler(temperature=0), cuda_graph=model.device.type == "cuda"):
        times.append(time.perf_counter())
    seconds = sorted(after - before for before, after in pairwise(times))
    # The median: a graph is captured at one of the first tokens, and other programs run.
    speed = 1 / seconds[len(seconds) // 2] if seconds else None
    return dict(zip(SPEED_COLUMNS, (trained, speed, model.layers.state_bytes(reach)), strict=True))


def score_train(experiment: LanguageModelExperiment, like: str) -> LossResult:
    """The beginning of the training text, as much of it as the other split has."""
    if not isinstance(experiment, StreamExperiment):
        return experiment.evaluate("train")
    protocol, unknown = experiment.protocol, experiment.tokenizer.unknown
    tokens = experiment.split("train").first(len(experiment.split(like).tokens))
    meter = LossMeter(causal=experiment.model.causal)
    batches = protocol.batches(tokens, experiment.tokenizer.boundary)
    for batch, losses in losses_by_batch(experiment.model, batches, protocol.carry):
        meter.add(to_double(losses).sum(), batch.count)
    total = meter.read(0)
    unknowns = 0 if unknown is None else int((tokens == unknown).sum())
    return loss_result(total, {**protocol.metadata(total.tokens), **experiment.common_metadata(total.tokens, unknowns)})


def score_texts(experiment: LanguageModelExperiment, texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Each text scored on its own."""
    scored = score_sentences(experiment.model, experiment.tokenizer, list(texts.values()))
    return {
        name: {**plain_total(one.total), "unknown": sum(one.unknown)} for name, one in zip(texts, scored, strict=True)
    }


def longest_lines(experiment: LanguageModelExperiment, split: str, count: int) -> list[str]:
    """The longest lines that are not blank and fit into the model, longest first."""
    if not count:
        return []
    source, tokenizer = experiment.source, experiment.tokenizer
    text = tokenizer.as_text(source.read(split), where=source.where(split), offset=source.byte_offset(split))
    lines = sorted({line.strip() for line in split_lines(text)}, key=lambda line: (-len(line), line))
    limit = math.inf if experiment.model.max_positions is None else experiment.model.max_positions
    fitting = (line for line in lines if 0 < len(tokenizer.encode_sentence(line)) <= limit)
    return list(islice(fitting, count))


def score_together(experiment: LanguageModelExperiment, texts: Sequence[str]) -> dict[str, Any] | None:
    """All texts as one result, each scored on its own and each token counted once."""
    scored = list(score_sentences(experiment.model, experiment.tokenizer, texts))
    if not scored:
        return None
    total = sum((one.total for one in scored[1:]), start=scored[0].total)
    return plain_total(total)


def plain_total(total: LossTotal) -> dict[str, Any]:
    """A total as JSON."""
    return {"loss": total.loss, "perplexity": total.perplexity, "tokens": total.tokens}


def by_length(experiment: LanguageModelExperiment, split: str, lengths: Sequence[int]) -> dict[str, Any]:
    """Results by segment length, with and without carried state. Lengths beyond the rows of the text are the same
    segments, and occur once."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    reached: dict[int, int] = {}
    for score in losses_by_length(experiment, split, lengths, (True, False)):
        if score.score is not None:
            reached[score.length] = length = len(score.positions)
            rows.setdefault((score.state, length), {"state": score.state, "length": length, **score.score.to_plain()})
    trained = f"trained on segments of {count_noun(experiment.spec.bptt, 'token')}"
    cut = describe_cut(reached)
    remark = f"{trained}; {cut}" if cut else f"{trained}."
    return {"axes": ["state", "length"], "rows": list(rows.values()), "remark": remark}


def describe_cut(reached: Mapping[int, int]) -> str:
    """Which lengths are longer than the rows of the text, by the length that each one reached."""
    longest = max(reached.values(), default=0)
    cut = [str(length) for length in sorted(reached) if length > longest]
    if not cut:
        return ""
    names = f"lengths {', '.join(cut[:-1])} and {cut[-1]} are" if len(cut) > 1 else f"length {cut[0]} is"
    return f"{names} cut to {count_noun(longest, 'token')}, the longest row of the text."


def save_losses(experiment: LanguageModelExperiment, folder: Path, split: str) -> dict[str, str]:
    """Save the loss of every token in the order of the text, and the number of its line. Returns the file's name."""
    if not isinstance(experiment, StreamExperiment):
        return {}
    losses, _ = score_tokens(experiment, split)
    with default_permissions(folder / LOSSES) as file:
        save_file({"losses": losses, "lines": number_lines(experiment, split)}, file)
    return {"losses": LOSSES}

"""`anaphor evaluate` for language models: other lengths, states and texts, and loss by position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from anaphor.data.dataset import ALL, TEST, default_split
from anaphor.draw import figure_lines
from anaphor.errors import ConfigError, count_noun
from anaphor.metrics.result import Result
from anaphor.tasks.evaluations import Evaluations, Row, make_evaluations
from anaphor.tasks.lm import describe, describe_source_loss
from anaphor.tasks.lm.experiment import LanguageModelExperiment, StreamExperiment
from anaphor.tasks.lm.length import LengthScore, bin_positions, draw_lengths, refusal_reason, score_at_length
from anaphor.tasks.lm.protocol import Protocol
from anaphor.tasks.lm.verbs import STATES, EvaluateOptions
from anaphor.tasks.metrics import describe_overlap, describe_recall
from anaphor.tasks.tables import align_columns
from anaphor.user_paths import create_folder, writing_to

STREAM_ONLY = ("bptt", "carry", "state", "by_position", "out", "batch_size", "protocol")
NO_RECALL = {"recall_perplexity": None, "recall_tokens": None}
"""Of a row without recall tokens: every row of a table has the same keys."""
ScoredRow = tuple[dict[str, Any], str, LengthScore | None]
"""A row as JSON, what lines for people say of it, and the score where it is one of the plain scores of a stream."""


def evaluate(
    experiment: LanguageModelExperiment, options: EvaluateOptions, run: Path, split: str | None
) -> Iterator[Row]:
    """Rows as JSON, each with lines for people; then lines about all of them."""
    evaluations = make_evaluations(options, experiment, run)
    if options.data is not None:
        experiment.use_data(options.data)
    split = split or default_split(experiment.source)
    evaluations.check_choices(split)
    shared = experiment.overlap(split) if split in (TEST, ALL) else {}
    source = experiment.source_loss(split)
    if isinstance(experiment, StreamExperiment):
        rows = _stream_rows(experiment, options, split, evaluations)
    else:
        refuse_examples(experiment, options, STREAM_ONLY, run)
        rows = _padded_rows(experiment, split, evaluations)
    scores, has_bound = [], False
    for row, label, score in rows:
        bound = source is not None and not row["refused"] and row.get("perplexity") is not None
        has_bound |= bound
        plain = {**row, **({"source_loss": source} if bound else {}), **shared}
        yield plain, [] if row["refused"] else [_line(experiment, options, row, label, score)]
        if score is not None:
            scores.append(score)
    lines = _describe_refused(scores)
    if has_bound and source is not None:
        lines.append(describe_source_loss(source))
    if options.by_position:
        lines += _position_table(scores)
    if options.data is not None:
        lines += _describe_unknown(split, *experiment.count_tokens(split))
    lines += describe_overlap(shared)
    yield None, [*lines, *(f"figure: {line}" for line in figure_lines(_draw(options, scores, experiment, split)))]


def _stream_rows(
    experiment: StreamExperiment, options: EvaluateOptions, split: str, evaluations: Evaluations
) -> Iterator[ScoredRow]:
    """For each variant the plain scores of all lengths, then those of evaluations."""
    if evaluations.count_variants() > 1 and (options.by_position or options.out is not None):
        raise ConfigError("--by-position and --out show one model: give one value of each option that changes it")
    if options.out is not None:
        create_folder(options.out)
    protocols = _protocols(experiment, options, split)
    reasons = [refusal_reason(experiment.model, protocol) for protocol in protocols]
    if all(reasons):
        raise ConfigError("; ".join(dict.fromkeys(filter(None, reasons))))
    scored = [protocol for protocol, reason in zip(protocols, reasons, strict=True) if reason is None]
    for variant in evaluations.each_variant():
        plain = []
        for protocol in protocols:
            score = score_at_length(experiment, split, protocol)
            metadata = {**experiment.model_metadata(), **variant.metadata}
            if score.score is not None:
                plain.append(variant.sign(score.score))
                score = replace(score, score=plain[-1])
            row = {**score.to_plain(), **evaluations.columns(metadata)}
            if not options.by_position:
                del row["positions"]
            yield row, variant.label, score
        for result, label in evaluations.score(split, variant, plain, scored):
            yield _row(result, evaluations), label, None


def _padded_rows(experiment: LanguageModelExperiment, split: str, evaluations: Evaluations) -> Iterator[ScoredRow]:
    """For each variant the score of all examples, then those of evaluations."""
    for variant in evaluations.each_variant():
        plain = variant.sign(experiment.evaluate_with_recall(split))
        for result, label in chain([(plain, variant.label)], evaluations.score(split, variant, [plain])):
            yield _row(result, evaluations), label, None


def _protocols(experiment: StreamExperiment, options: EvaluateOptions, split: str) -> list[Protocol]:
    """How a plain row is scored, one protocol for each combination of options."""
    spec = experiment.spec
    carries = [STATES[name] for name in options.state] or [experiment.carry if options.carry is None else options.carry]
    complete = (options.protocol or spec.protocol) == "complete"
    rows = spec.eval_batch_size if options.batch_size is None else options.batch_size
    tokens = len(experiment.split(split).tokens)
    if complete and options.batch_size is not None and rows > tokens:  # else the signature would be wrong
        where = experiment.source.where(split) if split == ALL else split
        raise ConfigError(f"batch_size={rows}: each row needs a token, and {where} has {tokens:,}")
    return [Protocol(rows, length, carry, complete) for carry in carries for length in options.bptt or [spec.bptt]]


def _line(
    experiment: LanguageModelExperiment, options: EvaluateOptions, row: Mapping[str, Any], label: str,
    score: LengthScore | None,
) -> str:  # fmt: skip
    """A row for people. The state is part of it where rows differ in it."""
    what = experiment.scored_unit if row["bptt"] is None else f"bptt {row['bptt']}"
    state = [f"state {row['state']}"] if len(set(options.state)) > 1 else []
    line = f"{', '.join(filter(None, [what, *state, label]))}: {describe(row)[0]}{describe_recall(row)}"
    if score is not None and len(score.positions) < score.length:
        count = count_noun(len(score.positions), "token")
        line += f"\n  segments have {count}, because no row of the text is longer"
    return line


def _draw(
    options: EvaluateOptions, scores: Sequence[LengthScore], experiment: LanguageModelExperiment, split: str
) -> list[Path]:
    if options.out is None:
        return []
    with writing_to(options.out):
        return draw_lengths(scores, options.out, experiment.spec.bptt, split)


def refuse_examples(experiment: LanguageModelExperiment, options: Any, names: Collection[str], run: Path) -> None:
    """Raise for options that need a stream of text, where a run was trained on separate examples."""
    for name in names:
        if getattr(options, name) != getattr(type(options), name):
            flag = name.replace("_", "-")
            batching = experiment.spec.batching
            raise ConfigError(f"--{flag} needs a stream of text, and {run} was trained with --batching {batching}")


def _row(result: Result, evaluations: Evaluations) -> dict[str, Any]:
    """A result as JSON; without a segment length where the text is not a stream."""
    return {
        "bptt": result.metadata.get("bptt"),
        "state": result.metadata.get("state", "restarted"),
        **NO_RECALL,
        **result.to_plain(),
        "refused": None,
        **evaluations.columns(result.metadata),
    }


def _describe_unknown(split: str, tokens: int, unknown: int) -> list[str]:
    """A line where most of other text is unknown: its perplexity is then that of one token."""
    if 2 * unknown <= tokens:
        return []
    return [f"tokens that are not in the vocabulary: {unknown / tokens:.1%} of {split}; they are scored as <unk>"]


def _describe_refused(scores: Sequence[LengthScore]) -> list[str]:
    """What has no score, and why: lengths with the same reason in one line."""
    lengths: dict[tuple[str, str], list[int]] = {}
    for score in scores:
        if score.refused is not None:
            lengths.setdefault((score.state, score.refused), []).append(score.length)
    return [
        f"bptt {' '.join(map(str, same))}, state {state}: no score: {reason}"
        for (state, reason), same in lengths.items()
    ]


def _position_table(scores: Sequence[LengthScore]) -> list[str]:
    """A line for each length, a column for each bin of positions."""
    curves = [(score, bin_positions(score.positions)) for score in scores if score.score is not None]
    longest = max((bins for _, bins in curves), key=lambda bins: bins[-1].last)
    cells = [["state", "bptt", *(part.name for part in longest)]]
    for score, bins in curves:
        cells.append([score.state, str(score.length), *(f"{part.total.loss:.2f}" for part in bins)])
    return ["loss by position within the segment", *align_columns(cells)]

"""`anaphor evaluate` for language models: other lengths, states and texts, and loss by position. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.config import check_at_least_one, create_folder, look_up, writing_to
from anaphor.data.dataset import ALL, TEST, default_split
from anaphor.errors import ConfigError, count_noun
from anaphor.metrics.result import Result
from anaphor.tasks import align_columns, describe_overlap
from anaphor.tasks.evaluations import Evaluations, Row, make_evaluations
from anaphor.tasks.lm import PROTOCOLS, describe, describe_source_loss

if TYPE_CHECKING:
    from anaphor.tasks.lm.experiment import LanguageModelExperiment, StreamExperiment
    from anaphor.tasks.lm.length import LengthScore
    from anaphor.tasks.lm.protocol import Protocol

STATES = {"carried": True, "restarted": False}
STREAM_ONLY = ("bptt", "carry", "state", "by_position", "out", "batch_size", "protocol")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for language models."""

    data: str | None = None
    """Other text than that of training: a name, a folder or a file, which is scored as a whole."""
    bptt: tuple[int, ...] = ()
    """Segment lengths; one row each (that of training if not given)."""
    carry: bool | None = None
    """Carry the state from one segment to the next (as in training if not given)."""
    state: tuple[str, ...] = ()
    """States between segments, carried and restarted; one row each (as in training if not given)."""
    by_position: bool = False
    """Also the loss by position within the segment."""
    out: Path | None = None
    """Folder for figures of perplexity by length and loss by position."""
    batch_size: int | None = None
    """Rows that are scored in parallel (as in training if not given)."""
    protocol: str | None = None
    """Scoring: complete or example (as in training if not given)."""

    def validate(self, split: str | None) -> None:
        """Refuse settings that do not fit together, before the run is loaded."""
        check_at_least_one(batch_size=self.batch_size)
        if any(length < 1 for length in self.bptt):
            raise ConfigError(f"bptt={self.bptt}: a segment has at least 1 token")
        for name in self.state:
            look_up(STATES, name, "state")
        if self.state and self.carry is not None:
            raise ConfigError(f"state={self.state} and carry={self.carry} are the same option: give one of them")
        if self.protocol is not None:
            look_up(PROTOCOLS, self.protocol, "protocol")

    def evaluate(self, experiment: LanguageModelExperiment, run: Path, split: str | None) -> Iterator[Row]:
        """Rows as JSON, each with lines for people; then lines about all of them."""
        from anaphor.tasks.lm.experiment import StreamExperiment

        evaluations = make_evaluations(self, experiment, run)
        if self.data is not None:
            experiment.use_data(self.data)
        split = split or default_split(experiment.source)
        evaluations.check_choices(split)
        shared = experiment.overlap(split) if split in (TEST, ALL) else {}
        source = experiment.source_loss(split)
        if isinstance(experiment, StreamExperiment):
            rows = self._stream_rows(experiment, split, evaluations)
        else:
            refuse_examples(self, STREAM_ONLY, run)
            rows = self._padded_rows(experiment, split, evaluations)
        scores, has_bound = [], False
        for row, label, score in rows:
            bound = source is not None and not row["refused"] and row.get("perplexity") is not None
            has_bound |= bound
            plain = {**row, **({"source_loss": source} if bound else {}), **shared}
            yield plain, [] if row["refused"] else [self._line(row, label, score)]
            if score is not None:
                scores.append(score)
        lines = _describe_refused(scores)
        if has_bound and source is not None:
            lines.append(describe_source_loss(source))
        if self.by_position:
            lines += _position_table(scores)
        if self.data is not None:
            lines += _describe_unknown(split, *experiment.count_tokens(split))
        lines += describe_overlap(shared)
        yield None, [*lines, *(f"figure: {path}" for path in self._draw(scores, experiment, split))]

    def _stream_rows(self, experiment: StreamExperiment, split: str, evaluations: Evaluations) -> Iterator[ScoredRow]:
        """For each variant the plain scores of all lengths, then those of evaluations."""
        from anaphor.tasks.lm.length import refusal_reason, score_at_length

        if evaluations.count_variants() > 1 and (self.by_position or self.out is not None):
            raise ConfigError("--by-position and --out show one model: give one value of each option that changes it")
        if self.out is not None:
            create_folder(self.out)
        protocols = self._protocols(experiment, split)
        reasons = [refusal_reason(experiment.model, protocol) for protocol in protocols]
        if all(reasons):
            raise ConfigError("; ".join(dict.fromkeys(filter(None, reasons))))
        scored = [protocol for protocol, reason in zip(protocols, reasons, strict=True) if reason is None]
        for variant in evaluations.each_variant():
            plain = []
            for protocol in protocols:
                score = score_at_length(experiment, split, protocol)
                facts = {**experiment.model_facts(), **variant.facts}
                if score.score is not None:
                    plain.append(variant.sign(score.score))
                    score = replace(score, score=plain[-1])
                row = {**score.to_plain(), **evaluations.columns(facts)}
                if not self.by_position:
                    del row["positions"]
                yield row, variant.label, score
            for result, label in evaluations.score(split, variant, plain, scored):
                yield _row(result, evaluations), label, None

    def _padded_rows(
        self, experiment: LanguageModelExperiment, split: str, evaluations: Evaluations
    ) -> Iterator[ScoredRow]:
        """For each variant the score of all examples, then those of evaluations."""
        for variant in evaluations.each_variant():
            plain = variant.sign(experiment.evaluate(split))
            for result, label in chain([(plain, variant.label)], evaluations.score(split, variant, [plain])):
                yield _row(result, evaluations), label, None

    def _protocols(self, experiment: StreamExperiment, split: str) -> list[Protocol]:
        """How a plain row is scored, one protocol for each combination of options."""
        from anaphor.tasks.lm.protocol import Protocol

        spec = experiment.spec
        carries = [STATES[name] for name in self.state] or [experiment.carry if self.carry is None else self.carry]
        complete = (self.protocol or spec.protocol) == "complete"
        rows = spec.eval_batch_size if self.batch_size is None else self.batch_size
        tokens = len(experiment.split(split).tokens)
        if complete and self.batch_size is not None and rows > tokens:  # else the signature would be wrong
            where = experiment.source.where(split) if split == ALL else split
            raise ConfigError(f"batch_size={rows}: each row needs a token, and {where} has {tokens:,}")
        return [Protocol(rows, length, carry, complete) for carry in carries for length in self.bptt or [spec.bptt]]

    def _line(self, row: Mapping[str, Any], label: str, score: LengthScore | None) -> str:
        """A row for people. The state is part of it where rows differ in it."""
        what = "padded examples" if row["bptt"] is None else f"bptt {row['bptt']}"
        state = [f"state {row['state']}"] if len(set(self.state)) > 1 else []
        line = f"{', '.join(filter(None, [what, *state, label]))}: {describe(row)[0]}"
        if score is not None and len(score.positions) < score.length:
            count = count_noun(len(score.positions), "token")
            line += f"\n  segments have {count}, because no row of the text is longer"
        return line

    def _draw(self, scores: Sequence[LengthScore], experiment: LanguageModelExperiment, split: str) -> list[Path]:
        if self.out is None:
            return []
        from anaphor.tasks.lm.length import draw_lengths

        with writing_to(self.out):
            return draw_lengths(scores, self.out, experiment.spec.bptt, split)


ScoredRow = tuple[dict[str, Any], str, "LengthScore | None"]
"""A row as JSON, what lines for people say of it, and the score where it is one of the plain scores of a stream."""


def refuse_examples(options: Any, names: Collection[str], run: Path) -> None:
    """Raise for options that need a stream of text, where a run was trained on separate examples."""
    for name in names:
        if getattr(options, name) != getattr(type(options), name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} needs a stream of text, and {run} was trained with --batching padded")


def _row(result: Result, evaluations: Evaluations) -> dict[str, Any]:
    """A result as JSON; without a segment length where the text is not a stream."""
    return {
        "bptt": result.facts.get("bptt"),
        "state": result.facts.get("state", "restarted"),
        **result.to_plain(),
        "refused": None,
        **evaluations.columns(result.facts),
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
    from anaphor.tasks.lm.length import bin_positions

    curves = [(score, bin_positions(score.positions)) for score in scores if score.score is not None]
    longest = max((bins for _, bins in curves), key=lambda bins: bins[-1].last)
    cells = [["state", "bptt", *(part.name for part in longest)]]
    for score, bins in curves:
        cells.append([score.state, str(score.length), *(f"{part.total.loss:.2f}" for part in bins)])
    return ["loss by position within the segment", *align_columns(cells)]

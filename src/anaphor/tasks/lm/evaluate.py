"""`anaphor evaluate` for language models: other segment lengths, by position, and with adaptation. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.config import check_at_least_one, create_folder, look_up, writing_to
from anaphor.data.dataset import ALL, TEST, default_split
from anaphor.errors import ConfigError, count_noun
from anaphor.tasks import align_columns, describe_overlap
from anaphor.tasks.lm import PROTOCOLS, describe, describe_source_loss

if TYPE_CHECKING:
    from anaphor.data.batches import Batch
    from anaphor.metrics.result import LossResult
    from anaphor.tasks.lm.adaptation import Cache, Dynamic
    from anaphor.tasks.lm.experiment import LanguageModelExperiment, StreamExperiment
    from anaphor.tasks.lm.length import LengthScore
    from anaphor.tasks.lm.protocol import Protocol

STATES = {"carried": True, "restarted": False}
TUNED = (
    "cache", "cache_weight", "cache_flatness", "dynamic", "dynamic_decay", "pointer_eval_memory", "pointer_eval_bias",
)  # fmt: skip
"""What is chosen on validation text."""
Row = tuple[dict[str, Any] | None, list[str]]


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for language models. Adaptation has rows of its own, beside the plain score."""

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
    cache: tuple[int, ...] = ()
    """Also with a neural cache of this many past tokens."""
    cache_weight: tuple[float, ...] = ()
    """Probability share of the cache (0.1 if not given)."""
    cache_flatness: tuple[float, ...] = ()
    """Factor of the similarity in the cache (0.3 if not given)."""
    dynamic: tuple[float, ...] = ()
    """Also with dynamic evaluation at this learning rate, in one row."""
    dynamic_decay: tuple[float, ...] = ()
    """Decay towards the trained weights in each step of dynamic evaluation (0 if not given)."""
    dynamic_rule: str = "sgd"
    """Update rule of dynamic evaluation: sgd or rms (scaled by the gradients of training)."""
    both: bool = False
    """Also with each cache together with each dynamic evaluation."""
    cuda_graph: bool | None = None
    """Capture cache and dynamic evaluation as a CUDA graph (as in training if not given)."""
    pointer_eval_memory: tuple[int, ...] = ()
    """Number of past tokens that the pointer copies from; one row each; 0: without the pointer."""
    pointer_eval_bias: tuple[float, ...] = ()
    """Constant added to the scores of the pointer; one row each."""

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
        for name, owner, given in (
            ("cache_weight", "cache", bool(self.cache_weight)),
            ("cache_flatness", "cache", bool(self.cache_flatness)),
            ("dynamic_decay", "dynamic", bool(self.dynamic_decay)),
            ("dynamic_rule", "dynamic", self.dynamic_rule != "sgd"),
        ):
            if given and not getattr(self, owner):
                raise ConfigError(f"{name}={getattr(self, name)} has no effect without --{owner}")
        if self.both and not (self.cache and self.dynamic):
            raise ConfigError("--both needs --cache and --dynamic")
        if self.cuda_graph is not None and not (self.cache or self.dynamic):
            raise ConfigError(f"cuda_graph={self.cuda_graph} has no effect without --cache or --dynamic")
        if any(memory < 0 for memory in self.pointer_eval_memory):
            raise ConfigError(f"pointer_eval_memory={self.pointer_eval_memory}: it must be at least 0")
        if not all(map(math.isfinite, self.pointer_eval_bias)):
            raise ConfigError(f"pointer_eval_bias={self.pointer_eval_bias}: it must be finite")
        for name in TUNED:
            # Without a pointer is no choice between values: it is the plain model.
            values = tuple(value for value in getattr(self, name) if value or name != "pointer_eval_memory")
            if split == "test" and len(values) > 1:
                raise ConfigError(f"{name}={values} on test: choose one of them on valid")
        if len(self._pointers()) > 1 and (self.by_position or self.out is not None):
            raise ConfigError("--by-position and --out show one model: give one --pointer-eval-memory and one bias")

    def evaluate(self, experiment: LanguageModelExperiment, run: Path, split: str | None) -> Iterator[Row]:
        """Rows as JSON, each with lines for people; then lines about all of them."""
        from anaphor.tasks.lm.adaptation import Cache, Dynamic
        from anaphor.tasks.lm.experiment import StreamExperiment

        caches = [
            Cache(window, weight, flatness)
            for window, flatness, weight in product(
                self.cache, self.cache_flatness or (0.3,), self.cache_weight or (0.1,)
            )
        ]
        dynamics = [
            Dynamic(lr, decay, self.dynamic_rule) for lr, decay in product(self.dynamic, self.dynamic_decay or (0.0,))
        ]
        trained_on: Sequence[Batch] = ()
        if dynamics and self.dynamic_rule == "rms" and isinstance(experiment, StreamExperiment):
            trained_on = experiment.batches(0)  # of the run's own text, whatever is scored
        if self.data is not None:
            experiment.use_data(self.data)
        split = split or default_split(experiment.source)
        shared = experiment.overlap(split) if split in (TEST, ALL) else {}
        source = experiment.source_loss(split)
        if (self.pointer_eval_memory or self.pointer_eval_bias) and experiment.model.pointer is None:
            raise ConfigError(f"{run} has no pointer: it was trained without --pointer-memory")
        if isinstance(experiment, StreamExperiment):
            rows = self._stream_rows(experiment, split, caches, dynamics, trained_on)
        else:
            rows = self._padded_rows(experiment, run, split)
        scores, has_bound = [], False
        for row, score in rows:
            bound = source is not None and not row["refused"] and row["perplexity"] is not None
            has_bound |= bound
            plain = {**row, **({"source_loss": source} if bound else {}), **shared}
            yield plain, [] if row["refused"] else [self._line(row, score)]
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

    def _stream_rows(
        self,
        experiment: StreamExperiment,
        split: str,
        caches: Sequence[Cache],
        dynamics: Sequence[Dynamic],
        trained_on: Sequence[Batch],
    ) -> Iterator[tuple[dict[str, Any], LengthScore | None]]:
        """The plain scores of all lengths, then those with adaptation."""
        from anaphor.tasks.lm.length import refusal_reason, score_at_length

        if self.out is not None:
            create_folder(self.out)
        protocols = self._protocols(experiment, split)
        reasons = [refusal_reason(experiment.model, protocol) for protocol in protocols]
        if all(reasons):
            raise ConfigError("; ".join(dict.fromkeys(filter(None, reasons))))
        scored = [protocol for protocol, reason in zip(protocols, reasons, strict=True) if reason is None]
        for memory, bias in self._pointers():
            with experiment.model.use_pointer(memory, bias):
                for protocol in protocols:
                    score = score_at_length(experiment, split, protocol)
                    row = {**score.to_plain(), "adaptation": None, "pointer": experiment.describe_pointer()}
                    if not self.by_position:
                        del row["positions"]
                    yield row, score
                for length, result in self._adapted(experiment, split, scored, caches, dynamics, trained_on):
                    yield {**_row(length, result), "pointer": experiment.describe_pointer()}, None

    def _adapted(
        self,
        experiment: StreamExperiment,
        split: str,
        protocols: Sequence[Protocol],
        caches: Sequence[Cache],
        dynamics: Sequence[Dynamic],
        trained_on: Sequence[Batch],
    ) -> Iterator[tuple[int, LossResult]]:
        """Results with adaptation, each with its segment length. The rule rms needs the batches of training."""
        from anaphor.tasks.lm.adaptation import gradient_scales, score_dynamically, score_with_caches

        captured = experiment.spec.cuda_graph if self.cuda_graph is None else self.cuda_graph
        scales = None
        if dynamics and self.dynamic_rule == "rms":
            scales = gradient_scales(experiment.model, trained_on, experiment.carry)
        together = caches if self.both else ()
        for protocol in protocols:
            if caches:
                for result in score_with_caches(experiment, split, protocol, caches, cuda_graph=captured):
                    yield protocol.bptt, result
            for result in score_dynamically(
                experiment, split, protocol, dynamics, scales, caches=together, cuda_graph=captured
            ):
                yield protocol.bptt, result

    def _pointers(self) -> list[tuple[int | None, float | None]]:
        """Memory and bias of the pointer in each row; None as in training. Without a pointer the bias is nothing."""
        memories: Sequence[int | None] = self.pointer_eval_memory or (None,)
        biases: Sequence[float | None] = self.pointer_eval_bias or (None,)
        pairs = ((memory, None if memory == 0 else bias) for memory, bias in product(memories, biases))
        return list(dict.fromkeys(pairs))

    def _protocols(self, experiment: StreamExperiment, split: str) -> list[Protocol]:
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

    def _padded_rows(
        self, experiment: LanguageModelExperiment, run: Path, split: str
    ) -> Iterator[tuple[dict[str, Any], None]]:
        stream_only = ("cache", "dynamic", "bptt", "carry", "state", "by_position", "out", "batch_size", "protocol")
        for name in stream_only:
            if getattr(self, name) != getattr(EvaluateOptions, name):
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} needs a stream of text, and {run} was trained with --batching padded")
        for memory, bias in self._pointers():
            with experiment.model.use_pointer(memory, bias):
                yield {**_row(None, experiment.evaluate(split)), "pointer": experiment.describe_pointer()}, None

    def _line(self, row: dict[str, Any], score: LengthScore | None) -> str:
        """A row for people. The state is part of it where rows differ in it."""
        adapted = f", adapted by {row['adaptation']}" if row["adaptation"] else ""
        what = "padded examples" if row["bptt"] is None else f"bptt {row['bptt']}"
        state = f", state {row['state']}" if len(set(self.state)) > 1 else ""
        pointer = f", pointer {row['pointer']}" if self.pointer_eval_memory or self.pointer_eval_bias else ""
        line = f"{what}{state}{pointer}{adapted}: {describe(row)[0]}"
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


def _row(length: int | None, result: LossResult) -> dict[str, Any]:
    return {
        "bptt": length,
        "state": result.facts.get("state", "restarted"),
        "adaptation": result.facts.get("adaptation"),
        **result.to_plain(),
        "refused": None,
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

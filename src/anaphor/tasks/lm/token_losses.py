"""The loss of every token of a split, with what is known of each token: frequency in training, position, class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anaphor.data.batches import Batch, EvaluationStream
from anaphor.data.corpus import encode_split
from anaphor.data.tokenizer import Ids, Tokenizer
from anaphor.errors import AnaphorError
from anaphor.evaluation import losses_by_batch
from anaphor.inspect.split_losses import Groups, SplitLosses
from anaphor.metrics.losses import LossResult
from anaphor.tasks.lm.answers import AnswersExperiment
from anaphor.tasks.lm.experiment import LanguageModelExperiment, PaddedExperiment, StreamExperiment
from anaphor.tasks.lm.piece_losses import POSITIONS, ScoredTokens, align_pieces, place_in_line
from anaphor.tasks.lm.recall_tokens import RecallMeter, find_repeated
from anaphor.tasks.lm.token_classes import group_by_class

Floats = NDArray[np.float32]
TOKENS_PER_LINE = 40  # where a text has no lines
FREQUENCIES = (0, 1, 10, 100, 1_000, 10_000)
CONTEXT = 160  # characters before and after a passage


@dataclass(frozen=True)
class TokenLosses(SplitLosses):
    """The tokens of a text."""

    unit = "tokens"
    is_text = True

    ids: Ids
    """[N]"""
    tokenizer: Tokenizer
    digest: str
    """Of the text."""
    text: str | None = None
    """The text, where it is one stream."""

    @property
    def is_joined(self) -> bool:
        return self.tokenizer.is_joined

    def mismatch(self, other: Any, names: tuple[str, str]) -> str:
        if not isinstance(other, TokenLosses) or self.digest != other.digest:
            return f"{names[0]} and {names[1]} were not scored on the same text: compare runs with the same data"
        if len(self.ids) == len(other.ids):
            theirs = other._translate(self.tokenizer)
            different = np.flatnonzero(theirs != self.ids)
            if not len(different):
                return ""
            place = int(different[0])
            one, two = self.tokenizer.tokens[self.ids[place]], other.tokenizer.tokens[other.ids[place]]
            detail = f"token {place:,} is {one!r} for {names[0]} and {two!r} for {names[1]}"
        else:
            detail = f"{len(self.ids):,} tokens for {names[0]} and {len(other.ids):,} for {names[1]}"
        return f"the runs tokenize the text differently: {detail}; only losses of equal tokens can be compared"

    def _translate(self, tokenizer: Tokenizer) -> NDArray[np.int64]:
        """The same tokens in the numbers of another vocabulary; -1 where it does not have them."""
        if self.tokenizer == tokenizer:
            return self.ids.astype(np.int64)
        numbers = {token: number for number, token in enumerate(tokenizer.tokens)}
        return np.array([numbers.get(token, -1) for token in self.tokenizer.tokens])[self.ids]

    def align(self, other: Any) -> tuple[SplitLosses, SplitLosses] | None:
        """By the pieces of text between places where tokens of both end."""
        if self.text is None or self.text != other.text:
            return None
        text = self.text.encode("utf-8", "surrogateescape")
        both = [one.scored_tokens(self.text) for one in (self, other)]
        if any(one is None or one.ends[-1] != len(text) for one in both):  # changed on the way to the tokens
            return None
        first, second = align_pieces(text, *(one for one in both if one is not None))
        return first, second

    def scored_tokens(self, text: str) -> ScoredTokens | None:
        """The tokens with their place in the text; None where the tokenizer does not keep track of it."""
        ends = self.tokenizer.byte_ends(text, self.ids)
        if ends is None:
            return None
        is_unknown = self.ids == (-1 if self.tokenizer.unknown is None else self.tokenizer.unknown)
        return ScoredTokens(self.losses, ends, is_unknown, self.result, self.notes)

    def show(self, start: int, stop: int) -> dict[str, Any]:
        before, after = self.ids[max(start - CONTEXT, 0) : start], self.ids[stop : stop + CONTEXT]
        return {
            "tokens": [self.tokenizer.tokens[token] for token in self.ids[start:stop]],
            "before": self.tokenizer.decode(before)[-CONTEXT:],
            "after": self.tokenizer.decode(after)[:CONTEXT],
            "line": int(self.lines[start]),
        }


def read_tokens(experiment: LanguageModelExperiment, split: str) -> TokenLosses:
    """The tokens of a split before they are scored: each has a loss of 0."""
    ids, lines = read_split(experiment, split)
    text = read_text(experiment, split) if isinstance(experiment, StreamExperiment) else None
    digest, losses = experiment.source.digest(split), np.zeros(len(ids), np.float32)
    return TokenLosses(losses, lines, {}, {}, (), ids, experiment.tokenizer, digest, text)


def token_losses(experiment: LanguageModelExperiment, split: str) -> TokenLosses:
    """The loss of every token of a split under the run's own protocol, with groups of tokens."""
    read = read_tokens(experiment, split)
    ids, notes = read.ids, list[str]()
    losses, result = score_tokens(experiment, split)
    groups = {}
    try:
        groups["frequency"] = group_by_frequency(experiment, ids)
    except AnaphorError as error:  # the training text may be gone
        notes.append(f"no frequencies: {error}")
    if has_lines(experiment, ids):
        groups["position"] = Groups.by_count("Position in the line", place_in_line(read.lines) + 1, POSITIONS)
    if isinstance(experiment, StreamExperiment):
        if not experiment.protocol.complete:
            notes.append("protocol=example leaves tokens out of its score; here every token is scored once")
        if not experiment.protocol.carry:
            groups["segment"] = group_by_segment(experiment, split)
    groups["class"] = group_by_class(experiment.tokenizer, ids)
    groups["bigram"] = group_by_bigram(experiment, read)
    if not experiment.model.causal:
        notes.append("the model is not causal: it sees the tokens that it predicts")
    return replace(read, losses=losses, result=result.to_plain(), groups=groups, notes=tuple(notes))


def group_by_bigram(experiment: LanguageModelExperiment, read: TokenLosses) -> Groups:
    """Recall tokens and the others."""
    repeated = find_repeated(read.ids, experiment.tokenizer.boundary)
    if not isinstance(experiment, StreamExperiment):
        starts = np.flatnonzero(np.diff(read.lines, prepend=-1))
        parts = np.split(read.ids, starts[1:])
        repeated = np.concatenate([find_repeated(part, experiment.tokenizer.boundary) for part in parts])
    labels = ("first time in the text", "occurred before (recall)")
    return Groups("Bigram: the token and the one before it", labels, repeated.astype(np.int16))


def read_text(experiment: StreamExperiment, split: str) -> str:
    """The text of a split."""
    source = experiment.source
    return experiment.tokenizer.as_text(source.read(split), where=source.where(split), offset=source.byte_offset(split))


def score_tokens(experiment: LanguageModelExperiment, split: str) -> tuple[Floats, LossResult]:
    """The loss of every token in the order of the text, and the result, as `evaluate` gives it where its protocol
    leaves no token out."""
    rows: dict[int, list[Floats]] = {}

    def collect(batches: Iterator[tuple[Batch, Tensor]]) -> Iterator[tuple[Batch, Tensor]]:
        for batch, losses in batches:
            valid = (batch.targets >= 0).cpu().numpy()
            numbers = batch.indices or range(len(valid))
            for row, values, mask in zip(numbers, losses.float().cpu().numpy(), valid, strict=True):
                rows.setdefault(row, []).append(values[mask])
            yield batch, losses

    recall = RecallMeter(causal=experiment.model.causal)
    if isinstance(experiment, StreamExperiment):
        protocol = replace(experiment.protocol, complete=True)
        result = experiment.result_of(split, protocol, collect(experiment.listen(recall, split, protocol)))
        result = recall.add_to(result)
    else:
        assert isinstance(experiment, PaddedExperiment), "the others are separate examples"
        losses = losses_by_batch(experiment.model, experiment.split(split), carry=False)
        if isinstance(experiment, AnswersExperiment):
            result = experiment.result_of(split, collect(losses))
        else:
            result = recall.add_to(experiment.result_of(split, collect(recall.listen(losses))))
    return np.concatenate([part for row in sorted(rows) for part in rows[row]]), result


def read_split(experiment: LanguageModelExperiment, split: str) -> tuple[Ids, NDArray[np.int32]]:
    """The tokens of a split in the order of the text, without boundaries before examples, and their line numbers."""
    if isinstance(experiment, StreamExperiment):
        return experiment.split(split).ids(), number_lines(experiment, split)
    rows = {}
    for batch in experiment.split(split):
        for row, targets in zip(batch.indices, batch.targets.cpu().numpy(), strict=True):
            rows[row] = targets[targets >= 0]
    ordered = [rows[row] for row in sorted(rows)]
    lines = np.repeat(np.arange(len(ordered)), [len(one) for one in ordered])
    return np.concatenate(ordered).astype(np.int32), lines.astype(np.int32)


def number_lines(experiment: StreamExperiment, split: str) -> NDArray[np.int32]:
    """The line of each token of a stream; where the text has no lines, parts of the same length."""
    text = experiment.split(split).ids()
    ends = np.cumsum(text == experiment.tokenizer.boundary)
    lines = np.concatenate(([0], ends[:-1])) if ends[-1] > 1 else np.arange(len(text)) // TOKENS_PER_LINE
    return lines.astype(np.int32)


def has_lines(experiment: LanguageModelExperiment, ids: Ids) -> bool:
    """Whether the tokens of a split are divided into lines or examples."""
    is_stream = isinstance(experiment, StreamExperiment)
    return not is_stream or int(np.count_nonzero(ids == experiment.tokenizer.boundary)) > 1


def group_by_frequency(experiment: LanguageModelExperiment, ids: Ids) -> Groups:
    """By how often a token occurs in the training text; `<unk>`, which stands for many words, is its own group."""
    tokenizer = experiment.tokenizer
    counts = encode_split(experiment.source, "train", tokenizer).counts(len(tokenizer))[ids]
    found = Groups.by_count("Occurrences of the token in the training text", counts, FREQUENCIES)
    is_unknown = ids == (-1 if tokenizer.unknown is None else tokenizer.unknown)
    codes = np.where(is_unknown, len(found.labels), found.codes)
    return replace(found, labels=(*found.labels, "unknown"), codes=codes)


def group_by_segment(experiment: StreamExperiment, split: str) -> Groups:
    """By position in the segment, where each segment starts without a state."""
    protocol, text = experiment.protocol, experiment.split(split).tokens
    rows = EvaluationStream(text, experiment.tokenizer.boundary, protocol.rows, protocol.bptt).lengths
    places = np.concatenate([np.arange(length) % protocol.bptt for length in rows.tolist()])
    return Groups.by_count("Position in the segment, which starts without a state", places + 1, POSITIONS)

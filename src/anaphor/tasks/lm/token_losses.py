"""The loss of every token of a split, with what is known of each token: frequency in training, position, class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
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
from anaphor.metrics.result import LossResult
from anaphor.tasks.lm.experiment import LanguageModelExperiment, PaddedExperiment, StreamExperiment

Floats = NDArray[np.float32]
TOKENS_PER_LINE = 40  # where a text has no lines
FREQUENCIES = (0, 1, 10, 100, 1_000, 10_000)
POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 160  # characters before and after a passage
WORD_CLASSES = ("word", "capitalized word", "number", "punctuation", "mixed", "unknown", "end of line")
PIECE_CLASSES = ("start of a word", "inside a word", "number", "punctuation", "space", "unknown", "end of line")
_NUMBER = re.compile(r"[^\w]*\d[\d\W]*")


@dataclass(frozen=True)
class TokenLosses(SplitLosses):
    """The tokens of a text."""

    counted = "tokens"
    is_text = True

    ids: Ids
    """[N]"""
    tokenizer: Tokenizer
    digest: str
    """Of the text."""

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

    def show(self, start: int, stop: int) -> dict[str, Any]:
        before, after = self.ids[max(start - CONTEXT, 0) : start], self.ids[stop : stop + CONTEXT]
        return {
            "tokens": [self.tokenizer.tokens[token] for token in self.ids[start:stop]],
            "before": self.tokenizer.decode(before)[-CONTEXT:],
            "after": self.tokenizer.decode(after)[:CONTEXT],
            "line": int(self.lines[start]),
        }


def token_losses(experiment: LanguageModelExperiment, split: str) -> TokenLosses:
    """The loss of every token of a split under the run's own protocol, with groups of tokens."""
    ids, lines = read_split(experiment, split)
    losses, result = score_tokens(experiment, split)
    tokenizer, notes = experiment.tokenizer, list[str]()
    starts = np.flatnonzero(np.diff(lines, prepend=-1))
    groups = {}
    try:
        groups["frequency"] = group_by_frequency(experiment, ids)
    except AnaphorError as error:  # the training text may be gone
        notes.append(f"no frequencies: {error}")
    if has_lines(experiment, ids):
        in_line = np.arange(len(ids)) - starts[np.searchsorted(starts, np.arange(len(ids)), "right") - 1]
        groups["position"] = Groups.by_count("Position in the line", in_line + 1, POSITIONS)
    if isinstance(experiment, StreamExperiment):
        if not experiment.protocol.complete:
            notes.append("protocol=example leaves tokens out of its score; here every token is scored once")
        if not experiment.protocol.carry:
            groups["segment"] = group_by_segment(experiment, split)
    groups["class"] = group_by_class(tokenizer, ids)
    if not experiment.model.causal:
        notes.append("the model is not causal: it sees the tokens that it predicts")
    digest = experiment.source.digest(split)
    return TokenLosses(losses, lines, result.to_plain(), groups, tuple(notes), ids, tokenizer, digest)


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

    if isinstance(experiment, StreamExperiment):
        protocol = replace(experiment.protocol, complete=True)
        result = experiment.result_of(split, protocol, collect(experiment.segment_losses(split, protocol)))
    else:
        assert isinstance(experiment, PaddedExperiment), "there are two ways of batching"
        examples = experiment.split(split)
        result = experiment.result_of(split, collect(losses_by_batch(experiment.model, examples, carry=False)))
    return np.concatenate([part for row in sorted(rows) for part in rows[row]]), result


def read_split(experiment: LanguageModelExperiment, split: str) -> tuple[Ids, NDArray[np.int32]]:
    """The tokens of a split in the order of the text, without boundaries before examples, and their line numbers."""
    if isinstance(experiment, StreamExperiment):
        return experiment.split(split).tokens.cpu().numpy().astype(np.int32), number_lines(experiment, split)
    rows = {}
    for batch in experiment.split(split):
        for row, targets in zip(batch.indices, batch.targets.cpu().numpy(), strict=True):
            rows[row] = targets[targets >= 0]
    ordered = [rows[row] for row in sorted(rows)]
    lines = np.repeat(np.arange(len(ordered)), [len(one) for one in ordered])
    return np.concatenate(ordered).astype(np.int32), lines.astype(np.int32)


def number_lines(experiment: StreamExperiment, split: str) -> NDArray[np.int32]:
    """The line of each token of a stream; where the text has no lines, parts of the same length."""
    text = experiment.split(split).tokens.cpu().numpy()
    ends = np.cumsum(text == experiment.tokenizer.boundary)
    lines = np.concatenate(([0], ends[:-1])) if ends[-1] > 1 else np.arange(len(text)) // TOKENS_PER_LINE
    return lines.astype(np.int32)


def has_lines(experiment: LanguageModelExperiment, ids: Ids) -> bool:
    is_stream = isinstance(experiment, StreamExperiment)
    return not is_stream or int(np.count_nonzero(ids == experiment.tokenizer.boundary)) > 1


def group_by_frequency(experiment: LanguageModelExperiment, ids: Ids) -> Groups:
    """By how often a token occurs in the training text; `<unk>`, which stands for many words, is its own group."""
    tokenizer = experiment.tokenizer
    train = encode_split(experiment.source, "train", tokenizer).tokens
    counts = np.bincount(train, minlength=len(tokenizer))[ids]
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


def group_by_class(tokenizer: Tokenizer, ids: Ids) -> Groups:
    """Words by what they are; pieces of words by whether they start one."""
    labels = PIECE_CLASSES if tokenizer.is_joined else WORD_CLASSES
    classify = classify_piece if tokenizer.is_joined else classify_word
    classes = [labels.index(classify(token)) for token in pieces_of(tokenizer)]
    classes[tokenizer.boundary] = labels.index("end of line")
    if tokenizer.unknown is not None:
        classes[tokenizer.unknown] = labels.index("unknown")
    codes = np.array(classes, np.int16)[ids]
    if tokenizer.is_joined:
        continues = np.array([piece[:1].isalnum() for piece in pieces_of(tokenizer)])[ids]
        ends = np.array([piece[-1:].isalnum() for piece in pieces_of(tokenizer)])[ids]
        is_inside = continues & np.concatenate(([False], ends[:-1])) & (codes == labels.index("start of a word"))
        codes = np.where(is_inside, labels.index("inside a word"), codes)
    return Groups("Class of the token", labels, codes)


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """The tokens as text. Of bytes that are no character the letter U+FFFD would say nothing: they count as letters."""
    if not tokenizer.is_joined:
        return list(tokenizer.tokens)
    texts = []
    for number, token in enumerate(tokenizer.tokens):
        with suppress(AnaphorError, ValueError):
            token = tokenizer.decode([number])
        texts.append(token.replace("\ufffd", "é"))
    return texts


def classify_word(word: str) -> str:
    if not any(letter.isalnum() for letter in word):
        return "punctuation"
    if _NUMBER.fullmatch(word):
        return "number"
    if not word.replace("-", "").replace("'", "").isalpha():
        return "mixed"
    return "capitalized word" if word[0].isupper() else "word"


def classify_piece(piece: str) -> str:
    if piece == "\n":
        return "end of line"
    if not piece.strip():
        return "space"
    if not any(letter.isalnum() for letter in piece):
        return "punctuation"
    return "number" if _NUMBER.fullmatch(piece.strip()) else "start of a word"

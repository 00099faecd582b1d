"""Losses of the pieces of a text between places where tokens of two tokenizers end, so that two can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.errors import count_noun
from anaphor.inspect.split_losses import Groups, SplitLosses
from anaphor.tasks.lm.token_classes import group_pieces

POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 160  # bytes before and after a passage
NOTE = (
    "The runs have different tokenizers: losses are summed over the pieces of text between places where tokens of both "
    "end."
)


@dataclass(frozen=True)
class PieceLosses(SplitLosses):
    """Pieces of a text."""

    unit = "pieces"
    is_text = True

    text: bytes
    ends: NDArray[np.int64]
    """[N]: end of each piece in the text, in bytes."""
    tokens: NDArray[np.int64]
    """[N + 1]: how many tokens of the run come before each piece, and all."""

    def mismatch(self, other: Any, names: tuple[str, str]) -> str:
        return ""

    def place(self, item: int) -> int:
        return int(self.tokens[item])

    def show(self, start: int, stop: int) -> dict[str, Any]:
        first, last = self._start(start), int(self.ends[stop - 1])
        return {
            "tokens": [self._piece(item) for item in range(start, stop)],
            "before": self.text[max(first - CONTEXT, 0) : first].decode("utf-8", "ignore"),
            "after": self.text[last : last + CONTEXT].decode("utf-8", "ignore"),
            "line": int(self.lines[start]),
        }

    def _piece(self, item: int) -> str:
        return self.text[self._start(item) : int(self.ends[item])].decode("utf-8", "replace")

    def _start(self, item: int) -> int:
        return int(self.ends[item - 1]) if item else 0


@dataclass(frozen=True)
class ScoredTokens:
    """The tokens of a text in one run."""

    losses: NDArray[np.float32]
    """[T]"""
    ends: NDArray[np.int64]
    """[T]: end of each token in the text, in bytes."""
    is_unknown: NDArray[np.bool_]
    """[T]"""
    result: Mapping[str, Any]
    notes: tuple[str, ...]


def align_pieces(text: bytes, *runs: ScoredTokens) -> list[PieceLosses]:
    """The losses of each run, summed over common pieces, of which there must be one. The loss of an unknown token says
    nothing of what it stands for, so that pieces with one count as equal: their loss is 0 for all."""
    common = runs[0].ends
    for run in runs[1:]:
        common = np.intersect1d(common, run.ends)
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    lines = np.searchsorted(newlines, np.concatenate(([0], common[:-1]))).astype(np.int32)
    is_unknown = np.zeros(len(common), np.bool_)
    for run in runs:
        ends = run.ends[run.is_unknown]
        is_unknown[np.searchsorted(common, ends[ends <= common[-1]])] = True  # after the last piece nothing is compared
    groups = {"class": group_pieces(text, common, is_unknown)}
    if len(newlines) > 1:
        groups["position"] = Groups.by_count("Position in the line", place_in_line(lines) + 1, POSITIONS)
    unknown = int(is_unknown.sum())
    notes = (NOTE, *([f"Counted as equal: {count_noun(unknown, 'piece')} with an unknown token."] if unknown else ()))
    found = []
    for run in runs:
        count = np.searchsorted(run.ends, common, "right")  # tokens up to the end of each piece
        total = np.concatenate(([0.0], np.cumsum(run.losses, dtype=np.float64)))[count]
        losses = np.where(is_unknown, 0.0, np.diff(total, prepend=0.0)).astype(np.float32)
        places = np.concatenate(([0], count))
        found.append(PieceLosses(losses, lines, run.result, groups, (*notes, *run.notes), text, common, places))
    return found


def place_in_line(lines: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many items come before each one in its line."""
    starts = np.flatnonzero(np.diff(lines, prepend=-1))
    items = np.arange(len(lines))
    places: NDArray[np.int64] = items - starts[np.searchsorted(starts, items, "right") - 1]
    return places

"""Scores of predictions at the positions that have a target: accuracy, accuracy of whole sequences, loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from anaphor.precision import to_double

IGNORE_INDEX = -100


@dataclass(frozen=True)
class PositionScores:
    """Scores of one split. Positions without a target count nowhere."""

    accuracy: float
    """Share of targets whose most probable token is right."""
    sequence_accuracy: float
    """Share of sequences all of whose targets are right, of those that have one."""
    loss: float
    """Mean cross-entropy of the targets in nats."""
    targets: int
    """Number of targets."""
    by_position: tuple[float | None, ...]
    """Accuracy at each position; None where no sequence has a target."""

    @property
    def values(self) -> dict[str, float | None]:
        """The metrics by name."""
        return {name: getattr(self, name) for name in ("accuracy", "sequence_accuracy", "loss")}


class PositionMeter:
    """Adds up batches on the device; `read` reads the scores once, at the end."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._counts: list[Tensor] = []
        self._right: list[Tensor] = []
        self._sequences: list[Tensor] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """[B, T, V], [B, T] with -100 where there is no target."""
        has_target = targets != IGNORE_INDEX
        right = (logits.argmax(-1) == targets) & has_target
        losses = F.cross_entropy(
            to_double(logits).flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        some = has_target.any(1)
        self._losses.append(losses)
        self._counts.append(has_target.sum(0))
        self._right.append(right.sum(0))
        self._sequences.append((some & (right == has_target).all(1)).sum())
        self._sequences.append(some.sum())

    def read(self) -> PositionScores:
        """The scores of all batches, which have one target at least."""
        longest = max(len(counts) for counts in self._counts)
        counts, right = (
            sum(F.pad(part, (0, longest - len(part))).cpu() for part in parts) for parts in (self._counts, self._right)
        )
        assert isinstance(counts, Tensor), "there is a batch"
        assert isinstance(right, Tensor), "there is a batch"
        whole, sequences = (sum(int(part) for part in self._sequences[start::2]) for start in (0, 1))
        total = int(counts.sum())
        by_position = zip(right.tolist(), counts.tolist(), strict=True)
        return PositionScores(
            accuracy=int(right.sum()) / total,
            sequence_accuracy=whole / sequences,
            loss=sum(float(part) for part in self._losses) / total,
            targets=total,
            by_position=tuple(one / count if count else None for one, count in by_position),
        )

"""Experiment: data, model and scoring of one run, all that the training loop knows of a task."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from anaphor.errors import DataError
from anaphor.metrics.result import Result
from anaphor.training.spec import RunSpec

MAX_CROSS_ENTROPY = math.log(sys.float_info.max)
"""`largest_loss` of tasks that predict classes or tokens: the perplexity of a larger one is no number."""


@dataclass(frozen=True)
class Loss:
    """Loss of a batch: a sum, never a mean, because batches differ in size. Batches know their counts."""

    total: Tensor
    penalty: Tensor | None = None
    """Regularization that is added to the total for the gradient; it is not reported."""
    correct: Tensor | None = None
    """Number of the batch's items that were predicted correctly, where the task reports a training accuracy."""

    @property
    def objective(self) -> Tensor:
        """What the gradient is taken of."""
        return self.total if self.penalty is None else self.total + self.penalty

    def without_weight(self) -> Loss:
        """Zeros in place of all numbers: for rows that do not count."""
        penalty = None if self.penalty is None else self.penalty * 0
        return Loss(self.total * 0, penalty, None if self.correct is None else self.correct * 0)


class Experiment(ABC):
    """One run's data, model and scoring. A task subclasses it; the loop never asks which task it has.

    A batch is a dataclass with two numbers: `count`, the items that throughput counts, as an int, and `denominator`,
    what the summed loss is divided by, an int or a tensor on the device.
    """

    spec: RunSpec
    model: nn.Module
    device: torch.device
    saved: Mapping[str, Any] = {}
    """`fingerprint()` of the run when it was trained; empty for a new run."""
    largest_loss: ClassVar[float] = math.inf
    """Mean losses above this count as divergence, beside those that are not finite."""

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Any]:
        """Training batches of an epoch, in an order that depends on the seed and the epoch alone."""

    @abstractmethod
    def loss(self, batch: Any, carry: Any) -> tuple[Loss, Any]:
        """Loss of a batch, and the state carried to the next batch, detached."""

    def initial_carry(self) -> Any:
        """A carry of the right structure, to read one back from a file; None where nothing is carried."""
        return None

    @abstractmethod
    def evaluate(self, split: str) -> Result:
        """Result on a split while training: the metrics that are cheap, and the one that selects."""

    def score(self, split: str) -> Result:
        """Final result on a split, with all metrics."""
        return self.evaluate(split)

    def score_test(self, valid: Result) -> Result:
        """Final result on test, given the one on valid."""
        return self.score("test")

    def draw(self, folder: Path, valid: Result) -> list[Path]:
        """Draw figures of the final model into the folder, beside the curves, given its `score` on valid. Returns their
        paths."""
        return []

    def sample(self, seed: int) -> str:
        """Something to look at while the model trains, such as generated text; empty for nothing."""
        return ""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Digests of the data (`data`: by split, without test) and the preprocessing. They must not change on
        resume."""

    def validate(self, test: bool) -> None:
        """Raise before the first step what could not be scored later; `test` says whether test will be scored."""
        return

    def prepare_for_inference(self) -> None:
        """Prepare the model, whose weights were loaded, for use without training."""
        self.model.eval()

    def notes(self) -> list[str]:
        """Warnings about the data, one line each."""
        return []

    def statistics(self) -> dict[str, Any]:
        """Facts about the training data for `--dry-run` and the result, such as `padding_share`."""
        return {}

    def chosen_settings(self) -> dict[str, Any]:
        """Settings that the spec leaves open, of the model for example, with the values chosen. None: it does not
        apply."""
        return {}

    def changed_splits(self) -> list[str]:
        """Splits whose data differ from those of training. Test was not fingerprinted."""
        before = self.saved.get("data", {})
        now = self.fingerprint()["data"] if before else {}
        return [split for split in before if before[split] != now.get(split)]


class HasSplits(Protocol):
    """Data in splits."""

    def check_split(self, split: str) -> str: ...


def require_splits(data: HasSplits, test: bool) -> None:
    """Refuse data without a split that will be scored."""
    data.check_split("valid")
    if test:
        try:
            data.check_split("test")
        except DataError as error:
            raise DataError(f"{error}; use --no-test to train without it") from None

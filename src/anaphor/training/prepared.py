"""A spec turned into things: what is trained, on what, and how it is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from anaphor.errors import DataError
from anaphor.tasks.base import Task
from anaphor.training.spec import RunSpec


class Splits(Protocol):
    """Data, as far as it is cut into splits."""

    def check_split(self, split: str) -> str: ...


def check_splits(source: Splits, test: bool) -> None:
    """Refuse data that lack a split which will be scored."""
    source.check_split("valid")
    if test:
        try:
            source.check_split("test")
        except DataError as error:
            raise DataError(f"{error}; --no-test does without") from None


@dataclass(frozen=True)
class Prepared(ABC):
    """All that a run needs to know of its task. Each task has its own kind."""

    spec: RunSpec
    model: Any
    task: Task
    device: torch.device
    known: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """The facts of a run that exists, as they were in training."""

    def edited(self) -> list[str]:
        """The splits that hold another text than they did in training. What test held is not known."""
        then, now = self.known.get("data", {}), self.facts()["data"]
        return [split for split in then if then[split] != now.get(split)]

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The tokenizer and what the data hold, as plain values: they must not change between the parts of a run."""

    @abstractmethod
    def check(self, test: bool) -> None:
        """Refuse before the first step what could not be scored later. Of a test split it is only asked that it is
        there."""

    @abstractmethod
    def score(self, split: str) -> dict[str, Any]:
        """The model's score on a split, as plain values."""

    def score_test(self, valid: dict[str, Any]) -> dict[str, Any]:
        """Its score on test, where that on valid was just made."""
        return self.score("test")

    def notes(self) -> list[str]:
        """What whoever trains on these data should know before."""
        return []

    def padding_share(self) -> float | None:
        """The part of all positions of training that is padding; None where there is none."""
        return None

    def left_out(self) -> int:
        """Examples of training that are too long to be trained on."""
        return 0

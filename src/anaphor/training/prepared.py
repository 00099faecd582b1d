"""A spec turned into things: what is trained, on what, and how it is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from anaphor.tasks.base import Task
from anaphor.training.spec import RunSpec


@dataclass(frozen=True)
class Prepared(ABC):
    """All that a run needs to know of its task. Each task has its own kind."""

    spec: RunSpec
    model: Any
    task: Task
    device: torch.device

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

    def padding_share(self) -> float | None:
        """The part of all positions of training that is padding; None where there is none."""
        return None

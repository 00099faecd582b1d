"""A model with weights of another library, and how a task takes one as a run and gives its own.

The shelf `anaphor.interchange` reads and writes the files of other libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from anaphor.data.tokenizer import Tokenizer
from anaphor.training.spec import RunSpec


@dataclass(frozen=True)
class Pretrained:
    """A model of ours with what belongs to its weights."""

    model: nn.Module
    tokenizer: Tokenizer | None = None
    classes: tuple[str, ...] | None = None
    """Class names, in the order of the head's outputs."""
    mean: tuple[float, ...] = ()
    """Mean of each channel that images are normalized by; empty for text."""
    std: tuple[float, ...] = ()
    kind: str = ""
    """`model_type` of the folder it was read from."""
    problem_type: str | None = None
    """What its head was trained for, where the folder says so."""
    warnings: tuple[str, ...] = ()
    """What should be known about the folder, one line each."""


class Interchange(Protocol):
    """How a task takes a pretrained model and gives one; `TaskDefinition.interchange` names it."""

    def settings(self, pretrained: Pretrained) -> tuple[RunSpec, Mapping[str, Any]] | None:
        """Settings of a run with this model, and its fingerprint; None where the model is not of this task."""

    def pretrained(self, experiment: Any) -> Pretrained:
        """The model of a run with what belongs to its weights."""

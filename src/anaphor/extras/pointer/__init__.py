"""Pointer beside the head (Merity et al., 2017): copies words of the recent past."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from anaphor.errors import ConfigError
from anaphor.registry import register_evaluation


@dataclass(frozen=True, kw_only=True)
class PointerVariants:
    """Settings of `evaluate`: other memories and biases than in training."""

    section: ClassVar[str] = "pointer"

    pointer_eval_memory: tuple[int, ...] = ()
    """Number of past tokens that the pointer copies from; one row each; 0: without the pointer."""
    pointer_eval_bias: tuple[float, ...] = ()
    """Constant added to the scores of the pointer; one row each."""

    def __post_init__(self) -> None:
        if any(memory < 0 for memory in self.pointer_eval_memory):
            raise ConfigError(f"pointer_eval_memory={self.pointer_eval_memory}: it must be at least 0")
        if not all(map(math.isfinite, self.pointer_eval_bias)):
            raise ConfigError(f"pointer_eval_bias={self.pointer_eval_bias}: it must be finite")


def register() -> None:
    register_evaluation("pointer", "anaphor.extras.pointer.evaluation:PointerEvaluation", PointerVariants)

"""Pointer beside the head (Merity et al., 2017): copies words of the recent past."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from anaphor.config import check_at_least
from anaphor.errors import ConfigError
from anaphor.registry import register_evaluation, register_head
from anaphor.typecheck import check_types


@dataclass(frozen=True, kw_only=True)
class PointerSettings:
    """The pointer of a model."""

    section: ClassVar[str] = "pointer"

    pointer_memory: int | None = None
    """Number of past tokens that a pointer beside the head can copy from; None means no pointer."""
    pointer_eval_memory: int | None = None
    """The same in evaluation; None means as in training."""
    pointer_eval_bias: float = 0.0
    """Added to the scores of past tokens in evaluation, but not to that of the vocabulary."""

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(1, pointer_memory=self.pointer_memory, pointer_eval_memory=self.pointer_eval_memory)
        if not math.isfinite(self.pointer_eval_bias):
            raise ConfigError(f"pointer_eval_bias={self.pointer_eval_bias}: it must be finite")
        if self.pointer_memory is None and (self.pointer_eval_memory or self.pointer_eval_bias):
            raise ConfigError("pointer_eval_memory and pointer_eval_bias need a pointer: set pointer_memory")


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
    register_head("pointer", f"{__name__}.head:make_pointer", PointerSettings, tasks=("lm",))
    register_evaluation("pointer", f"{__name__}.evaluation:PointerEvaluation", PointerVariants)

"""The rows of `evaluate` with other memories and biases of the pointer, and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError
from anaphor.extras.pointer import PointerVariants
from anaphor.extras.pointer.head import Pointer, use_pointer
from anaphor.tasks.evaluations import Evaluation, Variant
from anaphor.tasks.lm.experiment import LanguageModelExperiment


class PointerEvaluation(Evaluation):
    """The model with each memory and each bias; without a pointer the bias is nothing."""

    columns = ("pointer",)

    def __init__(self, settings: PointerVariants, experiment: LanguageModelExperiment, run: Path) -> None:
        self.settings, self.model = settings, experiment.model
        self.has_pointer = isinstance(experiment.model.head_wrapper, Pointer)
        if (settings.pointer_eval_memory or settings.pointer_eval_bias) and not self.has_pointer:
            raise ConfigError(f"{run} has no pointer: it was trained without --pointer-memory")

    def choices(self) -> Mapping[str, Sequence[Any]]:
        # Without a pointer is no choice between values: it is the plain model.
        memories = tuple(memory for memory in self.settings.pointer_eval_memory if memory)
        return {"pointer_eval_memory": memories, "pointer_eval_bias": self.settings.pointer_eval_bias}

    def variants(self) -> list[Variant]:
        memories: Sequence[int | None] = self.settings.pointer_eval_memory or (None,)
        biases: Sequence[float | None] = self.settings.pointer_eval_bias or (None,)
        pairs = dict.fromkeys((memory, None if memory == 0 else bias) for memory, bias in product(memories, biases))
        return [self._variant(memory, bias) for memory, bias in pairs]

    def _variant(self, memory: int | None, bias: float | None) -> Variant:
        """The model with this memory and this bias; None as in training."""
        if memory is None and bias is None:
            return Variant()
        apply = partial(use_pointer, self.model, memory, bias)
        with apply():
            return Variant(self.model.head_metadata(), apply)

"""The rows of `evaluate` with other memories and biases of the pointer, and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError
from anaphor.extras.pointer import PointerVariants
from anaphor.tasks.evaluations import Evaluation, Variant
from anaphor.tasks.lm.experiment import LanguageModelExperiment


class PointerEvaluation(Evaluation):
    """The model with each memory and each bias; without a pointer the bias is nothing."""

    columns = ("pointer",)

    def __init__(self, settings: PointerVariants, experiment: LanguageModelExperiment, run: Path) -> None:
        self.settings, self.experiment = settings, experiment
        if (settings.pointer_eval_memory or settings.pointer_eval_bias) and experiment.model.pointer is None:
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
        apply = partial(self.experiment.model.use_pointer, memory, bias)
        if memory is None and bias is None:
            return Variant(apply=apply)
        with apply():
            return Variant({"pointer": self.experiment.describe_pointer()}, apply)

"""`anaphor evaluate` for translation: the beam search of BLEU and chrF. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.tasks.translate import describe

if TYPE_CHECKING:
    from anaphor.tasks.translate.experiment import TranslationExperiment


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for translation."""

    beam: int | None = None
    """Beam width (as in training if not given)."""
    length_penalty: float | None = None
    """Length penalty (as in training if not given)."""

    def evaluate(
        self, experiment: TranslationExperiment, run: Path, split: str
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        given = {"beam": self.beam, "length_penalty": self.length_penalty}
        experiment.spec = replace(
            experiment.spec, **{name: value for name, value in given.items() if value is not None}
        )
        result = experiment.score(split).to_plain()
        first, *others = describe(result)
        yield result, [f"{split}: {first}", *(f"  {line}" for line in others)]

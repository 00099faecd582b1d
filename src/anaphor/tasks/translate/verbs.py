"""Options of `anaphor evaluate` and `anaphor look` for translation. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.errors import ConfigError
from anaphor.flags import Positional
from anaphor.tasks.evaluations import Row, make_evaluations

if TYPE_CHECKING:
    from anaphor.tasks.translate.experiment import TranslationExperiment


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for translation."""

    beam: int | None = None
    """Beam width (as in training if not given)."""
    length_penalty: float | None = None
    """Length penalty (as in training if not given)."""

    def evaluate(self, experiment: TranslationExperiment, run: Path, split: str) -> Iterator[Row]:
        evaluations = make_evaluations(self, experiment, run)
        given: dict[str, Any] = {"beam": self.beam, "length_penalty": self.length_penalty}
        experiment.spec = replace(
            experiment.spec, **{name: value for name, value in given.items() if value is not None}
        )
        yield from evaluations.rows(split)


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Options for translation. Prints the translation of a sentence and its alignment with the source."""

    text: Annotated[str, Positional("TEXT")]
    """Sentence to translate."""
    layer: int | None = None
    """Decoder layer whose attention is shown (the last one if not given)."""

    def validate(self, run: Path) -> None:
        if not self.text.strip():
            raise ConfigError("the sentence is empty: there is nothing to translate")

    def look(
        self,
        experiment: TranslationExperiment,
        run: Path,
        out: Path,
        load: Callable[[Path], TranslationExperiment],
        warn: Callable[[str], None],
    ) -> tuple[dict[str, Any], list[str]]:
        """Write the page and the figures. Returns all values as JSON, and lines for people."""
        from anaphor.tasks.translate.look import look

        return look(experiment, self, out)

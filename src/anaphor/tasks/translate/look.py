"""`anaphor look` for translation: which source tokens each token of a translation attends to. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anaphor.errors import ConfigError, writing_to

if TYPE_CHECKING:
    from anaphor.generate import Hypothesis
    from anaphor.inspect.alignment import Alignment
    from anaphor.tasks.translate.experiment import TranslationExperiment


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Options for translation. Prints the translation of a sentence and its alignment with the source."""

    text: Annotated[str, tyro.conf.Positional]
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
        """Write the page and the figures. Gives all values as JSON, and lines for people."""
        from anaphor.generate import Beam
        from anaphor.inspect.alignment import as_text

        spec, sentence = experiment.spec, self.text.strip().replace("\n", " ")
        beam = Beam(width=spec.beam, max_length=None, length_penalty=spec.length_penalty)
        ((best, *_),) = experiment.translate([sentence], beam)
        alignment = align(experiment, sentence, best, self.layer)
        written = write_alignment(alignment, out, "alignment")
        translation = experiment.tokenizers.target.decode(best.tokens)
        plain = {
            "source": sentence,
            "translation": translation,
            "alignment": plain_alignment(alignment),
            "written": [str(path) for path in written],
        }
        return plain, [translation, *(f"  {line}" for line in as_text(alignment).splitlines()), *map(str, written)]


def align(experiment: TranslationExperiment, sentence: str, hypothesis: Hypothesis, layer: int | None) -> Alignment:
    """Attention of a translation to its source."""
    from anaphor.inspect.alignment import alignment, alignment_so_far

    compute = alignment if hypothesis.finished else alignment_so_far
    return compute(experiment.model, experiment.tokenizers, sentence, hypothesis.tokens, layer)


def plain_alignment(alignment: Alignment) -> dict[str, Any]:
    """As JSON."""
    return {
        "source": list(alignment.source),
        "target": list(alignment.target),
        "weights": alignment.weights.tolist(),
    }


def write_alignment(alignment: Alignment, folder: Path, stem: str) -> list[Path]:
    """As a page and as figures."""
    from anaphor.inspect.alignment import alignment_page, draw_alignment
    from anaphor.training.files import replace_file

    page = folder / f"{stem}.html"
    with writing_to(folder):
        replace_file(page, alignment_page(alignment).encode())
        return [page, *draw_alignment(alignment, folder / stem)]

"""`anaphor look` for translation: a translation and the attention of each of its tokens to the source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.beam_search import Hypothesis
from anaphor.files import replace_file
from anaphor.inspect.alignment import Alignment, alignment, alignment_page, as_text, draw_alignment
from anaphor.tasks.translate.verbs import LookOptions
from anaphor.user_paths import writing_to

if TYPE_CHECKING:
    from anaphor.tasks.translate.experiment import TranslationExperiment


def look(experiment: TranslationExperiment, options: LookOptions, out: Path) -> tuple[dict[str, Any], list[str]]:
    """Write the page and the figures. Returns all values as JSON, and lines for people."""
    sentence = options.text.strip().replace("\n", " ")
    ((best, *_),) = experiment.translate([sentence], experiment.beam)
    alignment = align(experiment, sentence, best, options.layer)
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
    model, tokenizers = experiment.model, experiment.tokenizers
    return alignment(model, tokenizers, sentence, hypothesis.tokens, layer, finished=hypothesis.finished)


def plain_alignment(alignment: Alignment) -> dict[str, Any]:
    """As JSON."""
    return {
        "source": list(alignment.source),
        "target": list(alignment.target),
        "weights": alignment.weights.tolist(),
    }


def write_alignment(alignment: Alignment, folder: Path, stem: str) -> list[Path]:
    """As a page and as figures."""
    page = folder / f"{stem}.html"
    with writing_to(folder):
        replace_file(page, alignment_page(alignment).encode())
        return [page, *draw_alignment(alignment, folder / stem)]

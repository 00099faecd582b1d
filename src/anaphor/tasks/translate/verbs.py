"""`anaphor evaluate`, `anaphor look` and `anaphor models` for translation. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.config import writing_to
from anaphor.errors import ConfigError
from anaphor.flags import Positional
from anaphor.tasks import format_size, join_layers
from anaphor.tasks.evaluations import Row, make_evaluations
from anaphor.training.spec import ModelRow

if TYPE_CHECKING:
    from anaphor.generate import Hypothesis
    from anaphor.inspect.alignment import Alignment
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
        """Write the page and the figures. Gives all values as JSON, and lines for people."""
        from anaphor.inspect.alignment import as_text

        sentence = self.text.strip().replace("\n", " ")
        ((best, *_),) = experiment.translate([sentence], experiment.beam)
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
    from anaphor.inspect.alignment import alignment

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
    from anaphor.inspect.alignment import alignment_page, draw_alignment
    from anaphor.training.files import replace_file

    page = folder / f"{stem}.html"
    with writing_to(folder):
        replace_file(page, alignment_page(alignment).encode())
        return [page, *draw_alignment(alignment, folder / stem)]


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it, with two vocabularies of the same size."""

    from anaphor.models import seq2seq_preset
    from anaphor.models.initialize import without_weights

    spec = seq2seq_preset(name, source_vocabulary=vocabulary, vocabulary=vocabulary)
    with without_weights():
        model = spec.build()
    plain: dict[str, Any] = {
        "name": name,
        "encoder": spec.encoder_spec().mixers_by_layer,
        "decoder": spec.decoder_spec().mixers_by_layer,
        "width": spec.decoder_spec().widths_by_layer[-1],
        "parameters": model.count_parameters(),
        "state_bytes": model.state_bytes(tokens, tokens),
        "tokens": tokens,
        "state_grows": model.state_grows,
        "limit": model.max_positions,
    }
    # 'bidirectional-lstm' would not leave room for all columns in a terminal of 80.
    encoder = [re.sub("^bidirectional-(.*)", r"\1 both ways", mixer) for mixer in plain["encoder"]]
    text = {"translation": name, "encoder": join_layers(encoder), "decoder": join_layers(plain["decoder"])}
    remark = "two vocabularies of the same size; state and limit with --json"
    return ModelRow(plain, text, format_size(plain["width"], plain["parameters"]), remark)

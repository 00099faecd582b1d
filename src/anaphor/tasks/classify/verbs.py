"""`anaphor evaluate`, `anaphor predict` and `anaphor models` for text classification. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.data.dataset import default_split
from anaphor.data.files import read_lines
from anaphor.flags import Positional
from anaphor.tasks import check_texts, describe_unknown_words, format_size, join_layers
from anaphor.tasks.classify import BAG_OF_WORDS
from anaphor.tasks.evaluations import Row, make_evaluations
from anaphor.training.spec import ModelRow

if TYPE_CHECKING:
    from anaphor.tasks.classify.experiment import ClassifyExperiment

CLASSES = 2


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for text classification."""

    data: str | None = None
    """Other data than those of training: a name, a file or a folder; labels must be those of training."""
    text_column: str | None = None
    """Column of the texts in a file of --data (text or sentence if not given)."""
    label_column: str | None = None
    """Column of the labels in a file of --data (label if not given)."""

    def evaluate(self, experiment: ClassifyExperiment, run: Path, split: str | None) -> Iterator[Row]:
        evaluations = make_evaluations(self, experiment, run)
        if self.data is not None:
            experiment.use_data(self.data, self.text_column, self.label_column)
        split = split or default_split(experiment.source)
        yield from evaluations.rows(split)


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Options for text classification."""

    texts: Annotated[tuple[str, ...], Positional("TEXT…")] = ()
    """Texts to classify."""
    file: Path | None = None
    """File with a text on each line; .gz is decompressed, - is standard input. Empty lines stay empty."""

    def __post_init__(self) -> None:
        check_texts(self.texts, self.file)

    def predict(
        self, experiment: ClassifyExperiment, warn: Callable[[str], None]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        experiment.require_classes()
        lines = self.texts if self.file is None else read_lines(self.file)
        # A line of the output for each of the file. An empty text among the arguments is refused.
        texts = [line for line in lines if self.file is None or line.strip()]
        found = iter(experiment.predict(texts) if texts else ())
        empty: dict[str, Any] = {"label": None, "probabilities": {}}
        rows = [next(found) if self.file is None or line.strip() else {"text": line, **empty} for line in lines]
        for line in describe_unknown_words(texts, experiment.tokenizer):
            warn(line)
        return rows, [_describe_prediction(row) for row in rows]


def _describe_prediction(row: Mapping[str, Any]) -> str:
    return f"{row['label']} {row['probabilities'][row['label']]:.4f}  {row['text']}" if row["probabilities"] else ""


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it."""
    import numpy as np

    from anaphor.models import text_preset
    from anaphor.models.bag_of_words import BagOfWords
    from anaphor.models.initialize import without_weights

    plain: dict[str, Any]
    remark = f"{CLASSES} classes; a bag of words also has a weight for each bigram of its training data"
    with without_weights():
        if name == BAG_OF_WORDS:
            parameters = BagOfWords(vocabulary, CLASSES, np.empty(0, np.int64)).count_parameters()
            plain = {"name": name, "layers": [], "width": None, "parameters": parameters, "classes": CLASSES}
            sizes = format_size(0, parameters) | {"width": ""}
            return ModelRow(plain, {"classification": name, "layers": "none"}, sizes, remark)
        spec = text_preset(name, vocabulary=vocabulary, classes=CLASSES)
        model = spec.build()
    width = spec.widths_by_layer[-1]
    plain = {
        "name": name,
        "layers": spec.mixers_by_layer,
        "width": width,
        "parameters": model.count_parameters(),
        "pooling": spec.pooling,
        "classes": CLASSES,
    }
    text = {"classification": name, "layers": join_layers(spec.mixers_by_layer)}
    return ModelRow(plain, text, format_size(width, plain["parameters"]), remark)

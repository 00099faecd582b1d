"""Options of `anaphor evaluate`, `anaphor predict` and `anaphor look` for text classification. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.data.dataset import default_split
from anaphor.data.text import read_lines, read_text_files
from anaphor.errors import ConfigError, DataError
from anaphor.flags import Positional
from anaphor.tasks.evaluations import Row, make_evaluations
from anaphor.tasks.given_texts import check_texts
from anaphor.tasks.unknown_words import describe_unknown_words

if TYPE_CHECKING:
    from anaphor.tasks.classify.experiment import ClassifyExperiment


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
    """File with a text on each line; .gz is decompressed, - is standard input. Empty lines stay empty. Of a folder each
    .txt file is a text."""

    def __post_init__(self) -> None:
        check_texts(self.texts, self.file)

    def predict(
        self, experiment: ClassifyExperiment, warn: Callable[[str], None]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        experiment.require_classes()
        if self.file is not None and self.file.is_dir():
            return self._predict_files(self.file, experiment, warn)
        lines = self.texts if self.file is None else read_lines(self.file)
        # A line of the output for each of the file. An empty text among the arguments is refused.
        texts = [line for line in lines if self.file is None or line.strip()]
        found = iter(experiment.predict(texts) if texts else ())
        empty: dict[str, Any] = {"label": None, "probabilities": {}}
        rows = [next(found) if self.file is None or line.strip() else {"text": line, **empty} for line in lines]
        for line in describe_unknown_words(texts, experiment.tokenizer):
            warn(line)
        return rows, [_describe_prediction(row, row["text"]) for row in rows]

    @staticmethod
    def _predict_files(
        folder: Path, experiment: ClassifyExperiment, warn: Callable[[str], None]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """A row for each file, which people see by its name: its text may be long."""
        files = read_text_files(folder)
        for path, text in files:
            if not text.strip():
                raise DataError(f"{path} is empty: there is nothing to classify")
        texts = [text for _, text in files]
        found = experiment.predict(texts)
        for line in describe_unknown_words(texts, experiment.tokenizer):
            warn(line)
        rows = [{"file": str(path), **row} for (path, _), row in zip(files, found, strict=True)]
        return rows, [_describe_prediction(row, row["file"]) for row in rows]


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Options for text classification. Shows the label of a text, attention, and gradient × input of each token."""

    text: Annotated[str, Positional("TEXT")]
    """Text to classify."""
    label: str | None = None
    """Class whose logit the contributions are of (the predicted one if not given)."""

    def validate(self, run: Path) -> None:
        if not self.text.strip():
            raise ConfigError("the text is empty: there is nothing to classify")

    def look(
        self,
        experiment: ClassifyExperiment,
        run: Path,
        out: Path,
        load: Callable[[Path], ClassifyExperiment],
        warn: Callable[[str], None],
    ) -> tuple[dict[str, Any], list[str]]:
        """Write the page and the figures. Returns all values as JSON, and lines for people."""
        from anaphor.tasks.classify.look import look

        return look(experiment, self, run, out)


def _describe_prediction(row: Mapping[str, Any], name: str) -> str:
    return f"{row['label']} {row['probabilities'][row['label']]:.4f}  {name}" if row["probabilities"] else ""

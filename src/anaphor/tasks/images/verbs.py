"""Options of `anaphor evaluate`, `anaphor predict` and `anaphor look` for images. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.data.dataset import default_split
from anaphor.errors import ConfigError
from anaphor.flags import Positional
from anaphor.tasks.evaluations import Row, make_evaluations

if TYPE_CHECKING:
    from anaphor.tasks.images.experiment import ImageExperiment

MOST_LIKELY = 3  # classes of an image in the table
MAX_IMAGES = 50  # to look at


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for images."""

    data: str | None = None
    """Other data than those of training: a name, a folder or a .npz file; its classes must be among the model's."""
    flips: bool | None = None
    """Average the probabilities of each image and its mirror image (as in training if not given)."""

    def evaluate(self, experiment: ImageExperiment, run: Path, split: str | None) -> Iterator[Row]:
        evaluations = make_evaluations(self, experiment, run)
        if self.flips is not None:
            experiment.spec = replace(experiment.spec, flips=self.flips)
        if self.data is not None:
            experiment.use_data(self.data)
        split = split or default_split(experiment.source)
        yield from evaluations.rows(split)


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Options for images."""

    images: Annotated[tuple[Path, ...], Positional("IMAGE")]
    """Image files, or folders of them. The central square is resized to the size that the model was trained on."""

    def predict(
        self, experiment: ImageExperiment, warn: Callable[[str], None]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """A row for each image, and lines for people."""
        rows = experiment.predict(self.images, warn)
        return rows, _prediction_table(rows)


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Options for images. Draws what the class token attends to over each image: by layer and head, averaged, rollout,
    and gradient-weighted."""

    image: tuple[Path, ...] = ()
    """Image files to look at."""
    examples: int | None = None
    """Look at the first images of validation, this many (10 if no image is given)."""

    def validate(self, run: Path | None = None) -> None:
        """Refuse settings that do not fit together, before the run is loaded."""
        if self.image and self.examples is not None:
            raise ConfigError(f"examples={self.examples}: give image files with --image, or --examples, but not both")
        count = len(self.image) or self.examples
        if count is not None and not 1 <= count <= MAX_IMAGES:
            name = "--image has" if self.image else "examples="
            raise ConfigError(f"{name}{' ' if self.image else ''}{count}: it must be from 1 to {MAX_IMAGES} images")

    def look(
        self,
        experiment: ImageExperiment,
        run: Path,
        out: Path,
        load: Callable[[Path], ImageExperiment],
        warn: Callable[[str], None],
    ) -> tuple[dict[str, Any], list[str]]:
        """Write the page and the figures. Returns all values as JSON, and lines for people."""
        from anaphor.tasks.images.look import look

        return look(experiment, self, run, out, warn)


def _prediction_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each image, with its most likely classes."""
    lines = [("image", "label", "probabilities")]
    for row in rows:
        likely = sorted(row["probabilities"].items(), key=lambda item: -item[1])[:MOST_LIKELY]
        lines.append((row["image"], row["label"], ", ".join(f"{name} {p:.3f}" for name, p in likely)))
    wide, narrow = (max(len(line[column]) for line in lines) for column in (0, 1))
    return [f"{image:<{wide}}  {label:<{narrow}}  {likely}" for image, label, likely in lines]

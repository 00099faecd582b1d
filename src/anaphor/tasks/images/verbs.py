"""`anaphor evaluate`, `anaphor predict` and `anaphor models` for images. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.data.dataset import default_split
from anaphor.flags import Positional
from anaphor.tasks import format_size, join_layers
from anaphor.tasks.evaluations import Row, make_evaluations
from anaphor.training.spec import ModelRow

if TYPE_CHECKING:
    from anaphor.tasks.images.experiment import ImageExperiment

CLASSES = 10
MOST_LIKELY = 3  # classes of an image in the table
IMAGE_SIZE = {"vit-nano": 32}


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
    """Image files. The central square is resized to the size that the model was trained on."""

    def predict(
        self, experiment: ImageExperiment, warn: Callable[[str], None]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """A row for each image, and lines for people."""
        rows = experiment.predict(self.images, warn)
        return rows, _prediction_table(rows)


def _prediction_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each image, with its most likely classes."""
    lines = [("image", "label", "probabilities")]
    for row in rows:
        likely = sorted(row["probabilities"].items(), key=lambda item: -item[1])[:MOST_LIKELY]
        lines.append((row["image"], row["label"], ", ".join(f"{name} {p:.3f}" for name, p in likely)))
    wide, narrow = (max(len(line[column]) for line in lines) for column in (0, 1))
    return [f"{image:<{wide}}  {label:<{narrow}}  {likely}" for image, label, likely in lines]


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it: the small one for images of 32 pixels, the others for 224."""

    from anaphor.models import image_preset
    from anaphor.models.initialize import without_weights

    size = IMAGE_SIZE.get(name, 224)
    spec = image_preset(name, classes=CLASSES, image_size=size)
    with without_weights():
        model = spec.build()
    plain: dict[str, Any] = {
        "name": name,
        "layers": spec.mixers_by_layer,
        "width": spec.widths_by_layer[-1],
        "parameters": model.count_parameters(),
        "image_size": size,
        "patch_size": spec.patch,
        "classes": CLASSES,
    }
    text = {"images": name, "layers": join_layers(spec.mixers_by_layer)}
    numbers = {"image size": str(size), "patch size": str(spec.patch)}
    remark = f"{CLASSES} classes"
    return ModelRow(plain, text, numbers | format_size(plain["width"], plain["parameters"]), remark)

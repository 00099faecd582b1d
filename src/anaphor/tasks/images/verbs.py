"""`anaphor evaluate` and `anaphor models` for images. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.tasks import format_size, join_layers
from anaphor.tasks.images import describe
from anaphor.training.spec import ModelRow

if TYPE_CHECKING:
    from anaphor.tasks.images.experiment import ImageExperiment

CLASSES = 10
IMAGE_SIZE = {"vit-nano": 32}


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for images."""

    flips: bool | None = None
    """Average the probabilities of each image and its mirror image (as in training if not given)."""

    def evaluate(
        self, experiment: ImageExperiment, run: Path, split: str
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        if self.flips is not None:
            experiment.spec = replace(experiment.spec, flips=self.flips)
        result = experiment.score(split).to_plain()
        first, *others = describe(result)
        yield result, [f"{split}: {first}", *(f"  {line}" for line in others)]


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it: the small one for images of 32 pixels, the others for 224."""
    import torch

    from anaphor.models import image_preset

    size = IMAGE_SIZE.get(name, 224)
    spec = image_preset(name, classes=CLASSES, image_size=size)
    with torch.device("meta"):  # without memory for the weights
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

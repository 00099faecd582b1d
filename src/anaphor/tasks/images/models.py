"""What `anaphor models` shows of image classifiers."""

from __future__ import annotations

from typing import Any

from anaphor.models import image_preset
from anaphor.models.initialize import without_weights
from anaphor.tasks.tables import format_size, join_layers
from anaphor.training.task import ModelRow

CLASSES = 10
IMAGE_SIZE = {"vit-nano": 32}


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it: the small one for images of 32 pixels, the others for 224."""
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

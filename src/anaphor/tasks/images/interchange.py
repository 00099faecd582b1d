"""Image classifiers of other libraries as runs, and runs for other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from anaphor.data.images import ImageMetadata
from anaphor.models.image_model import ImageClassifier
from anaphor.tasks.images import ImageModelOptions, ImageRunSpec
from anaphor.tasks.images.experiment import ImageExperiment
from anaphor.training.pretrained import Pretrained
from anaphor.training.run_folder import NO_DATA


class ImageInterchange:
    """Of `train images`."""

    def settings(self, pretrained: Pretrained) -> tuple[ImageRunSpec, Mapping[str, Any]] | None:
        model = pretrained.model
        if not isinstance(model, ImageClassifier) or pretrained.classes is None:
            return None
        settings = model.spec.used_settings()
        options = {field.name: settings[field.name] for field in fields(ImageModelOptions) if field.name in settings}
        spec = ImageRunSpec(data=NO_DATA, image_size=model.spec.image_size, model="vit-base", **options)
        metadata = ImageMetadata(
            pretrained.classes, model.spec.channels, model.spec.image_size, pretrained.mean, pretrained.std
        )
        return spec, {"images": metadata.to_plain()}

    def pretrained(self, experiment: ImageExperiment) -> Pretrained:
        metadata = experiment.metadata
        return Pretrained(experiment.model, classes=metadata.classes, mean=metadata.mean, std=metadata.std)


INTERCHANGE = ImageInterchange()

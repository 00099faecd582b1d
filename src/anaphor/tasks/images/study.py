"""How studies compare image classifiers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anaphor.config import look_up
from anaphor.metrics.result import Metric
from anaphor.registry import PRESETS
from anaphor.training.spec import check_layer_lr
from anaphor.training.task import StudySupport


class ImageStudy(StudySupport):
    """Comparison of image classifiers: the same images, whatever their size."""

    def data_key(self, spec: Any) -> Any:
        return spec.data, spec.image_size

    def open_data(self, spec: Any) -> Any:
        from anaphor.data.datasets import load_images

        return load_images(spec.data, spec.image_size)

    def unit(self, spec: Any, digests: Mapping[str, str], result: Mapping[str, Any], metric: Metric) -> Any:
        return spec.data

    def validate(self, spec: Any, metric: Metric, *, names_only: bool = False) -> None:
        look_up(PRESETS["images"], spec.model, "model")
        if not names_only:
            blocks = spec.model_spec(classes=2, image_size=spec.nominal_size).blocks()
            check_layer_lr(spec.layer_lr, len(blocks))


STUDY = ImageStudy()

"""How studies compare text classifiers. Imports no torch."""

from __future__ import annotations

from typing import Any

from anaphor.config import look_up
from anaphor.metrics.result import Metric
from anaphor.registry import PRESETS
from anaphor.tasks.classify import BAG_OF_WORDS
from anaphor.training.spec import check_layer_lr
from anaphor.training.task import StudySupport


class ClassifyStudy(StudySupport):
    """Comparison of text classifiers: the same texts, whatever their tokenizer."""

    def data_key(self, spec: Any) -> Any:
        return spec.data, spec.text_column, spec.label_column, spec.split_seed

    def open_data(self, spec: Any) -> Any:
        from anaphor.data.datasets import load_labeled

        return load_labeled(*self.data_key(spec))

    def validate(self, spec: Any, metric: Metric, *, names_only: bool = False) -> None:
        look_up(PRESETS["classify"], spec.model, "model")
        if not names_only and spec.init is None and spec.model != BAG_OF_WORDS:
            check_layer_lr(spec.layer_lr, len(spec.model_spec(vocabulary=2, classes=2).blocks()))


STUDY = ClassifyStudy()

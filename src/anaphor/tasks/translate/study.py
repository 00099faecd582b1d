"""How studies compare translation models. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anaphor.data.dataset import PAIR_COLUMNS
from anaphor.metrics.result import Metric
from anaphor.registry import PRESETS
from anaphor.tasks.study import VOCABULARY, TextStudy


class TranslationStudy(TextStudy):
    """Comparison of translation models."""

    text_settings = ("data", "source", "target")
    token_settings = (*text_settings, "tokenizer", "vocabulary", "joint")

    def open_data(self, spec: Any) -> Any:
        from anaphor.data.datasets import open_dataset

        return open_dataset(spec.data, PAIR_COLUMNS, source=spec.source, target=spec.target)

    def model_presets(self) -> Mapping[str, Any]:
        presets: Mapping[str, Any] = PRESETS["translate"]
        return presets

    def validate_model(self, spec: Any, metric: Metric) -> Sequence[Any]:
        layers: Sequence[Any] = spec.model_spec(VOCABULARY, VOCABULARY).blocks()
        return layers


STUDY = TranslationStudy()

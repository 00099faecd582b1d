"""How studies compare language models, and what they measure besides the validation result. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anaphor.data.dataset import TEXT_COLUMNS
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric
from anaphor.registry import PRESETS
from anaphor.tasks.metrics import ANSWER_METRICS, BITS_PER_BYTE
from anaphor.tasks.study import VOCABULARY, TextStudy
from anaphor.typecheck import check_types

STATE_TOKENS = 1024
"""After how many tokens the bytes of a state are counted, as `anaphor models` does."""
SPEED_COLUMNS = ("training tokens/s", "generated tokens/s", f"state bytes after {STATE_TOKENS:,} tokens")
"""Columns of `speed`."""
OTHER_COLUMNS = ("parameters", "seeds", "test", "train", *SPEED_COLUMNS)
"""Columns of a study's table that are no samples."""
EXCLUDED = "attends to later tokens: exp(loss), not a perplexity"


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured on every model of a study."""

    lengths: tuple[int, ...] = ()
    """Segment lengths at which every model is evaluated."""
    samples: Mapping[str, str] = field(default_factory=dict)
    """Texts by name that every model scores one by one."""
    long_lines: int = 0
    """Number of the longest lines of the validation text to score one by one."""
    train_score: bool = False
    """Evaluate on the beginning of the training text, as much of it as validation has."""
    speed: bool = False
    """Measure tokens per second in training and generation, and the bytes of a row's state."""

    def __post_init__(self) -> None:
        check_types(self)
        if any(length < 1 for length in self.lengths):
            raise ConfigError(f"lengths={list(self.lengths)}: a segment has at least 1 token")
        if not isinstance(self.samples, Mapping):
            raise ConfigError(f"samples={self.samples!r}: it must be a mapping of names to texts")
        samples = {str(name): "" if text is None else str(text) for name, text in self.samples.items()}
        object.__setattr__(self, "samples", samples)
        for name, text in samples.items():
            if not text.strip():
                raise ConfigError(f"samples: {name} is empty")
            if name in (*OTHER_COLUMNS, long_lines_column(self.long_lines)):
                raise ConfigError(f"samples: {name} is another column of the table: use another name")
        if self.long_lines < 0:
            raise ConfigError(f"long_lines={self.long_lines}: it must be 0 or more")


def long_lines_column(count: int) -> str:
    """The column of the table with the loss of so many of the longest lines."""
    return f"{count} long lines"


class LanguageStudy(TextStudy):
    """Comparison of language models."""

    options = MeasureOptions
    text_settings = ("data", "batching")
    token_settings = ("data", "batching", "tokenizer", "vocabulary")

    def open_data(self, spec: Any) -> Any:
        from anaphor.data.datasets import open_dataset

        return open_dataset(spec.data, TEXT_COLUMNS)

    def validate(self, spec: Any, metric: Metric, *, names_only: bool = False) -> None:
        if metric == BITS_PER_BYTE and spec.batching == "stream" and spec.protocol == "example":
            raise ConfigError(
                f"protocol={spec.protocol} does not measure {metric.name}, because it leaves tokens out: use "
                f"`metric: perplexity`, or protocol=complete"
            )
        if (metric in ANSWER_METRICS) != (spec.batching == "answers") and metric in (*ANSWER_METRICS, BITS_PER_BYTE):
            raise ConfigError(f"data={spec.data} does not measure {metric.name}")
        super().validate(spec, metric, names_only=names_only)

    def validate_longer(self, spec: Any) -> None:
        if spec.batching == "padded":
            raise ConfigError(
                f"batching={spec.batching} reads separate examples, which have no segments to be longer: leave the "
                f"lengths out of `report`"
            )

    def model_presets(self) -> Mapping[str, Any]:
        presets: Mapping[str, Any] = PRESETS["lm"]
        return presets

    def validate_model(self, spec: Any, metric: Metric) -> Sequence[Any]:
        layers: Sequence[Any] = spec.model_spec(VOCABULARY).blocks()
        if metric == BITS_PER_BYTE and any(layer.mixer.noncausal_reason is not None for layer in layers):
            raise ConfigError(f"a model that attends to later tokens has no {metric.name}: use `metric: perplexity`")
        return layers

    def exclusion(self, spec: Any, metric: Metric) -> str:
        return EXCLUDED if spec.causal is False else ""


STUDY = LanguageStudy()

"""How studies compare runs on text: losses per token are comparable for the same tokens of the same text only.

Imports no torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric
from anaphor.registry import TOKENIZERS
from anaphor.tasks.metrics import BITS_PER_BYTE, LOSS, PERPLEXITY
from anaphor.training.spec import check_layer_lr
from anaphor.training.task import StudySupport

PER_TOKEN = (LOSS, PERPLEXITY)
DIFFERENT_TOKENS = "the settings have different tokens, and this metric is per token: use `metric: bits_per_byte`"
DIFFERENT_UNKNOWNS = "the settings have different unknown words, whose characters are not counted"
VOCABULARY = 100  # any size: what fits together does not depend on it


class TextStudy(StudySupport):
    """Comparison of runs on text. A unit is a pair: what was evaluated, and what its tokens are."""

    metric = PERPLEXITY.name
    text_settings: ClassVar[tuple[str, ...]]
    """Settings that decide which text is evaluated."""
    token_settings: ClassVar[tuple[str, ...]]
    """Settings that decide what its tokens are."""

    def data_key(self, spec: Any) -> Any:
        return tuple(getattr(spec, name) for name in self.text_settings)

    def validate(self, spec: Any, metric: Metric, *, names_only: bool = False) -> None:
        look_up(TOKENIZERS, spec.tokenizer, "tokenizer")
        look_up(self.model_presets(), spec.model, "model")
        if not names_only:
            check_layer_lr(spec.layer_lr, len(self.validate_model(spec, metric)))

    @abstractmethod
    def model_presets(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def validate_model(self, spec: Any, metric: Metric) -> Sequence[Any]:
        """The layers of the model; raises where its options do not fit together."""

    def validate_search(self, changed: set[str], metric: Metric) -> None:
        if changed & set(self.text_settings):
            raise ConfigError("it changes the text that is evaluated: give each text its own study")
        if metric in PER_TOKEN and changed & set(self.token_settings):
            raise ConfigError(f"it changes the tokens, and {metric.name} is per token: use `metric: bits_per_byte`")

    def value(self, result: Mapping[str, Any], metric: Metric) -> float | None:
        """A model that attends to later tokens has no perplexity, and exp(loss) stands for it. Values that are not
        finite are null in files."""
        if result.get(metric.name) is not None:
            return float(result[metric.name])
        if LOSS.name not in result:
            return None
        loss = result[LOSS.name]
        if loss is None:
            return math.inf if metric.goal == "min" else None
        if metric != PERPLEXITY:
            return None
        return math.exp(loss) if loss < 700 else math.inf

    def missing_reason(self, result: Mapping[str, Any], metric: Metric) -> str:
        because = ": it has unknown words" if metric == BITS_PER_BYTE and has_unknown_words(result) else ""
        return f"the result has no {metric.name}{because}"

    def unit(self, spec: Any, digests: Mapping[str, str], result: Mapping[str, Any], metric: Metric) -> Any:
        text = (digests["valid"], getattr(spec, "batching", ""))  # separate examples leave out what is between them
        # The characters of unknown words are predicted by no model.
        is_partial = metric == BITS_PER_BYTE and has_unknown_words(result)
        if metric not in PER_TOKEN and not is_partial:
            return text, ()
        metadata = read_signature(result)
        kind = metadata.get("tokenizer", spec.tokenizer)
        # The size that it came to: a text may have fewer words than allowed. All tokenizers but bytes are trained on
        # the training text.
        trained_on = "" if kind == "byte" else digests["train"]
        return text, (kind, metadata.get("vocab", str(spec.vocabulary)), trained_on)

    def difference_reason(self, units: set[Any], results: Sequence[Mapping[str, Any]], metric: Metric) -> str:
        if len({text for text, _ in units}) > 1:
            return "the settings are evaluated on different texts: give each text its own study"
        if metric not in PER_TOKEN:
            return DIFFERENT_UNKNOWNS
        limit = ", for tokenizers without unknown words" if any(map(has_unknown_words, results)) else ""
        return f"{DIFFERENT_TOKENS}{limit}"


def read_signature(result: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a signature: `bptt:35|tokenizer:word|…`."""
    parts = (fact.partition(":") for fact in str(result.get("signature", "")).split("|"))
    return {name: value for name, colon, value in parts if colon}


def has_unknown_words(result: Mapping[str, Any]) -> bool:
    """Whether a result counts the losses of unknown words."""
    return read_signature(result).get("unk") == "kept"

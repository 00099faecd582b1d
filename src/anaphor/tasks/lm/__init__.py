"""Language modeling: predict the next token of a text. Settings and definition of the task; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from anaphor.config import MAX_VOCABULARY, check_at_least, check_range, look_up
from anaphor.errors import ConfigError, count_noun
from anaphor.metrics.result import find_metric
from anaphor.registry import SYNTHETIC, split_options
from anaphor.tasks.metrics import (
    ANSWER_METRICS,
    BITS_PER_BYTE,
    LOSS,
    PERPLEXITY,
    RECALL_PERPLEXITY,
    describe_overlap,
    describe_values,
)
from anaphor.tasks.model_options import LanguageModelSection
from anaphor.training.spec import (
    FREE_WITH_INIT,
    DataSection,
    EvaluationSection,
    FineTuning,
    RunSpec,
    TrainingSection,
)
from anaphor.training.task import TaskDefinition

BATCHINGS = {
    "stream": "one text in parallel rows, segment after segment",
    "padded": "separate examples",
    "answers": "sequences of a synthetic task, whose answers alone are learned",
}
PROTOCOLS = {"complete": "every token once", "example": "as PyTorch's word_language_model example"}
METRICS = (LOSS, PERPLEXITY, BITS_PER_BYTE, RECALL_PERPLEXITY, *ANSWER_METRICS)
STREAM_ONLY = ("bptt", "protocol", "eval_batch_size")


@dataclass(frozen=True, kw_only=True)
class LanguageData(DataSection):
    """Text and tokenizer."""

    data: str = "python-reference"
    """Data set: a name, a folder with train, valid and test, one text or Parquet file, or a folder of `datasets`."""
    tokenizer: str = "word"
    """Tokenizer: word, treebank, character, byte or bpe."""
    vocabulary: int | None = None
    """Vocabulary size of word, treebank, character and bpe (all words of the training text, or 4,096 for bpe, if not
    given)."""
    batching: str = "stream"
    """Batches: stream (a text in rows), padded (examples between blank lines) or answers (of synthetic tasks)."""


@dataclass(frozen=True, kw_only=True)
class LanguageTraining(FineTuning, TrainingSection):
    """Segments and regularization."""

    bptt: int = 35
    """Segment length in tokens (truncated backpropagation through time)."""
    carry: bool | None = None
    """Carry the state from one segment to the next (wherever the model can, if not given)."""


@dataclass(frozen=True, kw_only=True)
class LanguageEvaluation(EvaluationSection):
    """How a split is scored."""

    protocol: str = "complete"
    """Scoring: complete (every token once) or example (as PyTorch's word_language_model example)."""
    eval_batch_size: int = 10
    """Rows that are scored in parallel."""


@dataclass(frozen=True, kw_only=True)
class LanguageRunSpec(LanguageEvaluation, LanguageTraining, LanguageModelSection, LanguageData, RunSpec):
    """Train a language model."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor train lm --data grammar --model lstm --epochs 1",
        "anaphor train lm --data FOLDER --tokenizer bpe --model transformer --minutes 10",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_fine_tuning()
        look_up(BATCHINGS, self.batching, "batching")
        if split_options(self.data)[0] in SYNTHETIC:
            object.__setattr__(self, "batching", "answers")
        elif self.batching == "answers":
            names = ", ".join(sorted(SYNTHETIC))
            raise ConfigError(f"batching=answers: data={self.data!r} has no answers; synthetic tasks: {names}")
        look_up(PROTOCOLS, self.protocol, "protocol")
        check_at_least(1, bptt=self.bptt, eval_batch_size=self.eval_batch_size)
        check_range(1, MAX_VOCABULARY, vocabulary=self.vocabulary)
        self._check_select()

    def _check_select(self) -> None:
        """Refuse a metric that validation does not measure."""
        find_metric(METRICS, self.select)
        others = ("accuracy", "sequence_accuracy") if self.batching == "answers" else ("bits_per_byte",)
        measured = ("loss", "perplexity", *others)
        if self.select not in (None, *measured):
            raise ConfigError(
                f"select={self.select!r}: validation on data={self.data} does not measure it; use {', '.join(measured)}"
            )

    def reject_unused_flags(self, flags: Collection[str]) -> None:
        for name in STREAM_ONLY:
            if name in flags and self.batching == "padded":
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} applies to segments of a stream, and examples have none: "
                    f"use --batching stream"
                )
            if name in flags and self.batching == "answers":
                raise ConfigError(f"{name}={getattr(self, name)!r} applies to segments of a text: {self.data} has none")
        self.reject_adopted_flags(flags, FREE_WITH_INIT)
        if self.init is None:
            super().reject_unused_flags(flags)

    @classmethod
    def drop_implied(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        settings = super().drop_implied(settings)
        if settings.get("init") is not None:
            return settings
        spec = cls(**settings)
        implied = spec.carry is not None and spec.carry == spec.model_spec(vocabulary=2).carries_by_default
        return {name: value for name, value in settings.items() if not (name == "carry" and implied)}


def describe(result: Mapping[str, Any]) -> list[str]:
    """A result for people: metrics and signature, the entropy of the grammar, overlap of test and train."""
    lines = [describe_values(METRICS, result)]
    if "source_loss" in result:
        lines.append(describe_source_loss(result["source_loss"]))
    return lines + describe_overlap(result)


def describe_source_loss(loss: float) -> str:
    """A line about the lower bound of the loss on a text of a grammar."""
    return f"lower bound (entropy of the grammar): perplexity {math.exp(loss):.2f}"


def describe_unknown(unknown: int, tokens: int, what: str) -> list[str]:
    """A warning where words of a text are not in the vocabulary."""
    if not unknown:
        return []
    from anaphor.data.tokenizer import UNKNOWN

    which = f"{unknown} of {count_noun(tokens, 'token')} of the {what} {'is' if unknown == 1 else 'are'}"
    return [f"{which} not in the vocabulary: replaced by {UNKNOWN}"]


TASK = TaskDefinition(
    name="lm",
    spec=LanguageRunSpec,
    metrics=METRICS,
    columns=("text",),
    unit="tokens",
    build="anaphor.tasks.lm.build:build",
    describe=describe,
    evaluate="anaphor.tasks.lm.verbs:EvaluateOptions",
    look="anaphor.tasks.lm.verbs:LookOptions",
    measure="anaphor.tasks.lm.measures:measure",
    evaluate_longer="anaphor.tasks.lm.length:evaluate_longer",
    study="anaphor.tasks.lm.study:STUDY",
    models="anaphor.tasks.lm.models:describe_model",
    page={
        "look": "anaphor.tasks.lm.page:look",
        "tokens": "anaphor.tasks.lm.page:score",
        "passages": "anaphor.tasks.lm.token_losses:token_losses",
        "continue": "anaphor.tasks.lm.page:continue_text",
    },
    items="anaphor.tasks.lm.token_losses:read_tokens",
    interchange="anaphor.tasks.lm.interchange:INTERCHANGE",
    recipes=Path(__file__).parent / "recipes",
    extras=("embedder", "head", "loss term", "stream order"),
)

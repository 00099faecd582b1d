"""Translation: predict the target of a sentence pair from its source. Settings and definition of the task; imports no
torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from anaphor.config import (
    MAX_BEAM,
    MAX_LAYERS,
    MAX_VOCABULARY,
    check_at_least,
    check_below_one,
    check_range,
    optional_section,
)
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric, find_metric
from anaphor.models.seq2seq_spec import Seq2SeqSpec
from anaphor.models.spec import reject_unused_by_model
from anaphor.tasks.metrics import BITS_PER_BYTE, LOSS, PERPLEXITY, describe_overlap, describe_values
from anaphor.tasks.model_options import drop_implied_options
from anaphor.training.spec import DataSection, EvaluationSection, ModelSection, RunSpec, TrainingSection
from anaphor.training.task import TaskDefinition

TEXT_METRICS = (LOSS, PERPLEXITY, BITS_PER_BYTE)
BLEU = Metric("bleu", "max", "BLEU", minimum=0.0)
CHRF = Metric("chrf", "max", "chrF", minimum=0.0)
METRICS = (*TEXT_METRICS, BLEU, CHRF)


@dataclass(frozen=True, kw_only=True)
class TranslationData(DataSection):
    """Sentence pairs and tokenizers."""

    data: str = "echo"
    """Data set: a name, a folder with a file for each split and language, or two aligned files `ONE,OTHER`."""
    source: str | None = None
    """Source language (the first one of the data if not given; a folder needs it, or --target)."""
    target: str | None = None
    """Target language (the other one if not given)."""
    tokenizer: str = "word"
    """Tokenizer: word, treebank, character, byte or bpe."""
    vocabulary: int | None = None
    """Vocabulary size of word, treebank, character and bpe (all words of the training text, or 4,096 for bpe, if not
    given)."""
    joint: bool = False
    """Joint vocabulary: one tokenizer for both languages."""
    max_length: int | None = None
    """Maximum number of tokens of either side; longer training pairs are left out (none are if not given)."""


Seq2SeqOptions: Any = optional_section(
    Seq2SeqSpec, "Seq2SeqOptions", "model", exclude=["source_vocabulary", "vocabulary"]
)


@dataclass(frozen=True, kw_only=True)
class TranslationModelSection(Seq2SeqOptions, ModelSection):  # type: ignore[misc] # made at run time
    """Model preset and its options."""

    presets: ClassVar[str | None] = "translate"

    model: str = "luong"
    """Model preset: luong, gru-attention, transformer-translation or mixed."""


@dataclass(frozen=True, kw_only=True)
class TranslationTraining(TrainingSection):
    """Batches and regularization."""

    batch_size: int = 32
    """Sentence pairs per batch."""
    batch_tokens: int | None = None
    """Tokens per batch on the longer side, padding included, in place of --batch-size."""
    pad_to: int = 1
    """Padded lengths are a multiple of this, for fewer shapes."""
    label_smoothing: float = 0.0
    """Label smoothing."""
    bpe_dropout: float = 0.0
    """BPE-dropout: probability that a merge of a training word is left out; for the tokenizer bpe."""
    bidirectional_epochs: int = 0
    """BiT: epochs at the start in which half of the pairs, drawn anew in each, are translated from target to source."""


@dataclass(frozen=True, kw_only=True)
class TranslationEvaluation(EvaluationSection):
    """Beam search of the final evaluation."""

    beam: int = 5
    """Beam width of the final evaluation."""
    length_penalty: float = 1.0
    """Length penalty: log-probabilities are divided by the length to this power."""


@dataclass(frozen=True, kw_only=True)
class TranslationRunSpec(TranslationEvaluation, TranslationTraining, TranslationModelSection, TranslationData, RunSpec):
    """Train a translation model."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor train translate --data reverse --model gru-attention --steps 500",
        "anaphor train translate --data FOLDER --source en --target de --minutes 30",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, batch_tokens=self.batch_tokens, pad_to=self.pad_to, max_length=self.max_length)
        check_range(1, MAX_BEAM, beam=self.beam)
        check_range(1, MAX_LAYERS, encoder_layers=self.encoder_layers)
        check_range(1, MAX_VOCABULARY, vocabulary=self.vocabulary)
        find_metric(METRICS, self.select)
        if self.condition == "none" and (self.encoder or self.encoder_layers is not None):
            raise ConfigError("condition='none' does not read the source: leave out --encoder and --encoder-layers")
        check_below_one(label_smoothing=self.label_smoothing, bpe_dropout=self.bpe_dropout)
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise ConfigError(
                f"bpe_dropout={self.bpe_dropout} leaves out merges, and tokenizer={self.tokenizer!r} has none: "
                f"use --tokenizer bpe"
            )
        check_at_least(0, bidirectional_epochs=self.bidirectional_epochs)
        if self.bidirectional_epochs and not self.joint:
            raise ConfigError(
                f"bidirectional_epochs={self.bidirectional_epochs} needs a joint vocabulary, as source and target are "
                f"exchanged: use --joint"
            )
        if not 0 <= self.length_penalty <= 10:
            raise ConfigError(f"length_penalty={self.length_penalty}: it must be from 0 to 10")

    def reject_unused_flags(self, flags: Collection[str]) -> None:
        if "batch_size" in flags and self.batch_tokens is not None:
            raise ConfigError(f"batch_size={self.batch_size} has no effect with batch_tokens={self.batch_tokens}")
        reject_unused_by_model(self, flags, lambda: self.model_spec(source_vocabulary=2, vocabulary=2))

    def model_spec(self, source_vocabulary: int, vocabulary: int) -> Seq2SeqSpec:
        """The model's own spec: the preset with the options that were given."""
        from anaphor.models.presets import seq2seq_preset

        sizes = {"source_vocabulary": source_vocabulary, "vocabulary": vocabulary}
        model = seq2seq_preset(self.model, **sizes, **self.model_options())
        self.check_extras(model)
        return model

    @classmethod
    def drop_implied(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        return drop_implied_options(
            super().drop_implied(settings),
            Seq2SeqOptions,
            lambda kept: cls(**kept).model_spec(source_vocabulary=2, vocabulary=2).used_settings(),
        )


def describe(result: Mapping[str, Any]) -> list[str]:
    """A result for people: metrics and signature, BLEU and chrF with theirs, overlap of test and train."""
    lines = [describe_values(TEXT_METRICS, result)]
    for metric in (BLEU, CHRF):
        if f"{metric.name}_signature" in result:
            lines.append(f"{metric.format(result[metric.name])} ({result[f'{metric.name}_signature']})")
    return lines + describe_overlap(result)


TASK = TaskDefinition(
    name="translate",
    spec=TranslationRunSpec,
    metrics=METRICS,
    columns=("source", "target"),
    unit="tokens",
    build="anaphor.tasks.translate.experiment:build",
    describe=describe,
    evaluate="anaphor.tasks.translate.verbs:EvaluateOptions",
    look="anaphor.tasks.translate.verbs:LookOptions",
    study="anaphor.tasks.translate.study:STUDY",
    page={"look": "anaphor.tasks.translate.page:look", "passages": "anaphor.tasks.translate.page:sentence_losses"},
    items="anaphor.tasks.translate.page:read_sentences",
    models="anaphor.tasks.translate.models:describe_model",
    recipes=Path(__file__).parent / "recipes",
    extras=("loss term",),
)

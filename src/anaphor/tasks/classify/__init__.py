"""Text classification: predict the label of a text. Settings and definition of the task; imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from anaphor.config import MAX_VOCABULARY, check_at_least, check_below_one, check_range, look_up, optional_section
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric, find_metric
from anaphor.models.spec import reject_unused_by_model
from anaphor.models.text_spec import TextEncoderSpec
from anaphor.registry import PRESETS
from anaphor.tasks.metrics import ACCURACY, CALIBRATION, TOP5, describe_classes, describe_overlap
from anaphor.tasks.model_options import REPLACED_LAYERS, drop_implied_options
from anaphor.training.spec import (
    FREE_WITH_INIT,
    DataSection,
    FineTuning,
    ModelSection,
    RunSpec,
    TrainingSection,
    check_seed,
)
from anaphor.training.task import TaskDefinition

LOSS = Metric("loss", "min", "loss", "nats per text", digits=4, minimum=0.0)
METRICS = (ACCURACY, LOSS, TOP5, CALIBRATION)
LR, ATTENTION_LR, FINE_TUNING_LR = 2e-3, 5e-4, 5e-5
"""Default learning rates of AdamW: of models from scratch, of those with attention, and of fine-tuning."""
BAG_OF_WORDS = "bag-of-words"
CLASS_WEIGHTS = {"none": "every text counts once", "balanced": "every class has the same total weight"}
FREE = (*FREE_WITH_INIT, "pooling", "pooler")
"""Options of the model that pretrained weights leave open."""


@dataclass(frozen=True, kw_only=True)
class ClassifyData(DataSection):
    """Labeled texts and the tokenizer."""

    data: str = "negation"
    """Data set: a name, a TSV, CSV, JSONL or Parquet file, a folder of such splits, of `datasets` or CLASS/*.txt."""
    text_column: str | None = None
    """Column of the texts in a file (text or sentence if not given)."""
    label_column: str | None = None
    """Column of the labels in a file (label if not given)."""
    split_seed: int = 0
    """Seed of the split of data that come without valid or test."""
    tokenizer: str | None = None
    """Tokenizer: word, treebank, character, byte or bpe (word if not given; with --init that of the weights)."""
    vocabulary: int | None = None
    """Vocabulary size of word, treebank, character and bpe (all words of the training text, or 4,096 for bpe, if not
    given)."""
    max_length: int | None = None
    """Maximum number of tokens; longer texts are truncated (512 if not given, or less where the model has a limit)."""


ClassifyModelOptions: Any = optional_section(
    TextEncoderSpec, "ClassifyModelOptions", "model", exclude=["vocabulary", "classes", "causal"]
)


@dataclass(frozen=True, kw_only=True)
class ClassifyModelSection(ClassifyModelOptions, ModelSection):  # type: ignore[misc] # made at run time
    """Model preset and its options."""

    presets: ClassVar[str | None] = "classify"

    model: str = "lstm"
    """Model preset: lstm, bidirectional-lstm, transformer, hybrid, bag-of-words, or one of BERT's sizes."""


@dataclass(frozen=True, kw_only=True)
class ClassifyTraining(FineTuning, TrainingSection):
    """Batches, regularization and fine-tuning."""

    default_epochs: ClassVar[float] = 10.0

    epochs: float | None = None
    """Passes over the training data (10 unless --steps or --minutes is given)."""
    batch_size: int = 32
    """Texts per batch."""
    lr: float | None = None
    """Learning rate (peak value); for adamw 0.002, 0.0005 with attention, 0.00005 with --init; else the optimizer's
    usual one."""
    pad_to: int | None = None
    """Padded lengths are a multiple of this, for fewer shapes (if not given: 8 on a GPU, else 1)."""
    label_smoothing: float = 0.0
    """Label smoothing."""
    class_weights: str = "none"
    """Weights of the classes in the loss: none, or balanced (inverse to their frequency in train)."""


@dataclass(frozen=True, kw_only=True)
class ClassifyRunSpec(ClassifyTraining, ClassifyModelSection, ClassifyData, RunSpec):
    """Train a text classifier."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor train classify --data negation --model bidirectional-lstm",
        "anaphor train classify --data reviews.csv --init DIR --epochs 3",
    )

    replaced: ClassVar[Mapping[str, tuple[str, ...]]] = REPLACED_LAYERS

    def __post_init__(self) -> None:
        RunSpec.__post_init__(self)
        self.check_fine_tuning()
        check_at_least(1, max_length=self.max_length, pad_to=self.pad_to)
        check_range(1, MAX_VOCABULARY, vocabulary=self.vocabulary)
        check_seed(self.split_seed, "split_seed")
        find_metric(METRICS, self.select)
        look_up(CLASS_WEIGHTS, self.class_weights, "class weights")
        check_below_one(label_smoothing=self.label_smoothing)
        if self.model == BAG_OF_WORDS:
            given = [*self.model_options(), *(name for name in ("init", "freeze", "lora") if self.is_given(name))]
            if given:
                raise ConfigError(f"{given[0]}={getattr(self, given[0])!r} does not apply to model='{BAG_OF_WORDS}'")

    @property
    def default_lr(self) -> float | None:
        if self.optimizer != "adamw":
            return None
        if self.init is not None:
            return FINE_TUNING_LR
        mixers = self.mixers or look_up(PRESETS["classify"], self.model, "model").get("mixers", ())
        return ATTENTION_LR if "attention" in mixers else LR

    def is_given(self, name: str) -> bool:
        return getattr(self, name) not in (None, ())

    def reject_unused_flags(self, flags: Collection[str]) -> None:
        self.reject_adopted_flags(flags, FREE)
        if self.init is None and self.model != BAG_OF_WORDS:
            reject_unused_by_model(self, flags, lambda: self.model_spec(vocabulary=2, classes=2))

    def model_spec(self, vocabulary: int, classes: int | None) -> TextEncoderSpec:
        """The model's own spec: the preset with the options that were given."""
        from anaphor.models.presets import text_preset

        return text_preset(self.model, vocabulary=vocabulary, classes=classes, **self.model_options())

    @classmethod
    def drop_implied(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        kept = super().drop_implied(settings)
        if kept.get("init") is not None or kept.get("model") == BAG_OF_WORDS:
            return kept
        return drop_implied_options(
            kept, ClassifyModelOptions, lambda some: cls(**some).model_spec(vocabulary=2, classes=2).used_settings()
        )


def describe(result: Mapping[str, Any]) -> list[str]:
    """A result for people: metrics and signature, classes with the lowest accuracy, overlap of test and train."""
    return describe_classes(METRICS, result) + describe_overlap(result)


TASK = TaskDefinition(
    name="classify",
    spec=ClassifyRunSpec,
    metrics=METRICS,
    columns=("text", "label"),
    unit="sentences",
    build="anaphor.tasks.classify.experiment:build",
    describe=describe,
    evaluate="anaphor.tasks.classify.verbs:EvaluateOptions",
    predict="anaphor.tasks.classify.verbs:PredictOptions",
    look="anaphor.tasks.classify.verbs:LookOptions",
    study="anaphor.tasks.classify.study:STUDY",
    page={"look": "anaphor.tasks.classify.page:look", "passages": "anaphor.tasks.classify.page:text_losses"},
    interchange="anaphor.tasks.classify.interchange:INTERCHANGE",
    models="anaphor.tasks.classify.models:describe_model",
    recipes=Path(__file__).parent / "recipes",
)

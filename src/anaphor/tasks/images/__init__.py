"""Image classification: predict the class of an image. Settings and definition of the task; imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from anaphor.config import check_at_least, check_below_one, optional_section
from anaphor.data.augment_spec import AugmentationSpec
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric, find_metric
from anaphor.models.image_spec import ImageModelSpec
from anaphor.models.spec import reject_unused_by_model
from anaphor.tasks.metrics import ACCURACY, CALIBRATION, TOP5, describe_classes, describe_overlap
from anaphor.tasks.model_options import REPLACED_LAYERS, drop_implied_options
from anaphor.training.spec import DataSection, EvaluationSection, ModelSection, RunSpec, TrainingSection
from anaphor.training.task import TaskDefinition

LOSS = Metric("loss", "min", "loss", "nats per image", digits=4, minimum=0.0)
METRICS = (ACCURACY, LOSS, TOP5, CALIBRATION)


@dataclass(frozen=True, kw_only=True)
class ImageData(DataSection):
    """Images and their size."""

    data: str = "shapes"
    """Data set: a name, a folder CLASS/ or train|valid|test/CLASS/ of image files, or a .npz file."""
    image_size: int | None = None
    """Height and width in pixels that images are cropped and resized to (that of the data if not given)."""


ImageModelOptions: Any = optional_section(
    ImageModelSpec,
    "ImageModelOptions",
    "model",
    exclude=["classes", "channels", "image_size", "causal", "max_positions"],
)


@dataclass(frozen=True, kw_only=True)
class ImageModelSection(ImageModelOptions, ModelSection):  # type: ignore[misc] # made at run time
    """Model preset and its options."""

    presets: ClassVar[str | None] = "images"

    model: str = "vit-nano"
    """Model preset: vit-nano, vit-tiny, vit-small or vit-base."""


@dataclass(frozen=True, kw_only=True)
class ImageTraining(AugmentationSpec, TrainingSection):
    """Batches, regularization and augmentation."""

    default_epochs: ClassVar[float] = 10.0

    epochs: float | None = None
    """Passes over the training data (10 unless --steps or --minutes is given)."""
    batch_size: int = 32
    """Images per batch."""
    warmup: float = 0.1
    """Fraction of the budget with linear warmup."""
    weight_decay: float = 0.05
    """Weight decay of matrices; biases and norms have none."""
    label_smoothing: float = 0.0
    """Label smoothing."""


@dataclass(frozen=True, kw_only=True)
class ImageEvaluation(EvaluationSection):
    """How a split is scored."""

    flips: bool = False
    """Test-time flips: average the probabilities of each image and its mirror image. Part of the signature."""


@dataclass(frozen=True, kw_only=True)
class ImageRunSpec(ImageEvaluation, ImageTraining, ImageModelSection, ImageData, RunSpec):
    """Train an image classifier."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor train images --data shapes --model vit-nano",
        "anaphor train images --data FOLDER --image-size 64 --minutes 30",
    )

    replaced: ClassVar[Mapping[str, tuple[str, ...]]] = REPLACED_LAYERS

    def __post_init__(self) -> None:
        RunSpec.__post_init__(self)
        AugmentationSpec.__post_init__(self)
        check_at_least(1, image_size=self.image_size)
        find_metric(METRICS, self.select)
        check_below_one(label_smoothing=self.label_smoothing)

    def reject_unused_flags(self, flags: Collection[str]) -> None:
        for name, needed in (("magnitude", ("random_ops",)), ("mix_prob", ("mixup", "cutmix"))):
            if name in flags and not any(getattr(self, other) for other in needed):
                wanted = " or ".join(f"--{other.replace('_', '-')}" for other in needed)
                raise ConfigError(f"{name}={getattr(self, name)} has no effect: set {wanted}")
        names = set(flags) - {"max_positions"}
        reject_unused_by_model(self, names, lambda: self.model_spec(classes=2, image_size=self.nominal_size))

    @property
    def nominal_size(self) -> int:
        """An image size for checks of the model where that of the data is not known."""
        return self.image_size or 8 * (self.patch_size or 4)

    def model_spec(self, classes: int, image_size: int, channels: int = 3) -> ImageModelSpec:
        """The model's own spec: the preset with the options that were given."""
        from anaphor.models.presets import image_preset

        return image_preset(
            self.model, classes=classes, image_size=image_size, channels=channels, **self.model_options()
        )

    @classmethod
    def drop_implied(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        def used_settings(kept: dict[str, Any]) -> dict[str, Any]:
            spec = cls(**kept)
            return spec.model_spec(classes=2, image_size=spec.image_size or spec.nominal_size).used_settings()

        return drop_implied_options(super().drop_implied(settings), ImageModelOptions, used_settings)


def describe(result: Mapping[str, Any]) -> list[str]:
    """A result for people: metrics and signature, the classes with the lowest accuracy, overlap of test and train."""
    return describe_classes(METRICS, result) + describe_overlap(result)


TASK = TaskDefinition(
    name="images",
    spec=ImageRunSpec,
    metrics=METRICS,
    columns=("image", "label"),
    unit="images",
    build="anaphor.tasks.images.experiment:build",
    describe=describe,
    evaluate="anaphor.tasks.images.verbs:EvaluateOptions",
    look="anaphor.tasks.images.verbs:LookOptions",
    predict="anaphor.tasks.images.verbs:PredictOptions",
    study="anaphor.tasks.images.study:STUDY",
    page={"look": "anaphor.tasks.images.page:look", "passages": "anaphor.tasks.images.page:image_losses"},
    models="anaphor.tasks.images.models:describe_model",
    interchange="anaphor.tasks.images.interchange:INTERCHANGE",
    recipes=Path(__file__).parent / "recipes",
)

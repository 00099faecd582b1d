"""Image classification: a model with its images; batches, augmentation, loss and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphor.data.augment import Augmentation
from anaphor.data.augment_spec import AugmentationSpec
from anaphor.data.dataset import ALL, TEST
from anaphor.data.datasets import load_images
from anaphor.data.image_batches import ImageBatch, ImageBatches
from anaphor.data.image_files import list_images, read_images
from anaphor.data.images import ImageDataset, ImageMetadata, ImageSplit, count_image_overlap
from anaphor.data.stored_images import StoredImages
from anaphor.draw.confusion import draw_confusion
from anaphor.errors import AnaphorError, print_warning
from anaphor.evaluation import eval_mode
from anaphor.inspect.image_maps import ImageLook
from anaphor.metrics.accuracy import score_classes
from anaphor.metrics.result import Result
from anaphor.models import ImageClassifier
from anaphor.models.cross_entropy import soft_cross_entropy
from anaphor.precision import to_double
from anaphor.progress_listener import report_progress
from anaphor.tasks.images import ImageModelOptions, ImageRunSpec
from anaphor.tasks.images.figures import draw_mistakes
from anaphor.tasks.images.look import look_at, write_looks
from anaphor.tasks.images.verbs import LookOptions
from anaphor.tasks.metrics import check_top5
from anaphor.tasks.model_options import pick_options
from anaphor.training.device import choose_device
from anaphor.training.distributed import map_rows
from anaphor.training.experiment import MAX_CROSS_ENTROPY, Experiment, Loss, require_splits
from anaphor.training.paths import resolve_data_path
from anaphor.training.random_state import use_seed

EVAL_ROWS, EVAL_PATCHES = 500, 1 << 16
"""Images that are scored at once, and their patches."""
SAMPLES = 8


class ImageExperiment(Experiment):
    """An image classifier with its images."""

    spec: ImageRunSpec
    model: ImageClassifier
    largest_loss = MAX_CROSS_ENTROPY

    def __init__(
        self,
        spec: ImageRunSpec,
        model: ImageClassifier,
        metadata: ImageMetadata,
        open_images: Callable[[], ImageDataset],
        *,
        device: torch.device | str = "cpu",
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`open_images` is called when a split is first read, so that a run can be used without its data."""
        self.spec, self.model, self.metadata = spec, model, metadata
        self.device, self.saved = torch.device(device), saved or {}
        self._open_images = self._open_training_images = open_images
        options = {field.name: getattr(spec, field.name) for field in fields(AugmentationSpec)}
        self.augment = Augmentation(
            AugmentationSpec(**options), metadata.mean, metadata.std, len(metadata.classes), spec.seed, self.device
        )
        self.split = cache(self.load_split)
        """Loads a split when it is first asked for, so that test is not read before it is scored."""

    @property
    def source(self) -> ImageDataset:
        return self._open_images()

    def load_split(self, name: str) -> ImageSplit:
        split = self.source.load(name).match_classes(self.metadata.classes)
        if name == "train" and self.spec.max_examples is not None:
            split = split.sample(self.spec.max_examples)
        return split.to(self.device)

    def use_data(self, name: str) -> None:
        """Score other data from now on; their classes must be among those of the model."""
        self._open_images = cache(lambda: load_images(name, self.metadata.image_size))
        self.split.cache_clear()

    def batches(self, epoch: int) -> ImageBatches:
        spec = self.spec
        return ImageBatches(len(self.split("train")), spec.batch_size, spec.seed, epoch, self.device)

    def loss(self, batch: ImageBatch, carry: None) -> tuple[Loss, None]:
        train, smoothing = self.split("train"), self.spec.label_smoothing
        # Pixels keep their precision; the model's own operations are those that autocast is for.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            index, mixed_with = batch.index, batch.before if self.augment.mixes else None
            if mixed_with is not None:
                index = torch.cat((mixed_with, index))
            images, targets = self.augment(train.images[index], train.labels[index], index, batch.epoch)
            if mixed_with is not None:
                images, targets = images[1:], targets[1:]
            if smoothing:
                targets = targets * (1 - smoothing) + smoothing / targets.shape[1]
        return Loss(soft_cross_entropy(self.model(images), targets)), None

    def compute_logits(self, images: Tensor | StoredImages) -> Tensor:
        """Logits of uint8 images [N, C, H, W] on the CPU or the device; with flips log-probabilities. [N, classes]"""
        patches = images.shape[2] * images.shape[3] // self.model.spec.patch**2 or 1
        parts, rows = [], images.split(min(EVAL_ROWS, max(1, EVAL_PATCHES // patches)))
        with eval_mode(self.model), torch.inference_mode():
            for number, part in enumerate(rows, 1):
                parts.append(map_rows(self._compute_logits, part))
                report_progress("scoring", number, len(rows))
        return torch.cat(parts)

    def _compute_logits(self, images: Tensor) -> Tensor:
        x = self.augment.normalize(images.to(self.device))
        logits: Tensor = self.model(x)
        if self.spec.flips:
            both = to_double(torch.stack((logits, self.model(x.flip(-1))))).softmax(-1)
            logits = both.mean(0).clamp(min=1e-300).log()
        return logits

    def read_images(self, paths: Sequence[Path | str], warn: Callable[[str], None] = print_warning) -> Tensor:
        """Image files as the model sees them, before normalization. uint8 [N, C, H, W]"""
        size = self.metadata.image_size
        return torch.from_numpy(read_images(paths, self.metadata.channels, size, warn))

    def predict(self, paths: Sequence[Path | str], warn: Callable[[str], None] = print_warning) -> list[dict[str, Any]]:
        """The name, the predicted class and the probabilities by class of each image file, also of those in folders."""
        files = list_images(paths)
        logits = self.compute_logits(self.read_images(files, warn))
        return [
            {"image": str(path), **self.describe_logits(row)} for path, row in zip(files, logits.cpu(), strict=True)
        ]

    def describe_logits(self, logits: Tensor) -> dict[str, Any]:
        """The predicted class and the probabilities by class name. [classes]"""
        probabilities = to_double(logits).softmax(-1)
        names = self.metadata.classes
        return {
            "label": names[int(probabilities.argmax())],
            "probabilities": dict(zip(names, probabilities.tolist(), strict=True)),
        }

    def look(
        self, images: Sequence[Path | str] = (), *, examples: int = 0, out: Path | str | None = None
    ) -> list[ImageLook]:
        """Where the model looks in image files, or in the first `examples` of validation.

        With `out`, the page and the figures of `anaphor look` are written into that folder.
        """
        options = LookOptions(image=tuple(map(Path, images)), examples=examples or None)
        options.validate()
        looks = look_at(self, options.image, options.examples)
        if out is not None:
            write_looks(looks, self.spec.model, self.model, Path(out))
        return looks

    def evaluate(self, split: str) -> Result:
        loaded = self.split(split)
        scores = score_classes(self.compute_logits(loaded.images), loaded.labels)
        return Result(scores.values, self.signature_metadata(split))

    def score(self, split: str) -> Result:
        """All metrics, with accuracy by class, the confusion matrix, and for test the overlap with train. Its outputs
        are the logits."""
        loaded = self.split(split)
        logits = self.compute_logits(loaded.images)
        scores = score_classes(logits, loaded.labels)
        details = {"images": len(loaded), **scores.details(self.metadata.classes)}
        if split in (TEST, ALL):
            details |= self.overlap(split)
        return Result(scores.values, self.signature_metadata(split), details, outputs=logits)

    def overlap(self, split: str = TEST) -> dict[str, Any]:
        """How many images of test were trained on, as a detail of a result: those with the same pixels at the size of
        the model, whatever their labels. Empty where those of training are gone."""
        try:
            trained_on = self._open_training_images().load("train")
        except AnaphorError:
            return {}
        if self.spec.max_examples is not None:
            trained_on = trained_on.sample(self.spec.max_examples)
        found = count_image_overlap(self.split(split).images, trained_on.images)
        return {"overlap": found.to_plain("images", split)}

    def signature_metadata(self, split: str) -> dict[str, Any]:
        flips = {"flips": "averaged"} if self.spec.flips else {}
        limit = {} if self.spec.max_examples is None else {"max_examples": self.spec.max_examples}
        return {
            "images": len(self.split(split)),
            "classes": len(self.metadata.classes),
            "size": self.metadata.image_size,
            **self.source.metadata,
            **limit,
            **flips,
        }

    def draw(self, folder: Path, valid: Result) -> list[Path]:
        """The confusion matrix and a gallery of mistakes of validation."""
        split, logits = self.split("valid"), valid.outputs
        scores = score_classes(logits, split.labels)
        figures = draw_confusion(scores.confusion.numpy(), self.metadata.classes, folder / "confusion")
        return figures + draw_mistakes(split, logits, folder / "mistakes")

    def sample(self, seed: int) -> str:
        """Predictions for the first images of valid."""
        valid = self.split("valid")
        probabilities = self.compute_logits(valid.images[:SAMPLES]).softmax(-1).cpu()
        names = self.metadata.classes
        return "\n".join(
            f"{names[label]}: {names[int(p.argmax())]} {float(p.max()):.3f}"
            for label, p in zip(valid.labels[:SAMPLES].tolist(), probabilities, strict=True)
        )

    def fingerprint(self) -> dict[str, Any]:
        digests = {split: self.source.digest(split) for split in ("train", "valid")}
        return {"images": self.metadata.to_plain(), "data": digests}

    def validate(self, test: bool) -> None:
        require_splits(self.source, test)
        check_top5(self.spec.select, self.metadata.classes)
        for split in ("train", "valid"):
            self.split(split)

    def chosen_settings(self) -> dict[str, Any]:
        own = pick_options(ImageModelOptions, self.model.spec.used_settings())
        unused = {} if self.spec.random_ops else {"magnitude": None}
        unused |= {} if self.spec.mixup or self.spec.cutmix else {"mix_prob": None}
        return own | {"image_size": self.metadata.image_size} | unused

    def statistics(self) -> dict[str, Any]:
        return {"classes": len(self.metadata.classes), "image_size": self.metadata.image_size}


def build(spec: ImageRunSpec, saved: Mapping[str, Any] | None = None, data_path: str | None = None) -> ImageExperiment:
    """Build the model for its images. A run that exists brings its `saved` fingerprint with what the model must know of
    them, and the `data_path` where they were; they are not opened before a split is read."""
    device = choose_device(spec.device)

    @cache
    def open_images() -> ImageDataset:
        exists = saved is not None or data_path is not None
        data = load_images(resolve_data_path(spec.data, data_path) if exists else spec.data, spec.image_size)
        if spec.image_size is not None:
            return data
        return data.resize(min(data.shape("train")[1:]))  # for other splits may have other sizes

    metadata = (
        ImageMetadata.from_plain(saved["images"])
        if saved is not None
        else ImageMetadata.of(open_images().load("train"))
    )
    with use_seed(spec.seed, keep_state=saved is not None):
        model = spec.model_spec(len(metadata.classes), metadata.image_size, metadata.channels).build()
    return ImageExperiment(spec, model.to(device), metadata, open_images, device=device, saved=saved)

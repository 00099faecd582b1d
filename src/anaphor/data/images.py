"""Data sets of images with one label each: columns "image" and "label". Images of a split have one size.

Pixels are uint8 [N, C, H, W] and are kept whole. Decoding files is in `image_files`, drawing in `shapes`, random
transformations in `augment`. torch is imported when a split is loaded.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from anaphor.config import nearest
from anaphor.data.cache import cache_folder
from anaphor.data.dataset import SPLITS, TRAIN, Dataset, Overlap, Rows, encode_lines
from anaphor.data.files import read_note, write_note
from anaphor.data.shards import ShardedArray
from anaphor.errors import ConfigError, DataError, count_noun

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from anaphor.data.stored_images import StoredImages

IMAGE_COLUMNS = ("image", "label")
CHANNELS = (1, 3)  # grayscale and RGB
MAX_BYTES = 8 << 30  # of the pixels of one split
MAX_IMAGE_SIZE = 4096


@dataclass(frozen=True)
class ImageSplit:
    """All images of one split."""

    images: Tensor | StoredImages
    """uint8 [N, C, H, W]; on the disk where they are larger than memory."""
    labels: Tensor
    """int64 [N]: indices of `classes`."""
    classes: tuple[str, ...]
    """Class names."""
    digest: str
    """SHA-256 of the pixels, the labels and the classes."""
    boxes: Tensor | None = None
    """int64 [N, 4], where known: bounding box of the object as x0, y0, x1, y1 in pixels, x1 and y1 exclusive."""

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> ImageSplit:
        """The first images only."""
        return self._select(slice(count))

    def sample(self, count: int) -> ImageSplit:
        """So many images, always the same ones; not the first, which are of one class in a folder of classes."""
        if count >= len(self):
            return self
        # The raw stream of PCG64 is the same in every version of NumPy.
        order = np.argsort(np.random.PCG64(0).random_raw(len(self)), kind="stable")
        return self._select(np.sort(order[:count]))

    def match_classes(self, classes: tuple[str, ...]) -> ImageSplit:
        """With labels that are indices of `classes`, where these are numbered in another way or are more."""
        if self.classes == classes:
            return self
        import torch

        for name in self.classes:
            if name not in classes:
                raise DataError(f"the data have the class {name!r}, which the model has not{nearest(name, classes)}")
        numbers = torch.tensor([classes.index(name) for name in self.classes])
        return replace(self, labels=numbers[self.labels], classes=classes)

    def _select(self, places: Any) -> ImageSplit:
        some: dict[str, Any] = {
            name: value[places] for name, value in vars(self).items() if hasattr(value, "device") and name != "images"
        }
        images = self.images[places] if hasattr(self.images, "untyped_storage") else self.images.select(places)
        return replace(self, images=images, **some)

    def to(self, device: Any) -> ImageSplit:
        """The same split on another device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if hasattr(value, "device")}
        return replace(self, **moved)

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel over all pixels, of values from 0 to 1."""
        import torch

        values = torch.arange(256, dtype=torch.float64) / 255
        means, stds = [], []
        for counts in self._count_values():
            share = counts.double() / counts.sum()
            mean = (share * values).sum()
            means.append(float(mean))
            # A channel that is constant everywhere is only centered.
            stds.append(float((share * (values - mean) ** 2).sum().sqrt()) or 1.0)
        return tuple(means), tuple(stds)

    def _count_values(self) -> Tensor:
        """How often each value occurs in each channel. Counts are exact, so they do not depend on the device or on the
        order of a sum. [C, 256]"""
        import torch

        if not isinstance(self.images, torch.Tensor):
            return torch.from_numpy(self.images.count_values())
        channels = [self.images[:, channel].flatten() for channel in range(self.images.shape[1])]
        return torch.stack(
            [
                cast("Tensor", sum(torch.bincount(part, minlength=256).cpu() for part in pixels.split(1 << 24)))
                for pixels in channels
            ]
        )


@dataclass(frozen=True)
class ImageMetadata:
    """What the model must know of its images. A run keeps it, so that it can be used without its data."""

    classes: tuple[str, ...]
    """Class names, in the order of the labels."""
    channels: int
    image_size: int
    """Height and width in pixels."""
    mean: tuple[float, ...]
    """Mean of each channel in training, of values from 0 to 1."""
    std: tuple[float, ...]
    """Standard deviation of each channel."""

    @classmethod
    def of(cls, split: ImageSplit) -> ImageMetadata:
        channels, size = split.images.shape[1:3]
        return cls(split.classes, channels, size, *split.mean_and_std())

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ImageMetadata:
        values: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in plain.items()}
        return cls(**values)

    def to_plain(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Arrays:
    """What an image data set reads: one split as NumPy arrays."""

    images: NDArray[np.uint8]
    """[N, C, H, W]."""
    labels: NDArray[np.int64]
    """[N]."""
    boxes: NDArray[np.int64] | None = None
    """[N, 4]."""


class ImageDataset(Dataset):
    """Images and labels in splits. A subclass gives `classes` and reads one split."""

    columns = IMAGE_COLUMNS
    classes: tuple[str, ...]
    """Class names, in the order of the labels."""
    image_size: int | None = None
    """Side of the square that every image is brought to; None: as stored."""

    @abstractmethod
    def read_arrays(self, split: str) -> Arrays:
        """One split at `image_size`. No other split's images are decoded."""

    def load(self, split: str) -> ImageSplit:
        """All images of one split as tensors on the CPU."""
        import torch

        stored = self.stored(self.check_split(split))
        if stored is not None:
            return ImageSplit(stored[0], torch.from_numpy(stored[1]), self.classes, self.digest(split))
        arrays = self.arrays(split)
        boxes = None if arrays.boxes is None else torch.from_numpy(arrays.boxes)
        images, labels = torch.from_numpy(arrays.images), torch.from_numpy(arrays.labels)
        return ImageSplit(images, labels, self.classes, self.digest(split), boxes)

    def stored(self, split: str) -> tuple[StoredImages, NDArray[np.int64]] | None:
        """The images of one split on the disk, and their labels, where they are larger than memory."""
        return None

    def shape(self, split: str) -> tuple[int, int, int]:
        """Channels, height and width of the images of a split."""
        channels, height, width = self.arrays(split).images.shape[1:]
        return channels, height, width

    def resize(self, image_size: int | None) -> Self:
        """The same data set with square images of this side; None: as stored."""
        if image_size is not None and not 1 <= image_size <= MAX_IMAGE_SIZE:
            raise ConfigError(f"image_size={image_size}: it must be from 1 to {MAX_IMAGE_SIZE}")
        other = copy(self)
        other.image_size = image_size
        same = {split: one for split, one in self._cache.items() if one.images.shape[2:] == (image_size, image_size)}
        digests = {split: digest for split, digest in self._digests.items() if split in same}
        vars(other).update(_cache=same, _digests=digests)
        return other

    def arrays(self, split: str) -> Arrays:
        """One split, checked and kept."""
        split = self.check_split(split)
        if split not in self._cache:
            arrays = self.read_arrays(split)
            if not len(arrays.labels):
                raise DataError(f"{self.where(split)} has no images")
            self._cache[split] = arrays
        return self._cache[split]

    def read(self, split: str, column: str | None = None) -> bytes:
        """Pixels as bytes, or class names in lines."""
        arrays = self.arrays(split)
        if self.columns[self.column_index(column)] == "image":
            return arrays.images.tobytes()
        return encode_lines(self.classes[label] for label in arrays.labels)

    def digest(self, split: str) -> str:
        split = self.check_split(split)
        if split not in self._digests:
            stored = self.stored(split)
            if stored is None:
                arrays = self.arrays(split)
                pixels = [np.ascontiguousarray(arrays.images)]
                self._digests[split] = self._compute_digest(arrays.images.shape, pixels, arrays.labels)
            else:
                self._digests[split] = self._stored_digest(*stored)
        return self._digests[split]

    def _stored_digest(self, images: StoredImages, labels: NDArray[np.int64]) -> str:
        note = cache_folder() / "digests" / images.manifest.folder.name
        blocks = ShardedArray(images.manifest).blocks()
        return read_note(note) or write_note(note, self._compute_digest(tuple(images.shape), blocks, labels))

    def _compute_digest(
        self, shape: tuple[int, ...], pixels: Iterable[NDArray[np.uint8]], labels: NDArray[np.int64]
    ) -> str:
        described = {"shape": shape, "classes": self.classes}
        digest = hashlib.sha256(json.dumps(described).encode())
        for block in pixels:
            digest.update(np.ascontiguousarray(block).data)
        digest.update(labels.astype("<i8").data)
        return digest.hexdigest()

    def rows(self, split: str) -> Rows:
        """Each image as bytes, with its class name."""
        arrays = self.arrays(split)
        values = [
            (image.tobytes(), self.classes[label]) for image, label in zip(arrays.images, arrays.labels, strict=True)
        ]
        where = tuple(self.where(split, column) for column in self.columns)
        return Rows(values, list(range(1, len(values) + 1)), 0, where, self.digest(split))

    @cached_property
    def _cache(self) -> dict[str, Arrays]:
        return {}

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {}


class InMemoryImages(ImageDataset):
    """Images given as arrays, by split: uint8 [N, C, H, W] with 1 or 3 channels, and labels [N]."""

    def __init__(
        self, name: str, splits: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], classes: Sequence[str]
    ) -> None:
        self.name, self.classes = name, tuple(classes)
        self.splits = tuple(split for split in SPLITS if split in splits)
        self._given = dict(splits)

    def read_arrays(self, split: str) -> Arrays:
        images, labels = (np.asarray(part) for part in self._given[split])
        where = self.where(split)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in CHANNELS:
            raise DataError(f"{where} has {images.dtype} images of shape {list(images.shape)}, not uint8 [N, C, H, W]")
        if labels.shape != images.shape[:1]:
            raise DataError(f"{where} has {len(images):,} images and labels of shape {list(labels.shape)}")
        return Arrays(resize_all(images, self.image_size), check_labels(labels, len(self.classes), where))


def count_image_overlap(images: Tensor | StoredImages, trained: Tensor | StoredImages) -> Overlap:
    """Images that are among those trained on, by their pixels. uint8 [N, C, H, W] each"""

    # The pixels themselves would take the memory of the split once more.
    def digests(split: Tensor | StoredImages) -> list[bytes]:
        return [hashlib.sha256(image.numpy().tobytes()).digest() for image in split.to("cpu")]

    seen = set(digests(trained)) if images.shape[1:] == trained.shape[1:] else set()
    return Overlap(len(images), sum(digest in seen for digest in digests(images)))


def check_labels(labels: NDArray[Any], classes: int, where: str) -> NDArray[np.int64]:
    """Labels as int64, or an error that names the first one that is out of range."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataError(
            f"{where}: label {labels[wrong[0]]} of image {wrong[0]} is out of range: "
            f"there are {classes} classes, so labels are from 0 to {classes - 1}"
        )
    return labels.astype(np.int64)


def resize_all(images: NDArray[np.uint8], size: int | None) -> NDArray[np.uint8]:
    """[N, C, H, W] as squares: the central square of each image, resized with bicubic interpolation."""
    if size is None or images.shape[2:] == (size, size):
        return np.ascontiguousarray(images)
    from PIL import Image

    check_bytes(len(images), images.shape[1], size, size)
    resized = np.empty((*images.shape[:2], size, size), np.uint8)
    for image, target in zip(images.reshape(-1, *images.shape[2:]), resized.reshape(-1, size, size), strict=True):
        target[:] = resize_square(Image.fromarray(image), size)
    return resized


def resize_square(image: Image.Image, size: int) -> Image.Image:
    """The central square of an image at another size. Pixels outside it have no influence."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((size, size), resample=3)  # bicubic


def check_bytes(count: int, channels: int, height: int, width: int) -> None:
    """Refuse a split that does not fit into memory, before it is decoded."""
    if count * channels * height * width > MAX_BYTES:
        raise DataError(
            f"{count:,} images of {height} × {width} pixels take more than {MAX_BYTES >> 30} GiB: "
            "give a smaller --image-size"
        )


def hold_out(
    labels: NDArray[np.integer[Any]],
    classes: Sequence[str],
    shares: Mapping[str, int],
    where: str,
    *,
    seed: int = 0,
    unit: str = "images",
) -> dict[str, NDArray[np.int64]]:
    """Indices of each split of examples that come without splits, in ascending order: train and those in `shares`.

    `shares` are percentages, taken of each class at random, one example at least. `unit` is what examples are called.
    """
    parts: dict[str, list[NDArray[np.int64]]] = {split: [] for split in (TRAIN, *shares)}
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if len(members) <= len(shares):
            found = count_noun(len(members), unit.removesuffix("s"))
            raise DataError(
                f"{where} has {found} of class {classes[label]}, too few to be split into {', '.join(parts)}: "
                f"give at least {len(shares) + 1}"
            )
        # The raw stream of PCG64 is the same in every version of NumPy, that of `permutation` is not.
        order = members[np.argsort(np.random.PCG64([seed, int(label)]).random_raw(len(members)), kind="stable")]
        for split, percent in shares.items():
            count = max(1, len(members) * percent // 100)
            parts[split].append(order[:count])
            order = order[count:]
        parts[TRAIN].append(order)
    return {split: np.sort(np.concatenate(found)) for split, found in parts.items()}

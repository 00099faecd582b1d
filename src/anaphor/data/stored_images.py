"""Images that are larger than memory: decoded once into shards of the cache, and read from there by their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphor.data.shards import Manifest, ShardedArray


class StoredImages:
    """uint8 [N, C, H, W] in place of a tensor where they are too many: what is read comes on a device."""

    def __init__(self, manifest: Manifest, shape: tuple[int, int, int]) -> None:
        """`shape` is that of one image, (C, H, W)."""
        self.manifest, self.one = manifest, shape
        self._pixels = ShardedArray(manifest)
        self.device = torch.device("cpu")
        self.index: NDArray[np.int64] = np.arange(len(self._pixels) // int(np.prod(shape)))
        """[N]: the number of each image in the shards."""

    @property
    def shape(self) -> torch.Size:
        """[N, C, H, W]"""
        return torch.Size((len(self.index), *self.one))

    def __len__(self) -> int:
        return len(self.index)

    def select(self, places: Any) -> StoredImages:
        """Some of them, which are not read yet."""
        other = StoredImages(self.manifest, self.one)
        other.index, other.device = self.index[places], self.device
        return other

    def to(self, device: torch.device | str) -> StoredImages:
        """The same, to be read to another device."""
        other = self.select(slice(None))
        other.device = torch.device(device)
        return other

    def read(self, number: int) -> NDArray[np.uint8]:
        """One image. [C, H, W]"""
        size = int(np.prod(self.one))
        place = int(self.index[number])
        return self._pixels.read(place * size, (place + 1) * size).reshape(self.one)

    def __getitem__(self, places: Any) -> Tensor:
        """The images at places: a number, a slice, or several numbers."""
        if isinstance(places, int):
            return torch.from_numpy(self.read(places).copy()).to(self.device)
        chosen = places.cpu().numpy() if isinstance(places, Tensor) else places
        numbers = np.arange(len(self))[chosen]
        if numbers.ndim == 0:
            return self[int(numbers)]
        found = np.empty((len(numbers), *self.one), np.uint8)
        for into, number in zip(found, numbers.tolist(), strict=True):
            into[:] = self.read(number)
        return torch.from_numpy(found).to(self.device)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[number] for number in range(len(self)))

    def split(self, rows: int) -> Sequence[Tensor]:
        """So many of them at a time, read when they are wanted."""
        return _Parts(self, rows)

    def count_values(self) -> NDArray[np.int64]:
        """How often each value from 0 to 255 occurs in each channel of all images in the shards. [C, 256]"""
        return np.array(
            [[self.manifest.fact(value_name(channel, value)) for value in range(256)] for channel in range(self.one[0])]
        )


class _Parts(Sequence[Tensor]):
    def __init__(self, images: StoredImages, rows: int) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return -(-len(self.images) // self.rows)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.images[number * self.rows : (number + 1) * self.rows]


def value_name(channel: int, value: int) -> str:
    """What the manifest calls the count of a value."""
    return f"{channel}:{value}"


def count_values(images: NDArray[np.uint8]) -> dict[str, int]:
    """How often each value occurs in each channel of [N, C, H, W], where it does."""
    return {
        value_name(channel, value): count
        for channel in range(images.shape[1])
        for value, count in enumerate(np.bincount(images[:, channel].ravel(), minlength=256).tolist())
        if count
    }

"""CIFAR-10: 60,000 color images of 32 × 32 pixels in ten classes (Krizhevsky 2009).

Three forms are read: the archive `cifar-10-binary.tar.gz`, the folder that it holds, and a folder of `.npy.xz` files.
Images of the last form are in another order, so other images are valid. The last 5,000 of training are valid.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anaphor.data.cache import cache_folder, write_cache
from anaphor.data.dataset import TEST, TRAIN
from anaphor.data.files import File, StoredFile
from anaphor.data.images import Arrays, ImageDataset, check_labels, resize_all
from anaphor.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
VALID_IMAGES = 5000
PART = 10_000  # images of one file
PIXELS = 3 * 32 * 32
ARCHIVE = "cifar-10-binary.tar.gz"
_STEMS = {TRAIN: [f"data_batch_{number}.bin" for number in range(1, 6)], TEST: ["test_batch.bin"]}
_ARRAYS = {TRAIN: [f"train_images_{number}.npy.xz" for number in range(1, 6)], TEST: ["test_images.npy.xz"]}
ARRAY_FILES = (*_ARRAYS[TRAIN], *_ARRAYS[TEST], "train_labels.npy", "test_labels.npy")

Records = NDArray[np.uint8]
"""[N, 1 + 3072]: label, then red, green and blue pixels, as in the binary form."""


class Cifar10(ImageDataset):
    """CIFAR-10 from its files by name; the last 5,000 images of training are valid."""

    classes = CLASSES

    def __init__(self, name: str, files: Mapping[str, File]) -> None:
        self.name, self.files = name, dict(files)

    def read_arrays(self, split: str) -> Arrays:
        records = self._records(TEST) if split == TEST else self._train
        if split != TEST:
            records = records[:-VALID_IMAGES] if split == TRAIN else records[-VALID_IMAGES:]
        images = records[:, 1:].reshape(-1, 3, 32, 32)
        return Arrays(resize_all(images, self.image_size), check_labels(records[:, 0], len(CLASSES), self.where(split)))

    @cached_property
    def _train(self) -> Records:
        return self._records(TRAIN)

    def _records(self, part: str) -> Records:
        """Images and labels of all training files, or of test: from the cache, for decompressing takes seconds."""
        names = self._names(part)
        digest = hashlib.sha256("".join(self.files[name].digest() for name in names).encode()).hexdigest()
        note = cache_folder() / "images" / f"{digest}-{part}.npy"
        count = PART * len(_STEMS[part])
        try:
            records: Records = np.load(note, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            records = np.empty((0, 0), np.uint8)
        if records.dtype == np.uint8 and records.shape == (count, 1 + PIXELS):
            return records
        records = self._decode(part, names)
        content = io.BytesIO()
        np.save(content, records)
        write_cache(note, content.getbuffer())
        return records

    def _names(self, part: str) -> list[str]:
        """Files that hold this part."""
        if ARCHIVE in self.files:
            return [ARCHIVE]
        if _STEMS[TRAIN][0] in self.files:
            return _STEMS[part]
        return [*_ARRAYS[part], f"{part}_labels.npy"]

    def _decode(self, part: str, names: list[str]) -> Records:
        if names == [ARCHIVE]:
            return np.concatenate(self._members(self.files[ARCHIVE], _STEMS[part]))
        if names == _STEMS[part]:
            return np.concatenate([_binary(self.files[name].read(), str(self.files[name])) for name in names])
        with ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
            images = np.concatenate(list(pool.map(_array, [self.files[name] for name in names[:-1]])))
        labels = _load(self.files[names[-1]].read(), (len(images),), str(self.files[names[-1]]))
        return np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(-1, PIXELS)], axis=1)

    def _members(self, file: File, names: list[str]) -> list[Records]:
        try:
            with tarfile.open(fileobj=io.BytesIO(file.read()), mode="r:gz") as archive:
                found = {}
                for member in archive:
                    name = Path(member.name).name
                    if name in names and member.isfile() and member.size == PART * (1 + PIXELS):
                        content = archive.extractfile(member)
                        assert content is not None
                        found[name] = _binary(content.read(), f"{file}/{name}")
                return [found[name] for name in names]
        except KeyError as error:
            raise DataError(f"{file} has no complete file {error.args[0]}") from None
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(f"{file} is not a complete .tar.gz file: {error}") from None


def _binary(raw: bytes, where: str) -> Records:
    size = PART * (1 + PIXELS)
    if len(raw) != size:
        raise DataError(f"{where} has {len(raw):,} bytes: a file of CIFAR-10 has {size:,}")
    return np.frombuffer(raw, np.uint8).reshape(PART, 1 + PIXELS)


def _array(file: File) -> NDArray[np.uint8]:
    """Images [10000, 32, 32, 3] of a `.npy.xz` file; no more than they take is decompressed."""
    try:
        with lzma.open(io.BytesIO(file.read())) as content:
            raw = content.read(PART * PIXELS + 1024)
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(f"{file} is not a complete .xz file: {error}") from None
    return _load(raw, (PART, 32, 32, 3), str(file))


def _load(raw: bytes, shape: tuple[int, ...], where: str) -> NDArray[np.uint8]:
    try:
        array: NDArray[np.uint8] = np.load(io.BytesIO(raw), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{where} is not a NumPy array: {error}") from None
    if array.dtype != np.uint8 or array.shape != shape:
        raise DataError(f"{where} is {array.dtype} of shape {list(array.shape)}, not uint8 {list(shape)}")
    return array


def find_cifar(name: str, folder: Path) -> Cifar10 | None:
    """CIFAR-10 in a folder of the user's; None where it holds none."""
    for names in ((ARCHIVE,), (*_STEMS[TRAIN], *_STEMS[TEST]), ARRAY_FILES):
        if all((folder / file).is_file() for file in names):
            return Cifar10(name, {file: StoredFile(folder / file) for file in names})
    return None

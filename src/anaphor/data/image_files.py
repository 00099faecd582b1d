"""Image files: one image by Pillow, folders of class folders, and `.npz` files with images and labels."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anaphor.data.dataset import ALL, SPLIT_NAMES, SPLITS, TEST, TRAIN, VALID
from anaphor.data.files import in_memory_bytes, max_file_bytes, too_large
from anaphor.data.images import Arrays, ImageDataset, check_bytes, check_labels, hold_out, resize_all, resize_square
from anaphor.data.shards import Manifest, locked_folder, shards_folder
from anaphor.errors import AnaphorError, ConfigError, DataError, count_noun, print_warning
from anaphor.progress_listener import report_progress

if TYPE_CHECKING:
    from PIL import Image

    from anaphor.data.stored_images import StoredImages

ENDINGS = (
    *(".apng", ".avif", ".bmp", ".gif", ".ico", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
HEADERS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")
"""Of PNG, JPEG, GIF, WebP and BMP, which a browser may send; other formats are for files that the user names."""
MAX_PIXELS = 1 << 26
"""Of one file: decoding takes up to 4 bytes for each, whatever size is wanted."""
THREADS = 8
SHARD = 1 << 25
"""Bytes of pixels in one shard of images that are larger than memory."""
VALID_PERCENT, TEST_PERCENT = 10, 10
LAYOUT = "images go into train/CLASS/, valid/CLASS/ and test/CLASS/, or into CLASS/"


def read_image(path: Path | str, channels: int = 3, image_size: int | None = None) -> NDArray[np.uint8]:
    """One image file as uint8 [C, H, W], upright by its EXIF orientation: 3 channels are RGB, 1 is grayscale.

    Transparent parts are white; 16 bits become 8. With `image_size` the central square is resized to that side.
    """
    with _without_warnings():
        return _decode(Path(path), channels, image_size)


def read_images(
    paths: Iterable[Path | str], channels: int, image_size: int, warn: Callable[[str], None]
) -> NDArray[np.uint8]:
    """Image files as uint8 [N, C, H, W]; see `read_image`. Every file that cannot be read is named: the last one by the
    error, the others by `warn`."""
    images, failures = [], []
    for path in paths:
        try:
            images.append(read_image(path, channels, image_size))
        except DataError as error:
            failures.append(error)
    for failure in failures[:-1]:
        warn(str(failure))
    if failures:
        raise failures[-1]
    if not images:
        raise ConfigError("no image was given: name at least one file")
    return np.stack(images)


def read_base64_image(content: str, channels: int = 3, image_size: int | None = None) -> NDArray[np.uint8]:
    """An image file as base64, as a browser sends it; see `read_image`."""
    try:
        file = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("the image is not base64") from None
    if not file.startswith(HEADERS):
        raise DataError("the image is not a PNG, JPEG, GIF, WebP or BMP file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(file)
        try:
            return read_image(path, channels, image_size)
        except DataError as error:
            raise DataError(str(error).replace(str(path), "the image")) from None


def _decode(path: Path, channels: int, image_size: int | None) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    with _naming(path), Image.open(path) as file:
        if file.width * file.height > MAX_PIXELS:
            raise _too_large(path, f"{file.width:,} × {file.height:,}")
        if image_size is not None:
            file.draft(None, (2 * image_size, 2 * image_size))  # large JPEG files are decoded at a fraction
        image = _to_8_bits(ImageOps.exif_transpose(file), path)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("L" if channels == 1 else "RGB")
        if image_size is not None and image.size != (image_size, image_size):
            image = resize_square(image, image_size)
        return np.ascontiguousarray(np.asarray(image).reshape(image.height, image.width, channels).transpose(2, 0, 1))


def _to_8_bits(image: Image.Image, path: Path) -> Image.Image:
    """Pillow would cut off what is above 255 in images of 16 bits, 32 bits and floats."""
    from PIL import Image

    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    largest = 1.0 if image.mode == "F" else 65535.0
    if not (values.min() >= 0 and values.max() <= largest):
        raise DataError(f"{path} has pixels from {values.min()} to {values.max()}, not from 0 to {largest:g}")
    return Image.fromarray(np.round(values * (255 / largest)).astype(np.uint8))


def _too_large(path: Path, size: str) -> DataError:
    return DataError(f"{path} has {size} pixels, more than the limit of {MAX_PIXELS:,}: scale it down first")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of Pillow as one line that names the file."""
    from PIL import Image, UnidentifiedImageError

    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would never end
        raise DataError(f"{path} is not a file")
    try:
        yield
    except AnaphorError:
        raise
    except UnidentifiedImageError:
        raise DataError(f"{path} is not an image that Pillow can read: {_describe_start(path)}") from None
    except Image.DecompressionBombError:
        raise _too_large(path, "too many") from None
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror}" if error.strerror else f"{path} cannot be decoded: {error}"
        raise DataError(problem) from None
    except Exception as error:  # noqa: BLE001 (decoders of broken files raise anything)
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be decoded: {type(error).__name__}: {reason}") from None


def _describe_start(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(256)
    if not start:
        return "it is empty"
    text = start.lstrip().lower()
    return "it is an HTML page" if text.startswith((b"<!doctype html", b"<html")) else f"it begins with {start[:16]!r}"


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Pillow warns of broken metadata and of sizes that are checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class ImageFolder(ImageDataset):
    """A folder `train|valid|test/CLASS/` of image files, as RGB; or `CLASS/` alone, split 80/10/10 within each class.

    Without valid, a tenth of each class of train is held out for it.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        folders = _subfolders(path)
        by_split: dict[str, Path] = {}
        for folder in folders:
            split = SPLIT_NAMES.get(folder.name.lower())
            if split in by_split:
                raise DataError(f"{path} has two folders for {split}, {by_split[split].name} and {folder.name}")
            if split is not None:
                by_split[split] = folder
        if by_split and TRAIN not in by_split:
            raise DataError(f"{path} has no train folder, but {', '.join(folder.name for folder in by_split.values())}")
        if not folders:
            raise DataError(f"{path} has no folders: {LAYOUT}")
        by_class = {split: _by_class(folder) for split, folder in (by_split or {TRAIN: path}).items()}
        self.classes = tuple(by_class[TRAIN])
        self.has_own_splits = bool(by_split)
        if by_split:
            _require_two(self.classes, by_split[TRAIN])
        self._given = {split: self._label_files(split, by_class[split]) for split in by_class}
        shares = {} if VALID in by_split else {VALID: VALID_PERCENT}
        self._shares = shares if by_split else {**shares, TEST: TEST_PERCENT}
        self.splits = tuple(split for split in SPLITS if split in (*self._given, *self._shares))

    def _label_files(self, split: str, by_class: Mapping[str, Sequence[Path]]) -> list[tuple[Path, int]]:
        unknown = [name for name in by_class if name not in self.classes]
        if unknown:
            raise DataError(f"{self.path} has images of class {unknown[0]!r} in {split}, but none in train")
        return [(file, self.classes.index(name)) for name, files in by_class.items() for file in files]

    @cached_property
    def files(self) -> dict[str, list[tuple[Path, int]]]:
        """Files and labels of each split. A few images or those of one class cannot be split, but read whole."""
        if not self._shares:
            return self._given
        _require_two(self.classes, self.path)
        given = self._given[TRAIN]
        labels = np.array([label for _, label in given])
        parts = hold_out(labels, self.classes, self._shares, str(self.path))
        return {**self._given, **{split: [given[index] for index in part] for split, part in parts.items()}}

    def read_arrays(self, split: str) -> Arrays:
        files = self._files_of(split)
        check_bytes(len(files), *self.shape(split))
        images = self._decode_files(split, 0, len(files))
        return Arrays(images, np.array([label for _, label in files], np.int64))

    def shape(self, split: str) -> tuple[int, int, int]:
        channels, height, width = read_image(self._files_of(split)[0][0], image_size=self.image_size).shape
        return channels, height, width

    def stored(self, split: str) -> tuple[StoredImages, NDArray[np.int64]] | None:
        files = self._files_of(split)
        shape = self.shape(split)
        if len(files) * int(np.prod(shape)) <= in_memory_bytes():
            return None
        from anaphor.data.stored_images import StoredImages

        labels = np.array([label for _, label in files], np.int64)
        return StoredImages(self._make_shards(split, shape), shape), labels

    def _make_shards(self, split: str, shape: tuple[int, int, int]) -> Manifest:
        """The pixels of a split in shards, decoded now where they are not there."""
        from anaphor.data.stored_images import count_values

        files = self._files_of(split)
        listed = [[str(file.absolute()), stat.st_size, stat.st_mtime_ns] for file, _ in files for stat in [file.stat()]]
        key = {"files": hashlib.sha256(json.dumps(listed).encode()).hexdigest(), "shape": list(shape)}
        folder, rows = shards_folder(key), max(1, SHARD // int(np.prod(shape)))
        manifest = Manifest(folder, "<u1", key)
        if manifest.is_complete:
            return manifest
        with locked_folder(folder):
            manifest = Manifest(folder, "<u1", key)  # another process may have made it
            if not manifest.is_complete:
                print_warning(f"{self.path}: {len(files):,} images of {split} are decoded once, into {folder}")
            for start in () if manifest.is_complete else range(manifest.end, len(files), rows):
                stop = min(start + rows, len(files))
                images = self._decode_files(split, start, stop)
                manifest.add(images.ravel(), stop, count_values(images))
                report_progress(f"decoding {split}", stop, len(files))
            manifest.complete()
        return manifest

    def _files_of(self, split: str) -> list[tuple[Path, int]]:
        return self._given[TRAIN] if split == ALL else self.files[split]

    def _decode_files(self, split: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Some images of a split. [N, C, H, W]"""
        files = self._files_of(split)
        first = read_image(files[0][0], image_size=self.image_size)
        images = np.empty((stop - start, *first.shape), np.uint8)

        def fill(index: int) -> None:
            image = _decode(files[index][0], 3, self.image_size)
            if image.shape != first.shape:
                found = [(files[0][0], first), (files[index][0], image)]
                sizes = [f"{file} has {shown.shape[2]} × {shown.shape[1]}" for file, shown in found]
                raise DataError(f"{' pixels and '.join(sizes)}: give --image-size to resize all images")
            images[index - start] = image

        with _without_warnings(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            for _ in pool.map(fill, range(start, stop)):
                pass
        return images


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """Image files of each class folder, sorted by path."""
    classes: dict[str, list[Path]] = {}
    for path in _subfolders(folder):
        found = sorted(_walk(path))
        classes[path.name] = [file for file in found if file.suffix.lower() in ENDINGS or not file.suffix]
        if not classes[path.name]:
            others = (
                f", but {count_noun(len(found), 'file')} with other endings, such as {found[0].name}" if found else ""
            )
            raise DataError(f"{path} has no image files{others}")
    if not classes:
        raise DataError(f"{folder} has no class folders: {LAYOUT}")
    return classes


def list_images(paths: Iterable[Path | str]) -> list[Path]:
    """Image files, with those of a folder and the folders in it in its place, sorted by path."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        found = sorted(file for file in _walk(path) if file.suffix.lower() in ENDINGS)
        if not found:
            raise DataError(f"{path} has no image files")
        files += found
    return files


def _require_two(classes: Sequence[str], where: Path) -> None:
    if len(classes) < 2:
        raise DataError(f"{where} has one class only, {classes[0]}: give at least two")


def _walk(folder: Path) -> Iterator[Path]:
    """Files in a folder and the folders in it. Links are followed, each folder once."""
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(parent, file) for file in files if not file.startswith("."))


IMAGE_KEYS, LABEL_KEYS = ("image", "images", "x", "data"), ("label", "labels", "y", "targets")


class ImageArchive(ImageDataset):
    """A `.npz` file: arrays `images` and `labels` (or `x` and `y`), also by split, as in `x_train` or `train_images`.

    Images are [N, H, W], [N, H, W, C] or [N, C, H, W]; uint8, uint16, or floats from 0 to 1. Labels are integers from
    0, with names in an array `classes` if wanted, or names. Splits that are missing are held out as in a folder.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        keys = self._keys()
        self._image_keys = {split: pair[0] for split, pair in keys.items()}
        train = self._labels(keys[TRAIN][1])
        self.classes = self._classes(train, keys[TRAIN][1])
        self._label_arrays = {split: self._encode(self._labels(pair[1]), pair[1]) for split, pair in keys.items()}
        shares = {} if VALID in keys else {VALID: VALID_PERCENT}
        if set(keys) == {TRAIN} and "train" not in keys[TRAIN][0].lower():
            shares[TEST] = TEST_PERCENT
        self._shares, self.has_own_splits = shares, TEST not in shares
        if self.has_own_splits:
            _require_two(self.classes, path)
        self.splits = tuple(split for split in SPLITS if split in keys or split in shares)

    def read_arrays(self, split: str) -> Arrays:
        stored = split if split in self._image_keys else TRAIN
        key, labels = self._image_keys[stored], self._label_arrays[stored]
        images = self._pixels(self._array(key), key)
        if len(images) != len(labels):
            raise DataError(f"{self.path} has {len(images):,} images in {key!r}, but {len(labels):,} labels")
        if split != ALL and split in self._indices:
            images, labels = images[self._indices[split]], labels[self._indices[split]]
        return Arrays(resize_all(images, self.image_size), labels)

    @cached_property
    def _indices(self) -> dict[str, NDArray[np.int64]]:
        """Of the splits that are held out. A few images or those of one class cannot be split, but read whole."""
        _require_two(self.classes, self.path)
        labels = self._label_arrays[TRAIN]
        return hold_out(labels, self.classes, self._shares, str(self.path)) if self._shares else {}

    def _keys(self) -> dict[str, tuple[str, str]]:
        """Names of the arrays with images and labels of each split; without splits all is train."""
        with self._open() as archive:
            names = archive.files
        found: dict[tuple[str, int], str] = {}
        for name in names:
            parts = name.lower().replace("-", "_").split("_")
            splits = [SPLIT_NAMES[part] for part in parts if part in SPLIT_NAMES]
            kinds = [part in LABEL_KEYS for part in parts if part in (*IMAGE_KEYS, *LABEL_KEYS)]
            if len(kinds) == 1 and len(splits) == len(parts) - 1 <= 1:
                place = (splits or [TRAIN])[0], int(kinds[0])
                if place in found:
                    raise DataError(f"{self.path} has two arrays for the same, {found[place]!r} and {name!r}")
                found[place] = name
        keys = {
            split: (found[split, 0], found[split, 1]) for split in SPLITS if (split, 0) in found and (split, 1) in found
        }
        if TRAIN not in keys:
            raise DataError(
                f"{self.path} has the arrays {', '.join(names)[:200] or 'none'}: it must have images and labels, "
                "or x_train and y_train"
            )
        return keys

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                packed = [item.file_size for item in archive.infolist() if item.compress_type != zipfile.ZIP_STORED]
            if sum(packed) > max_file_bytes():
                raise too_large(self.path, max_file_bytes())
            with np.load(self.path, allow_pickle=False) as arrays:
                yield arrays
        except AnaphorError:
            raise
        except Exception as error:  # noqa: BLE001 (zipfile, zlib, lzma and NumPy have their own)
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self.path} cannot be read as .npz: {reason}") from None

    def _array(self, key: str) -> NDArray[Any]:
        with self._open() as archive:
            return np.asarray(archive[key])

    def _labels(self, key: str) -> NDArray[Any]:
        labels = self._array(key)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1 or labels.dtype.kind not in "iuUS" or not len(labels):
            raise DataError(
                f"{self.path}: {key!r} is {labels.dtype} of shape {list(labels.shape)}: "
                "labels are integers or strings of shape [N]"
            )
        return np.char.decode(labels, "utf-8") if labels.dtype.kind == "S" else labels

    def _classes(self, labels: NDArray[Any], key: str) -> tuple[str, ...]:
        with self._open() as archive:
            names = archive["classes"] if "classes" in archive.files else None
        if names is not None:
            return tuple(str(name) for name in names.reshape(-1))
        distinct = np.unique(labels)
        if labels.dtype.kind == "U":
            return tuple(str(name) for name in distinct)
        check_labels(labels, len(distinct), f"{self.path}: {key!r} without an array 'classes'")
        return tuple(str(label) for label in distinct)

    def _encode(self, labels: NDArray[Any], key: str) -> NDArray[np.int64]:
        """Names as indices."""
        where = f"{self.path}: {key!r}"
        if labels.dtype.kind != "U":
            return check_labels(labels, len(self.classes), where)
        index = {name: number for number, name in enumerate(self.classes)}
        unknown = [name for name in np.unique(labels) if name not in index]
        if unknown:
            raise DataError(f"{where} has the class {str(unknown[0])!r} (known: {', '.join(self.classes)[:200]})")
        return np.array([index[name] for name in labels], np.int64)

    def _pixels(self, images: NDArray[Any], key: str) -> NDArray[np.uint8]:
        """As uint8 [N, C, H, W]."""
        where, kind = f"{self.path}: {key!r}", images.dtype.kind
        if images.ndim == 3:
            images = images[:, None]
        elif images.ndim == 4 and images.shape[3] in (1, 3, 4):
            images = images.transpose(0, 3, 1, 2)
        if images.ndim != 4 or images.shape[1] not in (1, 3, 4) or 0 in images.shape or kind not in "buif":
            raise DataError(
                f"{where} is {images.dtype} of shape {list(images.shape)}: images are numbers of shape [N, H, W], "
                "[N, H, W, C] or [N, C, H, W] with 1, 3 or 4 channels"
            )
        largest = 1.0 if kind in "bf" else 65535.0 if images.dtype == np.uint16 else 255.0
        if images.dtype != np.uint8:
            low, high = images.min(), images.max()
            if not (low >= 0 and high <= largest):
                raise DataError(
                    f"{where} has pixels from {low} to {high}: {images.dtype} must be from 0 to {largest:g}"
                )
            images = np.round(images * np.float32(255 / largest)).astype(np.uint8)
        if images.shape[1] == 4:  # transparent parts are white
            alpha = images[:, 3:] / np.float32(255)
            images = np.round(images[:, :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
        return images

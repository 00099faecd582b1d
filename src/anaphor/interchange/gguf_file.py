"""A GGUF file: metadata and tensors, as llama.cpp and Ollama have them on disk.

The header is read here and not by the library `gguf`, which trusts what a header says of itself: every length is
compared with what is left of the file before anything of that length is read. The library gives the values of quantized
tensors.
"""

from __future__ import annotations

import importlib
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from anaphor.config import nearest
from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.user_paths import user_path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 << 20
"""The largest vocabularies that are published need a fifth of this."""
MAX_NAMES = 100_000
"""Values of metadata, and tensors, that a header may have."""
MAX_DIMENSIONS = 4
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Letters of `struct` by the number of a type."""
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is, and how its values are stored."""

    shape: tuple[int, ...]
    """As torch has it: the dimension whose values are adjacent comes last."""
    kind: Any
    """`gguf.GGMLQuantizationType`."""
    start: int
    """Its first byte in the file."""
    size: int
    """Number of its bytes."""


class GGUFFile:
    """What a GGUF file holds. Tensors are read one by one, when they are asked for."""

    def __init__(self, path: Path | str) -> None:
        self.path = user_path(Path(path))
        self._library = _import_library()
        try:
            if self.path.exists() and not self.path.is_file():  # a pipe would be waited for
                raise DataError(f"{self.path} is not a file")
            with self.path.open("rb") as file:
                self.metadata, self.tensors = self._read_header(_Header(file, self.path))
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from None

    def _read_header(self, header: _Header) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        if header.take(4, "its first bytes") != MAGIC:
            raise DataError(f"{self.path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
        version = header.number("I")
        if version not in VERSIONS:
            other = "; it is in the byte order of another machine" if version & 0xFFFF == 0 else ""
            raise DataError(f"{self.path} is GGUF of version {version}; versions 2 and 3 are read{other}")
        tensor_count, value_count = header.count("tensor", 24), header.count("value", 13)
        metadata = header.named(value_count, "metadata", header.value)
        entries = header.named(tensor_count, "tensors", header.tensor)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise DataError(f"{self.path}: general.alignment={alignment!r} must be a power of two from 8 to 65536")
        start = -(-header.position // alignment) * alignment
        return metadata, self._place(entries, start, header.size)

    def _place(
        self, entries: Mapping[str, tuple[list[int], int, int]], start: int, end: int
    ) -> dict[str, StoredTensor]:
        """Where the tensors are. They must lie within the file, one behind the other."""
        found = {}
        for name, (dimensions, number, offset) in entries.items():
            try:
                kind = self._library.GGMLQuantizationType(number)
                block, block_bytes = self._library.GGML_QUANT_SIZES[kind]
            except (ValueError, KeyError):
                raise DataError(f"{self.path}: {_quote(name)} has values of the unknown type {number}") from None
            shape = tuple(reversed(dimensions))
            if not shape or min(shape) < 1 or shape[-1] % block:
                raise DataError(
                    f"{self.path}: {_quote(name)} cannot have the shape {_show(shape)} in blocks of {block}"
                )
            size = math.prod(shape) // block * block_bytes
            if start + offset + size > end:
                raise DataError(
                    f"{self.path} has {end:,} bytes, but {_quote(name)} of shape {_show(shape)} would end at byte "
                    f"{start + offset + size:,}: the file is truncated or damaged"
                )
            found[name] = StoredTensor(shape, kind, start + offset, size)
        by_place = sorted(found.items(), key=lambda item: item[1].start)
        for (name, one), (other, following) in itertools.pairwise(by_place):
            if one.start + one.size > following.start:
                raise DataError(f"{self.path}: the tensors {_quote(name)} and {_quote(other)} overlap")
        return found

    def read(self, name: str) -> Tensor:
        """The values of a tensor, in single precision if they are quantized."""
        if name not in self.tensors:
            raise DataError(f"{self.path} lacks the tensor {_quote(name)}{nearest(name, self.tensors)}")
        stored = self.tensors[name]
        with self.path.open("rb") as file:
            file.seek(stored.start)
            raw = np.frombuffer(file.read(stored.size), np.uint8)
        if len(raw) < stored.size:
            raise DataError(f"{self.path} has changed while it was read: {_quote(name)} is truncated")
        try:
            if stored.kind == self._library.GGMLQuantizationType.F64:
                values = raw.view(np.float64)
            else:
                rows = raw.reshape(math.prod(stored.shape[:-1]), -1)
                with np.errstate(all="ignore"):  # damaged scales are found below
                    values = self._library.dequantize(rows, stored.kind)
        except NotImplementedError:
            raise DataError(
                f"{self.path}: {_quote(name)} is of type {stored.kind.name}, which cannot be converted"
            ) from None
        tensor = torch.from_numpy(np.array(values)).view(stored.shape)
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{self.path}: {_quote(name)} has values that are not finite")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)


class _Header:
    """The bytes of a header in their order, none of which is read before it is known that the file has it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self.path = file, path
        self.size = file.seek(0, 2)
        """Bytes of the file."""
        self.position = 0
        file.seek(0)

    def take(self, count: int, what: str) -> bytes:
        """The next bytes."""
        self._check(count, what)
        self.position += count
        return self._file.read(count)

    def _check(self, count: int, what: str) -> None:
        if self.position + count > self.size:
            raise DataError(
                f"{self.path} is truncated or damaged: {what} would end at byte {self.position + count:,}, but the "
                f"file has {self.size:,}"
            )
        if self.position + count > MAX_HEADER_BYTES:
            raise DataError(f"{self.path}: its header has more than {MAX_HEADER_BYTES:,} bytes, and is not read")

    def number(self, letter: str) -> Any:
        form = f"<{letter}"
        (value,) = struct.unpack(form, self.take(struct.calcsize(form), "a number"))
        return value

    def count(self, noun: str, least: int) -> int:
        """A number of things with at least so many bytes each."""
        count: int = self.number("Q")
        self._check(count * least, count_noun(count, noun))
        if count > MAX_NAMES:
            raise DataError(f"{self.path} has {count_noun(count, noun)}; at most {MAX_NAMES:,} are read")
        return count

    def string(self) -> str:
        length: int = self.number("Q")
        raw = self.take(length, f"a text of {length:,} bytes")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path}: a text at byte {self.position - length + error.start:,} is not UTF-8"
            ) from None

    def named(self, count: int, what: str, read: Callable[[], Any]) -> dict[str, Any]:
        """So many names, each with what `read` gives after it."""
        found: dict[str, Any] = {}
        for _ in range(count):
            name = self.string()
            if name in found:
                raise DataError(f"{self.path}: {_quote(name)} occurs twice among its {what}")
            found[name] = read()
        return found

    def value(self) -> Any:
        """A value of metadata, after its type."""
        kind = self.number("I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        return _shorten(self.number(self._letter(kind)), kind)

    def _array(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if kind == _ARRAY:
            raise DataError(f"{self.path} has arrays of arrays, which are not read")
        form = f"<{'Q' if kind == _STRING else self._letter(kind)}"
        size = struct.calcsize(form)
        self._check(count * size, f"an array of {count:,} values")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        return [value for (value,) in struct.iter_unpack(form, self.take(count * size, "an array"))]

    def _letter(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise DataError(f"{self.path} has a value of the unknown type {kind} before byte {self.position:,}")
        return _NUMBERS[kind]

    def tensor(self) -> tuple[list[int], int, int]:
        """Dimensions of a tensor, the adjacent one first, the number of its type, and where it begins in the data."""
        dimensions = self.number("I")
        if dimensions > MAX_DIMENSIONS:
            raise DataError(f"{self.path} has a tensor of {dimensions:,} dimensions; at most {MAX_DIMENSIONS} are read")
        return [self.number("Q") for _ in range(dimensions)], self.number("I"), self.number("Q")


def _shorten(value: Any, kind: int) -> Any:
    """Numbers in single precision as they were written by hand: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if _NUMBERS[kind] == "f" else value


def _show(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in shape) or "()"


def _quote(name: str) -> str:
    """A name of the file, of bounded length and in one line."""
    return repr(name if len(name) <= 100 else f"{name[:99]}…")


def _import_library() -> Any:
    try:
        return importlib.import_module("gguf")
    except ModuleNotFoundError:
        raise ConfigError("GGUF files need the package gguf: pip install 'anaphor[gguf]'") from None

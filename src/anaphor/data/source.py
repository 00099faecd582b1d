"""Where text comes from: splits that are read one at a time, each with a digest of its content."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from anaphor.config import look_up
from anaphor.data.reading import text_of
from anaphor.errors import DataError

TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")
SPLIT_NAMES = {"train": TRAIN, "valid": VALID, "val": VALID, "validation": VALID, "test": TEST}


class File(Protocol):
    """A file that is read when it is asked for and not before."""

    def read(self) -> bytes:
        """What is in it, decompressed."""

    def digest(self) -> str:
        """SHA-256 of that."""

    def __str__(self) -> str:
        """Its name in an error."""


class Source(ABC):
    """A text in splits."""

    name: str
    splits: tuple[str, ...]
    """Those of train, valid and test that there are."""

    @abstractmethod
    def read(self, split: str) -> bytes:
        """One split as it is stored, decompressed. No other split's file is opened."""

    def digest(self, split: str) -> str:
        """SHA-256 of `read(split)`."""
        return hashlib.sha256(self.read(split)).hexdigest()

    def where(self, split: str) -> str:
        """What an error calls this split."""
        return f"the {split} split of {self.name}"

    def start(self, split: str) -> int:
        """How many bytes of the same file stand before this split."""
        return 0

    def text(self, split: str) -> str:
        """One split as text, or an error that names the byte where it is none."""
        return text_of(self.read(split), self.where(split), self.start(split))

    def check(self, split: str) -> str:
        """The name under which we know this split, or an error that says which there are."""
        return known_split(self.name, self.splits, split)


def known_split(name: str, splits: tuple[str, ...], split: str) -> str:
    """The name under which we know a split of the data set `name`, or an error that says which there are."""
    known = look_up(SPLIT_NAMES, split, "split")
    if known not in splits:
        raise DataError(f"{name} has no {known} split (it has: {', '.join(splits)})")
    return known


class SplitFiles(Source):
    """One file for each split."""

    def __init__(self, name: str, files: Mapping[str, File]) -> None:
        self.name = name
        self.files = dict(files)
        self.splits = tuple(split for split in SPLITS if split in files)

    def read(self, split: str) -> bytes:
        return self.files[self.check(split)].read()

    def digest(self, split: str) -> str:
        return self.files[self.check(split)].digest()

    def where(self, split: str) -> str:
        return str(self.files[self.check(split)])


class OneFile(Source):
    """One file for all splits: the first 90 % of its bytes are train, 5 % valid, 5 % test."""

    splits = SPLITS

    def __init__(self, name: str, file: File) -> None:
        self.name = name
        self.file = file

    def read(self, split: str) -> bytes:
        raw = self.file.read()
        start, end = self._ends(raw, self.check(split))
        return raw[start:end]

    def where(self, split: str) -> str:
        return str(self.file)

    def start(self, split: str) -> int:
        return self._ends(self.file.read(), self.check(split))[0]

    def _ends(self, raw: bytes, split: str) -> tuple[int, int]:
        if not raw.strip():
            raise DataError(f"{self.file} is empty")
        cuts = [0, *cut_points(raw, str(self.file)), len(raw)]
        place = SPLITS.index(split)
        return cuts[place], cuts[place + 1]


def cut_points(raw: bytes, where: str) -> tuple[int, int]:
    """Where valid and test begin: after the first line end past 90 % and 95 % of the bytes.

    Where a line is so long that a split would be empty, white space will do, and where there is none, any place
    between two characters.
    """
    valid, test = len(raw) * 90 // 100, len(raw) * 95 // 100
    for ends in (b"\n", b" \t\n"):
        cuts = _after(raw, valid, ends), _after(raw, test, ends)
        if all(part.strip() for part in (raw[: cuts[0]], raw[cuts[0] : cuts[1]], raw[cuts[1] :])):
            return cuts
    cuts = _between(raw, valid), _between(raw, test)
    if 0 < cuts[0] < cuts[1] < len(raw.rstrip()):
        return cuts
    raise DataError(
        f"{where} has {len(raw)} bytes, too few to be split into train, valid and test: "
        "give a longer text, or a folder with a file for each split"
    )


def _after(raw: bytes, place: int, ends: bytes) -> int:
    found = [at for at in (raw.find(end, place) for end in (bytes([value]) for value in ends)) if at >= 0]
    return min(found) + 1 if found else len(raw)


def _between(raw: bytes, place: int) -> int:
    # A byte 10xxxxxx continues a character of UTF-8, whose first byte stands at most three before it.
    for at in range(place, min(place + 4, len(raw))):
        if raw[at] & 0xC0 != 0x80:
            return at
    return place

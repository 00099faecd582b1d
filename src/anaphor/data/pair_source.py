"""Where sentence pairs come from: aligned lines in two languages, checked as they are read, one split at a time."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anaphor.config import look_up
from anaphor.data.reading import text_of
from anaphor.data.source import SPLITS, TEST, File, known_split
from anaphor.data.sources import Overlap
from anaphor.errors import DataError

Pair = tuple[str, str]
SOURCE, TARGET = SIDES = ("source", "target")
_PLACE = {SOURCE: 0, TARGET: 1}
# Scores of translations compare texts, so bytes that are none help nobody here.
_CURE = "convert it to UTF-8"


@dataclass(frozen=True)
class Aligned:
    """One split, line by line."""

    pairs: list[Pair]
    """Source and target sentence, without the white space round them."""
    lines: list[int]
    """The number of each pair's line in its files, from 1 on."""
    blank: int
    """Lines that are empty on both sides, and so left out."""
    where: tuple[str, str]
    """What an error calls each side."""
    digest: str
    """SHA-256 of both sides."""


class PairSource(ABC):
    """Sentences of one language and their translations into another, in splits."""

    name: str
    splits: tuple[str, ...]
    """Those of train, valid and test that there are."""
    languages: tuple[str, str]
    """What is translated from, and into."""
    fit: bool = False
    """Whether the other splits are train once more. Then scores say how well a model fits, and nothing else."""

    @abstractmethod
    def read(self, split: str, side: str) -> bytes:
        """The "source" or the "target" of one split as it is stored, decompressed. No other split's file is opened."""

    def digest(self, split: str) -> str:
        """SHA-256 of both sides of one split, the source first."""
        return _digest_of(*(hashlib.sha256(self.read(split, side)).hexdigest() for side in SIDES))

    def where(self, split: str, side: str) -> str:
        """What an error calls this side."""
        return f"the {side} of the {split} split of {self.name}"

    def before(self, split: str) -> int:
        """How many lines of the same files stand before this split."""
        return 0

    def pairs(self, split: str) -> list[Pair]:
        """(source text, target text) of one split, or an error that names the line where there is no pair."""
        return self.aligned(split).pairs

    def aligned(self, split: str) -> Aligned:
        """The same, with what there is to know of the lines."""
        split = self.check(split)
        where = self.where(split, SOURCE), self.where(split, TARGET)
        raws = [self.read(split, side) for side in SIDES]
        columns = [lines_of(text_of(raw, name, cure=_CURE)) for raw, name in zip(raws, where, strict=True)]
        check_counts(where, columns)
        pairs: list[Pair] = []
        lines: list[int] = []
        for number, both in enumerate(zip(*columns, strict=True), 1 + self.before(split)):
            source, target = (line.strip() for line in both)
            if source and target:
                pairs.append((source, target))
                lines.append(number)
            elif source or target:
                empty, other = where if target else reversed(where)
                raise DataError(f"line {number} of {empty} is empty, but line {number} of {other} is not")
        if not pairs:
            raise DataError(f"{where[0]} and {where[1]} hold no sentences")
        digest = _digest_of(*(hashlib.sha256(raw).hexdigest() for raw in raws))
        return Aligned(pairs, lines, len(columns[0]) - len(pairs), where, digest)

    def swapped(self) -> PairSource:
        """The other direction."""
        return Swapped(self)

    def check(self, split: str) -> str:
        """The name under which we know this split, or an error that says which there are."""
        return known_split(self.name, self.splits, split)


class Swapped(PairSource):
    """Pairs whose target is the source."""

    def __init__(self, pairs: PairSource) -> None:
        self._pairs = pairs
        self.name, self.splits, self.fit = pairs.name, pairs.splits, pairs.fit
        self.languages = pairs.languages[1], pairs.languages[0]

    def read(self, split: str, side: str) -> bytes:
        return self._pairs.read(split, _other(side))

    def where(self, split: str, side: str) -> str:
        return self._pairs.where(split, _other(side))

    def before(self, split: str) -> int:
        return self._pairs.before(split)

    def swapped(self) -> PairSource:
        return self._pairs


class PairFiles(PairSource):
    """A file for each split and language."""

    def __init__(self, name: str, languages: tuple[str, str], files: Mapping[str, tuple[File, File]]) -> None:
        self.name, self.languages = name, languages
        self.files = dict(files)
        self.splits = tuple(split for split in SPLITS if split in files)

    def read(self, split: str, side: str) -> bytes:
        return self._file(split, side).read()

    def digest(self, split: str) -> str:
        return _digest_of(*(self._file(split, side).digest() for side in SIDES))

    def where(self, split: str, side: str) -> str:
        return str(self._file(split, side))

    def _file(self, split: str, side: str) -> File:
        return self.files[self.check(split)][look_up(_PLACE, side, "side")]


class TwoFiles(PairSource):
    """A file for each language and all splits: the first 90 % of the lines are train, 5 % valid, 5 % test."""

    splits = SPLITS

    def __init__(self, name: str, languages: tuple[str, str], files: tuple[File, File]) -> None:
        self.name, self.languages, self.files = name, languages, files

    def read(self, split: str, side: str) -> bytes:
        place = look_up(_PLACE, side, "side")
        columns = self._columns()
        start, end = self._ends(self.check(split), len(columns[place]))
        return "".join(f"{line}\n" for line in columns[place][start:end]).encode()

    def where(self, split: str, side: str) -> str:
        return str(self.files[look_up(_PLACE, side, "side")])

    def before(self, split: str) -> int:
        return self._ends(self.check(split), len(self._columns()[0]))[0]

    def _columns(self) -> list[list[str]]:
        columns = [lines_of(text_of(file.read(), str(file), cure=_CURE)) for file in self.files]
        # Before the cut: what is missing at the end would be noticed in test only.
        check_counts((str(self.files[0]), str(self.files[1])), columns)
        return columns

    def _ends(self, split: str, lines: int) -> tuple[int, int]:
        cuts = [0, lines * 90 // 100, lines * 95 // 100, lines]
        if not cuts[0] < cuts[1] < cuts[2] < cuts[3]:
            raise DataError(
                f"{self.files[0]} has {lines} lines, too few to be split into train, valid and test: "
                "give longer files, or a folder with a file for each split and language"
            )
        place = SPLITS.index(split)
        return cuts[place], cuts[place + 1]


class MadePairs(PairSource):
    """Pairs that are made on the spot."""

    splits = SPLITS

    @abstractmethod
    def made(self, split: str) -> list[Pair]:
        """One split."""

    def read(self, split: str, side: str) -> bytes:
        place = look_up(_PLACE, side, "side")
        return "".join(f"{pair[place]}\n" for pair in self.made(self.check(split))).encode()


def pair_overlap(source: PairSource, trained: Sequence[tuple[str, str]]) -> Overlap:
    """How many pairs of test stand among those that were trained on as well, word for word. It reads the test split."""
    tested = Counter(source.pairs(TEST))
    found = tested.keys() & set(trained)
    return Overlap(tested.total(), sum(tested[pair] for pair in found))


def lines_of(text: str) -> list[str]:
    """The lines of a text, the last one whether it is ended or not. No other sign than a newline ends one."""
    return text.removesuffix("\n").split("\n") if text else []


def check_counts(where: tuple[str, str], columns: list[list[str]]) -> None:
    """Refuse two sides that cannot be aligned."""
    source, target = map(len, columns)
    if source != target:
        raise DataError(
            f"{where[0]} has {source:,} lines and {where[1]} has {target:,}: "
            "line by line they must be translations of each other"
        )


def _digest_of(*digests: str) -> str:
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _other(side: str) -> str:
    return SIDES[1 - look_up(_PLACE, side, "side")]

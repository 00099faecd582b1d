"""Sentence pairs that need neither network nor disk: an echo, letters backwards, dates in many spellings."""

from __future__ import annotations

import datetime
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property

from anaphor.data.pair_source import MadePairs, Pair
from anaphor.data.reference import PythonReference
from anaphor.data.source import SPLITS, TRAIN
from anaphor.errors import ConfigError

# Sentences of a paragraph that are neither a heading nor a whole argument.
SHORTEST, LONGEST = 4, 40
_ENDS = frozenset(".?!")
_QUOTES = frozenset("“‘")


class Echo(MadePairs):
    """Sentences of the Python reference whose target is the source. No sentence is in two splits."""

    name = "echo"
    languages = ("text", "echo")

    def made(self, split: str) -> list[Pair]:
        return [(sentence, sentence) for sentence in self._sentences[split]]

    @cached_property
    def _sentences(self) -> dict[str, list[str]]:
        reference = PythonReference()
        found: dict[str, None] = {}
        splits = {}
        for split in SPLITS:
            lines = reference.text(split).splitlines()
            every = dict.fromkeys(sentence for line in lines for sentence in sentences(line))
            splits[split] = [sentence for sentence in every if sentence not in found]
            found |= every
        return splits


class EchoFit(Echo):
    """The sentences of train in every split, for those who ask how well a model fits."""

    name = "echo-fit"
    fit = True

    def made(self, split: str) -> list[Pair]:
        return super().made(TRAIN)


def sentences(paragraph: str) -> Iterator[str]:
    """Sentences of a paragraph whose words and signs stand apart, very short and very long ones left out."""
    words = paragraph.split()
    start = 0
    for place, word in enumerate(words, 1):
        following = words[place] if place < len(words) else ""
        # A capital letter tells an end from the dots of "e.g ." and "...".
        if not following or (word in _ENDS and (following[0].isupper() or following in _QUOTES)):
            if SHORTEST <= place - start <= LONGEST:
                yield " ".join(words[start:place])
            start = place


class Drawn(MadePairs):
    """Pairs drawn at random, no source twice, neither within a split nor between them."""

    def __init__(self, pairs: int = 4000, seed: int = 0) -> None:
        """So many pairs for train, and a tenth as many for valid and for test."""
        if pairs < 1:
            raise ConfigError(f"pairs={pairs}: there must be at least 1")
        self.seed = seed
        self.sizes = dict(zip(SPLITS, (pairs, pairs // 10 or 1, pairs // 10 or 1), strict=True))

    def made(self, split: str) -> list[Pair]:
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[str, list[Pair]]:
        # Seeding by a string and drawing doubles is promised to stay the same in every version of Python.
        drawn = self.drawn(random.Random(f"{self.name}/{self.seed}").random)
        return {split: [next(drawn) for _ in range(size)] for split, size in self.sizes.items()}

    @abstractmethod
    def drawn(self, uniform: Callable[[], float]) -> Iterator[Pair]:
        """Pairs without end, as long as there are new ones; `uniform` draws from [0, 1)."""


class Reverse(Drawn):
    """Letters in a row, and the same row from its end: what is said last must be remembered first."""

    name = "reverse"
    languages = ("letters", "reversed")
    letters = "abcdefghijklmnopqrst"
    shortest, longest = 4, 20

    def drawn(self, uniform: Callable[[], float]) -> Iterator[Pair]:
        seen: set[str] = set()
        while True:
            size = self.shortest + int(uniform() * (self.longest + 1 - self.shortest))
            row = [self.letters[int(uniform() * len(self.letters))] for _ in range(size)]
            source = " ".join(row)
            if source not in seen:
                seen.add(source)
                yield source, " ".join(reversed(row))


# Not those of the calendar module, which speak the language of the machine.
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST_DAY, LAST_DAY = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)


class Dates(Drawn):
    """A day in one of many spellings, and the same day by ISO 8601. No day is in two splits."""

    name = "dates"
    languages = ("spelled", "iso")

    def drawn(self, uniform: Callable[[], float]) -> Iterator[Pair]:
        days = list(range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1))
        if (asked := sum(self.sizes.values())) > len(days):
            raise ConfigError(f"pairs={self.sizes[TRAIN]}: that is {asked:,} days, but there are {len(days):,}")
        while True:
            place = int(uniform() * len(days))
            days[place], days[-1] = days[-1], days[place]
            day = datetime.date.fromordinal(days.pop())
            written = spellings(day)
            yield written[int(uniform() * len(written))], day.isoformat()


def spellings(day: datetime.date) -> list[str]:
    """Every way to write a day. No two days share one: slashes put the month first, full stops the day.

    Two digits of a year mean one from 1950 to 2049.
    """
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    year, short = day.year, f"{day.year % 100:02}"
    brief = month[:3]
    nth = f"{day.day}{_ending(day.day)}"
    return [
        f"{day.day} {month} {year}",
        f"{month} {day.day}, {year}",
        f"{month} {nth}, {year}",
        f"{nth} of {month} {year}",
        f"the {nth} of {month}, {year}",
        f"{weekday}, {day.day} {month} {year}",
        f"{weekday}, {month} {nth}, {year}",
        f"{weekday[:3]} {day.day} {brief} {year}",
        f"{day.day} {brief} {year}",
        f"{brief} {day.day}, {year}",
        f"{day.day:02}-{brief}-{short}",
        f"{brief.upper()} {day.day:02} '{short}",
        f"{day.day}.{day.month}.{year}",
        f"{day.day:02}.{day.month:02}.{short}",
        f"{day.month}/{day.day}/{year}",
        f"{day.month:02}/{day.day:02}/{short}",
        f"{year} {month.lower()} {day.day}",
        f"{year}{day.month:02}{day.day:02}",
    ]


def _ending(number: int) -> str:
    return "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")

"""Embedded data sets, which need neither network nor disk: the Python reference, echo, reversed letters, dates."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from anaphor.data.dataset import PAIR_COLUMNS, SPLITS, TEST, TRAIN, VALID, Dataset, Drawn, Generated, encode_lines
from anaphor.errors import ConfigError

Pair = tuple[str, str]

# Consecutive lines stay together, so that a line of valid or test seldom has its neighbors in train.
PAGE_LINES = 10
# Of twenty pages eighteen are train: 90/5/5, spread over the whole text because its topics differ so much.
SPLIT_CYCLE = (*[TRAIN] * 9, VALID, *[TRAIN] * 9, TEST)

_PARAGRAPH = re.compile(r"\n\s*\n")
_BULLET = re.compile(r"^(?:\*|\d+\.|\[\d+\]|[-–])\s+")
# Words keep what joins their parts; every other sign stands alone, as in WikiText, so that white space separates words.
_TOKEN = re.compile(r"\w+(?:[-.'’]\w+)*|[^\w\s]")
# Tables, grammar productions, underlines of headings and interpreter sessions are not prose.
_NO_PROSE = re.compile(r"::=|^[+|]|^[*=~-]{3,}$|^>>>|^\.\.\.\s", re.MULTILINE)
MIN_PARAGRAPH_WORDS = 6


class PythonReference(Dataset):
    """The language reference inside every CPython, one paragraph per line, without duplicates.

    Another version of Python has another text, and so another digest.
    """

    name = "python-reference"

    def read(self, split: str, column: str | None = None) -> bytes:
        self.column_index(column)
        return self._texts[self.check_split(split)]

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        parts: dict[str, list[str]] = {split: [] for split in SPLITS}
        for number, line in enumerate(read_reference()):
            parts[SPLIT_CYCLE[number // PAGE_LINES % len(SPLIT_CYCLE)]].append(line)
        return {split: encode_lines(lines) for split, lines in parts.items()}


def read_reference() -> list[str]:
    """Paragraphs of all topics, without duplicates: many topics are parts of other topics."""
    from pydoc_data.topics import topics

    return list(dict.fromkeys(line for name in sorted(topics) for line in split_paragraphs(topics[name])))


def split_paragraphs(topic: str) -> Iterator[str]:
    """Prose of one topic, each paragraph on a line, without code, tables and grammar."""
    after_colon = False
    for block in _PARAGRAPH.split(topic):
        lines = block.strip("\n").splitlines()
        plain = "\n".join(line.strip() for line in lines)
        # Code is indented after a colon.
        is_code = after_colon and all(line.startswith("   ") for line in lines) and not _BULLET.match(plain)
        if not is_code:
            after_colon = plain.endswith(":")
        if is_code or _NO_PROSE.search(plain):
            continue
        words = _TOKEN.findall(_BULLET.sub("", plain).replace("*", "").replace('"', ""))
        # A paragraph that does not end like a sentence is a heading or a signature.
        if len(words) >= MIN_PARAGRAPH_WORDS and (words[-1] in {".", ":", ";", "?", "!"} or words[-2:] == [".", ")"]):
            yield " ".join(words)


# Sentences of a paragraph that are neither a heading nor a whole argument.
MIN_WORDS, MAX_WORDS = 4, 40
_ENDS = frozenset(".?!")
_QUOTES = frozenset("“‘")


class Echo(Generated):
    """Sentences of the Python reference whose target is the source. No sentence is in two splits."""

    name = "echo"
    columns = PAIR_COLUMNS
    languages = ("text", "echo")

    def generate(self, split: str) -> Sequence[Pair]:
        return [(sentence, sentence) for sentence in self._sentences[split]]

    @cached_property
    def _sentences(self) -> dict[str, list[str]]:
        reference = PythonReference()
        seen: dict[str, None] = {}
        splits = {}
        for split in SPLITS:
            lines = reference.text(split).splitlines()
            sentences = dict.fromkeys(sentence for line in lines for sentence in split_sentences(line))
            splits[split] = [sentence for sentence in sentences if sentence not in seen]
            seen |= sentences
        return splits


class EchoFit(Echo):
    """The sentences of train in every split, to measure how well a model fits."""

    name = "echo-fit"
    metadata = {"data": "fit"}  # noqa: RUF012 (Dataset declares it)

    def generate(self, split: str) -> Sequence[Pair]:
        return super().generate(TRAIN)


def split_sentences(paragraph: str) -> Iterator[str]:
    """Sentences of a paragraph whose words and signs are separated, without very short and very long ones."""
    words = paragraph.split()
    start = 0
    for end, word in enumerate(words, 1):
        following = words[end] if end < len(words) else ""
        # A capital letter tells an end from the dots of "e.g ." and "...".
        if not following or (word in _ENDS and (following[0].isupper() or following in _QUOTES)):
            if MIN_WORDS <= end - start <= MAX_WORDS:
                yield " ".join(words[start:end])
            start = end


class RandomPairs(Drawn):
    """Pairs drawn at random; no source occurs twice, neither within a split nor in two splits."""

    columns = PAIR_COLUMNS

    def __init__(self, pairs: int = 4000, seed: int = 0) -> None:
        """`pairs` for train, and a tenth as many for valid and for test."""
        if pairs < 1:
            raise ConfigError(f"pairs={pairs}: there must be at least 1")
        super().__init__((pairs, pairs // 10 or 1, pairs // 10 or 1), seed)


class Reverse(RandomPairs):
    """Rows of letters, and the same rows reversed."""

    name = "reverse"
    languages = ("letters", "reversed")
    letters = "abcdefghijklmnopqrst"
    min_length, max_length = 4, 20

    def draw(self, uniform: Callable[[], float]) -> Iterator[Pair]:
        seen: set[str] = set()
        while True:
            size = self.min_length + int(uniform() * (self.max_length + 1 - self.min_length))
            row = [self.letters[int(uniform() * len(self.letters))] for _ in range(size)]
            source = " ".join(row)
            if source not in seen:
                seen.add(source)
                yield source, " ".join(reversed(row))


# Not those of the calendar module, which depend on the locale.
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST_DAY, LAST_DAY = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)


class Dates(RandomPairs):
    """A day in one of many spellings, and the same day by ISO 8601. No day is in two splits."""

    name = "dates"
    languages = ("spelled", "iso")

    def draw(self, uniform: Callable[[], float]) -> Iterator[Pair]:
        days = list(range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1))
        if (wanted := sum(self.sizes.values())) > len(days):
            raise ConfigError(f"pairs={self.sizes[TRAIN]}: that is {wanted:,} days, but there are {len(days):,}")
        while True:
            index = int(uniform() * len(days))
            days[index], days[-1] = days[-1], days[index]
            day = datetime.date.fromordinal(days.pop())
            options = spellings(day)
            yield options[int(uniform() * len(options))], day.isoformat()


def spellings(day: datetime.date) -> list[str]:
    """All spellings of a day. No two days share one: the month is first before slashes, the day before full stops.

    Two digits of a year mean one from 1950 to 2049.
    """
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    year, short = day.year, f"{day.year % 100:02}"
    brief = month[:3]
    nth = f"{day.day}{_ending(day.day)}"
    return [
        f"{day.day} {month} {year}", f"{month} {day.day}, {year}", f"{month} {nth}, {year}", f"{nth} of {month} {year}",
        f"the {nth} of {month}, {year}", f"{weekday}, {day.day} {month} {year}", f"{weekday}, {month} {nth}, {year}",
        f"{weekday[:3]} {day.day} {brief} {year}", f"{day.day} {brief} {year}", f"{brief} {day.day}, {year}",
        f"{day.day:02}-{brief}-{short}", f"{brief.upper()} {day.day:02} '{short}", f"{day.day}.{day.month}.{year}",
        f"{day.day:02}.{day.month:02}.{short}", f"{day.month}/{day.day}/{year}", f"{day.month:02}/{day.day:02}/{short}",
        f"{year} {month.lower()} {day.day}", f"{year}{day.month:02}{day.day:02}",
    ]  # fmt: skip


def _ending(number: int) -> str:
    return "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")

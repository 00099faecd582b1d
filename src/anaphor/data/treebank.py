"""Words and punctuation by the Penn Treebank's rules, for texts of separate dialogues.

NLTK's `word_tokenize` cuts a text into sentences first and applies its word rules to each, because those rules part a
full stop from its word at the end only. Its sentence model wants a download, so sentences end by a simple rule here:
after a full stop, question or exclamation mark and white space, unless the stop belongs to an abbreviation of our list,
to an initial (`J.`) or to letters with stops between them (`U.S.`). What differs from `word_tokenize`: its model has
learnt more abbreviations, and which words often begin a sentence, so that for it `U.S.` may end one. Full stops
followed by a letter at once stay where they are, in both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from anaphor.data.reading import dialogues, dialogues_so_far, pieces
from anaphor.data.tokenizer import UNKNOWN, Ids, Listed, most_frequent
from anaphor.errors import ConfigError

START = "<start>"
PAD = "<pad>"
# Without their last full stop, in lower case.
_TITLES = "mr mrs ms dr prof rev hon gen col capt lt sgt st jr sr messrs mme mlle"
_MONTHS = "jan feb apr jun jul aug sep sept oct nov dec"
_OTHERS = "vs etc cf al fig figs nos vol vols pp ed eds inc ltd co corp"
ABBREVIATIONS = frozenset(f"{_TITLES} {_MONTHS} {_OTHERS}".split())
_STOP = re.compile(r"""[.?!][\])}>"'»”’]*\s""")
_LAST_WORD = re.compile(r"[\w.'’-]*\Z")
_INITIALS = re.compile(r"(?:[a-z]{1,2}\.)*[a-z]", re.IGNORECASE)
# Letters before a full stop that are looked at; no abbreviation is longer.
LONGEST_WORD = 20
# A sentence longer than this is none; cutting it keeps the cost of the rules in proportion.
LONGEST = 100_000


class Treebank(Listed):
    """Each dialogue of a text begins with `<start>`; dialogues are separated by blank lines."""

    kind = "treebank"
    special: ClassVar[tuple[str, ...]] = (START, PAD, UNKNOWN)

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__(tokens)
        self.boundary, self.pad = self._ids[START], self._ids[PAD]
        self.unknown: int = self._ids[UNKNOWN]

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        # The rules part `<` from what follows it, so no word of a text is written like a special token.
        counts: Counter[str] = Counter(dict.fromkeys(cls.special, 0))
        for dialogue in dialogues(text):
            counts.update(words_of(dialogue))
        return cls(most_frequent(counts, cls.special, size))

    def encode(self, text: str) -> Ids:
        examples = [self.encode_example(dialogue) for dialogue in dialogues(text)]
        return np.concatenate(examples) if examples else np.empty(0, np.int32)

    def encode_example(self, text: str) -> Ids:
        """One dialogue, after `<start>`."""
        return np.array([self.boundary, *self._numbers(text)], np.int32)

    def encode_sentence(self, text: str) -> Ids:
        """A newline is white space; behind a blank line the next dialogue begins."""
        first, *others = dialogues_so_far(text)
        ids = self._numbers(first)
        for dialogue in others:
            ids += [self.boundary, *self._numbers(dialogue)]
        return np.array(ids, np.int32)

    def parts(self, text: str) -> Iterable[str]:
        return words_of(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Tokens joined by single spaces."""
        return " ".join(self.tokens[number] for number in ids)

    def _numbers(self, dialogue: str) -> list[int]:
        return [self._ids.get(word, self.unknown) for word in words_of(dialogue)]


def words_of(text: str) -> Iterator[str]:
    """Words and punctuation of one dialogue, full stops inside it parted from their words too."""
    rules = word_rules()
    for sentence in sentences(text):
        for piece in pieces(sentence, LONGEST):
            yield from rules.tokenize(piece)


def sentences(text: str) -> Iterator[str]:
    """The text cut after each sentence."""
    start = 0
    for stop in _STOP.finditer(text):
        if text[stop.start()] != "." or not _keeps_its_stop(text, start, stop.start()):
            yield text[start : stop.end()]
            start = stop.end()
    yield text[start:]


def _keeps_its_stop(text: str, start: int, stop: int) -> bool:
    last = _LAST_WORD.search(text, max(start, stop - LONGEST_WORD), stop)
    word = last.group() if last else ""
    if word == "I":
        return False
    # A stop before this one makes it dots, not the end of a sentence.
    return word.endswith(".") or _INITIALS.fullmatch(word) is not None or word.lower() in ABBREVIATIONS


@cache
def word_rules() -> Any:
    """NLTK's word tokenizer, which reads no file."""
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
    except ImportError:
        raise ConfigError(
            "the treebank tokenizer needs nltk: install it with `pip install anaphor[treebank]`"
        ) from None
    return NLTKWordTokenizer()

"""Words and punctuation by the rules of the Penn Treebank, for texts of separate dialogues.

NLTK's `word_tokenize` splits a text into sentences and applies its word rules to each, because those rules separate a
full stop from its word only at the end. Its sentence model needs a download, so sentences end by a simple rule here:
after a full stop, question or exclamation mark and white space, unless the stop belongs to an abbreviation of our list,
to an initial (`J.`) or to letters with stops between them (`U.S.`). The difference from `word_tokenize`: its model has
learned more abbreviations, and which words often begin a sentence, so that `U.S.` may end one. Full stops directly
followed by a letter are kept by both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from anaphor.data.text import Part, cut_after_blank_line, split_chunks, split_examples, split_unfinished_examples
from anaphor.data.tokenizer import UNKNOWN, Ids, ListedTokenizer

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
# No abbreviation is longer: only so many letters before a full stop are compared.
MAX_ABBREVIATION = 20
# Longer sentences are cut, because the cost of the rules grows faster than the length.
MAX_SENTENCE = 100_000


class Treebank(ListedTokenizer):
    """Each dialogue of a text begins with `<start>`; dialogues are separated by blank lines."""

    kind = "treebank"
    special: ClassVar[tuple[str, ...]] = (START, PAD, UNKNOWN)

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__(tokens)
        self.boundary, self.pad = self._ids[START], self._ids[PAD]
        self.unknown: int = self._ids[UNKNOWN]

    @classmethod
    def count(cls, text: str, *, is_last: bool = True) -> Counter[str]:
        # The rules separate `<` from what follows it, so no word of a text is written like a special token.
        counts: Counter[str] = Counter(dict.fromkeys(cls.special, 0))
        for dialogue in split_examples(text):
            counts.update(split_words(dialogue))
        return counts

    @classmethod
    def find_cut(cls, raw: bytes) -> int:
        return cut_after_blank_line(raw)

    def encode_part(self, part: Part, *, where: str = "the text", offset: int = 0) -> Ids:
        return self.encode(part.decode(where, offset))

    def encode(self, text: str) -> Ids:
        examples = [self.encode_example(dialogue) for dialogue in split_examples(text)]
        return np.concatenate(examples) if examples else np.empty(0, np.int32)

    def encode_example(self, text: str) -> Ids:
        """One dialogue, after `<start>`."""
        return np.array([self.boundary, *self._encode_words(text)], np.int32)

    def encode_sentence(self, text: str) -> Ids:
        """A newline is white space; a new dialogue begins after a blank line."""
        first, *others = split_unfinished_examples(text)
        ids = self._encode_words(first)
        for dialogue in others:
            ids += [self.boundary, *self._encode_words(dialogue)]
        return np.array(ids, np.int32)

    def parts(self, text: str) -> Iterable[str]:
        return split_words(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Tokens joined by single spaces."""
        return " ".join(self.tokens[number] for number in ids)

    def _encode_words(self, dialogue: str) -> list[int]:
        return [self._ids.get(word, self.unknown) for word in split_words(dialogue)]


def split_words(text: str) -> Iterator[str]:
    """Words and punctuation of one dialogue; full stops inside it are separated from their words, too."""
    rules = load_word_rules()
    for sentence in split_sentences(text):
        for chunk in split_chunks(sentence, MAX_SENTENCE):
            yield from rules.tokenize(chunk)


def split_sentences(text: str) -> Iterator[str]:
    """The text split after each sentence."""
    start = 0
    for stop in _STOP.finditer(text):
        if text[stop.start()] != "." or not _is_abbreviation(text, start, stop.start()):
            yield text[start : stop.end()]
            start = stop.end()
    yield text[start:]


def _is_abbreviation(text: str, start: int, stop: int) -> bool:
    last = _LAST_WORD.search(text, max(start, stop - MAX_ABBREVIATION), stop)
    word = last.group() if last else ""
    if word == "I":
        return False
    # After another stop these are dots, not the end of a sentence.
    return word.endswith(".") or _INITIALS.fullmatch(word) is not None or word.lower() in ABBREVIATIONS


@cache
def load_word_rules() -> Any:
    """NLTK's word tokenizer, which needs no download."""
    from nltk.tokenize.destructive import NLTKWordTokenizer  # here, because it takes a while

    return NLTKWordTokenizer()

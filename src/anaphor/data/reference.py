"""The Python language reference, which ships inside every CPython: real prose without network or disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from anaphor.data.source import SPLITS, TEST, TRAIN, VALID, Source

# Lines that follow each other stay together, so that a line of valid or test seldom has its neighbours in train.
PAGE = 10
# Of twenty pages eighteen are train: 90/5/5, spread over the whole text because its topics differ so much.
ROUND = (*[TRAIN] * 9, VALID, *[TRAIN] * 9, TEST)

_PARAGRAPH = re.compile(r"\n\s*\n")
_BULLET = re.compile(r"^(?:\*|\d+\.|\[\d+\]|[-–])\s+")
# Words keep what joins their parts; every other sign stands alone, as in WikiText, so that white space finds words.
_TOKEN = re.compile(r"\w+(?:[-.'’]\w+)*|[^\w\s]")
# Tables, grammar productions, underlines of headings and sessions with the interpreter are no prose.
_NO_PROSE = re.compile(r"::=|^[+|]|^[*=~-]{3,}$|^>>>|^\.\.\.\s", re.MULTILINE)
SHORTEST = 6


class PythonReference(Source):
    """One paragraph a line, each of them once. Another version of Python has another text, and so another digest."""

    name = "python-reference"
    splits = SPLITS

    def read(self, split: str) -> bytes:
        return self._parts[self.check(split)]

    @cached_property
    def _parts(self) -> dict[str, bytes]:
        parts: dict[str, list[str]] = {split: [] for split in SPLITS}
        for number, line in enumerate(prose()):
            parts[ROUND[number // PAGE % len(ROUND)]].append(line)
        return {split: "".join(f"{line}\n" for line in lines).encode() for split, lines in parts.items()}


def prose() -> list[str]:
    """The paragraphs of all topics, without repetition: many topics are parts of other topics."""
    from pydoc_data.topics import topics

    return list(dict.fromkeys(line for name in sorted(topics) for line in paragraphs(topics[name])))


def paragraphs(topic: str) -> Iterator[str]:
    """Sentences of one topic, each paragraph on a line; code, tables and grammar left out."""
    after_colon = False
    for block in _PARAGRAPH.split(topic):
        lines = block.strip("\n").splitlines()
        plain = "\n".join(line.strip() for line in lines)
        # Code stands indented after a colon.
        code = after_colon and all(line.startswith("   ") for line in lines) and not _BULLET.match(plain)
        if not code:
            after_colon = plain.endswith(":")
        if code or _NO_PROSE.search(plain):
            continue
        words = _TOKEN.findall(_BULLET.sub("", plain).replace("*", "").replace('"', ""))
        # Whatever does not end like a sentence is a heading or a signature.
        if len(words) >= SHORTEST and (words[-1] in {".", ":", ";", "?", "!"} or words[-2:] == [".", ")"]):
            yield " ".join(words)

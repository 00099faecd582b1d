"""Words of command lines, where a flag may be given once only."""

import re
from collections.abc import Sequence


def override(words: Sequence[str], *more: str) -> list[str]:
    """Words without the flags that come again in `more`, followed by `more`."""
    again = {_field(word) for word in more if word.startswith("--")}
    kept, dropping = [], False
    for word in words:
        if word.startswith("--"):
            dropping = _field(word) in again
        if not dropping:
            kept.append(word)
    return [*kept, *more]


START_LINE = re.compile(r"training [\w-]+: (?:model|layers) |[\d,]+ parameters on ")


def without_start_lines(text: str) -> list[str]:
    """Lines on stderr without those that say what is trained."""
    return [line for line in text.splitlines() if not START_LINE.match(line)]


def _field(word: str) -> str:
    name = word.partition("=")[0][2:].replace("_", "-")
    return name if name == "no-test" else name.removeprefix("no-")

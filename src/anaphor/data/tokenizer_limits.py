"""Limits for a `tokenizer.json` that came from elsewhere, and for what the library of tokenizers does with it.

The file is a program: ids may be as large as memory, replacements may multiply a text, an expression may search for
hours, and what its authors did not foresee ends the whole process. So the file is checked, then loaded once in a
process of its own, and calls that search with expressions of the file have a time limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, cast

from anaphor.errors import DataError

MAX_CHARACTERS = 200_000_000
"""Of the file; the largest that are published have a tenth of this."""
MAX_GAP = 100_000
"""Ids may be so much larger than twice the number of tokens."""
MAX_GROWTH = 100
"""How many times as long a text may become by replacements."""
MAX_DEPTH = 64
LOAD_SECONDS = 60
"""To load the file in a process of its own."""
SECONDS, CHARACTERS_PER_SECOND = 10.0, 20_000
"""A call with expressions of the file may take so long, and longer for long texts. They take a hundredth of this."""

# A limit of memory for the process would have to know how much a thread of the library reserves.
_PROBE = """
import sys
try:
    import resource
except ImportError:  # Windows; the time limit of the caller holds there, too
    pass
else:
    resource.setrlimit(resource.RLIMIT_CPU, (%d, %d))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_str(sys.stdin.buffer.read().decode())
tokenizer.no_truncation()
tokenizer.no_padding()
tokenizer.encode("")
try:
    tokenizer.decode(tokenizer.encode("A text, with 12 words:\\n the naïve one, \\u4e2d\\u6587.").ids)
except Exception:
    pass
print("ok")
"""

T = TypeVar("T")


def check_tokenizer_json(text: str, where: str) -> None:
    """Raise for a file that the library could not load, or whose use would have no bounds."""
    if len(text) > MAX_CHARACTERS:
        raise DataError(f"{where} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_readable(where, str(error)) from None
    if not isinstance(plain, dict):
        raise _not_readable(where, "it does not hold names and values")
    ids = list(_ids_of(plain))
    if ids and max(ids) > 2 * len(ids) + MAX_GAP:
        raise DataError(f"{where} has {len(ids):,} tokens, and one with the id {max(ids):,}: ids must be without gaps")
    for part in ("normalizer", "decoder"):
        growth = _growth_of(plain.get(part), where)
        if growth > MAX_GROWTH:
            raise DataError(
                f"{where}: the replacements of its {part} make a text up to {min(growth, 1e15):,.0f} times as long; at "
                f"most {MAX_GROWTH} times are allowed"
            )
    _probe(text, where)


def _not_readable(where: str, reason: str) -> DataError:
    return DataError(f"{where} is not a tokenizer of the tokenizers library: {' '.join(reason.split())[:200]}")


def _ids_of(plain: dict[str, Any]) -> Iterator[int]:
    model, added = plain.get("model"), plain.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    values = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary or ()))
    more = [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    yield from (number for number in (*values, *more) if isinstance(number, int))


def _growth_of(part: Any, where: str, depth: int = 0) -> float:
    """How many times as long a text may become by the replacements of a part and of all parts in it."""
    if depth > MAX_DEPTH:
        raise DataError(f"{where} has more than {MAX_DEPTH} levels of nesting")
    if not isinstance(part, dict):
        return 1.0
    growth = 1.0
    if part.get("type") == "Replace":
        content, pattern = part.get("content"), part.get("pattern")
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        added = len(content) if isinstance(content, str) else 0
        # An expression, or an empty text, may be found between all characters.
        growth = max(1.0, added / len(literal)) if isinstance(literal, str) and literal else 1.0 + added
    for values in part.values():
        for value in values if isinstance(values, list) else ():
            growth = min(growth * _growth_of(value, where, depth + 1), 1e300)
    return growth


@cache
def _probe(text: str, where: str) -> None:
    """Load the file in a process of its own, which may be aborted by it."""
    code = _PROBE % (LOAD_SECONDS, LOAD_SECONDS)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], input=text.encode("utf-8", "replace"), capture_output=True,
            timeout=LOAD_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _not_readable(where, f"loading it takes longer than {LOAD_SECONDS} seconds") from None
    if done.stdout.strip() == b"ok":
        return
    lines = done.stderr.decode(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "") if done.returncode == 1 else ""
    raise _not_readable(where, said.partition(": ")[2] or "loading it ends the process")


def has_expressions(text: str) -> bool:
    """Whether a file has regular expressions of its own."""
    return '"Regex"' in text


def call_library(call: Callable[[], T], where: str) -> T:
    """The result of a call. A panic of the library, which is no Exception, becomes an error."""
    try:
        return call()
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise DataError(f"{where} fails on this text: {' '.join(str(error).split())[:200]}") from None
        raise


def call_with_limit(call: Callable[[], T], length: int, where: str) -> T:
    """The same for a call that searches a text of so many characters: it has a time limit. The call must be one that
    lets other threads run; one that does not end in time is left to itself."""
    found = list[Any]()

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    with _silent_panics():
        thread.start()
        thread.join(SECONDS + length / CHARACTERS_PER_SECOND)
    if not found:
        raise DataError(f"{where}: its regular expressions take too long on this text")
    result, error = found[0]
    if error is not None:
        call_library(lambda: _raise(error), where)
    return cast(T, result)


def _raise(error: BaseException) -> Any:
    raise error


@contextmanager
def _silent_panics() -> Iterator[None]:
    """Inside the block nothing is written to stderr: the library prints a stack there before it raises a panic."""
    try:
        before = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)

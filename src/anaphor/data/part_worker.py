"""A process that works on parts of a text for `parallel_parts`: `python -P -m anaphor.data.part_worker`.

Requests come on standard input: a line of JSON, then so many bytes. The first one says what is to be done. Answers go
to standard output in the same form; arrays are raw numbers. It imports no torch, and ends when its input does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anaphor.config import look_up
from anaphor.data.dataset import split_units
from anaphor.data.labels import number_labels
from anaphor.data.text import Part, split_examples
from anaphor.data.tokenizer import ListedTokenizer, Tokenizer, tokenizer_from_plain
from anaphor.errors import AnaphorError, DataError
from anaphor.registry import TOKENIZERS


@dataclass(frozen=True)
class Answer:
    """What became of a part."""

    arrays: list[NDArray[Any]] = field(default_factory=list)
    facts: dict[str, int] = field(default_factory=dict)
    """Counts that are added up."""


Work = Callable[[Part], Answer]


def make_work(setup: Mapping[str, Any]) -> Work:
    """The function that a description in plain JSON names."""
    makers: dict[str, Callable[[Mapping[str, Any]], Work]] = {
        "encode": Encode,
        "count": Count,
        "examples": EncodeExamples,
        "digests": Digests,
        "pairs": EncodePairs,
        "texts": EncodeTexts,
        "row digests": RowDigests,
    }
    return makers[setup["work"]](setup)


class Encode:
    """The tokens of a part of a stream."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer_from_plain(setup["tokenizer"])
        self.where, self.offset = setup["where"], setup["offset"]
        self.kind = token_type(self.tokenizer)

    def __call__(self, part: Part) -> Answer:
        ids = self.tokenizer.encode_part(part, where=self.where, offset=self.offset)
        return Answer([ids.astype(self.kind)], {"unknowns": count_unknown(ids, self.tokenizer)})


class EncodeExamples(Encode):
    """The tokens of the examples of a part, each after a boundary; then the size of each example in tokens, and its
    size as UTF-8."""

    def __call__(self, part: Part) -> Answer:
        tokenizer = self.tokenizer
        examples = split_examples(tokenizer.part_as_text(part, where=self.where, offset=self.offset))
        ids = [np.concatenate(([tokenizer.boundary], tokenizer.encode_sentence(example))) for example in examples]
        sizes = [len(example.encode("utf-8", "surrogateescape")) for example in examples]
        tokens = np.concatenate(ids) if ids else np.empty(0, np.int64)
        counts = np.array([len(one) for one in ids], np.int64)
        return Answer([tokens.astype(self.kind), counts, np.array(sizes, np.int64)])


class EncodePairs:
    """The tokens of sentence pairs, which come as JSON: sources, targets with a boundary before and after each; sizes
    and unknown tokens of both, the size of the targets as UTF-8 with their line ends, and the line numbers."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.tokenizers = [tokenizer_from_plain(plain) for plain in setup["tokenizers"]]
        self.where = setup["where"]

    def __call__(self, part: Part) -> Answer:
        lines, rows, blank = json.loads(part.raw)
        columns = list(zip(*rows, strict=True))
        tokens, counts = [], []
        for side, (texts, tokenizer, where) in enumerate(zip(columns, self.tokenizers, self.where, strict=True)):
            ids = [tokenizer.encode_sentence(text) for text in texts]
            for number, one in zip(lines, ids, strict=True):
                _check_sentence(one, tokenizer, f"line {number} of {where}")
            ends = np.array([tokenizer.boundary] if side else [], np.int32)
            tokens.append(np.concatenate([part for one in ids for part in (ends, one, ends)]))
            counts += [[len(one) for one in ids], [count_unknown(one, tokenizer) for one in ids]]
        sizes = [len(text.encode()) + 1 for text in columns[1]]
        kinds = [token_type(tokenizer) for tokenizer in self.tokenizers]
        arrays = [one.astype(kind) for one, kind in zip(tokens, kinds, strict=True)]
        numbers = [np.array(one, np.int64) for one in (*counts, sizes, lines)]
        return Answer([*arrays, *numbers], {"blank": blank})


def _check_sentence(ids: NDArray[Any], tokenizer: Tokenizer, where: str) -> None:
    if not len(ids):
        raise DataError(f"{where} holds no token")
    if tokenizer.boundary in ids:
        token = tokenizer.tokens[tokenizer.boundary]
        raise DataError(f"{where} contains {token!r}, which marks the end of a sentence")


class EncodeTexts:
    """The tokens of labeled texts, which come as JSON; how many each has, the number of its class, and whether it was
    truncated."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer_from_plain(setup["tokenizer"])
        self.classes, self.length, self.where = setup["classes"], setup["length"], setup["where"]

    def __call__(self, part: Part) -> Answer:
        lines, rows, _ = json.loads(part.raw)
        labels = number_labels([label for _, label in rows], lines, self.classes, self.where)
        found = [self.tokenizer.encode_truncated(text, self.length) for text, _ in rows]
        tokens = np.concatenate([ids for ids, _ in found]).astype(token_type(self.tokenizer))
        sizes = np.array([len(ids) for ids, _ in found], "<u4")
        return Answer([tokens, sizes, np.array(labels, "<u4"), np.array([cut for _, cut in found], "<u1")])


class Count:
    """The tokens of a part in the order of their first appearance, as lines of JSON strings, and how often each one
    occurs."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.tokenizer: type[ListedTokenizer] = look_up(TOKENIZERS, setup["kind"], "tokenizer")
        self.where, self.offset = setup["where"], setup["offset"]

    def __call__(self, part: Part) -> Answer:
        counts = self.tokenizer.count(part.decode(self.where, self.offset), is_last=part.is_last)
        names = np.frombuffer(json.dumps(list(counts)).encode(), np.uint8)
        return Answer([names, np.fromiter(counts.values(), np.int64, len(counts))])


class Digests:
    """A number of 64 bits for each line, or example, of a part."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.separator = setup["separator"].encode()

    def __call__(self, part: Part) -> Answer:
        return Answer([_digests(split_units(part.raw, self.separator))])


class RowDigests:
    """A number of 64 bits for each row, which come as JSON."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        pass

    def __call__(self, part: Part) -> Answer:
        _, rows, _ = json.loads(part.raw)
        return Answer([_digests(json.dumps(row).encode() for row in rows)])


def _digests(units: Iterable[bytes]) -> NDArray[Any]:
    return np.frombuffer(b"".join(hashlib.blake2b(unit, digest_size=8).digest() for unit in units), "<i8")


def token_type(tokenizer: Tokenizer) -> str:
    """The smallest type for all ids of a tokenizer."""
    return "<u1" if len(tokenizer) <= 1 << 8 else "<u2" if len(tokenizer) <= 1 << 16 else "<u4"


def count_unknown(ids: NDArray[Any], tokenizer: Tokenizer) -> int:
    """How many tokens are unknown."""
    return 0 if tokenizer.unknown is None else int(np.count_nonzero(ids == tokenizer.unknown))


def write_message(stream: BinaryIO, header: Mapping[str, Any], *contents: bytes | memoryview) -> None:
    """A line of JSON with the sizes of what follows it."""
    line = json.dumps({**header, "sizes": [len(content) for content in contents]})
    stream.write(f"{line}\n".encode())
    for content in contents:
        stream.write(content)
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]] | None:
    """The next message; None at the end."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    header = json.loads(line)
    contents = [stream.read(size) for size in header["sizes"]]
    return (header, contents) if [len(content) for content in contents] == header["sizes"] else None


def write_part(stream: BinaryIO, part: Part) -> None:
    """A part as a request."""
    write_message(stream, {"offset": part.offset, "is_last": part.is_last}, part.raw)


def read_answer(stream: BinaryIO) -> Answer:
    """The answer to a request, or the error that it raised."""
    message = read_message(stream)
    if message is None:
        raise DataError("a process that tokenizes has ended, perhaps because memory was short: start again to resume")
    header, contents = message
    if "error" in header:
        raise DataError(header["error"])
    pairs = zip(contents, header["types"], strict=True)
    return Answer([np.frombuffer(content, kind) for content, kind in pairs], header["facts"])


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until there are no more."""
    first = read_message(source)
    if first is None:
        return
    work = make_work(first[0]["setup"])
    while (message := read_message(source)) is not None:
        header, (raw,) = message
        try:
            answer = work(Part(raw, header["offset"], header["is_last"]))
        except AnaphorError as error:
            write_message(sink, {"error": str(error)})
            continue
        arrays = [np.ascontiguousarray(array) for array in answer.arrays]
        facts = {"types": [array.dtype.str for array in arrays], "facts": answer.facts}
        write_message(sink, facts, *(array.tobytes() for array in arrays))


def main() -> None:
    """Serve the process that started this one, which also decides what Ctrl-C does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(1)  # nobody reads it any more


if __name__ == "__main__":
    main()

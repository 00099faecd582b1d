"""A tokenizer of words and punctuation, as sheet 002 has it: train, encode and decode.

Which token has which id is the student's choice. So ids are compared by which of them are equal: those of the training
text and of the text after it, numbered in the order in which they appear.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.errors import ConfigError

CALL = (
    "Tokenizer() with train(text), encode(text) -> ids that begin with that of <start>, decode(ids) -> the tokens with "
    "a space between; words and punctuation are tokens, unknown ones become <unk>"
)
TRAINS = ("train", "fit", "build_vocab", "build_vocabulary", "train_from_text", "build", "learn")
LINES = ("texts", "lines", "sentences", "corpus", "dialogues", "documents", "docs", "all_dialogues", "examples")
"""Names of an argument that gets a list of lines instead of one text."""
WORDS = ("vocab", "vocabulary", "words", "tokens", "word_list", "all_words", "vocab_list")
"""Names of one that gets the words."""
START, PAD, UNKNOWN = "<start>", "<pad>", "<unk>"
SPECIAL = {
    START: r"start|bos|begin|sos|cls|^<s>$|^\[s\]$",
    PAD: r"pad",
    UNKNOWN: r"unk|oov|unknown",
    "<end>": r"end|eos|sep|^</s>$",
}
EXPECTED_ERRORS = (KeyError, IndexError, ValueError)
"""What a vocabulary raises for a word that it does not have."""


def run_tokenizer(target: Any, case: Case, sizes: Sizes) -> Outputs:
    """A text encoded and decoded by a tokenizer that was trained on another."""
    text, lines, new = "\n".join(case.inputs["lines"]), case.inputs["lines"], case.inputs["text"]
    tokenizer = _train(target, text, lines)
    first = _as_list(tokenizer.encode(text))
    try:
        encoded = tokenizer.encode(new)
        second = _as_list(encoded)
    except EXPECTED_ERRORS as error:
        if case.inputs["has_unknown"]:
            return {"ids": f"raises {'KeyError' if isinstance(error, KeyError) else 'an error'}"}
        raise
    kind = "ids" if all(isinstance(one, int) for one in (*first, *second)) else "tokens"
    outputs: Outputs = {"ids": _number(first, second), "kind": kind}
    if kind == "ids":
        outputs["range"] = max(first, default=0) < len({*first, *second}) + 6 and min((*first, *second), default=0) >= 0
        pad = _find_pad(tokenizer)
        if pad is not None:
            outputs["pad"] = pad not in {*first, *second}
    decoded = tokenizer.decode(encoded)
    outputs["text"] = _plain(decoded) if isinstance(decoded, str) else _as_list(decoded)
    return outputs


def _train(target: Any, text: str, lines: Sequence[str]) -> Any:
    """A tokenizer, trained by its method or by its constructor."""
    if not isinstance(target, type):
        raise ConfigError(f"{getattr(target, '__name__', 'it')} must be a class: {CALL}")
    for name in ("encode", "decode"):
        if not callable(getattr(target, name, None)):
            raise ConfigError(f"{target.__name__} has no method {name}; expected: {CALL}")
    method = next((name for name in TRAINS if callable(getattr(target, name, None))), None)
    required = [
        one.name
        for one in inspect.signature(target).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if method is None or inspect.ismethod(getattr(target, method)):  # a class method makes the tokenizer
        make = target if method is None else getattr(target, method)
        return _call_with_text(make, text, lines, target.__name__)
    if required:
        raise ConfigError(f"{target.__name__}({', '.join(required)}) has other arguments than expected: {CALL}")
    tokenizer = target()
    trained = _call_with_text(getattr(tokenizer, method), text, lines, f"{target.__name__}.{method}")
    return trained if hasattr(trained, "encode") else tokenizer


def _call_with_text(function: Callable[..., Any], text: str, lines: Sequence[str], name: str) -> Any:
    parameters = [*inspect.signature(function).parameters.values()]
    required = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if len(required) != 1:
        listed = ", ".join(one.name for one in parameters)
        raise ConfigError(f"{name}({listed}) has other arguments than expected: {CALL}")
    (one,) = required
    if one.name in WORDS:
        return function([*dict.fromkeys(word for line in lines for word in split_words(line))])
    wants_list = one.name in LINES or re.search(r"list|sequence|iter", str(one.annotation).lower()) is not None
    return function([*lines] if wants_list else text)


def _as_list(values: Any) -> list[Any]:
    if isinstance(values, Tensor):
        values = values.tolist()
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple):
        raise TypeError(f"encode returned {type(values).__name__}; expected a list of ids")
    return [int(one) if hasattr(one, "item") else one for one in values]


def _number(first: Sequence[Any], second: Sequence[Any]) -> list[int]:
    """The second list, its ids numbered as they appear in both."""
    seen: dict[Any, int] = {}
    numbers = [seen.setdefault(one, len(seen)) for one in (*first, *second)]
    return [*numbers[: len(first)], -1, *numbers[len(first) :]]


def _find_pad(tokenizer: Any) -> int | None:
    """The id of the padding, where the tokenizer says it."""
    for name in ("pad", "pad_id", "pad_idx", "pad_index", "pad_token_id", "PAD", "pad_token_idx"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _plain(text: str) -> str:
    """A decoded text, with our names for special tokens."""
    tokens = text.split(" ")
    for number, token in enumerate(tokens):
        if re.fullmatch(r"[<\[{|].*[>\]}|]|[A-Z_]{3,}_TOKEN", token):
            tokens[number] = next((ours for ours, words in SPECIAL.items() if re.search(words, token.lower())), UNKNOWN)
    return " ".join(tokens)


def split_words(text: str) -> list[str]:
    """Words and punctuation; the texts of the cases have nothing on which ways to split differ."""
    return re.findall(r"\w+|[^\w\s]", text)


def number_by_first(words: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(words)]


def number_by_count(words: Sequence[str]) -> list[str]:
    return [word for word, _ in Counter(words).most_common()]


def number_sorted(words: Sequence[str]) -> list[str]:
    return sorted({*words})


@dataclass(frozen=True)
class TokenizerRules:
    """Steps of a tokenizer of words."""

    split: Callable[[str], list[str]] = split_words
    order: Callable[[Sequence[str]], list[str]] = number_by_first
    vocabulary: Callable[[list[str], Sequence[str]], list[str]] = field(default=lambda listed, words: listed)
    """What is kept of the words that were listed."""
    offset: int = 3
    """The id of the first word: after <start>, <pad> and <unk>."""
    has_gaps: bool = False
    unknown: str = UNKNOWN
    """What becomes of an unknown word: <unk>, <pad>, '' for nothing, 'new' for an id of its own, 'error'."""
    frame: Callable[[list[int]], list[int]] = field(default=lambda ids: [0, *ids])
    kind: str = "ids"
    shows: tuple[str, ...] = (START, UNKNOWN)
    """The special tokens that decoding shows."""
    join: Callable[[list[str]], Any] = " ".join
    is_free: bool = True
    """Whether the padding has an id of its own."""


def compute_tokenizer(w: Weights, inputs: Mapping[str, Any], rules: TokenizerRules) -> Outputs:
    text, new = "\n".join(inputs["lines"]), inputs["text"]
    words = rules.split(text)
    listed = rules.vocabulary(rules.order(words), words)
    ids = {word: number + rules.offset for number, word in enumerate(listed)}
    special = {START: 0, PAD: 1, UNKNOWN: 2, "<end>": 1000}
    names = {number: word for word, number in {**special, **ids}.items()}

    def look_up(word: str) -> int | None:
        if word not in ids and rules.unknown == "new":
            ids[word] = 2000 + len(ids)
            names[ids[word]] = word
        return ids.get(word, special.get(rules.unknown))

    found = []
    for one in (text, new):
        numbers = [look_up(word) for word in rules.split(one)]
        if None in numbers and rules.unknown == "error":
            return {"ids": "raises KeyError"}
        found.append(rules.frame([number for number in numbers if number is not None]))
    shown = [names[number] for number in found[1]]
    shown = [token for token in shown if token not in special or token in rules.shows or token == "<end>"]
    return {
        "ids": _number(*found),
        "kind": rules.kind,
        "range": not rules.has_gaps,
        "pad": rules.is_free and special[PAD] not in {*found[0], *found[1]},
        "text": rules.join(shown),
    }


def tokenizer_cases(sizes: Sizes) -> list[Case]:
    lines = [
        "ROMEO: what is the day, what is the night?",
        "JULIET: the Night is a day; the day, a Night!",
        "ROMEO: a day is a day - what a day, what a dream!",
        "JULIET: dream, dream, dream the night is what it is.",
    ]
    return [
        Case("of known words", {"lines": lines, "text": "JULIET: what a night, ROMEO!", "has_unknown": False},
             "of known words"),
        Case("with unknown words", {"lines": lines, "text": "what is day? the castle is a dream, the Nurse a cloud.",
                                    "has_unknown": True}, "with unknown words"),
        Case("of an empty text", {"lines": lines, "text": "", "has_unknown": False}, "of an empty text"),
    ]  # fmt: skip


def exchange_words(inputs: Mapping[str, Any], generator: Generator) -> dict[str, Any]:
    """The same texts with each word exchanged for another of them; capitals stay where they are."""
    texts = [*inputs["lines"], inputs["text"]]
    words: list[str] = sorted({word for text in texts for word in re.findall(r"\w+", text.lower())})
    order = torch.randperm(len(words), generator=generator).tolist()
    others: dict[str, str] = {word: words[number] for word, number in zip(words, order, strict=True)}

    def exchange(found: re.Match[str]) -> str:
        word: str = found[0]
        other = others[word.lower()]
        if word.isupper():
            return other.upper()
        return other.capitalize() if word.istitle() else other

    *lines, text = (re.sub(r"\w+", exchange, text) for text in texts)
    return {**inputs, "lines": lines, "text": text}


def _overlap(offset: int) -> tuple[Mistake, ...]:
    text = "words and special tokens share ids: the first word comes after all of <start>, <pad> and <unk>"
    return tuple(
        Mistake("ids-overlap", text, {"offset": offset, "order": order})
        for order in (number_by_first, number_sorted, number_by_count)
    )


def _frame(name: str, text: str, frame: Callable[[list[int]], list[int]]) -> Mistake:
    return Mistake(name, text, {"frame": frame})


TOKENIZER = Reference(
    name="Tokenizer",
    call=CALL,
    outputs=("ids", "text", "kind", "range", "pad"),
    arguments=(),
    sizes={},
    cases=tokenizer_cases,
    vary=exchange_words,
    compute=compute_tokenizer,
    run=run_tokenizer,
    takes_class=True,
    designs=(TokenizerRules(), TokenizerRules(shows=(UNKNOWN,))),
    mistakes=(
        _frame("start-missing", "the ids do not begin with that of <start>", lambda ids: ids),
        _frame("start-at-the-end", "<start> comes last; it comes first", lambda ids: [*ids, 0]),
        _frame("start-twice", "<start> is there twice", lambda ids: [0, 0, *ids]),
        _frame("end-added", "an end token is added; the sheet has <start> alone", lambda ids: [0, *ids, 1000]),
        _frame(
            "padded", "padding is added; batches are padded later", lambda ids: [0, *ids] + [1] * (64 - len(ids) - 1)
        ),
        _frame("reversed", "the ids come in reversed order", lambda ids: [0, *ids[::-1]]),
        Mistake(
            "punctuation-not-split",
            "the text is split at white space alone; punctuation is a token of its own",
            {"split": str.split},
        ),
        Mistake(
            "punctuation-lost",
            "punctuation is left out; it is a token of its own",
            {"split": lambda text: re.findall(r"\w+", text)},
        ),
        Mistake(
            "lower-cased",
            "the text is lower-cased; Night and night are two tokens",
            {"split": lambda text: split_words(text.lower())},
        ),
        Mistake("characters", "each character is a token; words and punctuation are", {"split": list}),
        Mistake(
            "characters",
            "each character is a token; words and punctuation are",
            {"split": lambda text: [one for one in text if not one.isspace()]},
        ),
        Mistake(
            "unknown-words-raise", "a word that is not in the vocabulary raises; it becomes <unk>", {"unknown": "error"}
        ),
        Mistake(
            "unknown-words-lost",
            "words that are not in the vocabulary are left out; they become <unk>",
            {"unknown": ""},
        ),
        Mistake(
            "unknown-as-padding",
            "words that are not in the vocabulary become <pad>; they become <unk>",
            {"unknown": PAD, "shows": (START, PAD, UNKNOWN)},
        ),
        Mistake(
            "unknown-as-start",
            "words that are not in the vocabulary become <start>; they become <unk>",
            {"unknown": START},
        ),
        Mistake(
            "vocabulary-grows",
            "encode adds words to the vocabulary; words that train has not seen become <unk>",
            {"unknown": "new"},
        ),
        Mistake(
            "rare-words-unknown",
            "words that occur once are left out of the vocabulary",
            {"vocabulary": lambda listed, words: [one for one in listed if Counter(words)[one] > 1]},
        ),
        *[
            Mistake(
                "words-lost",
                "one word of the training text is not in the vocabulary",
                {"vocabulary": cut, "order": order},
            )
            for order in (number_by_first, number_sorted, number_by_count)
            for cut in (lambda listed, words: listed[:-1], lambda listed, words: listed[1:])
        ],
        *_overlap(0),
        *_overlap(1),
        *_overlap(2),
        Mistake("pad-shares-an-id", "the id of the padding is that of another token", {"is_free": False}),
        Mistake(
            "ids-with-gaps",
            "ids are not 0, 1, 2, …: there are gaps, so that the embedding is too large or too small; "
            "number each word once",
            {"has_gaps": True},
        ),
        Mistake("returns-tokens", "encode returns the tokens; return their ids", {"kind": "tokens"}),
        Mistake("joined-without-space", "decode joins the tokens without a space", {"join": "".join}),
        Mistake("decodes-to-a-list", "decode returns a list of tokens; join them with a space", {"join": list}),
        Mistake(
            "joined-by-lines",
            "decode puts each token on a line of its own; join them with a space",
            {"join": "\n".join},
        ),
        Mistake(
            "space-at-the-end",
            "the decoded text ends with a space; put it between the tokens",
            {"join": lambda tokens: "".join(f"{one} " for one in tokens)},
        ),
        Mistake(
            "space-at-the-start",
            "the decoded text begins with a space; put it between the tokens",
            {"join": lambda tokens: "".join(f" {one}" for one in tokens)},
        ),
        Mistake("unknown-not-shown", "decode leaves <unk> out", {"shows": (START,)}),
        Mistake("unknown-not-shown", "decode leaves <unk> out", {"shows": ()}),
    ),
)

"""The tokenizer in a GGUF file as a `tokenizer.json` of the library `tokenizers`.

The file has tokens, their types and merges or scores, and the name of the rule that splits a text into words; the rule
itself is part of the program that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anaphor.config import MAX_VOCABULARY
from anaphor.errors import DataError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""
MAX_TOKEN = 1000
"""Characters of the longest token of a vocabulary with scores: it is split at every place to find its merges."""
SPACE = "▁"
SEPARATOR = "<|endoftext|>"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(expression: str) -> dict[str, Any]:
    pattern = {"Regex": expression}
    splitting = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [splitting, {**_BYTE_LEVEL, "use_regex": False}]}


_DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]}
_LLAMA3 = {"pre_tokenizer": _split(_WORDS % r"\p{N}{1,3}"), "ignore_merges": True, "add_bos": True}
BYTE_LEVEL_RULES: Mapping[str, Mapping[str, Any]] = {
    "gpt-2": {"pre_tokenizer": _BYTE_LEVEL},
    "smollm": {"pre_tokenizer": _DIGITS},
    "starcoder": {"pre_tokenizer": _DIGITS},
    "qwen2": {"pre_tokenizer": _split(_WORDS % r"\p{N}"), "normalizer": {"type": "NFC"}},
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}
"""How a text is split into words, by `tokenizer.ggml.pre`."""


def tokenizer_json(metadata: Mapping[str, Any], file: Path) -> str:
    """The tokenizer that the metadata of a file describe."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = read_tokens(metadata, file)
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise DataError(
            f"{file}: its tokenizer has {len(tokens):,} tokens, but token_type has another number of values"
        )
    if kind == "gpt2":
        plain = _byte_level(metadata, tokens, types, file)
    elif kind == "llama":
        plain = _sentencepiece(metadata, tokens, types, file)
    else:
        raise DataError(f"{file}: tokenizer.ggml.model={_quote(kind)} cannot be converted; known: gpt2, llama")
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, **plain}, ensure_ascii=False)


def read_tokens(metadata: Mapping[str, Any], file: Path) -> list[str]:
    """The tokens in the order of their ids."""
    tokens = _texts(metadata, "tokenizer.ggml.tokens", file)
    if not tokens or len(tokens) > MAX_VOCABULARY:
        raise DataError(f"{file}: its tokenizer has {len(tokens):,} tokens; 1 to {MAX_VOCABULARY:,} are read")
    return tokens


def token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of special tokens as a `config.json` has them. Where no token is put before a text, the one is taken for it
    that was between the texts of training: the first token of a chat would make others of them unlikely."""
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{own}_token_id") for name, own in names.items()}
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    if metadata.get("tokenizer.ggml.add_bos_token") is False and SEPARATOR in tokens:
        ids["bos_token_id"] = tokens.index(SEPARATOR)
    return {name: number for name, number in ids.items() if number is not None}


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Tokens after which a text has ended: the one that the file names, and those whose names say so."""
    named = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    known = (SEPARATOR, "<|end_of_text|>", "<|eot_id|>", "<|im_end|>")
    found = [number for number in named if type(number) is int]
    return list(dict.fromkeys([*found, *(tokens.index(name) for name in known if name in tokens)]))


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], file: Path) -> dict[str, Any]:
    """As GPT-2: the merges of bytes, each of which is written as a visible character."""
    name = metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in BYTE_LEVEL_RULES:
        known = ", ".join(BYTE_LEVEL_RULES)
        raise DataError(f"{file}: tokenizer.ggml.pre={_quote(name)} cannot be converted; known: {known}")
    rule = BYTE_LEVEL_RULES[name]
    merges = [merge.split(" ") for merge in _texts(metadata, "tokenizer.ggml.merges", file)]
    broken = next((number for number, merge in enumerate(merges) if len(merge) != 2), None)
    if broken is not None:
        raise DataError(f"{file}: merge {broken:,} of its tokenizer is not a pair: {_quote(' '.join(merges[broken]))}")
    model = {"ignore_merges": rule.get("ignore_merges", False)}
    return {
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": rule.get("normalizer"),
        "pre_tokenizer": rule["pre_tokenizer"],
        "post_processor": _template(metadata, tokens, add_bos=rule.get("add_bos", False)),
        "decoder": _BYTE_LEVEL,
        "model": _bpe(_vocabulary(tokens, types), merges, None, model),
    }


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], file: Path
) -> dict[str, Any]:
    """As Llama 2: the pair is merged whose result has the highest score; characters without a token become bytes."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise DataError(f"{file}: its tokenizer has {len(tokens):,} tokens, but scores has another number of values")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN:
        raise DataError(f"{file}: its tokenizer has a token of {longest:,} characters; at most {MAX_TOKEN:,} are read")
    vocabulary = _vocabulary(tokens, types)
    number = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    unknown = tokens[number] if type(number) is int and 0 <= number < len(tokens) else tokens[0]
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    scheme = "first" if has_prefix else "never"
    steps = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    steps += [{"type": "Fuse"}, *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else [])]
    pieces = {token: scores[number] for token, number in vocabulary.items() if types[number] in (NORMAL, USER_DEFINED)}
    model = {"fuse_unk": True, "byte_fallback": True}
    return {
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False},
        "post_processor": _template(metadata, tokens, add_bos=True),
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _bpe(vocabulary, _merges_of(pieces, vocabulary), unknown, model),
    }


def _merges_of(scores: Mapping[str, float], vocabulary: Mapping[str, int]) -> list[list[str]]:
    """Every pair of pieces whose concatenation is one, the highest score first."""
    found = []
    for piece, score in scores.items():
        places = range(1, len(piece))
        pairs = [(piece[:at], piece[at:]) for at in places if piece[:at] in scores and piece[at:] in scores]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(-score, pair) for pair in pairs]
    found.sort(key=lambda merge: merge[0])
    return [list(pair) for _, pair in found]


def _bpe(
    vocabulary: Mapping[str, int], merges: list[list[str]], unknown: str | None, options: Mapping[str, bool]
) -> dict[str, Any]:
    plain = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **options}
    empty = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {"type": "BPE", **empty, "unk_token": unknown, **plain, "vocab": vocabulary, "merges": merges}


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Ids of the tokens, without those that fill up the table of embeddings."""
    return {token: number for number, token in enumerate(tokens) if types[number] != UNUSED}


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens that are found in a text before it is split into words."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": token, **plain, "special": kind != USER_DEFINED}
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
    ]


def _template(metadata: Mapping[str, Any], tokens: Sequence[str], *, add_bos: bool) -> dict[str, Any] | None:
    """Special tokens around a text."""
    names = []
    for name, default in (("bos", add_bos), ("eos", False)):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        is_added = metadata.get(f"tokenizer.ggml.add_{name}_token", default) is True
        names.append(tokens[number] if is_added and type(number) is int and 0 <= number < len(tokens) else None)
    if names == [None, None]:
        return None

    def around(text: str, kind: int) -> list[dict[str, Any]]:
        special = [None if name is None else {"SpecialToken": {"id": name, "type_id": kind}} for name in names]
        parts = [special[0], {"Sequence": {"id": text, "type_id": kind}}, special[1]]
        return [part for part in parts if part is not None]

    used = {name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in names if name is not None}
    single, pair = around("A", 0), [*around("A", 0), *around("B", 1)]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": used}


def _texts(metadata: Mapping[str, Any], name: str, file: Path) -> list[str]:
    values = metadata.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{file} lacks {name}, the list of texts that its tokenizer consists of")
    return values


def _quote(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 100 else f"{shown[:99]}…"

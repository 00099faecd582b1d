"""YAML files: plain names and values, read within bounds, so that no file can hang the program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError
from anaphor.user_paths import user_path

MAX_FILE_BYTES = 1_000_000
"""Bytes of a YAML file; a larger one is refused before it is parsed."""
MAX_VALUES = 100_000
"""Values in a YAML text, each alias counted as what it stands for."""
MAX_DEPTH = 100
"""Levels of nesting in a YAML text; a file of ours has five."""
MAX_FAST_DEPTH = 1_000
"""Levels of nesting that a YAML text may have to be read by the parser in C, which would overflow its stack."""
MAX_INTEGER_DIGITS = 100
"""Digits of a whole number in a YAML text; of more than 4,300 Python makes no text."""


EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
"""A number that YAML 1.1 takes for a text."""


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Names and values as text, in their order."""
    import yaml

    dumped = yaml.dump(dict(values), Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=120)
    return str(dumped)


def read_mapping(path: Path) -> dict[str, Any]:
    """The names and values of a YAML file, or an error of one line."""
    import yaml

    path = user_path(path)
    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has {size:,} bytes; a spec has at most {MAX_FILE_BYTES:,}")
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{path} {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date or a number that is none is a ValueError
        raise ConfigError(f"{path} is not a plain YAML file: {_reason(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path} must hold `name: value` lines, but it is a {type(values).__name__}")
    return values


def parse_yaml(text: str) -> Any:
    """What YAML makes of a text. `3e-4` is a number: YAML 1.1 would have it written 3.0e-4.

    The parser in C takes a fifth of the time of that in Python. It has no limit of its own for nesting, so that a text
    that may be nested deeply is left to the other one, and so is a text with an error, for the message.
    """
    import yaml

    # Each level of nesting takes one of these characters.
    if hasattr(yaml, "CSafeLoader") and sum(map(text.count, "[{-?:")) <= MAX_FAST_DEPTH:
        try:
            return _construct(_loader(yaml.CSafeLoader), text)
        except (yaml.YAMLError, ValueError):
            pass
    return _construct(_loader(yaml.SafeLoader), text)


def _construct(kind: Any, text: str) -> Any:
    loader = kind(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_nodes(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


@cache
def _loader(kind: Any) -> Any:
    loader: Any = type("Loader", (kind,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))
    return loader


@cache
def _dumper() -> Any:
    """It puts a text into quotes that the loader would take for a number: `1e5`."""
    import yaml

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))
    return dumper


def _reason(error: Exception) -> str:
    """Where a file is wrong and why, without the parser's own name for the text and its drawing of the line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {_join_lines(problem)}"
    return _join_lines(str(error)).replace(' in "<unicode string>", position', " at position")[:200]


def _join_lines(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _check_nodes(root: Any) -> None:
    """Refuse a name that comes twice, of which the parser would take the last and say nothing; merges; deep nesting, at
    which recursive functions fail; and aliases that make a small file a large one. A node is counted wherever it
    stands, so that a cycle has no end either."""
    values = characters = 0
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        values += 1
        characters += len(node.value) if isinstance(node.value, str) else 0
        if values > MAX_VALUES or characters > MAX_FILE_BYTES:
            raise ConfigError(f"has more than {MAX_VALUES:,} values or {MAX_FILE_BYTES:,} characters, aliases resolved")
        if depth > MAX_DEPTH:
            raise ConfigError(f"has more than {MAX_DEPTH} levels of nesting in line {node.start_mark.line + 1}")
        if isinstance(node.value, str):
            if node.tag == "tag:yaml.org,2002:int" and len(node.value) > MAX_INTEGER_DIGITS:
                raise ConfigError(f"has a number of {len(node.value):,} digits in line {node.start_mark.line + 1}")
            continue
        names: set[str] = set()
        for part in node.value:
            if not isinstance(part, tuple):
                waiting.append((part, depth + 1))
                continue
            key, line = part[0], part[0].start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                raise ConfigError(f"has a merge (<<) in line {line}: write the settings themselves")
            if isinstance(key.value, str) and key.value in names:
                raise ConfigError(f"gives {key.value!r} twice, the second time in line {line}")
            names.add(str(key.value) if isinstance(key.value, str) else "")
            waiting += [(one, depth + 1) for one in part]

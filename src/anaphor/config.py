"""Frozen dataclasses <-> YAML and the command line. Machinery only: it knows no component.

One validator serves files and flags: a file becomes the words of a command line, and the same parser reads both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from anaphor.errors import ConfigError

Spec = TypeVar("Spec")
Value = TypeVar("Value")

# A spec is a page of text. Anything longer is not one of ours, and is refused before it is parsed.
LARGEST_FILE = 1_000_000
A_FEW = 12  # names that are listed in an error, where it does not know what was meant


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean …?' when something known is close, else nothing."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def look_up(table: Mapping[str, Value], name: str, what: str) -> Value:
    """The entry of that name, or an error that says what there is."""
    if isinstance(name, str) and name in table:
        return table[name]
    raise ConfigError(f"unknown {what} {name!r}{nearest(name, table)} (known: {', '.join(sorted(table))})")


def check_fields(kind: type, given: Iterable[str], where: str | None = None) -> None:
    """Refuse the first name that is no field of the dataclass. `where` says what gave it, if not a call."""
    fields = {field.name for field in dataclasses.fields(kind)}
    for name in given:
        if name not in fields:
            hint = nearest(name, fields)
            if not hint:
                few = where is None or len(fields) <= A_FEW
                hint = f" (known: {', '.join(sorted(fields))})" if few else "; --help lists all that there are"
            raise ConfigError(f"{where or kind.__name__} has no field {name!r}{hint}")


_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_WANTED: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "True and False"),
}
"""What a value must be, one and many of them."""


def check_types(spec: Any) -> None:
    """Refuse a value that is not of its field's type, for the plain types that a spec holds."""
    for field in dataclasses.fields(spec):
        name, _, optional = str(field.type).partition(" | ")
        value = getattr(spec, field.name)
        if name not in _TYPES or (value is None and optional == "None"):
            continue
        wanted = _TYPES[name]
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            what = {"int": "a whole number", "float": "a number", "str": "a name", "bool": "True or False"}[name]
            raise ConfigError(f"{field.name}={value!r} is a {type(value).__name__}, but it must be {what}")


def parse(kind: type[Spec], words: Sequence[str], *, program: str, default: Spec | None = None) -> Spec:
    """Read command-line words into a spec. Help goes to stdout; a mistake becomes a ConfigError of one line."""
    for name, hint in get_type_hints(kind).items():
        # A path without a name is the current folder, which nobody means.
        if Path in (hint, *get_args(hint)) and "" in _behind(name, words):
            raise ConfigError(f"{name}='': a folder or a file has a name; . is this folder")
    switched = _with_switches(kind)
    read = _read(switched, words, program, None if default is None else switched(**vars(default)), markers=())
    return kind(**vars(read))


def to_yaml(spec: Any) -> str:
    """A spec as YAML, every field in it, in the order of its definition."""
    import yaml

    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(spec).items()}
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def from_yaml(kind: type[Spec], path: Path, *, default: Spec | None = None) -> Spec:
    """Read a spec from a file. Unknown keys, wrong types and anything nested are refused.

    A file may say for which task it is; one for another task is refused.
    """
    import tyro

    values = read_mapping(path)
    task, expected = values.pop("task", None), getattr(kind, "task", None)
    if task is not None and task != expected:
        raise ConfigError(f"{path} is for the task {task!r}, not for {expected!r}")
    check_fields(kind, values, str(path))
    words = [word for key, value in values.items() for word in _as_words(key, value, path)]
    try:
        # Booleans arrive as values, not as switches.
        return _read(kind, words, str(path), default, markers=(tyro.conf.FlagConversionOff,))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def finite(value: Any) -> Any:
    """The same for JSON, which has no name for numbers that are not finite: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [finite(child) for child in value]
    return value


def _with_switches(kind: type[Spec]) -> type[Any]:
    """The same spec, where a field that is True, False or left open is set by `--name` and `--no-name`.

    The parser makes switches of plain booleans only, unless a field says that None is its default and never typed.
    """
    import tyro

    hints = get_type_hints(kind, include_extras=True)
    switches: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if hints[field.name] == bool | None:
            switch: Any = Annotated[bool | None, tyro.conf.DisallowNone]
        elif hints[field.name] is bool and field.name.startswith("no_"):
            switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # nobody would type `--no-no-name`
        else:
            continue
        switches.append((field.name, switch, dataclasses.field(default=field.default)))
    about = {"__doc__": kind.__doc__}
    return dataclasses.make_dataclass(
        kind.__name__, switches, bases=(kind,), namespace=about, frozen=True, kw_only=True
    )


def _read(kind: type[Spec], words: Sequence[str], program: str, default: Spec | None, markers: tuple[Any, ...]) -> Spec:
    import tyro

    complaints = io.StringIO()
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaints):
            spec: Spec = tyro.cli(kind, args=list(words), prog=program, config=markers, **keywords)
            return spec
    except SystemExit as done:
        if done.code in (0, None):
            raise
        raise ConfigError(_explained(_one_line(complaints.getvalue()), kind, words)) from None


def _explained(message: str, kind: type, words: Sequence[str]) -> str:
    """What the parser says of a value or a flag, in terms of what the user typed rather than of how it is read."""
    hints = get_type_hints(kind)
    missing = re.match(r"Missing from (anaphor .*?): (?:--([\w-]+) )?([A-Z:]+) (.*?) \(required\)", message)
    if missing:
        verb, flag, shape, about = missing.groups()
        return f"`{verb}` needs {f'--{flag} {shape}' if flag else shape}: {about[0].lower()}{about[1:].rstrip('.')}"
    lacking = re.match(r"Missing value for argument '(--[\w-]+)", message)
    if lacking:
        return f"{lacking[1]} needs a value"
    wrong = re.match(r"(?:Error parsing |invalid choice .* for argument ')--([\w-]+)", message)
    name = wrong[1].replace("-", "_") if wrong else ""
    if name in hints:
        parts = {hints[name], *get_args(hints[name])}  # of `int | None` and of `tuple[int, ...]`
        wanted = next((wanted for one, wanted in _WANTED.items() if one in parts), None)
        several = get_origin(hints[name]) is tuple
        given = _behind(name, words)[: None if several else 1]
        if wanted is not None and given:
            must = f"a list of {wanted[1]}" if several else wanted[0]
            return f"{name}={' '.join(given)!r}: it must be {must}"
    unknown = re.match(r"Unrecognized options: (--[\w-]+)", message)
    if unknown and "did you mean" not in message:
        return message + nearest(unknown[1], [f"--{name.replace('_', '-')}" for name in hints])
    return message


def _behind(name: str, words: Sequence[str]) -> list[str]:
    """The words behind the flag of a field, up to the next flag. Where it comes twice, the last one counts."""
    found: list[str] = []
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and flag[2:].replace("-", "_") == name:
            rest = takewhile(lambda other: not other.startswith("--"), words[place + 1 :])
            found = [value] if equals else list(rest)
    return found


def _one_line(box: str) -> str:
    """What the parser wrote in a frame, as one sentence: its message, and its first suggestion if it has one.

    The frame is drawn with lines or with dashes, in colours or not, as the terminal allows.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    sections: list[list[str]] = [[]]
    for line in plain.splitlines():
        words = line.strip(" │")
        if re.fullmatch(r"╭.*╮|╰─*╯|─+|-+", words):  # the title, the end, and the rules between sections
            sections.append([])
        elif words:
            sections[-1].append(words)
    # A frame without a box has its title as a section of its own, above the first rule.
    told = [section for section in sections[1:] if section] or [["the command line could not be read"]]
    message = " ".join(told[0])
    for section in told[1:]:
        if section[0].startswith("Perhaps you meant") and len(section) > 1:
            # One line names a switch and its opposite.
            names = re.findall(r"--[\w-]+", section[1]) or section[1].split()
            message += f"; did you mean {difflib.get_close_matches(told[0][-1].split()[-1], names, 1, 0)[0]!r}?"
    return _in_one_line(message)


def read_mapping(path: Path) -> dict[str, Any]:
    """The names and values of a YAML file, or an error of one line."""
    import yaml

    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise ConfigError(f"{path} has {size:,} bytes; a spec has at most {LARGEST_FILE:,}")
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_twice(yaml.compose(text, Loader=yaml.SafeLoader), path)
        values = from_text(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date or a number that is none is a ValueError
        raise ConfigError(f"{path} is not a plain YAML file: {_reason(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path} must hold `name: value` lines, but it is a {type(values).__name__}")
    return values


def from_text(text: str) -> Any:
    """What YAML makes of a text. `3e-4` is a number: YAML 1.1 would have it written 3.0e-4."""
    import yaml

    return yaml.load(text, Loader=_loader())


@cache
def _loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    number = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader


def _reason(error: Exception) -> str:
    """Where a file is wrong and why, without the parser's own name for the text and its drawing of the line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {_in_one_line(problem)}"
    return _in_one_line(str(error)).replace(' in "<unicode string>", position', " at position")[:200]


def _in_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _refuse_twice(root: Any, path: Path) -> None:
    """Refuse a name that comes twice: the parser would take the last one and say nothing."""
    found, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in found or isinstance(node.value, str):
            continue
        found.add(id(node))  # a part may stand in many places, and even within itself
        pairs = [pair for pair in node.value if isinstance(pair, tuple)]
        names: set[str] = set()
        for key, _ in pairs:
            if isinstance(key.value, str) and key.value in names:
                line = key.start_mark.line + 1
                raise ConfigError(f"{path} gives {key.value!r} twice, the second time in line {line}")
            names.add(str(key.value))
        waiting += [value for _, value in pairs] or node.value


def _as_words(key: str, value: Any, path: Path) -> list[str]:
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, dict | list):
            raise ConfigError(
                f"{path}: {key} holds a {type(item).__name__}; a spec is flat: names, numbers and lists of them"
            )
    return [f"--{key.replace('_', '-')}", *map(str, items)]

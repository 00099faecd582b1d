"""Types at run time: settings and arguments that a user hands over are what their annotations say.

Strings, numbers, truth values, paths, and lists of them are checked; any other annotation is left alone. Annotations
are read as text, because names that are imported for type checkers alone cannot be evaluated.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec, TypeVar

from anaphor.errors import ConfigError
from anaphor.plain_values import plain_value

P = ParamSpec("P")
T = TypeVar("T")


class PlainType(NamedTuple):
    """What a value with some annotation must be, and what one and several of them are called."""

    classes: tuple[type, ...]
    one: str
    several: str

    def accepts(self, value: Any) -> bool:
        # In Python a bool is an int, too.
        kind = type(value)
        is_bool = kind is bool or (kind.__module__ == "numpy" and kind.__name__.startswith("bool"))
        return is_bool if bool in self.classes else isinstance(value, self.classes) and not is_bool


PLAIN_TYPES = {
    "str": PlainType((str,), "a string", "strings"),
    "int": PlainType((Integral,), "a whole number", "whole numbers"),
    "float": PlainType((Real,), "a number", "numbers"),
    "bool": PlainType((bool,), "True or False", "True and False"),
    "Path | str": PlainType((str, os.PathLike), "a path", "paths"),
}
"""The annotations that are checked. Numbers of numpy are numbers, too."""
_LIST = re.compile(r"tuple\[(?P<of_tuple>.+), \.\.\.\]|(?:Sequence|Iterable)\[(?P<item>.+)\]")
_OPTIONAL = re.compile(r"Optional\[(.+)\]")
_MODULE = re.compile(r"\b(?:\w+\.)+")
MAX_SHOWN = 80
"""Characters of a value in a message."""


class Annotation(NamedTuple):
    """An annotation, taken apart."""

    kind: str
    """That of an item, for a list."""
    is_list: bool
    is_optional: bool


def read_annotation(annotation: Any) -> Annotation:
    """Returns what an annotation says, written as text or not."""
    return _read_text(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


@cache  # specs are made by the hundred, with the same few annotations
def _read_text(text: str) -> Annotation:
    text = _OPTIONAL.sub(r"\1 | None", _MODULE.sub("", text))
    kind = text.removesuffix(" | None")
    found = _LIST.fullmatch(kind)
    if found is None:
        return Annotation(kind, is_list=False, is_optional=kind != text)
    return Annotation(found["of_tuple"] or found["item"], is_list=True, is_optional=kind != text)


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Raise for a value, or for an item of a list, that is not what its annotation says."""
    kind, is_list, is_optional = read_annotation(annotation)
    if value is None and is_optional:
        return
    plain = PLAIN_TYPES.get(kind)
    if is_list:
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | AbstractSet):
            raise ConfigError(f"{name}={_shorten(value)}: it must be a list{f' of {plain.several}' if plain else ''}")
        # An iterator gives its items only once.
        for number, item in enumerate(() if isinstance(value, Iterator) else value):
            check_value(f"{name}[{number}]", item, kind)
    elif plain is not None and not plain.accepts(value):
        raise ConfigError(f"{name}={_shorten(value)}: it must be {plain.one}")


def check_types(spec: Any) -> None:
    """Raise for a field of a dataclass that is not what its annotation says. Lists become tuples, and numbers and
    arrays of numpy Python's own."""
    for field in dataclasses.fields(spec):
        kind, is_list, _ = read_annotation(field.type)
        if kind in PLAIN_TYPES:
            value = getattr(spec, field.name)
            value = plain_value(list(value) if isinstance(value, Iterator) else value)
            check_value(field.name, value, field.type)
            object.__setattr__(spec, field.name, tuple(value) if is_list and value is not None else value)


def check_arguments(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> None:
    """Raise for what a function does not take, and for an argument that is not what its annotation says."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*arguments, **options).arguments
    except TypeError as error:
        takes = ", ".join(name for name in signature.parameters if name != "self")
        raise ConfigError(f"{function.__name__}: {error} (it takes {takes})") from None
    for name, value in given.items():
        check_value(name, value, signature.parameters[name].annotation)


def checks_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which first checks its arguments."""

    @wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> T:
        check_arguments(function, *arguments, **options)
        return function(*arguments, **options)

    return checked


def _shorten(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"

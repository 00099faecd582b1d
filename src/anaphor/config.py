"""Specs: frozen dataclasses in sections <-> YAML files. `flags` reads them from a command line. Knows no component.

A spec is flat: `spec.lr`. Its class is composed of section classes by inheritance, each with a `section` name, and the
sections group `--help` and the YAML file. One parser reads files and flags: a file becomes the words of a command line.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from anaphor.errors import ConfigError, UnknownName
from anaphor.plain_values import plain_value
from anaphor.yaml_files import read_mapping

Value = TypeVar("Value")
Settings = TypeVar("Settings")

FORMAT = 2
"""Format number of spec files and checkpoints."""
MAX_VOCABULARY, MAX_LAYERS, MAX_BEAM = 10_000_000, 10_000, 10_000
LISTED = 12
"""Most names that an error lists."""
NOT_SETTINGS = ("format", "task", "environment", "imports", "callbacks", "hardware", "measures")
"""Keys of a run's spec file, or of a recipe, beside the sections."""
MISSPELT = 0.8
"""How similar an unknown name is to a known one to be that one, misspelt (1: equal)."""
MISSING_EXTRA = " (settings of an extra need the extra: pass --import FILE, or install it)"
MEANT = {"gpu": "cuda", "char": "character", "chars": "character"}
"""What other programs call something whose nearest name is another thing here."""


def nearest(name: str, names: Iterable[str]) -> str:
    """'; did you mean …?' when a known name is close, else an empty string."""
    name, names = str(name), list(names)
    near = [MEANT[name]] if MEANT.get(name) in names else difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def look_up(table: Mapping[str, Value], name: str, what: str) -> Value:
    """The entry of that name, or an error that lists the known names."""
    if isinstance(name, str) and name in table:
        return table[name]
    listed = f"(known: {', '.join(sorted(table))}{getattr(table, 'hint', '')})"
    raise UnknownName(f"unknown {what} {name!r}{nearest(name, table)} {listed}", name)


def check_fields(kind: type, given: Iterable[str], where: str | None = None) -> None:
    """Raise for the first name that is not a field of the dataclass. `where` names the origin, if not a call."""
    fields = {field.name for field in dataclasses.fields(kind)}
    for name in given:
        if name not in fields:
            few = where is None or len(fields) <= LISTED
            others = f" (known: {', '.join(sorted(fields))})" if few else "; --help lists all of them"
            hint = f"{nearest(name, fields) or others}{missing_extra(kind, name, fields)}"
            raise UnknownName(f"{where or kind.__name__} has no field {name!r}{hint}", name)


def missing_extra(kind: type, name: str, names: Iterable[str]) -> str:
    """What an error adds for an unknown name that may be a setting of an extra; empty where it is a known one,
    misspelt, or where the spec has no extras."""
    is_misspelt = difflib.get_close_matches(name, names, n=1, cutoff=MISSPELT)
    return "" if is_misspelt or not getattr(kind, "has_extras", False) else MISSING_EXTRA


def check_at_least(least: int, **settings: float | None) -> None:
    """Raise for the first setting below its minimum; one that is not set is None."""
    for name, value in settings.items():
        if value is not None and value < least:
            raise ConfigError(f"{name}={value}: it must be at least {least}")


def check_range(least: int, most: int, **settings: int | None) -> None:
    """Raise for the first setting outside a range; one that is not set is None. The upper bound is one that no model or
    machine reaches: beyond it a program would run for hours, or out of memory, before it says anything."""
    check_at_least(least, **settings)
    for name, value in settings.items():
        if value is not None and value > most:
            raise ConfigError(f"{name}={value}: it must be at most {most:,}")


def check_below_one(**settings: float) -> None:
    """Raise for the first setting that is not at least 0 and below 1."""
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise ConfigError(f"{name}={value}: it must be at least 0 and below 1")


def section_of(kind: type, name: str) -> str:
    """The section that a field belongs to; empty for none. The class that declares it last decides."""
    return _section_by_field(kind).get(name, "")


@cache
def _section_by_field(kind: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        section = next((base.__dict__["section"] for base in owner.__mro__ if "section" in base.__dict__), "")
        found |= dict.fromkeys(inspect.get_annotations(owner), section)
    return found


def sections_of(kind: type) -> dict[str, list[dataclasses.Field[Any]]]:
    """The fields of a spec by section, in the order of `SECTIONS`; fields without a section come first."""
    found: dict[str, list[dataclasses.Field[Any]]] = {name: [] for name in ("", *SECTIONS)}
    for field in dataclasses.fields(kind):
        found.setdefault(section_of(kind, field.name), []).append(field)
    return {name: fields for name, fields in found.items() if fields}


SECTIONS = ("data", "model", "training", "evaluation")


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """The docstring behind each field of a dataclass, its bases included. A generated field has as metadata the class
    whose field it repeats. Slow, because the source is parsed: only help and error messages need it."""
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if dataclasses.is_dataclass(owner):
            docs |= _own_field_docs(owner)
    return types.MappingProxyType(docs)


@cache  # for each class alone: options of commands are made of the same bases again and again
def _own_field_docs(owner: Any) -> dict[str, str]:
    docs = {
        field.name: field_docs(field.metadata["documented_by"]).get(field.name, "")
        for field in dataclasses.fields(owner)
        if "documented_by" in field.metadata
    }
    if not inspect.get_annotations(owner):
        return docs  # it declares no field
    try:
        written = _parse_field_docs(inspect.getsource(sys.modules[owner.__module__]))
    except (OSError, TypeError, SyntaxError, KeyError):  # made at run time, or in a notebook
        return docs
    return docs | written.get(owner.__qualname__, {})


@cache
def _parse_field_docs(source: str) -> dict[str, dict[str, str]]:
    """The docstrings behind the fields of all classes of a module: it is parsed once, and not for each of them."""
    found: dict[str, dict[str, str]] = {}
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, ast.ClassDef):
            own = found[f"{prefix}{node.name}"] = {}
            for statement, following in zip(node.body, node.body[1:], strict=False):
                match statement, following:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text))):
                        own[name] = " ".join(text.split())
            prefix += f"{node.name}."
        elif isinstance(node, ast.FunctionDef):
            prefix += f"{node.name}.<locals>."
        waiting += [(prefix, child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found


def optional_section(kind: type, name: str, section: str, exclude: Iterable[str] = ()) -> Any:
    """A section with the fields of a spec, each optional: None, or an empty tuple, means that it was not given.

    So an option of a model is declared once, in the model's own spec.
    """
    hints, skipped = get_type_hints(kind, include_extras=True), set(exclude)
    metadata = {"documented_by": kind, "unset": f"the {section}'s own"}
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(kind):
        if field.name in skipped:
            continue
        hint = hints[field.name]
        several = get_origin(hint) is tuple
        kept = hint if several or type(None) in get_args(hint) else Union[hint, None]  # noqa: UP007 (made at run time)
        default = () if several else None
        fields.append((field.name, kept, dataclasses.field(default=default, metadata=metadata)))
    options = dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True, namespace={"section": section})
    options.__doc__ = kind.__doc__
    options.__module__ = kind.__module__
    return options


@cache
def compose_spec(declared: Any, extras: tuple[type, ...]) -> Any:
    """A spec that has the fields of several settings classes as well, each class in a section of its own.

    Making it makes the settings objects, too, so that their own checks hold. `settings_of` returns one of them.

    Args:
        declared: The spec without them.
        extras: Dataclasses with a `section`, whose fields all have defaults.
    """
    if not extras:
        return declared
    _check_taken(declared, extras)

    def check(self: Any) -> None:
        declared.__post_init__(self)
        for kind in extras:
            settings_of(self, kind)

    bases = (*map(_repeat_fields, reversed(extras)), declared)
    composed = dataclasses.make_dataclass(
        declared.__name__, [], bases=bases, frozen=True, kw_only=True, namespace={"__post_init__": check}
    )
    composed.__doc__, composed.__module__ = declared.__doc__, declared.__module__
    return composed


def _check_taken(declared: Any, extras: Sequence[Any]) -> None:
    """Raise for a name that two settings would share."""
    owners = dict.fromkeys((field.name for field in dataclasses.fields(declared)), declared)
    for kind in extras:
        for field in dataclasses.fields(kind):
            if field.name in owners:
                raise ConfigError(
                    f"{kind.__name__} has the setting {field.name!r}, and so has {owners[field.name].__name__}: "
                    f"choose another name"
                )
            owners[field.name] = kind


def _repeat_fields(kind: Any) -> type:
    """A section with the fields of a settings class, and nothing else of it."""
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(kind):
        hint = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
        again = dataclasses.field(
            default=field.default,
            default_factory=field.default_factory,
            metadata={**field.metadata, "documented_by": kind},
        )
        fields.append((field.name, hint, again))
    section = dataclasses.make_dataclass(
        kind.__name__, fields, frozen=True, kw_only=True, namespace={"section": kind.section}
    )
    section.__module__ = kind.__module__
    return section


def settings_of(spec: Any, kind: type[Settings]) -> Settings:
    """The settings of one class that are part of a spec; defaults where the spec was made without them."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type] # a dataclass
    return kind(**{name: getattr(spec, name) for name in names if hasattr(spec, name)})


def group_by_section(kind: type, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat settings grouped by the sections of their spec, without sections that have none."""
    grouped = {
        section: {field.name: plain_value(values[field.name]) for field in fields if field.name in values}
        for section, fields in sections_of(kind).items()
    }
    return {section: inside for section, inside in grouped.items() if inside}


def flatten_sections(values: Mapping[str, Any], path: Path, kind: type | None = None) -> dict[str, Any]:
    """Settings of a file without their sections. Flat files are welcome; a setting given twice is refused.

    A setting may stand in any section of `kind`: that of a setting has changed since some files were written. Without
    `kind` every mapping is a section.
    """
    flat: dict[str, Any] = {}
    sections = None if kind is None else sections_of(kind)
    for key, value in values.items():
        is_section = isinstance(value, dict) and (sections is None or key in sections)
        inside = value if is_section else {key: value}
        for name in inside:
            if name in flat:
                raise ConfigError(f"{path} gives {name!r} twice, in two sections")
        flat |= inside
    return flat


def check_format(values: Mapping[str, Any], path: Path, *, required: bool) -> None:
    """Raise for a spec file of another format number; a run's spec must have one."""
    if "format" not in values and not required:
        return
    if values.get("format") != FORMAT or isinstance(values["format"], bool):
        given = f"format {values['format']!r}"[:40] if "format" in values else "no format number"
        raise ConfigError(f"{path} has {given}, but this version of anaphor reads format {FORMAT}")


def read_settings(kind: type, path: Path) -> dict[str, Any]:
    """The settings of a file, flat and unparsed. The file may be for one task; one for another task is refused."""
    values = read_mapping(path)
    check_format(values, path, required=False)
    task, expected = values.get("task"), getattr(kind, "task", None)
    if task is not None and task != expected:
        raise ConfigError(f"{path} is for the task {str(task)[:60]!r}, not for {expected!r}")
    flat = flatten_sections({key: value for key, value in values.items() if key not in NOT_SETTINGS}, path, kind)
    if not flat:  # a wrong file would train with defaults alone
        raise ConfigError(f"{path} has no settings")
    check_fields(kind, flat, str(path))
    return flat

"""Flags: the fields of a spec as options of argparse, which splits a command line and prints the help.

What the arguments of a flag mean, and the values of a file, is read here by the types of the fields: so an error names
what was given, what is allowed and the nearest guess.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from anaphor.config import field_docs, missing_extra, nearest, read_settings, sections_of
from anaphor.errors import ConfigError
from anaphor.typecheck import PLAIN_TYPES
from anaphor.user_paths import user_path

Spec = TypeVar("Spec")

_CAST: dict[Any, Any] = {int: int, float: float, bool: {"True": True, "False": False}.__getitem__}
"""How an argument is read as a value of a type; others are called with it."""
_METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}

SYNONYMS = {
    **dict.fromkeys(("nhid", "hidden", "hiddensize", "dmodel", "nembd", "nunits"), "width"),
    **dict.fromkeys(("emsize", "embsize", "embeddingdim"), "embedding"),
    **dict.fromkeys(("nlayer", "nlayers", "numlayers"), "layers"),
    **dict.fromkeys(("learningrate",), "lr"),
    **dict.fromkeys(("bs", "batch", "trainbatchsize", "perdevicetrainbatchsize"), "batch-size"),
    **dict.fromkeys(("ctx", "blocksize", "contextlength", "seqlen"), "bptt"),
    **dict.fromkeys(("maxiters", "maxsteps", "iterations"), "steps"),
    **dict.fromkeys(("nhead", "nheads", "numheads"), "heads"),
    **dict.fromkeys(("numepochs", "numtrainepochs"), "epochs"),
    **dict.fromkeys(("decay", "wd"), "weight-decay"),
    **dict.fromkeys(("outputdir", "savedir"), "out"),
    **dict.fromkeys(("maxnewtokens", "maxtokens", "numtokens"), "tokens"),
    **dict.fromkeys(("cpu", "gpu", "cuda", "mps"), "device"),
}
"""Names of options in other programs, without hyphens, and ours."""

MAX_GUESSES = 4
"""Most options that an unknown one is said to stand for."""

MEANT_WITHOUT_FLAG = ("prompt", "image")
"""Options whose value is often written without the flag."""

END = "--"
"""The argument that ends the options: what follows are values, also where they begin with dashes."""


@dataclasses.dataclass(frozen=True)
class Positional:
    """Marks a field whose value is given without a flag: `run: Annotated[Path, Positional("RUN")]`."""

    metavar: str


@dataclasses.dataclass(frozen=True)
class Flag:
    """A field of a spec as the command line knows it."""

    owner: type
    """The spec."""
    field: str
    name: str
    kind: Any
    """Type of one value."""
    several: bool
    count: int | None
    """Number of values, where the type says it: two for `tuple[float, float]`."""
    optional: bool
    positional: bool
    repeated: bool
    """Whether the flag may be given several times, one value each."""
    required: bool
    metavar: str
    unset: str
    """What holds where it is not given, in words; empty where its help says it, or nothing does."""

    @property
    def help(self) -> str:
        return field_docs(self.owner).get(self.field, "")

    @property
    def is_switch(self) -> bool:
        return self.kind is bool and not self.several

    @property
    def spellings(self) -> tuple[str, ...]:
        """As it is typed. No user types `--no-no-name`."""
        if self.positional:
            return ()
        has_opposite = self.is_switch and not self.name.startswith("no-")
        return (f"--{self.name}", f"--no-{self.name}") if has_opposite else (f"--{self.name}",)

    @property
    def action(self) -> Any:
        """What argparse does with it."""
        if self.is_switch:
            return argparse.BooleanOptionalAction if len(self.spellings) > 1 else "store_true"
        return "append" if self.repeated else "store"

    @property
    def shown(self) -> str:
        return self.metavar if self.positional else f"--{self.name} {self.metavar}"


def flags_of(kind: Any) -> Mapping[str, Flag]:
    """The flags of a spec by field."""
    return _read_flags_of(kind)


@cache
def _read_flags_of(kind: Any) -> Mapping[str, Flag]:
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Flag] = {}
    for field in dataclasses.fields(kind):
        hint, place = hints[field.name], None
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            place = next((extra for extra in extras if isinstance(extra, Positional)), None)
        several = get_origin(hint) is tuple
        inner = get_args(hint)[0] if several else hint
        options = [one for one in get_args(inner) if one is not type(None)]
        optional = type(None) in get_args(inner)
        one = options[0] if optional and len(options) == 1 else inner
        metavar = _METAVARS.get(one, "STR")
        if get_origin(one) is Literal:
            metavar = "{" + ",".join(map(str, get_args(one))) + "}"
        found[field.name] = Flag(
            owner=kind,
            field=field.name,
            name=field.metadata.get("flag", field.name.replace("_", "-")),
            kind=one,
            several=several,
            count=len(get_args(hint)) if several and Ellipsis not in get_args(hint) else None,
            optional=optional,
            positional=place is not None,
            repeated=bool(field.metadata.get("repeated")),
            required=field.default is MISSING and field.default_factory is MISSING,
            metavar=metavar if place is None else place.metavar,
            unset=field.metadata.get("unset", ""),
        )
    return MappingProxyType(found)


def parse(kind: type[Spec], argv: Sequence[str], *, program: str) -> Spec:
    """Returns the spec that a command line gives. `--help` prints the options and exits."""
    if asks_for_help(argv):
        print_help(kind, program)
    given = read_flags(kind, argv, program=program)
    check_required(kind, given, program)
    return kind(**given)


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether `--help` is among the options."""
    return bool({"-h", "--help"} & set(before_end(argv)))


def before_end(argv: Sequence[str]) -> Sequence[str]:
    """The arguments before the first `--`, all where there is none."""
    return argv[: list(argv).index(END)] if END in argv else argv


def read_flags(kind: type, argv: Sequence[str], *, program: str, over_file: bool = False) -> dict[str, Any]:
    """Returns the values that a command line gives, by field.

    Args:
        program: The command, as a message names it.
        over_file: Whether the values replace those of a file. There a list without values empties that of the file;
            elsewhere it is refused.

    Raises a ConfigError for an unknown flag, one given twice, a missing or a wrong value, and an argument too many.
    """
    flags = flags_of(kind)
    _reject_unknown(kind, before_end(argv), program)
    given, rest = split_argv(kind, argv)
    if END in rest:
        rest.remove(END)
    for field, value in given.items():
        if value == () and not over_file:
            raise ConfigError(f"--{flags[field].name} needs a value")
    for flag in flags.values():
        if flag.positional and rest:
            arguments, rest = (rest, []) if flag.several else (rest[:1], rest[1:])
            given[flag.field] = read_value(flag, arguments)
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r}{_explain_unexpected(flags, argv, rest[0])}")
    return given


def split_argv(kind: type, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the values of the flags that a spec has, by field, and the arguments that belong to none of them. From
    `--` on there are no flags."""
    flags, options = flags_of(kind), before_end(argv)
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser._negative_number_matcher = re.compile("-(?!-)")  # a value may begin with a hyphen, and not only a number
    for flag in flags.values():
        if flag.is_switch:
            parser.add_argument(f"--{flag.name}", dest=flag.field, action=flag.action)
        elif not flag.positional:
            nargs = "*" if flag.several and not flag.repeated else "?"  # a missing value is refused below
            parser.add_argument(f"--{flag.name}", dest=flag.field, action=flag.action, nargs=nargs)
    namespace, rest = parser.parse_known_args(_normalize(flags, options))
    given = {}
    for field, value in vars(namespace).items():
        arguments = value if isinstance(value, list) else [value]
        if None in arguments:
            raise ConfigError(f"--{flags[field].name} needs a value")
        given[field] = value if flags[field].is_switch else read_value(flags[field], arguments)
    return given, [*rest, *argv[len(options) :]]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _normalize(flags: Mapping[str, Flag], argv: Sequence[str]) -> list[str]:
    """Returns the arguments as argparse reads them, names with hyphens. Refuses what it would accept and we do not."""
    by_spelling = {spelling: flag for flag in flags.values() for spelling in flag.spellings}
    normalized, given = list[str](), set[str]()
    for argument in argv:
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        flag = by_spelling.get(name)
        if flag is None:
            normalized.append(argument)
            continue
        if flag.field in given and not flag.repeated:
            raise ConfigError(f"--{flag.name} is given twice: give it once")
        given.add(flag.field)
        if equals and flag.is_switch:
            raise ConfigError(f"{name} is a switch and takes no value, but {value!r} is given")
        # Behind `=` argparse reads one value only, whatever follows.
        is_list = equals and flag.several and not value.startswith("--")
        normalized += [name, value] if is_list else [f"{name}{equals}{value}"]
    return normalized


def _reject_unknown(kind: type, argv: Sequence[str], program: str) -> None:
    names = [spelling[2:] for flag in flags_of(kind).values() for spelling in flag.spellings]
    for place, argument in enumerate(argv):
        option = argument.partition("=")[0]
        name = option[2:].replace("_", "-")
        if not argument.startswith("--") or name in names:
            continue
        meant = [f"'--{one}'" for one in _guess_names(name, names)]
        guess = " or ".join(", ".join(part) for part in (meant[:-1], meant[-1:]) if part)
        hint = f"did you mean {guess}?" if guess else f"`{program} --help` lists the options"
        as_value = "" if guess else _suggest_as_value(kind, argv[:place], argument)
        raise ConfigError(f"unknown option {option}; {as_value or hint}{missing_extra(kind, name, names)}")


def _suggest_as_value(kind: type, before: Sequence[str], argument: str) -> str:
    """Returns how an unknown option is given as a value, where the arguments before it leave room for one."""
    flags = flags_of(kind).values()
    text = [flag for flag in flags if flag.kind in (str, Path)]
    if any(before and f"--{flag.name}" == before[-1].replace("_", "-") for flag in text if not flag.positional):
        return f"as a value: {before[-1]}={quote(argument)}"
    if any(flag.positional and flag.several and flag.metavar.startswith("TEXT") for flag in text):
        return f"as a text: -- {quote(argument)}"
    return ""


def _guess_names(name: str, names: Sequence[str]) -> list[str]:
    """Returns the options that an unknown one may stand for: that of another program, the nearest, or those with it as
    a word. Without hyphens before them, because every option has these and would be near to every other."""
    if (ours := SYNONYMS.get(name.replace("-", ""), "")) in names:
        return [ours]
    near = difflib.get_close_matches(name, names, n=1)
    return near or [one for one in names if name in one.split("-")][:MAX_GUESSES]


def _explain_unexpected(flags: Mapping[str, Flag], argv: Sequence[str], unexpected: str) -> str:
    """Returns what to say of an argument too many: its flag, or how many values the flag before it takes."""
    argv = before_end(argv)
    if unexpected not in argv:
        return ""
    named = {flag.name: flag for flag in flags.values() if not flag.positional}
    places = [place for place, argument in enumerate(argv) if argument == unexpected]
    # The same word may be the value of another flag: what follows a flag that takes none is too much.
    place = next((one for one in places if one and _is_switch(named, argv[one - 1])), places[-1])
    before = [argument.partition("=")[0] for argument in argv[:place] if argument.startswith("--")]
    if not before or place < 2:
        return next((f": did you mean --{name} {unexpected!r}?" for name in MEANT_WITHOUT_FLAG if name in named), "")
    flag = named.get(before[-1][2:].replace("_", "-"))
    return f": {before[-1]} takes {'one' if flag is not None and not flag.is_switch else 'no'} value"


def _is_switch(named: Mapping[str, Flag], argument: str) -> bool:
    flag = named.get(argument[2:].replace("_", "-"))
    return argument.startswith("--") and flag is not None and flag.is_switch


def check_required(kind: type, given: Collection[str], program: str) -> None:
    """Refuse values without one that the spec needs."""
    for flag in flags_of(kind).values():
        if flag.required and flag.field not in given:
            text = flag.help.rstrip(".")
            if not (text[:2].isalpha() and text[:2].isupper()):  # HTML stays as it is
                text = text[:1].lower() + text[1:]
            raise ConfigError(f"`{program}` needs {flag.shown}{f': {text}' if text else ''}")


def read_value(flag: Flag, arguments: Sequence[str]) -> Any:
    """Returns the value that arguments mean for a field: a tuple where its type has several."""
    if not arguments and not flag.several:
        raise ConfigError(f"--{flag.name} needs a value")
    if flag.count not in (None, len(arguments)):
        raise ConfigError(f"{flag.field}={' '.join(arguments)!r}: it must be {flag.count} values")
    if not flag.several and len(arguments) > 1:
        raise ConfigError(f"{flag.field}={' '.join(arguments)!r}: it must be one value, not a list")
    values = tuple(_read_argument(flag, argument, arguments) for argument in arguments)
    return values if flag.several else values[0]


def _read_argument(flag: Flag, argument: str, arguments: Sequence[str]) -> Any:
    if argument == "None" and flag.optional:
        return None
    if flag.kind is Path:
        if not argument:
            raise ConfigError(f"{flag.field}='': a folder or a file needs a name; . is this folder")
        return user_path(Path(argument))
    if get_origin(flag.kind) is Literal:
        choices = {str(choice): choice for choice in get_args(flag.kind)}
        if argument not in choices:
            raise ConfigError(f"{flag.field}={argument!r}{nearest(argument, choices)} (known: {', '.join(choices)})")
        return choices[argument]
    kinds = [kind for kind in get_args(flag.kind) or (flag.kind,) if kind is not type(None)]
    for kind in kinds:  # several in a union of types: the first that fits
        with contextlib.suppress(ValueError, KeyError):
            return _CAST.get(kind, kind)(argument)
    plain = next((PLAIN_TYPES[kind.__name__] for kind in kinds if kind in _CAST), None)
    expected = getattr(flag.kind, "__name__", str(flag.kind)) if plain is None else plain.one
    if plain is not None and flag.several:
        expected = f"a list of {plain.several}"
    raise ConfigError(f"{flag.field}={' '.join(arguments)!r}: it must be {expected}")


def print_help(kind: type, program: str, default: Any = None) -> NoReturn:
    """Print the options of a spec in its sections, with their defaults or the values of another one, and exit."""
    flags = flags_of(kind)
    usage = " ".join([program, "[OPTIONS]", *(flag.metavar for flag in flags.values() if flag.positional)])
    parser = argparse.ArgumentParser(usage=usage.replace("%", "%%"), description=kind.__doc__, add_help=False)
    head = "".join(f"  {example}\n" for example in getattr(kind, "help_examples", ()))
    arguments, options = parser.add_argument_group("arguments"), parser.add_argument_group("options")
    options.add_argument("-h", "--help", action="help", help="Show this help and exit.")
    for section, fields in sections_of(kind).items():
        group = parser.add_argument_group(f"{section.replace('_', ' ')} options") if section else options
        for field in fields:
            flag = flags[field.name]
            value = _default_of(field) if default is None else getattr(default, field.name)
            if flag.positional:
                arguments.add_argument(flag.field, metavar=flag.metavar, help=_describe(flag, value))
            elif flag.is_switch:
                group.add_argument(f"--{flag.name}", action=flag.action, help=_describe(flag, value))
            else:
                metavar = f"[{flag.metavar} ...]" if flag.several and not flag.repeated else flag.metavar
                group.add_argument(f"--{flag.name}", metavar=metavar, help=_describe(flag, value))
    sys.stdout.write(f"examples:\n{head}\n" if head else "")
    sys.stdout.write(parser.format_help())  # argparse's own print_help hides that a pipe is closed
    raise SystemExit(0)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _describe(flag: Flag, value: Any) -> str:
    """Returns the help of a flag with its default in words, as argparse takes it. A default that says nothing is left
    out."""
    text, words = flag.help, ""
    if value is MISSING:
        return f"{text} (required)".replace("%", "%%")
    if value is None or value == ():
        text, meaning = _split_meaning_of_none(text)
        words = ", or ".join(part for part in (flag.unset, meaning) if part)
    elif value is True:
        words = "on"
    elif value is not False and value != "":
        words = " ".join(map(_format_value, value if isinstance(value, tuple) else (value,)))
    return f"{text}{f' (default: {words})' if words else ''}".replace("%", "%%")


def _split_meaning_of_none(text: str) -> tuple[str, str]:
    """Returns a help text without what it says of the value None, and that."""
    found = re.fullmatch(r"(.*?)[;,] None (?:means )?([^;]+?)\.", text)
    return (text, "") if found is None else (f"{found[1]}.", found[2])


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def from_yaml(kind: type[Spec], path: Path) -> Spec:
    """Read a spec from a file. Unknown keys, wrong types and anything nested but the sections are refused."""
    flags = flags_of(kind)
    try:
        given = {key: read_value(flags[key], _to_argv(key, value)) for key, value in read_settings(kind, path).items()}
        check_required(kind, given, str(path))
        return kind(**given)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _to_argv(key: str, value: Any) -> list[str]:
    """Returns a value of a file as arguments of a command line."""
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, dict | list):
            kind = type(item).__name__
            raise ConfigError(f"{key} holds a {kind}; a spec is flat: names, numbers and lists of them")
    return [*map(str, items)]

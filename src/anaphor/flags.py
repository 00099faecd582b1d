"""Flags: a spec from the words of a command line or from a file. tyro writes the help.

Words are read by the fields of the spec here, so that an error names what was typed, what is allowed and the nearest
flag, and a command begins at once: tyro takes 0.1 s to look at the options of a training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from anaphor.config import field_docs, missing_extra, nearest, read_settings, sections_of, user_path
from anaphor.errors import ConfigError

Spec = TypeVar("Spec")

_CAST: dict[Any, tuple[Any, str, str]] = {
    int: (int, "a whole number", "whole numbers"),
    float: (float, "a number", "numbers"),
    bool: ({"True": True, "False": False}.__getitem__, "True or False", "True and False"),
}
"""For each type: how a word is read, and what one and several of them are called."""
MIN_WIDTH = 20
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

MOST_GUESSES = 4
"""Most options that an unknown one is said to stand for."""

MEANT_WITHOUT_FLAG = ("prompt", "image")
"""Options whose value is often written without the flag."""


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

    @property
    def help(self) -> str:
        return field_docs(self.owner).get(self.field, "")

    @property
    def is_switch(self) -> bool:
        return self.kind is bool and not self.several

    @property
    def shown(self) -> str:
        return self.metavar if self.positional else f"--{self.name} {self.metavar}"


def flags_of(kind: type) -> dict[str, Flag]:
    """The flags of a spec by field."""
    # Only a module that has imported tyro can have annotated a field with it.
    positional_marker = sys.modules["tyro"].conf.Positional if "tyro" in sys.modules else None
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Flag] = {}
    for field in dataclasses.fields(kind):
        hint, extras = _strip(hints[field.name])
        several = get_origin(hint) is tuple
        inner = get_args(hint)[0] if several else hint
        options = [one for one in get_args(inner) if one is not type(None)]
        optional = type(None) in get_args(inner)
        one = options[0] if optional and len(options) == 1 else inner
        named = next((extra for extra in extras if getattr(extra, "metavar", None)), None)
        positional = any(extra is positional_marker or extra in get_args(positional_marker) for extra in extras)
        metavar = _METAVARS.get(one, "STR")
        if get_origin(one) is Literal:
            metavar = "{" + ",".join(map(str, get_args(one))) + "}"
        if positional:
            metavar = field.name.upper()
        repeated = bool(field.metadata.get("repeated"))
        found[field.name] = Flag(
            owner=kind,
            field=field.name,
            name=field.metadata.get("flag", field.name.replace("_", "-")),
            kind=one,
            several=several,
            count=len(get_args(hint)) if several and Ellipsis not in get_args(hint) else None,
            optional=optional,
            positional=positional,
            repeated=repeated,
            required=field.default is MISSING and field.default_factory is MISSING,
            metavar=named.metavar if named is not None else metavar,
        )
    return found


def _strip(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and its annotations."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        return inner, tuple(extras)
    return hint, ()


def parse(kind: type[Spec], words: Sequence[str], *, program: str, default: Spec | None = None) -> Spec:
    """Read command-line words into a spec. Help goes to stdout; a mistake becomes a ConfigError of one line."""
    flags = flags_of(kind)
    if {"-h", "--help"} & set(words):
        _print_help(kind, flags, program, default)
    return _build(kind, read_words(flags, words, program=program, has_default=default is not None), default)


def parse_values(kind: type[Spec], words: Sequence[str], *, program: str, default: Spec | None = None) -> Spec:
    """The same for the words of a file, where a boolean has a value."""
    has_default = default is not None
    values = read_words(flags_of(kind), words, program=program, has_default=has_default, switches=False)
    return _build(kind, values, default)


def _build(kind: type[Spec], values: dict[str, Any], default: Spec | None) -> Spec:
    return kind(**values) if default is None else dataclasses.replace(default, **values)  # type: ignore[type-var]


def read_words(
    flags: dict[str, Flag], words: Sequence[str], *, program: str, has_default: bool, switches: bool = True
) -> dict[str, Any]:
    """The values of the fields that are given.

    Raises for the first mistake: an unknown flag, one given twice, a missing or a wrong value, a word too many.
    """
    named = {flag.name: flag for flag in flags.values() if not flag.positional}
    switch_off = {f"no-{flag.name}": flag for flag in named.values() if flag.is_switch and switches}
    given: dict[str, Any] = {}
    loose: list[str] = []
    for word, equals, values in _groups(words):
        if word is None:
            loose += values
            continue
        name = word[2:].replace("_", "-")
        flag = named.get(name) or switch_off.get(name)
        if flag is None:
            meant = _guess_names(name, (*named, *switch_off))
            guess = " or ".join(", ".join(f"'--{one}'" for one in part) for part in (meant[:-1], meant[-1:]) if part)
            hint = f"did you mean {guess}?" if guess else f"`{program} --help` lists the options"
            hint += "".join({missing_extra(flag.owner, name, named) for flag in flags.values()})
            raise ConfigError(f"unknown option {word}; {hint}")
        if flag.field in given and not flag.repeated:
            raise ConfigError(f"--{flag.name} is given twice: give it once")
        if flag.is_switch and switches:
            if equals:
                raise ConfigError(f"--{flag.name} is a switch and takes no value, but {values[0]!r} is given")
            given[flag.field], taken = name in named, 0
        else:
            if not values and switches and not has_default:  # an empty list clears that of a file, and here is none
                raise ConfigError(f"--{flag.name} needs a value")
            found, taken = _read_values(flag, values)
            given[flag.field] = (*given.get(flag.field, ()), *found) if flag.repeated else found
        loose += values[taken:]
    for place in (flag for flag in flags.values() if flag.positional):
        if loose:
            values = loose if place.several else loose[:1]
            read = tuple(_read_value(place, value, [value]) for value in values)
            given[place.field] = read if place.several else read[0]
            loose = loose[len(values) :]
    if loose:
        raise ConfigError(f"unexpected argument {loose[0]!r}{_explain_loose(named, words, loose[0])}")
    for flag in flags.values():
        if flag.required and flag.field not in given and not has_default:
            help_text = flag.help.rstrip(".")
            if not (help_text[:2].isalpha() and help_text[:2].isupper()):  # HTML stays as it is
                help_text = help_text[:1].lower() + help_text[1:]
            about = f": {help_text}" if help_text else ""
            raise ConfigError(f"`{program}` needs {flag.shown}{about}")
    return given


def _guess_names(name: str, known: Sequence[str]) -> list[str]:
    """The options that an unknown one may stand for: that of another program, the nearest, or those with it as a word.

    Without hyphens before them, because every option has these and would be near to every other."""
    if (ours := SYNONYMS.get(name.replace("-", ""), "")) in known:
        return [ours]
    near = difflib.get_close_matches(name, known, n=1)
    return near or [one for one in known if name in one.split("-")][:MOST_GUESSES]


def _groups(words: Sequence[str]) -> Iterator[tuple[str | None, bool, list[str]]]:
    """Each flag with the words behind it, up to the next flag; words before the first flag belong to none."""
    flag: str | None = None
    equals, values = False, list[str]()
    for word in words:
        if word.startswith("--") and len(word) > 2:
            if flag is not None or values:
                yield flag, equals, values
            flag, sign, value = word.partition("=")
            equals, values = bool(sign), [value] if sign else []
        else:
            values.append(word)
    if flag is not None or values:
        yield flag, equals, values


def _read_values(flag: Flag, words: list[str]) -> tuple[Any, int]:
    """The value of a flag, and how many of the words behind it belong to it."""
    if not words and (flag.repeated or not flag.several):
        raise ConfigError(f"--{flag.name} needs a value")
    taken = words if flag.several and not flag.repeated else words[:1]
    if flag.count not in (None, len(taken)) and not flag.repeated:
        raise ConfigError(f"{flag.field}={' '.join(taken)!r}: it must be {flag.count} values")
    values = tuple(_read_value(flag, word, taken) for word in taken)
    return (values if flag.several else values[0]), len(taken)


def _read_value(flag: Flag, word: str, words: list[str]) -> Any:
    if word == "None" and flag.optional:
        return None
    if flag.kind is Path:
        if not word:
            raise ConfigError(f"{flag.field}='': a folder or a file needs a name; . is this folder")
        return user_path(Path(word))
    if get_origin(flag.kind) is Literal:
        known = {str(choice): choice for choice in get_args(flag.kind)}
        if word not in known:
            raise ConfigError(f"{flag.field}={word!r}{nearest(word, known)} (known: {', '.join(known)})")
        return known[word]
    kinds = [kind for kind in get_args(flag.kind) or (flag.kind,) if kind is not type(None)]
    for kind in kinds:  # several in a union of types: the first that fits
        cast, _, _ = _CAST.get(kind, (kind, "", ""))
        with contextlib.suppress(ValueError, KeyError):
            return cast(word)
    one, many = next((named for kind, (_, *named) in _CAST.items() if kind in kinds), (_name(flag.kind), ""))
    expected = f"a list of {many}" if flag.several and many else one
    raise ConfigError(f"{flag.field}={' '.join(words)!r}: it must be {expected}")


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _explain_loose(named: dict[str, Flag], words: Sequence[str], loose: str) -> str:
    """What to say of a word too many: the flag that it may belong to, or how many values the flag before it takes."""
    place = list(words).index(loose)
    before = [word.partition("=")[0] for word in words[:place] if word.startswith("--")]
    if not before or place < 2:
        return next((f": did you mean --{name} {loose!r}?" for name in MEANT_WITHOUT_FLAG if name in named), "")
    flag = named.get(before[-1][2:].replace("_", "-"))
    return f": {before[-1]} takes {'one' if flag is not None and not flag.is_switch else 'no'} value"


def _print_help(kind: type[Spec], flags: dict[str, Flag], program: str, default: Spec | None) -> NoReturn:
    import tyro

    with _width_bounded():
        tyro.cli(_view(kind, flags, default), args=["--help"], prog=program, config=(tyro.conf.OmitArgPrefixes,))
    raise AssertionError("help ends the command")


@contextlib.contextmanager
def _width_bounded() -> Iterator[None]:
    """Help for a terminal of at least 20 columns: tyro does not end where its frames leave no room for a letter."""
    before = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns < MIN_WIDTH:
        os.environ["COLUMNS"] = str(MIN_WIDTH)
    try:
        yield
    finally:
        if before is not None:
            os.environ["COLUMNS"] = before
        else:
            os.environ.pop("COLUMNS", None)


def _view(kind: type, flags: dict[str, Flag], default: Any) -> Any:
    """The spec as tyro shows it: its sections as nested dataclasses, whose titles group the help."""
    hints = get_type_hints(kind, include_extras=True)
    parts: list[tuple[str, Any, Any]] = []
    for section, fields in sections_of(kind).items():
        members = [_member(flags[field.name], hints[field.name], field, default) for field in fields]
        if not section:
            parts += members
            continue
        nested = dataclasses.make_dataclass(section, members, frozen=True, kw_only=True)
        nested.__doc__ = ""
        import tyro

        titled: Any = Annotated[nested, tyro.conf.arg(name=section.replace("_", " "))]
        parts.append((f"section_{section}", titled, dataclasses.field()))
    nested_kind = dataclasses.make_dataclass(kind.__name__, parts, frozen=True, kw_only=True)
    nested_kind.__doc__ = kind.__doc__
    return nested_kind


def _member(flag: Flag, hint: Any, field: dataclasses.Field[Any], default: Any) -> tuple[str, Any, Any]:
    import tyro

    extras: list[Any] = []
    value = field.default if default is None else getattr(default, field.name)
    if value is MISSING and field.default_factory is not MISSING:
        value = field.default_factory()
    if flag.is_switch:
        if flag.optional:
            extras.append(tyro.conf.DisallowNone)
        if flag.name.startswith("no-"):
            extras.append(tyro.conf.FlagCreatePairsOff)  # no user types `--no-no-name`
    is_open = value is False or value is MISSING or value is None or value in ((), "")
    shown = "" if is_open else f"(default: {_shown(value)})"
    argument: dict[str, Any] = {
        "help": flag.help or None,
        # tyro says so itself, but not of a list, which may be empty for it.
        "help_behavior_hint": shown if value is not MISSING else "(required)" if flag.several else None,
    }
    if not flag.is_switch:
        argument["metavar"] = f"[{flag.metavar} ...]" if flag.several and not flag.repeated else flag.metavar
    if flag.name != flag.field.replace("_", "-"):
        argument["name"] = flag.name
    # The metavar says what a value may be. With other types tyro checks defaults with typeguard, whose import takes a
    # tenth of a second.
    inner: Any = str
    if flag.is_switch:
        inner = Union[bool, None] if flag.optional else bool  # noqa: UP007 (tyro knows `bool | None` by typeguard only)
    kept = [extra for extra in _strip(hint)[1] if not hasattr(extra, "metavar")]
    annotated = Annotated[(inner, *kept, *extras, tyro.conf.arg(**argument))]
    if value is MISSING:
        return field.name, annotated, dataclasses.field()
    return field.name, annotated, dataclasses.field(default=value if flag.is_switch else str(value))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """The value of a flag before the command line is parsed, where defaults depend on it."""
    for place, word in enumerate(words):
        if word == flag:
            if place + 1 == len(words) or words[place + 1].startswith("--"):
                raise ConfigError(f"{flag} needs a value")
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def values_of(flag: str, words: Sequence[str]) -> list[str]:
    """The values of a flag that may be given several times."""
    values = []
    for place, word in enumerate(words):
        if word == flag:
            if place + 1 == len(words) or words[place + 1].startswith("--"):
                raise ConfigError(f"{flag} needs a value")
            values.append(words[place + 1])
        elif word.startswith(f"{flag}="):
            values.append(word.partition("=")[2])
    return values


def from_yaml(kind: type[Spec], path: Path, *, default: Spec | None = None) -> Spec:
    """Read a spec from a file. Unknown keys, wrong types and anything nested but the sections are refused."""
    words = [word for key, value in read_settings(kind, path).items() for word in _to_words(key, value, path)]
    try:
        return parse_values(kind, words, program=str(path), default=default)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _to_words(key: str, value: Any, path: Path) -> list[str]:
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, dict | list):
            raise ConfigError(
                f"{path}: {key} holds a {type(item).__name__}; a spec is flat: names, numbers and lists of them"
            )
    flag, words = f"--{key.replace('_', '-')}", [*map(str, items)]
    return [f"{flag}={words[0]}", *words[1:]] if words else [flag]  # a value may start with two hyphens

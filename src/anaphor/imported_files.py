"""Python files of a user that register parts: imported by `--import`, by name among the examples, or from Python.

An error that a file raises is shown with its file and line.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

from anaphor.config import nearest
from anaphor.errors import AnaphorError, ConfigError, UnknownName, describe_exception
from anaphor.shipped_files import EXAMPLES, find_file
from anaphor.yaml_files import read_mapping

MODULE_PREFIX = "anaphor_import_"
"""How the name of the module of such a file begins."""
_TRACED = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_IN_BACKWARD = "in the backward pass of"


@dataclass(frozen=True)
class ImportedFile:
    """A Python file whose parts were registered by `--import`."""

    path: Path
    sha256: str


class ImportFailed(ConfigError):
    """A file cannot be executed, by itself or because of one beside it."""

    def __init__(self, message: str, file: str) -> None:
        super().__init__(message)
        self.file = file
        """Name of the file whose fault it is."""


IMPORTED: dict[Path, ImportedFile] = {}
"""Files imported so far, by absolute path."""
_EXECUTED: set[Path] = set()
"""All files of users that were executed, those of callbacks included: their errors are shown with file and line."""


@dataclass
class _Import:
    """An import of a file, while it runs."""

    path: Path
    registers: bool = False


_current_import: ContextVar[_Import | None] = ContextVar("current_import", default=None)


def import_file(path: Path | str) -> ImportedFile:
    """Execute a user's Python file that registers parts, or one of the examples that come with the program, by name.

    The same file again is executed only if it was edited.
    """
    given, path = path, find_file(path, ".py", EXAMPLES).absolute()
    try:
        if not path.is_dir() and not path.is_file() and path.exists():  # to read a named pipe would wait for a writer
            raise ConfigError(f"--import {given}: it is not a regular file")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"--import {given}: {error.strerror}") from None
    if path in IMPORTED and IMPORTED[path].sha256 == digest:
        return IMPORTED[path]
    running = _Import(path)
    token = _current_import.set(running)
    try:
        execute_file(given, path)
    finally:
        _current_import.reset(token)
    if not running.registers:
        raise ConfigError(
            f"--import {given} registers nothing: call anaphor.register_mixer or a similar function in it"
        )
    IMPORTED[path] = ImportedFile(path, digest)
    return IMPORTED[path]


def import_class(given: str) -> tuple[type, ImportedFile]:
    """The class that `FILE.py:Class` names, for `--callback`. The file is executed; it need not register anything."""
    file, colon, name = given.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise ConfigError(f"--callback {given}: write FILE.py:Class")
    path = find_file(file, ".py", EXAMPLES).absolute()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"--callback {given}: {error.strerror}") from None
    module = execute_file(file, path, "--callback")
    classes = [
        name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    if not isinstance(kind := getattr(module, name, None), type):
        raise ConfigError(f"--callback {given}: {file} has no class {name!r}{nearest(name, classes)}")
    return kind, ImportedFile(path, digest)


def execute_file(given: Path | str, path: Path, flag: str = "--import") -> ModuleType:
    """The module of a user's Python file, executed anew. `flag` is what an error names as its reason to be executed."""
    name = f"{MODULE_PREFIX}{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(
        name, path, loader=importlib.machinery.SourceFileLoader(name, str(path))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    _EXECUTED.add(path)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is written beside a user's file
    try:
        spec.loader.exec_module(module)
    except AnaphorError as error:
        raise ConfigError(f"{flag} {given}: {error}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (a user's code may raise anything, and exit)
        own, line = _place_beside(error, path)
        place = "" if line is None else f"line {line}" + (f" of {own.name}" if own != path else "")
        text = describe_exception(error, place)
        if isinstance(error, SyntaxError) and place:
            text = f"syntax error in {place}: {error.msg}"
        raise ImportFailed(f"{flag} {given}: {text}", own.name) from None
    finally:
        sys.dont_write_bytecode = before
    return module


def _place_beside(error: BaseException, path: Path) -> tuple[Path, int | None]:
    """The file and line to blame for an error while a file is executed: its own, or those of a file beside it."""
    places = _places(error)
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 0))
    beside = [(Path(file), line) for file, line in places if Path(file).parent == path.parent]
    return beside[-1] if beside else (path, None)


def registering_file() -> Path | None:
    """The file that is being imported, which registers a part; None where the part is not one of a file's."""
    running = _current_import.get()
    if running is None:
        return None
    running.registers = True
    return running.path


def import_flag(path: Path) -> str:
    """The flag that imports a file, as a shell reads it."""
    return f"--import {quote(path.name if path.parent == EXAMPLES else str(path))}"


def names_in(settings: Mapping[str, Any]) -> set[str]:
    """The names among the values of settings, also of those in lists."""
    values = [item for value in settings.values() for item in (value if isinstance(value, list | tuple) else (value,))]
    return {value for value in values if isinstance(value, str)}


@contextmanager
def suggest_imports(config: Path | str | None) -> Iterator[None]:
    """Where a run's spec file is given as settings of another run and names an unknown part, the error inside the block
    names the user's files that the run was trained with."""
    try:
        yield
    except UnknownName as error:
        document: dict[str, Any] = {}
        with suppress(ConfigError):  # where it cannot be read, the name is what is wrong first
            document = {} if config is None else read_mapping(Path(config))
        recorded = document.get("imports")
        entries = [entry for entry in recorded if isinstance(entry, dict)] if isinstance(recorded, list) else []
        imported = {path.name for path in IMPORTED}
        missing = [path for entry in entries if (path := Path(str(entry.get("file")))).name not in imported]
        sections = [document, *(value for value in document.values() if isinstance(value, dict))]
        if not missing or not any(error.name in (*section, *names_in(section)) for section in sections):
            raise
        files, flags = ", ".join(path.name for path in missing), " ".join(map(import_flag, missing))
        raise ConfigError(
            f"{config} names {error.name!r}, which is unknown: its run was trained with parts of {files}: pass {flags}"
        ) from None


def describe_own_error(error: BaseException) -> str | None:
    """What was raised inside an imported file, and where: the fault is the user's. None where it was not."""
    noted = [note.removeprefix("in ") for note in getattr(error, "__notes__", ()) if note.startswith(_IN_BACKWARD)]
    place = _own_place(_places(error)) or next(iter(noted), None)
    return None if place is None else describe_exception(error, place)


def note_backward_place(error: BaseException, trace: str) -> bool:
    """Note on an error of a backward pass the line of an imported file that it belongs to, by the trace of the forward
    pass. False where no imported file is in the trace."""
    place = _own_place([(file, int(line)) for file, line in _TRACED.findall(trace)])
    if place is not None:
        error.add_note(f"{_IN_BACKWARD} {place}")
    return place is not None


def _own_place(places: list[tuple[str, int]]) -> str | None:
    """The last place inside an imported file."""
    own = [(file, line) for file, line in places if Path(file) in _EXECUTED]
    return f"line {own[-1][1]} of {own[-1][0]}" if own else None


def _places(error: BaseException) -> list[tuple[str, int]]:
    """File and line of each call that the error went through."""
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]

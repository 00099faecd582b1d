"""A function out of a file, traced with its default arguments."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anaphor.config import nearest
from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.inspect.graph.graph import Graph
from anaphor.inspect.graph.inputs import signature_of
from anaphor.inspect.graph.tracing import trace


def traced_file(path: Path, name: str, *, level: str = "operations", output: str | None = None) -> Graph:
    """Run the file, find the function, call it with its defaults. Whatever goes wrong is told in one line."""
    try:
        # What a file or a function prints is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            return trace(function_of(path, name), level=level, output=output)()
    except AnaphorError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises is the user's, and is told as such
        raise ConfigError(f"{name} fails{_line_in(error, path)}: {_told(error)}{_hint(error)}") from None


def function_of(path: Path, name: str) -> Callable[..., Any]:
    """A function with a default for every parameter."""
    known = {key: value for key, value in vars(_loaded(path)).items() if not key.startswith("__")}
    functions = {key: value for key, value in known.items() if callable(value) and not inspect.isclass(value)}
    if name in known and name not in functions:
        kind = "a class" if inspect.isclass(known[name]) else f"a {type(known[name]).__name__}"
        raise ConfigError(f"{name} in {path} is {kind}, not a function{_among(functions)}")
    if name not in functions:
        raise ConfigError(f"no function {name!r} in {path}{nearest(name, functions)}{_among(functions)}")
    function: Callable[..., Any] = functions[name]
    signature = signature_of(function)
    empty = inspect.Parameter.empty
    star = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in signature.parameters.values() if signature is not None else ():
        if parameter.default is empty and parameter.kind not in star:
            raise ConfigError(
                f"{name} in {path} has no default for {parameter.name!r}: its defaults are its inputs, for example "
                f"{parameter.name}=1/4 or {parameter.name}=[1, 2]"
            )
    return function


def _among(functions: dict[str, Any]) -> str:
    own = [key for key in functions if not key.startswith("_")]
    return f" (functions there: {', '.join(own[:10])}{' …' if len(own) > 10 else ''})" if own else ""


def _loaded(path: Path) -> Any:
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file")
    if not path.is_file():
        near = nearest(path.name, (one.name for one in path.parent.glob("*.py"))) if path.parent.is_dir() else ""
        raise DataError(f"no file at {path}{near}")
    spec = importlib.util.spec_from_file_location("traced", path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Files next to it are found, as they are when it is run by itself; dataclasses look for their module by name.
    before, known = list(sys.path), sys.modules.get("traced")
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules["traced"] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise DataError(f"{path}:{error.lineno} is no valid Python: {error.msg}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a file may raise anything
        raise DataError(f"{path} cannot be run{_line_in(error, path)}: {_told(error)}") from None
    finally:
        sys.path[:] = before
        if known is None:
            sys.modules.pop("traced", None)
        else:
            sys.modules["traced"] = known
    return module


def _line_in(error: BaseException, path: Path) -> str:
    """` on line 7`, of the innermost place in that file."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    same = own or [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name
    ]
    return f" on line {same[-1].lineno}" if same else ""


def _told(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _hint(error: BaseException) -> str:
    if isinstance(error, TypeError) and any(word in str(error) for word in ("integer", "int", "index", "Number")):
        return "; a parameter that counts stays a whole number when it is written `n: int = 3`"
    return ""

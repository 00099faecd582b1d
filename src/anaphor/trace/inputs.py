"""What is traced: a function from a file, and its arguments as tensors that gradients can reach."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anaphor.config import nearest
from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.trace.graph import Graph
from anaphor.trace.program import map_nested


@dataclass
class Leaf:
    """An input tensor and the name of its parameter."""

    name: str
    tensor: Tensor
    fractions: Any = None


def bound_arguments(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Value of every parameter by name, defaults included."""
    signature = signature_of(function)
    if signature is None:
        return {**{f"x{place}": value for place, value in enumerate(arguments, 1)}, **keywords}
    try:
        bound = signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise ConfigError(f"{name_of(function)}{signature} cannot be called with these arguments: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except ValueError:  # some torch functions have no signature
        return None


def name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


class InputConverter:
    """Converts numbers and tensors to leaf tensors and keeps a list of them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.leaves: list[Leaf] = []

    def convert(self, name: str, value: Any, annotation: Any = None) -> Any:
        """Strings, booleans and parameters annotated as `int`, `bool` or `str` are left unchanged."""
        if annotation in (int, bool, str, "int", "bool", "str") or isinstance(value, bool):
            return value
        if isinstance(value, Tensor):
            # A copy: the caller's tensor must not be changed or accumulate gradients.
            copy = value.detach().clone()
            return self._leaf(name, copy.requires_grad_() if copy.is_floating_point() else copy)
        if isinstance(value, int | float | Fraction):
            return self._leaf(name, self._tensor(value), np.array(_exact(value), dtype=object))
        if isinstance(value, np.ndarray):
            return self.convert(name, torch.from_numpy(value.copy()))
        if isinstance(value, list | tuple) and not hasattr(value, "_fields") and value:
            return self._sequence(name, value)
        if isinstance(value, dict):
            return {key: self.convert(f"{name}[{key}]", part) for key, part in value.items()}
        return value

    def _sequence(self, name: str, value: Any) -> Any:
        flat: list[Any] = []
        map_nested(flat.append, value)
        if not all(isinstance(part, int | float | Fraction) and not isinstance(part, bool) for part in flat):
            return type(value)(self.convert(f"{name}[{place}]", part) for place, part in enumerate(value))
        shape = np.array(value, dtype=object).shape
        if np.prod(shape) != len(flat):
            raise ConfigError(f"{name}={value!r} is not a matrix: its rows have different lengths")
        exact = np.empty(len(flat), dtype=object)
        exact[:] = [_exact(part) for part in flat]
        numbers = torch.tensor([float(part) for part in flat], dtype=self.dtype).reshape(shape)
        return self._leaf(name, numbers.requires_grad_(), exact.reshape(shape))

    def _tensor(self, value: Any) -> Tensor:
        return torch.tensor(float(value), dtype=self.dtype, requires_grad=True)

    def _leaf(self, name: str, tensor: Tensor, fractions: Any = None) -> Tensor:
        if fractions is not None and any(part is None for part in fractions.ravel()):
            fractions = None
        self.leaves.append(Leaf(name, tensor, fractions))
        return tensor


def common_dtype(values: Iterable[Any]) -> torch.dtype:
    """The floating dtype of the first tensor or module, which numbers get too; else float64."""
    for value in values:
        parts: Iterable[Any] = ()
        if isinstance(value, Tensor):
            parts = (value,)
        elif isinstance(value, nn.Module):
            parts = value.parameters()
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Tensor | nn.Module):
            return common_dtype(value)
        found: list[torch.dtype] = [tensor.dtype for tensor in parts if tensor.is_floating_point()]
        if found:
            return found[0]
    return torch.float64


def _exact(value: Any) -> Fraction | None:
    """The exact fraction. A float stands for the simplest fraction that rounds to it; None if none is simple."""
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if not np.isfinite(value):
        return None
    simple = Fraction(value).limit_denominator(1000)
    return simple if float(simple) == value else None


def trace_file(path: Path, name: str, *, level: str = "operations", output: str | None = None) -> Graph:
    """Run the file and trace a function with its defaults. Every error becomes one line."""
    from anaphor.trace.tracing import trace  # which imports this module

    try:
        # Output of the file must not mix with the result on stdout.
        with contextlib.redirect_stdout(sys.stderr):
            return trace(load_function(path, name), level=level, output=output)()
    except AnaphorError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # user code may raise anything
        raise ConfigError(f"{name} fails{_line_of(error, path)}: {_error_text(error)}{_hint(error)}") from None


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """A function from a file, which must have a default for every parameter."""
    names = {key: value for key, value in vars(_import_file(path)).items() if not key.startswith("__")}
    functions = {key: value for key, value in names.items() if callable(value) and not inspect.isclass(value)}
    if name in names and name not in functions:
        kind = "a class" if inspect.isclass(names[name]) else f"a {type(names[name]).__name__}"
        raise ConfigError(f"{name} in {path} is {kind}, not a function{_list_functions(functions)}")
    if name not in functions:
        raise ConfigError(f"no function {name!r} in {path}{nearest(name, functions)}{_list_functions(functions)}")
    function: Callable[..., Any] = functions[name]
    signature = signature_of(function)
    empty = inspect.Parameter.empty
    star = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in signature.parameters.values() if signature is not None else ():
        if parameter.default is empty and parameter.kind not in star:
            raise ConfigError(
                f"{name} in {path} has no default for {parameter.name!r}: the defaults are the inputs, for example "
                f"{parameter.name}=1/4 or {parameter.name}=[1, 2]"
            )
    return function


def _list_functions(functions: dict[str, Any]) -> str:
    own = [key for key in functions if not key.startswith("_")]
    return f" (functions there: {', '.join(own[:10])}{' …' if len(own) > 10 else ''})" if own else ""


def _import_file(path: Path) -> Any:
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file")
    if not path.is_file():
        near = nearest(path.name, (one.name for one in path.parent.glob("*.py"))) if path.parent.is_dir() else ""
        raise DataError(f"no file at {path}{near}")
    spec = importlib.util.spec_from_file_location("traced", path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # As for a script: imports find files next to it, and dataclasses find their module by name.
    path_before, module_before = list(sys.path), sys.modules.get("traced")
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules["traced"] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise DataError(f"{path}:{error.lineno} is not valid Python: {error.msg}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # user code may raise anything
        raise DataError(f"{path} cannot be run{_line_of(error, path)}: {_error_text(error)}") from None
    finally:
        sys.path[:] = path_before
        if module_before is None:
            sys.modules.pop("traced", None)
        else:
            sys.modules["traced"] = module_before
    return module


def _line_of(error: BaseException, path: Path) -> str:
    """` on line 7`: the innermost frame in that file."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    same = own or [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name
    ]
    return f" on line {same[-1].lineno}" if same else ""


def _error_text(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _hint(error: BaseException) -> str:
    if isinstance(error, TypeError) and any(word in str(error) for word in ("integer", "int", "index", "Number")):
        return "; annotate a parameter that must stay an integer: `n: int = 3`"
    return ""

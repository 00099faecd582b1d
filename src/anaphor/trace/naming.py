"""Names of tensors in a traced function: the variable that the result of the running call is stored into.

It is read from the bytecode after the running call, so that no source file and no interpreter setting is needed.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

_TORCH = str(Path(torch.__file__).parent)
_TRACER = str(Path(__file__).parent)
_OVERRIDES = str(Path(_TORCH) / "overrides.py")
_FUNCTIONS = str(Path(_TORCH) / "autograd" / "function.py")
_MODULES = str(Path(_TORCH) / "nn" / "modules" / "module.py")
_NO_EFFECT = ("COPY", "NOP", "CACHE", "EXTENDED_ARG", "RESUME")
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR")


@dataclass(frozen=True)
class Naming:
    """Names for the results of one call; `central` if they are variables of the traced function itself."""

    names: tuple[str, ...] = ()
    central: bool = False


def outer_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_library_frame(frame: FrameType) -> bool:
    """Whether a frame belongs to torch or to the tracer."""
    return frame.f_code.co_filename.startswith((_TORCH, _TRACER))


def where(frame: FrameType) -> str:
    """file:line of the innermost frame of user code."""
    for one in outer_frames(frame):
        if not is_library_frame(one):
            return f"{Path(one.f_code.co_filename).name}:{one.f_lineno}"
    return "an unknown line"


def in_custom_function(frame: FrameType) -> bool:
    """Whether a `torch.autograd.Function` runs its forward, which is not traced inside."""
    return any(one.f_code.co_filename == _FUNCTIONS and one.f_code.co_name == "apply" for one in outer_frames(frame))


def in_transform() -> bool:
    """Whether a `torch.func` transform is active: its tensors do not exist outside."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def module_frames(frame: FrameType) -> list[FrameType]:
    """Frames of module calls, outermost first."""
    found = [
        one for one in outer_frames(frame) if one.f_code.co_name == "_call_impl" and one.f_code.co_filename == _MODULES
    ]
    return found[::-1]


def root_of(frame: FrameType, code: CodeType | None) -> FrameType | None:
    """The outermost frame of the traced function."""
    found = None
    for one in outer_frames(frame):
        if one.f_code is code:
            found = one
    return found


def naming(frame: FrameType, root: FrameType | None) -> Naming:
    """Follow the result outward through every `return` to the first variable it is stored into."""
    for one in outer_frames(frame):
        if one.f_code.co_filename == _OVERRIDES:
            continue
        following = _following_instructions(one.f_code).get(one.f_lasti, ())
        if not following:
            return Naming(central=one is root)
        if following[0] == "return":
            if one is root:
                return Naming()
            continue
        if is_library_frame(one):
            return Naming()
        return Naming(following[1:], central=one is root)
    return Naming()


@lru_cache(maxsize=4096)
def _following_instructions(code: CodeType) -> dict[int, tuple[str, ...]]:
    """By offset of an instruction, where its result goes: ("return",) or ("store", names…)."""
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _NO_EFFECT]
    found: dict[int, tuple[str, ...]] = {}
    for place, one in enumerate(instructions[:-1]):
        following = instructions[place + 1]
        if following.opname == "RETURN_VALUE":
            found[one.offset] = ("return",)
        elif following.opname.startswith(_STORES):
            found[one.offset] = ("store", *_stored_names(following)[:1])
        elif following.opname == "UNPACK_SEQUENCE":
            names: list[str] = []
            for store in instructions[place + 2 : place + 2 + int(following.argval)]:
                names += _stored_names(store)
            if len(names) >= int(following.argval):
                found[one.offset] = ("store", *names[: int(following.argval)])
    return found


def _stored_names(instruction: dis.Instruction) -> list[str]:
    if not instruction.opname.startswith(_STORES):
        return []
    if isinstance(instruction.argval, tuple):  # newer Python versions fuse two instructions
        count = 2 if instruction.opname.endswith("STORE_FAST") else 1
        return [str(name) for name in instruction.argval[:count]]
    return [str(instruction.argval)]


def tensors_by_name(variables: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors in variables, also in lists, tuples and dictionaries: `h`, `q[0]`, `q[1, 2]`."""
    for name, value in variables.items():
        if isinstance(value, Tensor):
            yield name, value
    for name, value in variables.items():
        yield from _nested_tensors(name, value, depth=2)


def _nested_tensors(name: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list | tuple):
        fields = getattr(value, "_fields", None)
        parts = list(zip(fields or range(len(value)), value, strict=True))
    else:
        return
    for key, part in parts:
        inner = f"{name}.{key}" if hasattr(value, "_fields") else f"{name}[{_key(key)}]"
        if isinstance(part, Tensor):
            yield inner, part
        elif depth > 1:
            yield from _nested_tensors(inner, part, depth - 1)


def _key(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def outer_variables(function: Any, code: CodeType | None) -> dict[str, Any]:
    """Closure variables of a function, and the globals that it uses."""
    inner = getattr(function, "__func__", function)
    variables: dict[str, Any] = {}
    space = getattr(inner, "__globals__", {})
    for name in code.co_names if code is not None else ():
        if name in space:
            variables[name] = space[name]
    for name, cell in zip(
        code.co_freevars if code is not None else (), getattr(inner, "__closure__", None) or (), strict=False
    ):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    return variables


def modules_by_name(variables: dict[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Modules in variables, with all submodules: `model`, `model.layers.0`."""
    for name, value in variables.items():
        whole = value if isinstance(value, nn.Module) else None
        for inner, part in whole.named_modules() if whole is not None else ():
            yield ".".join(filter(None, (name, inner))), part
        if isinstance(value, list | tuple):
            for place, part in enumerate(value):
                if isinstance(part, nn.Module):
                    yield from modules_by_name({f"{name}[{place}]": part})

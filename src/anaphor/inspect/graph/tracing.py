"""Run a function as it is and write down every torch function it calls.

A mode of the framework's own sees each call before it happens. What a call does inside is not seen, so that a ReLU is
one node however it is made. Gradients come from the framework too: it is asked for all of them at once.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from anaphor.errors import ConfigError
from anaphor.inspect.graph import naming
from anaphor.inspect.graph.graph import Graph
from anaphor.inspect.graph.inputs import Preparation, bound_arguments, common_dtype, name_of, signature_of
from anaphor.inspect.graph.levels import drawn
from anaphor.inspect.graph.operations import READING, SHAPE_ONLY, is_random, plain_name, writes_in_place
from anaphor.inspect.graph.program import Call, Held, ModuleCall, Program, Ref, referenced, tensors_in


def trace(function: Callable[..., Any], *, level: str = "operations", output: str | None = None) -> Traced:
    """The computation graph of a function: `trace(f)(x=1, w=[1, 2])`, with a value and a gradient at every node.

    Numbers, fractions and lists of numbers become tensors; the function itself need not know. Gradients are those of
    the sum of the scalars it returns, or of everything it returns where nothing is a scalar, or of `output`, by name.
    """
    if not callable(function):
        raise ConfigError(f"only a function can be traced, not a {type(function).__name__}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{name_of(function)} does not run when it is called: only what returns tensors can be traced"
        )
    return Traced(function, level, output)


class Traced:
    """A function that gives its graph in place of its result."""

    def __init__(self, function: Callable[..., Any], level: str, output: str | None) -> None:
        self.function, self.level, self.output = function, level, output

    def __call__(self, *arguments: Any, **keywords: Any) -> Graph:
        return drawn(recorded_program(self.function, arguments, keywords), self.level, self.output)


def recorded_program(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Program:
    """Call the function and write down what it does."""
    values = bound_arguments(function, arguments, keywords)
    signature, code = signature_of(function), _code_of(function)
    outside = naming.surroundings(_inner(function), code)
    preparation = Preparation(common_dtype([function, *values.values(), *outside.values()]))
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, value in values.items():
        parameter = None if signature is None else signature.parameters[name]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if parameter is None else parameter.kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional += [preparation.prepared(f"{name}[{place}]", part) for place, part in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named.update({key: preparation.prepared(key, part) for key, part in value.items()})
        else:
            prepared = preparation.prepared(name, value, None if parameter is None else parameter.annotation)
            if kind is inspect.Parameter.KEYWORD_ONLY or (parameter is None and name in keywords):
                named[name] = prepared
            else:
                positional.append(prepared)
    tracer = Tracer(Program(name_of(function)), code)
    for leaf in preparation.leaves:
        tracer.hold(leaf.tensor, "input", name=leaf.name, central=True, varies=True, fractions=leaf.fractions)
    with torch.enable_grad(), tracer:
        result = function(*positional, **named)
    tracer.finish(function, {**outside, **values}, result)
    return tracer.program


class Tracer(TorchFunctionMode):
    """Sees every torch function that is called while it is entered."""

    def __init__(self, program: Program, code: CodeType | None) -> None:
        super().__init__()
        self.program, self.code = program, code
        self.root: FrameType | None = None
        self._looked_at = -1
        self._numbers: dict[int, int] = {}  # by identity; all tensors are held, so that none is reused
        self._used: set[int] = set()
        self._readings: dict[tuple[str, tuple[int, ...], str], None] = {}  # told at the end, when all have their names
        self._grown: dict[Any, int] = {}  # nodes of autograd, for results that no call was seen to make
        self._modules: dict[FrameType, tuple[ModuleCall, nn.Module]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        frame = sys._getframe(1)
        name = plain_name(func)
        if naming.in_custom_function(frame) or naming.in_transform():
            return func(*args, **keywords)
        self.root = self.root or naming.root_of(frame, self.code)
        if name == "backward":
            raise ConfigError(
                f"{naming.where(frame)}: backward() is called; return the loss instead, and it is done here"
            )
        if writes_in_place(name, keywords):
            self._allow_in_place(name, args, keywords, frame)
            return func(*args, **keywords)
        self._look_around()
        random_state = torch.get_rng_state() if is_random(name, keywords) else None
        if getattr(func, "__name__", "") in READING:
            self._tell_of_reading(func.__name__, args, frame)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that a gradient is lost is in our notes
                return func(*args, **keywords)
        result = func(*args, **keywords)
        made = tensors_in(result)
        if made and not any(tensor is one for one in tensors_in(args) for tensor in made):
            self._write_down(Call(func, name, args, dict(keywords), random_state=random_state), made, frame)
        return result

    def hold(self, tensor: Tensor, kind: str, **more: Any) -> int:
        """Give a tensor its number."""
        number = len(self.program.held)
        self.program.held.append(Held(tensor, kind, **more))
        self._numbers[id(tensor)] = number
        if tensor.grad_fn is not None:
            self._grown[tensor.grad_fn, tensor.output_nr] = number
        return number

    def number_of(self, tensor: Tensor) -> int:
        """The number of a tensor; one that was never seen before is a leaf, unless autograd knows where it is from."""
        known = self._numbers.get(id(tensor))
        if known is not None:
            return known
        if tensor.grad_fn is not None:
            return self._adopt(tensor)
        learned = tensor.requires_grad
        return self.hold(tensor, "parameter" if learned else "constant", varies=learned)

    def _write_down(self, call: Call, made: Sequence[Tensor], frame: FrameType) -> None:
        call.arguments = referenced(call.arguments, self.number_of)
        call.keywords = referenced(call.keywords, self.number_of)
        sources = [self.program.held[number] for number in call.sources]
        self._used.update(call.sources)
        varies = call.op not in SHAPE_ONLY and any(source.varies for source in sources)
        found = naming.naming(frame, self.root)
        names: Sequence[str | None] = found.names if len(found.names) == len(made) else [None] * len(made)
        if not varies and not any(tensor.requires_grad for tensor in made):
            for tensor, name in zip(made, names, strict=True):
                if id(tensor) not in self._numbers:
                    self.hold(tensor, "constant", name=name, central=found.central)
            return
        index = len(self.program.calls)
        call.where = naming.where(frame)
        call.modules = self._modules_round(frame)
        numbers = []
        for position, (tensor, name) in enumerate(zip(made, names, strict=True)):
            if varies or tensor.grad_fn is not None:
                central = found.central and name is not None
                numbers.append(
                    self.hold(tensor, "result", call=index, position=position, name=name, central=central, varies=True)
                )
            else:
                numbers.append(self.number_of(tensor))
        call.results = tuple(numbers)
        self.program.calls.append(call)

    def _look_around(self) -> None:
        """Variables of the traced function that have got a tensor since the last call, from somewhere further inside.
        A loop will soon give them another one."""
        if self.root is None or self.root.f_lasti == self._looked_at:
            return
        self._looked_at = self.root.f_lasti
        for name, value in self.root.f_locals.items():
            if isinstance(value, Tensor):
                self._call_it(name, value)

    def _call_it(self, name: str, tensor: Tensor) -> None:
        number = self._numbers.get(id(tensor))
        if number is not None and not (self.program.held[number].name and self.program.held[number].central):
            self.program.held[number].name, self.program.held[number].central = name, True

    def _adopt(self, tensor: Tensor) -> int:
        """Something with a backward of its own made this tensor. Autograd knows from what."""
        sources = [Ref(number) for number in dict.fromkeys(self._roots(tensor.grad_fn))]
        name = type(tensor.grad_fn).__name__.rstrip("0123456789").removesuffix("Backward")
        number = self.hold(tensor, "result", call=len(self.program.calls), varies=True)
        self._used.update(ref.number for ref in sources)
        self.program.calls.append(Call(None, name, tuple(sources), {}, results=(number,)))
        return number

    def _roots(self, grown: Any) -> Iterator[int]:
        for before, position in grown.next_functions if grown is not None else ():
            if before is None:
                continue
            if hasattr(before, "variable"):
                yield self.number_of(before.variable)
            elif (before, position) in self._grown:
                yield self._grown[before, position]
            else:
                yield from self._roots(before)

    def _modules_round(self, frame: FrameType) -> tuple[ModuleCall, ...]:
        for one in naming.module_frames(frame):
            if one not in self._modules:
                module = one.f_locals["self"]
                self._modules[one] = ModuleCall(len(self._modules), "", type(module).__name__), module
        return tuple(self._modules[one][0] for one in naming.module_frames(frame))

    def _allow_in_place(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any], frame: FrameType) -> None:
        """What no traced tensor has to do with may be filled as one likes, as long as nobody has read it."""
        written = tensors_in(keywords.get("out")) or tensors_in(args)[:1]
        read = [tensor for tensor in tensors_in((args, keywords)) if not any(tensor is one for one in written)]
        for tensor in (*written, *read):
            number = self._numbers.get(id(tensor))
            is_written = any(tensor is one for one in written)
            known = None if number is None else self.program.held[number]
            traced = known is not None and (known.varies or (is_written and number in self._used))
            if traced or (known is None and tensor.grad_fn is not None):
                what = f"the traced tensor {known.name!r}" if known is not None and known.name else "a traced tensor"
                raise ConfigError(
                    f"{naming.where(frame)}: {name} {'changes' if is_written else 'writes'} {what} "
                    f"{'in place' if is_written else 'into another one'}, which a graph cannot show; {_instead(name)}"
                )

    def _tell_of_reading(self, name: str, args: tuple[Any, ...], frame: FrameType) -> None:
        number = self._numbers.get(id(args[0]))
        if number is None:
            return
        made = self.program.maker(number)
        # A comparison has no gradient, but what it compares may.
        behind = [number] if made is None else [number, *made.sources]
        smooth = tuple(one for one in behind if self.program.held[one].differentiable)
        if smooth:
            self._readings[naming.where(frame), smooth, READING[name]] = None

    def finish(self, function: Any, variables: dict[str, Any], result: Any) -> None:
        """Names that are only known at the end, and the outputs."""
        held = self.program.held
        outputs = list(_outputs(result))
        # A frame that has ended still holds its variables while somebody holds the frame.
        inside = dict(self.root.f_locals) if self.root is not None else {}
        owner = _owner(function)
        known = dict(naming.modules_by_name({"": owner} if owner is not None else {}))
        for name, module in naming.modules_by_name({**variables, **inside}):
            known.setdefault(name, module)
        paths: dict[int, str] = {}
        for path, module in known.items():
            paths.setdefault(id(module), path)
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                number = self._numbers.get(id(tensor))
                if number is not None and held[number].name is None:
                    held[number].name, held[number].central = f"{path}.{name}".lstrip("."), tensor.requires_grad
        for name, tensor in naming.tensors_by_name({**variables, **inside}):
            self._call_it(name, tensor)
        for made, module in self._modules.values():
            made.path = paths.get(id(module), made.kind)
        for call in self.program.calls:
            call.modules = tuple(module for module in call.modules if module.path)
        for name, tensor in outputs:
            if id(tensor) not in self._numbers and tensor.grad_fn is None:
                continue
            number = self.number_of(tensor)
            self.program.outputs.append(number)
            if held[number].name is None:
                held[number].name, held[number].central = name or self.program.name, True
        for where, numbers, does in self._readings:
            names = " and ".join(dict.fromkeys(held[one].name or "a traced tensor" for one in numbers))
            self.program.notes.append(f"{where}: {names} {does}; no gradient passes there")
        if not self.program.outputs:
            what = f"something of type {type(result).__name__}" if result is not None else "nothing"
            why = "".join(f"; {note}" for note in self.program.notes[:1])
            raise ConfigError(f"{self.program.name} returns {what}: it must return a tensor made from its inputs{why}")
        self.root = None
        self._modules.clear()


def _outputs(result: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors at the surface of what is returned; those deeper inside only where there are none."""
    if isinstance(result, Tensor):
        yield "", result
        return
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = {one.name: getattr(result, one.name) for one in dataclasses.fields(result)}
    found = list(naming.tensors_by_name({"": result}))
    surface = [one for one in found if "]" not in one[0][:-1] and one[0].count(".") <= 1]
    outputs = surface or found
    for name, tensor in outputs:
        plain = name[1:-1] if name.startswith("[") and name.endswith("]") else name.lstrip(".")
        if plain.isdigit():
            plain = "output" if len(outputs) == 1 else f"output_{int(plain) + 1}"
        yield plain, tensor


def _instead(name: str) -> str:
    if name == "setitem":
        return "build it with torch.stack, torch.cat or torch.where"
    plain = name.rstrip("_")
    return f"use `{plain}`, which makes a new tensor" if plain != name else "leave out `inplace` or `out`"


def _inner(function: Any) -> Any:
    """The function that was written, inside of what may be wrapped round it."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, nn.Module):
        return function.forward
    function = inspect.unwrap(function)
    if hasattr(function, "__code__") or hasattr(function, "__func__"):
        return function
    return type(function).__call__  # an object that can be called


def _code_of(function: Any) -> CodeType | None:
    inner = _inner(function)
    return getattr(getattr(inner, "__func__", inner), "__code__", None)


def _owner(function: Any) -> nn.Module | None:
    """The module that is traced, if it is one, or one of its methods."""
    whole = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return whole if isinstance(whole, nn.Module) else None

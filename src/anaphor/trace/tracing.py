"""Run a function and record every torch function it calls, with a `TorchFunctionMode`.

Calls inside a torch function are not recorded, so that a ReLU is one node. Gradients come from autograd.
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
from anaphor.trace import naming
from anaphor.trace.graph import Graph
from anaphor.trace.inputs import InputConverter, bound_arguments, common_dtype, name_of, signature_of
from anaphor.trace.levels import build_graph
from anaphor.trace.program import (
    PYTHON_CONVERSIONS,
    SHAPE_ONLY,
    Call,
    ModuleCall,
    Program,
    Ref,
    TracedTensor,
    function_name,
    is_random,
    replace_tensors,
    tensors_in,
    writes_in_place,
)


def trace(function: Callable[..., Any], *, level: str = "operations", output: str | None = None) -> Traced:
    """The computation graph of a function: `trace(f)(x=1, w=[1, 2])`, with a value and a gradient at every node.

    Numbers, fractions and lists of numbers become tensors. Gradients are those of the sum of the returned scalars, or
    of all returned tensors if none is a scalar, or of the tensor named `output`.
    """
    if not callable(function):
        raise ConfigError(f"trace needs a function, not a {type(function).__name__}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{name_of(function)} is a coroutine or generator: only functions that return tensors can be traced"
        )
    return Traced(function, level, output)


class Traced:
    """A function that returns its graph instead of its result."""

    def __init__(self, function: Callable[..., Any], level: str, output: str | None) -> None:
        self.function, self.level, self.output = function, level, output

    def __call__(self, *arguments: Any, **keywords: Any) -> Graph:
        return build_graph(record_program(self.function, arguments, keywords), self.level, self.output)


def record_program(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Program:
    """Call the function and record what it does."""
    values = bound_arguments(function, arguments, keywords)
    signature, code = signature_of(function), _code_of(function)
    outside = naming.outer_variables(_unwrap(function), code)
    converter = InputConverter(common_dtype([function, *values.values(), *outside.values()]))
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, value in values.items():
        parameter = None if signature is None else signature.parameters[name]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if parameter is None else parameter.kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional += [converter.convert(f"{name}[{place}]", part) for place, part in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named.update({key: converter.convert(key, part) for key, part in value.items()})
        else:
            converted = converter.convert(name, value, None if parameter is None else parameter.annotation)
            if kind is inspect.Parameter.KEYWORD_ONLY or (parameter is None and name in keywords):
                named[name] = converted
            else:
                positional.append(converted)
    tracer = Tracer(Program(name_of(function)), code)
    for leaf in converter.leaves:
        tracer.add_tensor(leaf.tensor, "input", name=leaf.name, central=True, varies=True, fractions=leaf.fractions)
    with torch.enable_grad(), tracer:
        result = function(*positional, **named)
    tracer.finish(function, {**outside, **values}, result)
    return tracer.program


class Tracer(TorchFunctionMode):
    """Records every torch function that is called while it is active."""

    def __init__(self, program: Program, code: CodeType | None) -> None:
        super().__init__()
        self.program, self.code = program, code
        self.root: FrameType | None = None
        self._last_instruction = -1
        self._numbers: dict[int, int] = {}  # by id(); all tensors are kept alive, so that no id is reused
        self._used: set[int] = set()
        # Conversions to Python values (line, tensors, verb), reported at the end, when names are known.
        self._conversions: dict[tuple[str, tuple[int, ...], tuple[str, str]], None] = {}
        self._by_grad_fn: dict[Any, int] = {}  # autograd nodes, for results of calls that were not recorded
        self._modules: dict[FrameType, tuple[ModuleCall, nn.Module]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        frame = sys._getframe(1)
        name = function_name(func)
        if naming.in_custom_function(frame) or naming.in_transform():
            return func(*args, **keywords)
        self.root = self.root or naming.root_of(frame, self.code)
        if name == "backward":
            raise ConfigError(f"{naming.where(frame)}: backward() was called; return the loss instead: trace calls it")
        if writes_in_place(name, keywords):
            self._check_in_place(name, args, keywords, frame)
            return func(*args, **keywords)
        self._name_local_variables()
        random_state = torch.get_rng_state() if is_random(name, keywords) else None
        if getattr(func, "__name__", "") in PYTHON_CONVERSIONS:
            self._note_conversion(func.__name__, args, frame)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # our notes report that no gradient passes
                return func(*args, **keywords)
        result = func(*args, **keywords)
        results = tensors_in(result)
        if results and not any(tensor is one for one in tensors_in(args) for tensor in results):
            self._add_call(Call(func, name, args, dict(keywords), random_state=random_state), results, frame)
        return result

    def add_tensor(self, tensor: Tensor, kind: str, **more: Any) -> int:
        """Add a tensor to the program and return its index."""
        number = len(self.program.tensors)
        self.program.tensors.append(TracedTensor(tensor, kind, **more))
        self._numbers[id(tensor)] = number
        if tensor.grad_fn is not None:
            self._by_grad_fn[tensor.grad_fn, tensor.output_nr] = number
        return number

    def number_of(self, tensor: Tensor) -> int:
        """Index of a tensor. A new one is a leaf, unless autograd knows how it was computed."""
        number = self._numbers.get(id(tensor))
        if number is not None:
            return number
        if tensor.grad_fn is not None:
            return self._add_opaque_call(tensor)
        kind = "parameter" if tensor.requires_grad else "constant"
        return self.add_tensor(tensor, kind, varies=tensor.requires_grad)

    def _add_call(self, call: Call, results: Sequence[Tensor], frame: FrameType) -> None:
        call.arguments = replace_tensors(call.arguments, self.number_of)
        call.keywords = replace_tensors(call.keywords, self.number_of)
        sources = [self.program.tensors[number] for number in call.sources]
        self._used.update(call.sources)
        varies = call.op not in SHAPE_ONLY and any(source.varies for source in sources)
        found = naming.naming(frame, self.root)
        names: Sequence[str | None] = found.names if len(found.names) == len(results) else [None] * len(results)
        if not varies and not any(tensor.requires_grad for tensor in results):
            for tensor, name in zip(results, names, strict=True):
                if id(tensor) not in self._numbers:
                    self.add_tensor(tensor, "constant", name=name, central=found.central)
            return
        index = len(self.program.calls)
        call.where = naming.where(frame)
        call.modules = self._enclosing_modules(frame)
        numbers = []
        for position, (tensor, name) in enumerate(zip(results, names, strict=True)):
            if varies or tensor.grad_fn is not None:
                central = found.central and name is not None
                numbers.append(
                    self.add_tensor(
                        tensor, "result", call=index, position=position, name=name, central=central, varies=True
                    )
                )
            else:
                numbers.append(self.number_of(tensor))
        call.results = tuple(numbers)
        self.program.calls.append(call)

    def _name_local_variables(self) -> None:
        """Name tensors after local variables of the traced function, before a loop assigns others to them."""
        if self.root is None or self.root.f_lasti == self._last_instruction:
            return
        self._last_instruction = self.root.f_lasti
        for name, value in self.root.f_locals.items():
            if isinstance(value, Tensor):
                self._set_name(name, value)

    def _set_name(self, name: str, tensor: Tensor) -> None:
        number = self._numbers.get(id(tensor))
        if number is not None and not (self.program.tensors[number].name and self.program.tensors[number].central):
            self.program.tensors[number].name, self.program.tensors[number].central = name, True

    def _add_opaque_call(self, tensor: Tensor) -> int:
        """Add a call for a tensor computed by a custom autograd function; its inputs are found through autograd."""
        sources = [Ref(number) for number in dict.fromkeys(self._autograd_sources(tensor.grad_fn))]
        name = type(tensor.grad_fn).__name__.rstrip("0123456789").removesuffix("Backward")
        number = self.add_tensor(tensor, "result", call=len(self.program.calls), varies=True)
        self._used.update(ref.number for ref in sources)
        self.program.calls.append(Call(None, name, tuple(sources), {}, results=(number,)))
        return number

    def _autograd_sources(self, grown: Any) -> Iterator[int]:
        for before, position in grown.next_functions if grown is not None else ():
            if before is None:
                continue
            if hasattr(before, "variable"):
                yield self.number_of(before.variable)
            elif (before, position) in self._by_grad_fn:
                yield self._by_grad_fn[before, position]
            else:
                yield from self._autograd_sources(before)

    def _enclosing_modules(self, frame: FrameType) -> tuple[ModuleCall, ...]:
        for one in naming.module_frames(frame):
            if one not in self._modules:
                module = one.f_locals["self"]
                self._modules[one] = ModuleCall(len(self._modules), "", type(module).__name__), module
        return tuple(self._modules[one][0] for one in naming.module_frames(frame))

    def _check_in_place(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any], frame: FrameType) -> None:
        """In-place writes are allowed only on tensors that do not depend on inputs and were not read yet."""
        written = tensors_in(keywords.get("out")) or tensors_in(args)[:1]
        read = [tensor for tensor in tensors_in((args, keywords)) if not any(tensor is one for one in written)]
        for tensor in (*written, *read):
            number = self._numbers.get(id(tensor))
            is_written = any(tensor is one for one in written)
            traced = None if number is None else self.program.tensors[number]
            is_traced = traced is not None and (traced.varies or (is_written and number in self._used))
            if is_traced or (traced is None and tensor.grad_fn is not None):
                what = f"the traced tensor {traced.name!r}" if traced is not None and traced.name else "a traced tensor"
                raise ConfigError(
                    f"{naming.where(frame)}: {name} {'changes' if is_written else 'copies'} {what} "
                    f"{'in place' if is_written else 'into another one'}, which cannot be traced; "
                    f"{_suggest_alternative(name)}"
                )

    def _note_conversion(self, name: str, args: tuple[Any, ...], frame: FrameType) -> None:
        number = self._numbers.get(id(args[0]))
        if number is None:
            return
        producer = self.program.producer(number)
        candidates: tuple[int, ...] = (number,)
        if not self.program.tensors[number].differentiable and producer is not None:
            candidates = producer.sources  # a comparison has no gradient, but its operands may
        read = tuple(one for one in candidates if self.program.tensors[one].differentiable)
        if read:
            self._conversions[naming.where(frame), read, PYTHON_CONVERSIONS[name]] = None

    def finish(self, function: Any, variables: dict[str, Any], result: Any) -> None:
        """Set the names that are known only at the end, and the outputs."""
        # The frame keeps its variables after the function has returned.
        variables = {**variables, **(self.root.f_locals if self.root is not None else {})}
        self._name_modules(function, variables)
        for name, tensor in naming.tensors_by_name(variables):
            self._set_name(name, tensor)
        self._set_outputs(result)
        for where, numbers, (verb, plural) in self._conversions:
            *others, last = dict.fromkeys(self.program.tensors[one].name or "a traced tensor" for one in numbers)
            said = f"{', '.join(others)} and {last} {plural}" if others else f"{last} {verb}"
            self.program.notes.append(f"{where}: {said}; no gradient passes there")
        if not self.program.outputs:
            what = f"a value of type {type(result).__name__}" if result is not None else "nothing"
            why = "".join(f"; {note}" for note in self.program.notes[:1])
            raise ConfigError(
                f"{self.program.name} returns {what}: it must return a tensor computed from its inputs{why}"
            )
        self.root = None
        self._modules.clear()

    def _name_modules(self, function: Any, variables: dict[str, Any]) -> None:
        """Set the paths of modules, and the names of their parameters and buffers."""
        owner = _owner(function)
        modules = dict(naming.modules_by_name({"": owner} if owner is not None else {}))
        for name, module in naming.modules_by_name(variables):
            modules.setdefault(name, module)
        paths: dict[int, str] = {}
        for path, module in modules.items():
            paths.setdefault(id(module), path)
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                number = self._numbers.get(id(tensor))
                traced = None if number is None else self.program.tensors[number]
                if traced is not None and traced.name is None:
                    traced.name, traced.central = f"{path}.{name}".lstrip("."), tensor.requires_grad
        for call_of, module in self._modules.values():
            call_of.path = paths.get(id(module), call_of.kind)
        for call in self.program.calls:
            call.modules = tuple(module for module in call.modules if module.path)

    def _set_outputs(self, result: Any) -> None:
        """The traced tensors among what was returned are outputs; one without a name gets that of its place."""
        for name, tensor in _outputs(result):
            if id(tensor) not in self._numbers and tensor.grad_fn is None:
                continue
            number = self.number_of(tensor)
            self.program.outputs.append(number)
            traced = self.program.tensors[number]
            if traced.name is None:
                traced.name, traced.central = name or self.program.name, True


def _outputs(result: Any) -> Iterator[tuple[str, Tensor]]:
    """Returned tensors at the top level; nested ones only if there are none."""
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


def _suggest_alternative(name: str) -> str:
    if name == "setitem":
        return "use torch.stack, torch.cat or torch.where"
    plain = name.rstrip("_")
    return f"use `{plain}`, which returns a new tensor" if plain != name else "omit `inplace` or `out`"


def _unwrap(function: Any) -> Any:
    """The innermost Python function, without partials and wrappers."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, nn.Module):
        return function.forward
    function = inspect.unwrap(function)
    if hasattr(function, "__code__") or hasattr(function, "__func__"):
        return function
    return type(function).__call__  # a callable object


def _code_of(function: Any) -> CodeType | None:
    inner = _unwrap(function)
    return getattr(getattr(inner, "__func__", inner), "__code__", None)


def _owner(function: Any) -> nn.Module | None:
    """The traced module, or the module of a traced method."""
    whole = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return whole if isinstance(whole, nn.Module) else None

"""What ran, as data: the tensors there were and the calls that made them. It can be run again."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

FIRST_ONLY = frozenset(("expand_as", "view_as", "reshape_as", "type_as", "to"))
"""What else they are given tells them a shape or a type."""


@dataclass(frozen=True)
class Ref:
    """Stands for a tensor among the arguments of a call: its number in the program."""

    number: int


@dataclass(eq=False)
class ModuleCall:
    """One call of an `nn.Module`, by the path under which the traced function knows it, which is found at the end."""

    number: int
    path: str
    kind: str
    """Name of the class."""


@dataclass
class Held:
    """A tensor that was met."""

    tensor: Tensor
    kind: str
    """input, parameter, constant or result."""
    call: int | None = None
    """Number of the call that made it; None for leaves."""
    position: int = 0
    """Which of that call's results it is."""
    name: str | None = None
    central: bool = False
    """Whether the name comes from the traced function itself, and not from one that it calls."""
    varies: bool = False
    """Whether it depends on an input or on something that is learned."""
    fractions: Any = None
    """The exact numbers that an input was given as, where it was given as such."""

    @property
    def differentiable(self) -> bool:
        return self.tensor.requires_grad


@dataclass
class Call:
    """One call of a torch function, with tensors replaced by references."""

    function: Callable[..., Any] | None
    """None where only the outcome is known: a function with a backward of its own."""
    op: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: tuple[int, ...] = ()
    where: str = ""
    """file:line of the code that called it."""
    modules: tuple[ModuleCall, ...] = ()
    """The modules it ran in, outermost first."""
    random_state: Tensor | None = None

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """Numbers of the tensors it reads, in order, as often as it reads them."""
        found = tuple(ref.number for ref in refs_in((self.arguments, self.keywords)))
        return found[:1] if self.op in FIRST_ONLY else found


@dataclass
class Program:
    """All calls of one run, in their order."""

    name: str
    held: list[Held] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def maker(self, number: int) -> Call | None:
        call = self.held[number].call
        return None if call is None else self.calls[call]

    def live(self) -> set[int]:
        """Tensors that an output depends on."""
        return self.before(self.outputs, ())[0]

    def before(self, ends: Iterable[int], stops: Container[int]) -> tuple[set[int], list[int]]:
        """Tensors from which the ends are made, back to the stops, which are among them, and the calls between them in
        their order. An end is not taken as a stop."""
        ends = set(ends)
        found: set[int] = set()
        calls: set[int] = set()
        waiting = list(ends)
        while waiting:
            number = waiting.pop()
            if number in found:
                continue
            found.add(number)
            made = self.held[number].call
            if made is None or (number in stops and number not in ends):
                continue
            calls.add(made)
            waiting.extend(self.calls[made].sources)
        return found, sorted(calls)

    def replay(
        self, calls: Sequence[int], given: Mapping[int, Tensor], keep: Iterable[int] = (), precise: bool = False
    ) -> dict[int, Tensor]:
        """Run some calls again on other tensors. What is neither given nor made anew is what it was.

        `keep` are tensors that stay as given even where a call would make them; `precise` turns all to float64.
        """
        values = dict(given)
        kept = set(keep)

        def now(number: int) -> Tensor:
            if number not in values:
                before = self.held[number].tensor.detach()
                values[number] = _wide(before) if precise else before
            return values[number]

        for index in calls:
            call = self.calls[index]
            if call.function is None:
                raise NotImplementedError(call.op)
            arguments, keywords = substituted((call.arguments, call.keywords), now)
            results = tensors_in(run_again(call, arguments, keywords))
            for number, tensor in zip(call.results, results, strict=True):
                if number not in kept:
                    values[number] = _wide(tensor) if precise else tensor
        return values


def run_again(call: Call, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    assert call.function is not None, "checked by the caller"
    if call.random_state is None:
        return call.function(*arguments, **keywords)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(call.random_state)
        return call.function(*arguments, **keywords)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def refs_in(value: Any) -> Iterable[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from refs_in(part)
    elif isinstance(value, dict):
        yield from refs_in(tuple(value.values()))
    elif isinstance(value, slice):
        yield from refs_in((value.start, value.stop, value.step))


def tensors_in(value: Any) -> list[Tensor]:
    """Tensors in lists, tuples, dictionaries and slices, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    if isinstance(value, dict):
        return tensors_in(tuple(value.values()))
    if isinstance(value, slice):
        return tensors_in((value.start, value.stop, value.step))
    return []


def substituted(value: Any, tensor_of: Callable[[int], Any]) -> Any:
    """The same arguments with references replaced."""
    if isinstance(value, Ref):
        return tensor_of(value.number)
    if isinstance(value, list | tuple):
        parts = [substituted(part, tensor_of) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: substituted(part, tensor_of) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(substituted(part, tensor_of) for part in (value.start, value.stop, value.step)))
    return value


def referenced(value: Any, number_of: Callable[[Tensor], int]) -> Any:
    """The same arguments with tensors replaced by references."""
    if isinstance(value, Tensor):
        return Ref(number_of(value))
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, list | tuple):
        parts = [referenced(part, number_of) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: referenced(part, number_of) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(referenced(part, number_of) for part in (value.start, value.stop, value.step)))
    return value

"""What an implementation is compared with: a reference, its inputs, and the mistakes that are known.

A reference is a plain function of weights, inputs and rules. The rules are a frozen dataclass of small functions, one
for each step of the computation; a known mistake replaces some of them. So the output of every wrong variant can be
computed, and an implementation that gives the same output makes the same mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from torch import Generator, Tensor

from anaphor.course.weights import Weight

Outputs = dict[str, Any]
"""What an implementation returns, by name: tensors, numbers, texts or lists of them."""
Sizes = dict[str, int]
Weights = dict[str, Tensor]


class DoesNotFit(Exception):
    """A variant that these weights or inputs do not allow."""


@dataclass(frozen=True)
class Mistake:
    """A known mistake: what it replaces in the rules of the reference."""

    name: str
    text: str
    """What is wrong, and what would be right."""
    change: Mapping[str, Any]
    """New values of fields of the rules; a mapping for fields of a part of them."""

    def inside(self, *path: str) -> Mistake:
        """The same mistake in a part of other rules."""
        change: Mapping[str, Any] = self.change
        for name in reversed(path):
            change = {name: change}
        return replace(self, change=change)


@dataclass(frozen=True)
class Case:
    """Inputs on which an implementation is compared."""

    name: str
    """What follows the name of an output in a sentence: 'with a mask'."""
    inputs: dict[str, Any]
    checks: str
    """What this case adds to the list of what is checked."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An implementation of ours that a student's own is compared with."""

    name: str
    call: str
    """How the student's own is called, and what it returns."""
    outputs: tuple[str, ...]
    """Names of what is returned. The first is required."""
    cases: Callable[[Sizes], list[Case]]
    compute: Callable[[Weights, Mapping[str, Any], Any], Outputs]
    """Outputs for weights, inputs and rules."""
    designs: tuple[Any, ...]
    """The rules; several where several are right."""
    mistakes: tuple[Mistake, ...]
    arguments: tuple[str, ...]
    """Arguments of the call, in their order."""
    sizes: Mapping[str, int]
    vary: Callable[[Mapping[str, Any], Generator], dict[str, Any]] | None = None
    """Other inputs of a case, drawn anew for each grading. Floating-point numbers are changed without it."""
    constructors: tuple[tuple[str, ...], ...] = ()
    """Arguments of the constructor by the names of sizes, and shorter forms; empty for a function."""
    derived: Callable[[Sizes], Sizes] = dict
    """All sizes from those that the constructor was given."""
    read: Callable[[Sequence[Weight], Sizes], Iterator[Weights]] | None = None
    """Every way to read the weights of a student's module as those of the reference."""
    shapes: Callable[[Sizes], dict[str, tuple[int, ...]]] | None = None
    """Weights of the reference, as `load_reference` gets them."""
    run: Callable[[Any, Case, Sizes], Outputs] | None = None
    """How to run a student's own on a case, where it is more than one call."""
    takes_class: bool = False
    """Whether `run` gets a class as it is; otherwise a class without sizes is made without arguments."""
    tries_device: bool = False
    """Whether what is no module is run on another device, too."""
    optional: tuple[str, ...] = ()
    """Arguments of the call that a student's own may lack."""
    forms: Mapping[str, Callable[[str, Any], Any]] = field(default_factory=dict)
    """Other forms of the inputs that are right, too, by name: each a function of an argument's name and value."""
    pairs: int = 2000
    """Most pairs of mistakes that are tried: each is computed on the first case at least."""
    tried: int | None = None
    """On how many ways to read the weights, each with one of the designs, every mistake is tried; None for all."""
    time_first: tuple[str, ...] = ()
    """Arguments and outputs that are [T, B, …] for a module that says `batch_first = False`."""


def change_rules(rules: Any, change: Mapping[str, Any]) -> Any:
    """The rules with some fields replaced, also inside of parts."""
    values = {}
    for name, value in change.items():
        part = getattr(rules, name)
        values[name] = change_rules(part, value) if isinstance(value, Mapping) and is_dataclass(part) else value
    return replace(rules, **values)

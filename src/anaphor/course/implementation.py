"""A student's own class or function, made and called: in this process, or in another one that cannot forge a result.

The check asks for what is here and no more: weights by name, outputs on cases, and gradients through the outputs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anaphor.course.cpu_tensors import CPUTensors
from anaphor.course.reference import Case, Outputs, Reference, Sizes, Weights
from anaphor.course.student import StudentError, Subject, build, copy_inputs, hidden_modules, quiet, register_hidden
from anaphor.course.student import call as call_function
from anaphor.course.weights import Weight, weights_of


@dataclass(frozen=True)
class Form:
    """What a case is converted to before the call."""

    dtype: torch.dtype
    name: str | None = None
    """One of the other forms that are right, too."""
    device: torch.device | None = None
    """The CPU where it is None."""


@dataclass(frozen=True)
class Call:
    """A case that a student's own is run on."""

    case: Case
    """With inputs that belong to the student's own: it may change them."""
    number: int
    """Of the case, among those of the reference."""
    form: Form
    seed: int | None
    """Of the changes to the inputs."""


@dataclass(frozen=True)
class Built:
    """A student's own, made with the sizes of a reference."""

    sizes: Sizes
    given: list[Weight]
    hidden: list[str]
    """Attributes that hold modules where torch does not find them."""
    loads_reference: bool
    """Whether it has a method that takes the weights of the reference."""


class Implementation(Protocol):
    """A student's own, wherever it runs."""

    @property
    def name(self) -> str: ...

    def build(self) -> Built:
        """Make it. Called once, before all others."""

    def set_weights(self, loaded: Weights | None) -> None:
        """Take the values that the weights have now, and those of the reference where it loads them."""

    def to(self, dtype: torch.dtype) -> None:
        """Convert the weights."""

    def run(self, call: Call) -> Outputs:
        """The outputs on a case. Gradients flow through them to the inputs and the weights."""

    def run_without_memory(self, call: Call) -> None:
        """Run it on the device `meta`, where that is possible, to see whether it raises. It cannot be called
        any more."""


class LocalImplementation:
    """A student's own in this process."""

    def __init__(self, reference: Reference, subject: Subject, device: torch.device) -> None:
        self.reference, self.subject, self.device = reference, subject, device
        self.name = subject.name
        self.target: Any = None
        self.sizes: Sizes = {}

    def build(self) -> Built:
        reference, subject = self.reference, self.subject
        if not reference.constructors:
            is_made = isinstance(subject.target, type) and not reference.takes_class
            self.target = subject.protect(subject.target) if is_made else subject.target
            self.sizes = {**reference.sizes}
            return Built(self.sizes, [], [], False)
        module, self.sizes = build(reference, subject)
        hidden = hidden_modules(module)
        register_hidden(module, hidden)
        self.target = subject.protect(lambda: module.eval().to(self.device))
        return Built(self.sizes, weights_of(self.target), hidden, hasattr(module, "load_reference"))

    def set_weights(self, loaded: Weights | None) -> None:
        if loaded is not None:
            given = {name: value.clone() for name, value in loaded.items()}
            self.subject.protect(partial(self.target.load_reference, given))

    def to(self, dtype: torch.dtype) -> None:
        if isinstance(self.target, nn.Module):
            self.target.to(dtype)

    def run(self, call: Call) -> Outputs:
        return self._run(call.case)

    def _run(self, case: Case) -> Outputs:
        is_time_first = getattr(self.target, "batch_first", None) is False
        turn = self.reference.time_first if is_time_first else ()
        case = replace(case, inputs={name: _turn(value, name in turn) for name, value in case.inputs.items()})
        if self.reference.run is not None:
            run = self.reference.run
            outputs = self.subject.protect(lambda: run(self.target, case, self.sizes))
        else:
            function = self.target.forward if isinstance(self.target, nn.Module) else self.target
            outputs = call_function(self.reference, self.subject, self.target, function, case)
        return {name: _turn(value, name in turn) for name, value in outputs.items()}

    def run_without_memory(self, call: Call) -> None:
        is_module = isinstance(self.target, nn.Module)
        if not is_module and not self.reference.tries_device:
            return
        inputs = {
            name: value.detach().to("meta") if isinstance(value, Tensor) else value
            for name, value in call.case.inputs.items()
        }
        if is_module:
            with quiet():
                self.target.to("meta")
        with CPUTensors(self.subject.path.parent) as made:
            try:
                self._run(replace(call.case, inputs=inputs))
            except StudentError as error:
                error.where = made.culprit or error.where
                raise


def _turn(value: Any, is_turned: bool) -> Any:
    return value.transpose(0, 1) if is_turned and isinstance(value, Tensor) else value


def clone(value: Any) -> Any:
    """A value of the student's own, which may be changed in place."""
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def vary_cases(reference: Reference, sizes: Sizes, seed: int | None) -> list[Case]:
    """The cases of a reference. With a seed they have other inputs, so that nobody knows the results beforehand: those
    that the reference draws, and each floating-point number changed by up to a fifth."""
    cases = reference.cases(sizes)
    if seed is None:
        return cases
    generator = torch.Generator().manual_seed(seed)
    if reference.vary is not None:
        cases = [replace(case, inputs=reference.vary(case.inputs, generator)) for case in cases]
    return [
        replace(case, inputs={name: _vary(value, generator) for name, value in case.inputs.items()}) for case in cases
    ]


def _vary(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or value.dtype != torch.float64:
        return value  # a mask is float32
    factor = 1 + 0.2 * (2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1)
    return value * factor


def give_inputs(reference: Reference, case: Case, form: Form) -> Case:
    """The case with inputs of a dtype and in another form."""
    inputs = copy_inputs(case.inputs, form.dtype, form.device or torch.device("cpu"))
    if form.name is not None:
        inputs = {name: reference.forms[form.name](name, value) for name, value in inputs.items()}
    return replace(case, inputs=inputs)

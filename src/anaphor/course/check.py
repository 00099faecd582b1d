"""Compare a student's own implementation with a reference, and name the mistake.

The student's weights get random values and are read as those of the reference. Where the outputs agree, gradients,
dtype and device are compared as well. Where they do not, the outputs of every known wrong variant are computed: the one
that agrees names the mistake, alone or with a second one. Otherwise it is said what differs, where and by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

import torch
from torch import Tensor

from anaphor.course.check_report import NOT_READ, CheckReport, Finding
from anaphor.course.compare import LOOSE, TOLERANCE, agrees, find_difference, measure
from anaphor.course.implementation import (
    Call,
    Form,
    Implementation,
    LocalImplementation,
    clone,
    give_inputs,
    vary_cases,
)
from anaphor.course.placeholder import find_placeholder
from anaphor.course.reference import Case, DoesNotFit, Mistake, Outputs, Reference, Sizes, Weights, change_rules
from anaphor.course.student import NotWritten, StudentError, Subject
from anaphor.course.weights import Weight, randomize

MAX_READINGS = 64
"""Most ways to read a student's weights that are tried."""
SEED = 20


@dataclass(frozen=True)
class Attempt:
    """A student's own in one dtype and with one form of the inputs."""

    cases: list[Case]
    outputs: list[Outputs]
    dtype: torch.dtype
    form: str | None
    changed: Finding | None = None
    """An input that it has changed."""
    failure: StudentError | None = None
    """What it raised on the next case."""


@dataclass(frozen=True)
class Candidate:
    """One way to read the weights, and one of the designs that are right."""

    weights: Weights
    rules: Any


@dataclass(frozen=True)
class Work:
    """What is compared: the student's own, ready to be called."""

    reference: Reference
    implementation: Implementation
    sizes: Sizes
    given: list[Weight]
    loaded: Weights | None
    device: torch.device
    seed: int | None
    """Of the changes to the inputs, so that no answer can be known beforehand; None for the inputs as they are."""

    def run(self, call: Call) -> Outputs:
        """The student's outputs on a case."""
        return self.implementation.run(call)

    def candidates(self) -> Iterator[Candidate]:
        """Every way to read the weights, with every design."""
        readings: Iterator[Weights] = iter(({},))
        if self.loaded is not None:
            readings = iter((self.loaded,))
        elif self.reference.read is not None:
            readings = islice(self.reference.read(self.given, self.sizes), MAX_READINGS)
        for weights in readings:
            for rules in self.reference.designs:
                yield Candidate(weights, rules)

    def compute(self, candidate: Candidate, case: Case) -> Outputs | None:
        """Outputs of a variant; None where the weights or the inputs do not allow it."""
        try:
            return self.reference.compute(candidate.weights, case.inputs, candidate.rules)
        except (DoesNotFit, KeyError, IndexError, RuntimeError, ValueError, ZeroDivisionError):
            return None  # a wrong variant may have shapes that do not fit

    def explains(self, candidate: Candidate, attempt: Attempt) -> bool:
        """Whether a variant has the outputs of the student's own on all cases."""
        tolerance = TOLERANCE if attempt.dtype == torch.float64 else LOOSE
        for case, found in zip(attempt.cases, attempt.outputs, strict=True):
            expected = self.compute(candidate, case)
            if expected is None or not agrees(found, expected, tolerance):
                return False
        return True


def check(reference: Reference, subject: Subject, device: str = "cpu") -> CheckReport:
    """Compare a student's own implementation with a reference."""
    report = check_implementation(reference, LocalImplementation(reference, subject, torch.device(device)), device)
    placeholder = find_placeholder(subject.path, subject.name)
    if report.passed or placeholder is None or any(one.name == NotWritten.name for one in report.mistakes):
        return report
    missing = NotWritten(placeholder)
    return replace(report, mistakes=(Finding(missing.name, missing.where, missing.text), *report.mistakes))


def check_implementation(
    reference: Reference, implementation: Implementation, device: str = "cpu", seed: int | None = None
) -> CheckReport:
    """Compare a student's own implementation, which may run in another process, with a reference.

    Args:
        reference: What it is compared with.
        implementation: The student's own.
        device: Where both compute.
        seed: Of the weights and of small changes to the inputs. With a secret one the outputs cannot be known
            beforehand.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED if seed is None else seed)
        try:
            work, findings = _prepare(reference, implementation, torch.device(device), seed)
            found, checked = _compare(work)
            findings += found
        except StudentError as error:
            findings = [Finding(error.name, error.where, error.text)]
            checked = []
    return CheckReport(implementation.name, reference.name, tuple(findings), tuple(checked))


def _prepare(
    reference: Reference, implementation: Implementation, device: torch.device, seed: int | None
) -> tuple[Work, list[Finding]]:
    """The student's own with random weights, and what is wrong before it is called."""
    built = implementation.build()
    findings: list[Finding] = []
    if built.hidden:
        listed = ", ".join(f"self.{name}" for name in built.hidden)
        text = f"{listed} holds modules in a plain list or dict, which optimizers do not find: use nn.ModuleList"
        findings.append(Finding("modules-in-a-plain-list", "__init__", text))
    generator = torch.Generator().manual_seed(SEED if seed is None else seed)
    randomize(built.given, generator)
    loaded: Weights | None = None
    if built.loads_reference and reference.shapes is not None:
        shapes = reference.shapes(built.sizes)
        loaded = {name: 0.5 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    implementation.set_weights(loaded)
    return Work(reference, implementation, built.sizes, built.given, loaded, device, seed), findings


def _compare(work: Work) -> tuple[list[Finding], list[str]]:
    """What is wrong with the outputs, or with what lies behind outputs that agree; and what was checked."""
    attempts, failure = _attempts(work)
    if not attempts:
        assert failure is not None, "there is an attempt or a failure"
        raise failure
    findings: list[Finding] = []
    if attempts[0].failure is not None:
        return _explain_failure(work, attempts[0], attempts[0].failure), []
    for attempt in attempts:
        candidate = next((one for one in work.candidates() if work.explains(one, attempt)), None)
        if candidate is not None:
            findings += _check_inside(work, attempt, candidate)
            break
    else:
        attempt, known = _diagnose_forms(work, attempts)
        findings += [one for one in known if one.name != "unknown" or attempt.changed is None]
    findings += [] if attempt.changed is None else [attempt.changed]
    if attempt.dtype != torch.float64 and failure is not None and _own_dtype(work) != torch.float64:
        text = f"it raises for inputs and weights of float64 ({failure.text}): make tensors with the dtype of the input"
        findings.append(Finding("makes-float32", failure.where, text))
    is_compared = all(one.name != NOT_READ for one in findings)
    return findings, _list_checked(work, attempt, not findings) if is_compared else []


def _diagnose_forms(work: Work, attempts: Sequence[Attempt]) -> tuple[Attempt, list[Finding]]:
    """The first form of the inputs with which a known mistake explains the outputs; otherwise the first of all."""
    diagnoses = []
    for attempt in attempts:
        known = _diagnose(work, attempt)
        if all(finding.name not in ("unknown", NOT_READ) for finding in known):
            return attempt, known
        diagnoses.append(known)
    return attempts[0], diagnoses[0]


def _explain_failure(work: Work, attempt: Attempt, failure: StudentError) -> list[Finding]:
    """What it raised, and a known mistake that explains the cases before."""
    raised = Finding(failure.name, failure.where, failure.text)
    if any(work.explains(one, attempt) for one in work.candidates()):
        return [raised]
    known = [finding for finding in _diagnose(work, attempt) if finding.name != "unknown"]
    return [*known, raised]


def _own_dtype(work: Work) -> torch.dtype:
    return next((one.value.dtype for one in work.given if one.value.is_floating_point()), torch.float32)


def _attempts(work: Work) -> tuple[list[Attempt], StudentError | None]:
    """Outputs on all cases in double precision, else in the student's own; and for other forms of the inputs."""
    failure: StudentError | None = None
    partial: list[Attempt] = []
    own = _own_dtype(work)
    for dtype in dict.fromkeys((torch.float64, own)):
        work.implementation.to(dtype)
        loaded = None if work.loaded is None else {name: one.to(dtype) for name, one in work.loaded.items()}
        if loaded is not None and work.loaded is not None:
            work.loaded.update(loaded)
        attempts = [_attempt(work, dtype, form) for form in (None, *work.reference.forms)]
        whole = [attempt for attempt in attempts if attempt.failure is None]
        if whole:
            return whole, failure
        if failure is None:
            failure, partial = attempts[0].failure, [one for one in attempts[:1] if one.cases]
    work.implementation.to(torch.float64)  # that of the first attempt
    return partial, failure


def _attempt(work: Work, dtype: torch.dtype, form: str | None) -> Attempt:
    cases: list[Case] = []
    outputs: list[Outputs] = []
    changed: Finding | None = None
    for number, case in enumerate(vary_cases(work.reference, work.sizes, work.seed)):
        case = give_inputs(work.reference, case, Form(dtype, form, work.device))
        own = replace(case, inputs={name: clone(value) for name, value in case.inputs.items()})
        try:
            outputs.append(work.run(Call(own, number, Form(dtype, form, work.device), work.seed)))
        except StudentError as error:
            return Attempt(cases, outputs, dtype, form, changed, error)
        cases.append(case)
        changed = changed or _find_change(case, own)
    return Attempt(cases, outputs, dtype, form, changed)


def _find_change(case: Case, own: Case) -> Finding | None:
    for name, value in case.inputs.items():
        now = own.inputs[name]
        is_same = torch.equal(value, now) if isinstance(value, Tensor) else value == now
        if not is_same:
            text = f"it changes its input {name} in place, which the caller still uses"
            return Finding("changes-its-input", f"{name} {case.name}", text)
    return None


@torch.no_grad()
def _diagnose(work: Work, attempt: Attempt) -> list[Finding]:
    """The known mistake that explains the outputs, or two of them; otherwise what differs."""
    candidates = list(work.candidates())
    if not candidates:
        return [_describe_weights(work)]
    candidates = _rank(work, attempt, candidates)
    best = candidates[0]
    for count, among, most in ((1, candidates, None), (2, candidates[:2], work.reference.pairs)):
        tries = (
            (mistakes, replace(one, rules=rules))
            for mistakes in combinations(work.reference.mistakes, count)
            for one in among
            if (rules := _apply(one.rules, mistakes)) is not None
        )
        for mistakes, changed in islice(tries, most):
            if work.explains(changed, attempt):
                right = next(one for one in candidates if one.weights is changed.weights)
                return [Finding(one.name, _place_of(work, attempt, right, one), one.text) for one in mistakes]
    second = _is_repeatable(work, attempt)
    return [second] if second is not None else [_describe(work, attempt, best)]


def _apply(rules: Any, mistakes: Sequence[Mistake]) -> Any | None:
    """The rules with the mistakes; None where one hides the other."""
    changed = rules
    for mistake in mistakes:
        before, changed = changed, change_rules(changed, mistake.change)
        if changed == before:
            return None
    return changed


def _rank(work: Work, attempt: Attempt, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates that fit, nearest first. Where the reference limits them: the first ones, whose reading is the
    usual one, and the nearest."""
    distances = [_distance(work, attempt, one) for one in candidates]
    fitting = [number for number, one in enumerate(distances) if one is not None] or [*range(len(candidates))]
    ranked = sorted(fitting, key=lambda number: distances[number] or (0.0, 0.0))
    if work.reference.tried is not None:
        half = work.reference.tried // 2
        kept = {*fitting[:half], *ranked[:half]}
        ranked = [number for number in ranked if number in kept]
    return [candidates[number] for number in ranked]


def _distance(work: Work, attempt: Attempt, candidate: Candidate) -> tuple[float, float] | None:
    """How little agrees, and how much the rest differs; None where nothing can be computed."""
    agreeing, differing = 0.0, 0.0
    fits = False
    for case, found in zip(attempt.cases, attempt.outputs, strict=True):
        expected = work.compute(candidate, case)
        fits = fits or expected is not None
        for name, value in found.items():
            share, gap = measure(value, None if expected is None else expected.get(name))
            agreeing += share
            differing += gap
    return (-agreeing, differing) if fits else None


def _differences(work: Work, attempt: Attempt, candidate: Candidate) -> list[tuple[str, str]]:
    """Each output that differs from the reference: where, and how."""
    found_at = []
    for case, found in zip(attempt.cases, attempt.outputs, strict=True):
        expected = work.compute(candidate, case)
        for name, value in found.items():
            if expected is None:
                continue
            difference = find_difference(value, expected.get(name))
            if difference is not None:
                found_at.append((f"{name} {case.name}", difference.text))
    return found_at


def _place_of(work: Work, attempt: Attempt, right: Candidate, mistake: Mistake) -> str:
    """The first output that a mistake changes."""
    wrong = replace(right, rules=change_rules(right.rules, mistake.change))
    for case, found in zip(attempt.cases, attempt.outputs, strict=True):
        before, after = work.compute(right, case), work.compute(wrong, case)
        for name in found:
            if before is None or after is None or find_difference(after[name], before[name]) is not None:
                return f"{name} {case.name}"
    return ""


def _describe(work: Work, attempt: Attempt, candidate: Candidate) -> Finding:
    """A mistake that is not known: what differs where, and what agrees."""
    places = _differences(work, attempt, candidate)
    if not places:
        return _describe_weights(work)
    where, text = places[0]
    others = [place for place, _ in places[1:]]
    every = [
        f"{name} {case.name}" for case, found in zip(attempt.cases, attempt.outputs, strict=True) for name in found
    ]
    right = [place for place in every if place not in {where, *others}]
    sentence = f"{where} {text}"
    if others:
        sentence += f"; also different: {', '.join(others)}"
    if right:
        sentence += f"; right: {', '.join(right)}"
    return Finding("unknown", where, sentence)


def _describe_weights(work: Work) -> Finding:
    """Weights that cannot be read as those of the reference."""
    listed = ", ".join(f"{one.name} {list(one.value.shape)}" for one in work.given) or "none"
    shapes = {} if work.reference.shapes is None else work.reference.shapes(work.sizes)
    wanted = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    text = f"the weights ({listed}) cannot be read as those of {work.reference.name} ({wanted})"
    text += ", so nothing was compared; a method load_reference(weights) may take them by these names"
    return Finding(NOT_READ, "__init__", text)


def _is_repeatable(work: Work, attempt: Attempt) -> Finding | None:
    """Whether the first case gives the same again, after all others."""
    case = attempt.cases[0]
    own = replace(case, inputs={name: clone(value) for name, value in case.inputs.items()})
    again = work.run(Call(own, 0, Form(attempt.dtype, attempt.form, work.device), work.seed))
    if agrees(again, attempt.outputs[0]):
        return None
    text = "the same input gives another output the second time: dropout in eval mode, or something kept on self"
    return Finding("differs-between-calls", f"{work.reference.outputs[0]} {attempt.cases[0].name}", text)


def _check_inside(work: Work, attempt: Attempt, candidate: Candidate) -> list[Finding]:
    """What outputs that agree do not show: a second call, inputs that are changed, gradients, dtype and device."""
    finding = _is_repeatable(work, attempt)
    if finding is not None:
        return [finding]
    findings = _check_gradients(work, attempt, candidate)
    findings += _check_dtype(attempt)
    if not findings and work.device.type == "cpu":
        findings += _check_device(work, attempt)
    return findings


def _gradients(outputs: Outputs, leaves: Sequence[Tensor]) -> list[Tensor] | None:
    """Gradients of a fixed random sum of all outputs."""
    generator = torch.Generator().manual_seed(SEED)
    total: Tensor | None = None
    for name in sorted(outputs):
        value = outputs[name]
        if isinstance(value, Tensor) and value.is_floating_point():
            factor = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
            if value.requires_grad:
                total = (value * factor).sum() + (0 if total is None else total)
    if total is None:
        return None
    found = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, found, strict=True)]


def _check_gradients(work: Work, attempt: Attempt, candidate: Candidate) -> list[Finding]:
    """Gradients of the inputs and of all weights, against those of the reference."""
    weights = [] if work.loaded is not None else [one for one in work.given if one.value.requires_grad]
    for case, found in zip(attempt.cases, attempt.outputs, strict=True):
        inputs = {
            name: value for name, value in case.inputs.items() if isinstance(value, Tensor) and value.requires_grad
        }
        leaves = [*inputs.values(), *(one.value for one in weights)]
        expected = work.compute(candidate, case)
        if not leaves or expected is None:
            continue
        names = [*(f"input {name}" for name in inputs), *(one.name for one in weights)]
        shared = {name: expected[name] for name in found}
        own, right = _gradients(found, leaves), _gradients(shared, leaves)
        if right is None:
            continue
        if own is None:
            text = "no gradient flows back from the output: detach, no_grad, .data or .item() cuts it off"
            return [Finding("no-gradient", f"{work.reference.outputs[0]} {case.name}", text)]
        for name, one, wanted in zip(names, own, right, strict=True):
            difference = find_difference(one, wanted, LOOSE)
            if difference is not None:
                where = f"gradient of {name} {case.name}"
                known = _known_gradient(work, case, candidate, leaves, own, [*found])
                if known is not None:
                    return [Finding(known.name, where, known.text)]
                return [Finding("gradient", where, f"the values agree, but the {where} {difference.text}")]
    return []


def _known_gradient(
    work: Work, case: Case, candidate: Candidate, leaves: Sequence[Tensor], own: Sequence[Tensor], names: Sequence[str]
) -> Mistake | None:
    """The known mistake that has the right values, and these gradients."""
    right = work.compute(candidate, case)
    for mistake in work.reference.mistakes:
        outputs = work.compute(replace(candidate, rules=change_rules(candidate.rules, mistake.change)), case)
        if outputs is None or right is None or any(name not in outputs for name in names):
            continue
        wrong = {name: outputs[name] for name in names}
        found = _gradients(wrong, leaves) if agrees(wrong, right, LOOSE) else None
        if found is not None and all(find_difference(a, b, LOOSE) is None for a, b in zip(own, found, strict=True)):
            return mistake
    return None


def _check_dtype(attempt: Attempt) -> list[Finding]:
    for case, found in zip(attempt.cases, attempt.outputs, strict=True):
        for name, value in found.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != attempt.dtype:
                wanted, own = (str(dtype).removeprefix("torch.") for dtype in (attempt.dtype, value.dtype))
                text = f"{name} is {own} for inputs and weights of {wanted}"
                return [Finding("other-dtype", f"{name} {case.name}", text)]
    return []


def _check_device(work: Work, attempt: Attempt) -> list[Finding]:
    """Whether it makes tensors on the CPU where its inputs are elsewhere: tried on torch's device without memory."""
    try:
        work.implementation.run_without_memory(Call(attempt.cases[0], 0, Form(attempt.dtype, attempt.form), work.seed))
    except StudentError as error:
        is_numpy = "numpy" in error.text  # which has no device
        if not is_numpy and ("same device" in error.text or ("meta" in error.text and "cpu" in error.text)):
            text = "it makes a tensor on the CPU while its inputs are on another device: give it that of an input, as "
            text += "in device=x.device"
            return [Finding("makes-cpu-tensors", error.where, text)]
    return []


def _list_checked(work: Work, attempt: Attempt, passed: bool) -> list[str]:
    """What was compared."""
    checked = [
        f"{name} {case.checks}" for case, found in zip(attempt.cases, attempt.outputs, strict=True) for name in found
    ]
    missing = [name for name in work.reference.outputs if name not in attempt.outputs[0]]
    checked += [f"not {name}, which it does not return" for name in missing]
    if passed:
        leaves = [name for case in attempt.cases for name, one in case.inputs.items() if _has_gradient(one)]
        checked += [f"gradient of {name}" for name in dict.fromkeys(leaves)]
        if work.given and work.loaded is None:
            checked.append("gradients of all weights")
        checked.append(str(attempt.dtype).removeprefix("torch."))
        checked.append("a second call")
        checked += [] if attempt.form is None else [attempt.form]
    return [*dict.fromkeys(checked)]


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad

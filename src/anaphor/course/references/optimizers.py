"""Optimizers of one's own, compared with torch's over several steps.

A student's own is a class, made from parameters and settings, whose `step()` reads their gradients: a subclass of
`torch.optim.Optimizer` or a plain class. Or it is a function of parameters, gradients, a state that it keeps, and
settings.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anaphor.course.catalog import find_reference
from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import random_values
from anaphor.errors import ConfigError

STEPS = 5
PARAMETERS = "params parameters weights param parameter weight w theta p x var"
GRADIENTS = "grads gradients grad gradient g dw dtheta dp dx d_p"
MEMORIES = "state memory config cache buffers optim_state opt_state"
"""Names of a dict that a function keeps between its calls."""
TENSORS = "m v s velocity vel buf buffer momentum_buffer h exp_avg exp_avg_sq moment1 moment2 sum_sq square_sum acc r"
"""Names of tensors that a function gets, zero at first, and returns after the parameter."""
COUNTS = "t step step_count steps iteration it i"
OPTIONS = {
    "lr": "lr learning_rate eta step_size rate alpha",
    "momentum": "momentum mu beta rho m gamma",
    "nesterov": "nesterov use_nesterov",
    "betas": "betas",
    "beta1": "beta1 beta_1 b1 rho1",
    "beta2": "beta2 beta_2 b2 rho2",
    "smoothing": "smoothing alpha decay_rate beta rho gamma beta2 decay momentum",
    "eps": "eps epsilon delta",
    "weight_decay": "weight_decay wd decay l2 lambda_ lam lmbda weight_decay_rate reg",
}
"""Names that settings have in courses, papers and libraries."""
NEUTRAL: dict[str, Any] = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
"""Values with which an optimizer needs not know a setting."""

CONFIG_LACKS = ("weight_decay", "nesterov")
"""Settings that a dict of settings does not have in that course."""
REQUIRED = {"SGD": ("lr", "momentum"), "AdamW": ("lr", "weight_decay")}
"""Settings without which an optimizer is another one; of all others the learning rate alone."""

Options = Mapping[str, Any]


def run_optimizer(name: str, target: Any, case: Case, sizes: Sizes) -> Outputs:
    """The parameters after each step."""
    reference = find_reference(name)
    parameters = [case.inputs[key].detach().clone() for key in ("first", "second")]
    gradients = [case.inputs[key].detach() for key in ("first_grads", "second_grads")]
    run = _run_class if isinstance(target, type) else _run_function
    history = run(reference, target, parameters, gradients, case.inputs)
    return {} if history is None else {"parameters": torch.stack(history).to(parameters[0].device)}


def _run_class(
    reference: Reference, target: Any, parameters: list[Tensor], gradients: list[Tensor], inputs: Mapping[str, Any]
) -> list[Tensor] | None:
    owned = [nn.Parameter(value) for value in parameters]
    names = _parameters_of(target)
    if not names:
        raise _other_signature(reference, target)
    options = _match_options(reference, target, names[1:], inputs["options"])
    if options is None:
        return None
    given: Any = iter(owned)  # as model.parameters() is
    if inputs["group_lr"] is not None:
        if not issubclass(target, torch.optim.Optimizer):
            return None
        given = [{"params": owned[:1]}, {"params": owned[1:], "lr": inputs["group_lr"]}]
    optimizer = target(given, **options)
    history = []
    for step in range(len(gradients[0])):
        for number, (one, all_gradients) in enumerate(zip(owned, gradients, strict=True)):
            one.grad = None if (number, step) == inputs["missing"] else all_gradients[step].clone()
        optimizer.step()
        history.append(_flatten(owned))
    return history


def _run_function(
    reference: Reference, target: Any, parameters: list[Tensor], gradients: list[Tensor], inputs: Mapping[str, Any]
) -> list[Tensor] | None:
    """A function of all parameters in lists, or of each by itself."""
    names = _parameters_of(target)
    roles = {role: _find_name(names, wanted) for role, wanted in (("p", PARAMETERS), ("g", GRADIENTS))}
    if None in roles.values():
        raise _other_signature(reference, target)
    if inputs["missing"] is not None or inputs["group_lr"] is not None:
        return None
    rest = [name for name in names if name not in roles.values()]
    memory, count = _find_name(rest, MEMORIES), _find_name(rest, COUNTS)
    if memory == "config":  # as in cs231n: settings and state in one dict
        is_known = all(NEUTRAL.get(name) == value for name, value in inputs["options"].items() if name in CONFIG_LACKS)
        options: dict[str, Any] | None = {} if is_known else None
    else:
        known = {memory, count}
        options = _match_options(reference, target, [name for name in rest if name not in known], inputs["options"])
    if options is None:
        return None
    kept = [name for name in rest if name not in options and name in TENSORS.split()]
    is_list = roles["p"] in ("params", "parameters", "weights")
    states: list[dict[str, Any]] = [_start(memory, inputs["options"]) for _ in parameters]
    tensors = [{name: torch.zeros_like(one) for name in kept} for one in parameters]
    history = []
    for step in range(len(gradients[0])):
        counted: dict[str, Any] = {} if count is None else {count: step + 1}
        now = [one[step].clone() for one in gradients]
        if is_list:
            remembered: dict[str, Any] = {} if memory is None else {memory: states[0]}
            named: dict[Any, Any] = {roles["p"]: parameters, roles["g"]: now, **counted, **remembered, **options}
            returned = target(**named)
            parameters = _take(returned, parameters)
            history.append(_flatten(parameters))
            continue
        for number, (one, gradient) in enumerate(zip(parameters, now, strict=True)):
            remembered = {} if memory is None else {memory: states[number]}
            named = {roles["p"]: one, roles["g"]: gradient, **counted, **remembered, **tensors[number], **options}
            returned = target(**named)
            if isinstance(returned, tuple | list):
                parameters[number] = torch.as_tensor(returned[0])
                tensors[number] = dict(zip(kept, returned[1:], strict=False))
                if memory is not None and len(returned) > 1 and isinstance(returned[1], dict):
                    states[number] = returned[1]
            elif returned is not None:
                parameters[number] = returned
        history.append(_flatten(parameters))
    return history


def _take(returned: Any, parameters: list[Tensor]) -> list[Tensor]:
    """The parameters after a step: returned, alone or with the state, or changed in place."""
    if isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[0], list | tuple):
        returned = returned[0]
    return parameters if returned is None else [torch.as_tensor(one) for one in returned]


def _start(memory: str | None, options: Options) -> dict[str, Any]:
    """An empty state, or settings by the names that cs231n has for them."""
    if memory != "config":
        return {}
    names = {"lr": "learning_rate", "eps": "epsilon", "smoothing": "decay_rate"}
    return {names.get(name, name): value for name, value in options.items()}


def _flatten(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.detach().flatten() for one in parameters])


def _parameters_of(target: Any) -> list[str]:
    return [name for name, one in inspect.signature(target).parameters.items() if one.kind is not one.VAR_KEYWORD]


def _find_name(names: Sequence[str], wanted: str) -> str | None:
    """The first of the wanted names that there is."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[one] for one in wanted.split() if one in lower), None)


def _match_options(reference: Reference, target: Any, names: Sequence[str], options: Options) -> dict[str, Any] | None:
    """Settings by the names of a student's own; None where it lacks one that matters in this case."""
    matched: dict[str, Any] = {}
    values = dict(options)
    if "beta1" in values and _find_name(names, OPTIONS["betas"]):
        values["betas"] = (values.pop("beta1"), values.pop("beta2"))
    for ours, value in values.items():
        theirs = _find_name([name for name in names if name not in matched], OPTIONS[ours])
        if theirs is not None:
            matched[theirs] = value
        elif ours in REQUIRED.get(reference.name, ("lr",)):
            raise _other_signature(reference, target)
        elif NEUTRAL.get(ours) != value:
            return None
    parameters = inspect.signature(target).parameters
    missing = [name for name in names if name not in matched and parameters[name].default is inspect.Parameter.empty]
    if isinstance(target, type) and missing:
        raise _other_signature(reference, target)
    return matched


def _other_signature(reference: Reference, target: Any) -> ConfigError:
    listed = ", ".join(_parameters_of(target))
    return ConfigError(f"{target.__name__}({listed}) has other arguments than expected: {reference.call}")


@dataclass(frozen=True)
class OptimizerRules:
    """What all optimizers have in common, and the steps of one."""

    algorithm: Any
    """Rules of one optimizer; called with a parameter, its gradient, its state and the settings."""
    sign: float = 1.0
    """Of the gradient."""
    is_kept: bool = True
    """Whether the state is kept from step to step."""
    is_shared: bool = False
    """Whether all parameters have one state."""
    is_reflected: bool = False
    """Whether each step goes the other way."""
    counts: Literal["own", "steps", "updates"] = "own"
    """What the count of steps is: those of each parameter, all of the optimizer, or all updates of any parameter."""
    steps: int = STEPS
    """How many steps change the parameters."""
    reads_groups: bool = True
    """Whether a group's own learning rate counts."""


def compute_optimizer(w: Weights, inputs: Mapping[str, Any], rules: OptimizerRules) -> Outputs:
    parameters = [inputs[key].detach() for key in ("first", "second")]
    gradients = [inputs[key].detach() for key in ("first_grads", "second_grads")]
    states: list[dict[str, Any]] = [{}, {}]
    options = [dict(inputs["options"]), dict(inputs["options"])]
    if inputs["group_lr"] is not None and rules.reads_groups:
        options[1]["lr"] = inputs["group_lr"]
    history, counted = [], 0
    for step in range(len(gradients[0])):
        for number, gradient in enumerate(gradients):
            if (number, step) == inputs["missing"] or step >= rules.steps:
                continue
            counted += 1
            state = states[0 if rules.is_shared else number] if rules.is_kept else {}
            state["t"] = {"own": state.get("t", 0) + 1, "steps": step + 1, "updates": counted}[rules.counts]
            before = parameters[number]
            after = rules.algorithm(before, rules.sign * gradient[step], state, options[number])
            parameters[number] = 2 * before - after if rules.is_reflected else after
        history.append(_flatten(parameters))
    return {"parameters": torch.stack(history)}


def optimizer_cases(settings: Sequence[tuple[str, Options]], sizes: Sizes) -> list[Case]:
    """Each with its settings; then with a gradient that is missing at the second step, and with two groups."""
    shape = (2, 3)
    drawn = {
        "first": random_values(*shape, seed=1),
        "second": random_values(*shape, seed=2),
        "first_grads": random_values(STEPS, *shape, seed=3),
        "second_grads": 0.5 + random_values(STEPS, *shape, seed=4),
    }
    cases = [
        Case(name, {**drawn, "options": options, "missing": None, "group_lr": None}, name) for name, options in settings
    ]
    _, options = settings[0]
    extra: dict[str, dict[str, Any]] = {
        "where a gradient is None": {"missing": (1, 1)},
        "with two parameter groups": {"group_lr": 0.03},
    }
    for name, change in extra.items():
        values = {**drawn, "options": options, "missing": None, "group_lr": None, **change}
        cases.append(Case(name, values, name))
    return cases


def optimizer_reference(
    name: str,
    call: str,
    settings: Sequence[tuple[str, Options]],
    designs: Sequence[OptimizerRules],
    mistakes: tuple[Mistake, ...],
    of_all: tuple[Mistake, ...] = (),
) -> Reference:
    return Reference(
        name=name,
        call=call,
        outputs=("parameters",),
        arguments=(),
        sizes={},
        cases=partial(optimizer_cases, settings),
        compute=compute_optimizer,
        designs=tuple(designs),
        mistakes=(*[one.inside("algorithm") for one in mistakes], *OF_ALL, *of_all),
        run=partial(run_optimizer, name),
        takes_class=True,
        tries_device=True,
    )


OF_ALL = (
    Mistake("gradient-ascent", "the parameters go up the gradient; subtract", {"is_reflected": True}),
    Mistake("gradient-ascent", "the parameters go up the gradient; subtract", {"sign": -1.0}),
    Mistake("state-not-kept", "every step begins anew: the state is lost between the steps", {"is_kept": False}),
    Mistake("state-shared", "all parameters share one state; each needs its own", {"is_shared": True}),
    Mistake(
        "parameters-never-change",
        "the parameters never change: p = p - … binds a new tensor, and params may be a "
        "generator, which is empty the second time: keep list(params) and change p in place",
        {"steps": 0},
    ),
    Mistake(
        "only-the-first-step",
        "only the first step changes the parameters: params may be a generator, which is "
        "empty the second time, so keep list(params)",
        {"steps": 1},
    ),
    Mistake(
        "groups-ignored", "the learning rate of a parameter group is ignored: read group['lr']", {"reads_groups": False}
    ),
)


# --- SGD ---


@dataclass(frozen=True)
class SGDRules:
    """Steps of SGD with momentum: b = μ b + g, and p = p - lr b."""

    decay: Callable[[Tensor, Tensor, float], Tensor] = lambda g, p, wd: g + wd * p
    start: Callable[[Tensor, float], Tensor] = lambda g, mu: g
    """The first buffer."""
    accumulate: Callable[[Tensor, Tensor, float], Tensor] = lambda b, g, mu: mu * b + g
    step: Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Tensor] = lambda p, g, b, old, lr, mu: p - lr * b
    shrink: Callable[[Tensor, Tensor, float, float], Tensor] = lambda new, p, lr, wd: new

    def __call__(self, p: Tensor, g: Tensor, state: dict[str, Any], options: Options) -> Tensor:
        lr: float = options["lr"]
        mu: float = options.get("momentum", 0.0)
        wd: float = options.get("weight_decay", 0.0)
        g = self.decay(g, p, wd)
        old = state.get("b", torch.zeros_like(p))
        b = self.accumulate(state["b"], g, mu) if "b" in state else self.start(g, mu)
        state["b"] = b
        if options.get("nesterov"):
            return p - lr * (g + mu * b)
        return self.shrink(self.step(p, g, b, old, lr, mu), p, lr, wd)


SGD = optimizer_reference(
    "SGD",
    "SGD(params, lr, momentum, weight_decay=0); step(): as torch.optim.SGD; or a function (params, grads, state, lr, "
    "momentum)",
    [
        ("with momentum", {"lr": 0.1, "momentum": 0.8}),
        ("without momentum", {"lr": 0.2, "momentum": 0.0}),
        ("with weight decay", {"lr": 0.1, "momentum": 0.7, "weight_decay": 0.5}),
        ("with Nesterov momentum", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    ],
    [OptimizerRules(SGDRules())],
    (
        Mistake(
            "momentum-without-effect",
            "momentum has no effect: the buffer is b = μ b + g, kept from step to step",
            {"accumulate": lambda b, g, mu: g},
        ),
        Mistake(
            "gradient-damped",
            "the buffer is μ b + (1 - μ) g, a mean; torch's SGD adds the whole gradient",
            {"accumulate": lambda b, g, mu: mu * b + (1 - mu) * g, "start": lambda g, mu: (1 - mu) * g},
        ),
        Mistake(
            "gradient-damped",
            "after the first step the buffer is μ b + (1 - μ) g, a mean; torch's SGD adds the whole gradient",
            {"accumulate": lambda b, g, mu: mu * b + (1 - mu) * g},
        ),
        Mistake(
            "first-step-wrong",
            "the first buffer is 0; it is the gradient",
            {"start": lambda g, mu: torch.zeros_like(g)},
        ),
        Mistake("first-step-wrong", "the first buffer is μ g; it is the gradient", {"start": lambda g, mu: mu * g}),
        Mistake(
            "first-step-wrong",
            "the first buffer is (1 + μ) g; it is the gradient",
            {"start": lambda g, mu: (1 + mu) * g},
        ),
        Mistake(
            "rate-twice",
            "the learning rate is multiplied twice: into the buffer and into the step",
            {"step": lambda p, g, b, old, lr, mu: p - lr * lr * b},
        ),
        Mistake(
            "rate-missing",
            "the step is not multiplied by the learning rate",
            {"step": lambda p, g, b, old, lr, mu: p - b},
        ),
        Mistake(
            "nesterov",
            "this is Nesterov momentum, lr (g + μ b); the step is lr b",
            {"step": lambda p, g, b, old, lr, mu: p - lr * (g + mu * b)},
        ),
        Mistake(
            "old-buffer",
            "the step is that of the buffer before this gradient; update the buffer first",
            {"step": lambda p, g, b, old, lr, mu: p - lr * old},
        ),
        Mistake(
            "gradient-twice",
            "the gradient is added to the buffer and to the step: lr (b + g)",
            {"step": lambda p, g, b, old, lr, mu: p - lr * (b + g)},
        ),
        Mistake(
            "buffer-subtracts", "the old buffer is subtracted: b = μ b + g", {"accumulate": lambda b, g, mu: g - mu * b}
        ),
        Mistake(
            "momentum-added",
            "the buffer is not multiplied by μ: it is the sum of all gradients",
            {"accumulate": lambda b, g, mu: b + g},
        ),
        Mistake("weight-decay-ignored", "weight decay has no effect", {"decay": lambda g, p, wd: g}),
        Mistake(
            "weight-decay-decoupled",
            "weight decay shrinks the parameter directly, as in AdamW; torch's SGD adds it "
            "to the gradient, before momentum",
            {"decay": lambda g, p, wd: g, "shrink": lambda new, p, lr, wd: new - lr * wd * p},
        ),
        Mistake(
            "weight-decay-sign",
            "weight decay has the wrong sign: it is g + λ p",
            {"decay": lambda g, p, wd: g - wd * p},
        ),
        Mistake(
            "weight-decay-without-rate",
            "weight decay is not multiplied by the learning rate",
            {"decay": lambda g, p, wd: g, "shrink": lambda new, p, lr, wd: new - wd * p},
        ),
    ),
)


# --- Adam and AdamW ---


def _decay_into_gradient(g: Tensor, p: Tensor, wd: float) -> Tensor:
    return g + wd * p


def _keep_gradient(g: Tensor, p: Tensor, wd: float) -> Tensor:
    return g


def _shrink(p: Tensor, lr: float, wd: float) -> Tensor:
    return p * (1 - lr * wd)


def _keep_parameter(p: Tensor, lr: float, wd: float) -> Tensor:
    return p


@dataclass(frozen=True)
class AdamRules:
    """Steps of Adam: running means of the gradient and its square, corrected for beginning at zero."""

    decay: Callable[[Tensor, Tensor, float], Tensor] = _decay_into_gradient
    shrink: Callable[[Tensor, float, float], Tensor] = _keep_parameter
    """The parameter before the step, by weight decay."""
    shrink_after: Callable[[Tensor, float, float], Tensor] = _keep_parameter
    first: Callable[[Tensor, Tensor, float], Tensor] = lambda m, g, beta: beta * m + (1 - beta) * g
    second: Callable[[Tensor, Tensor, Tensor, float], Tensor] = lambda v, g, m, beta: beta * v + (1 - beta) * g**2
    correct_first: Callable[[float, int], float] = lambda beta, t: 1 - beta**t
    correct_second: Callable[[float, int], float] = lambda beta, t: 1 - beta**t
    count: Callable[[int], int] = lambda t: t
    denominator: Callable[[Tensor, float, float], Tensor] = lambda v, correction, eps: (v / correction).sqrt() + eps
    numerator: Callable[[Tensor, Tensor, float], Tensor] = lambda m, g, correction: m / correction
    betas: Callable[[float, float], tuple[float, float]] = lambda one, two: (one, two)
    is_from_first: bool = False
    """Whether the means begin at the first gradient instead of zero."""
    default_decay: float = 0.0

    def __call__(self, p: Tensor, g: Tensor, state: dict[str, Any], options: Options) -> Tensor:
        lr, eps, wd = options["lr"], options.get("eps", 1e-8), options.get("weight_decay", self.default_decay)
        beta1, beta2 = self.betas(options.get("beta1", 0.9), options.get("beta2", 0.999))
        g = self.decay(g, p, wd)
        p = self.shrink(p, lr, wd)
        if "m" not in state:
            state["m"], state["v"] = (g, g**2) if self.is_from_first else (torch.zeros_like(p), torch.zeros_like(p))
        m = state["m"] = self.first(state["m"], g, beta1)
        v = state["v"] = self.second(state["v"], g, m, beta2)
        t = self.count(state["t"])
        corrected = self.numerator(m, g, self.correct_first(beta1, t))
        new = p - lr * corrected / self.denominator(v, self.correct_second(beta2, t), eps)
        return self.shrink_after(new, lr, wd)


def one(*arguments: Any) -> float:
    return 1.0


ADAM_MISTAKES = (
    Mistake(
        "no-bias-correction",
        "the bias correction is missing: divide m by 1 - β₁ᵗ and v by 1 - β₂ᵗ",
        {"correct_first": one, "correct_second": one},
    ),
    Mistake(
        "no-bias-correction-of-m", "the bias correction of m is missing: divide it by 1 - β₁ᵗ", {"correct_first": one}
    ),
    Mistake(
        "no-bias-correction-of-v", "the bias correction of v is missing: divide it by 1 - β₂ᵗ", {"correct_second": one}
    ),
    Mistake(
        "bias-correction-without-power",
        "the bias correction is 1 - β at every step; it is 1 - βᵗ",
        {"correct_first": lambda beta, t: 1 - beta, "correct_second": lambda beta, t: 1 - beta},
    ),
    Mistake(
        "first-step-wrong",
        "the step is counted from 0, so that the first bias correction divides by zero; count from 1",
        {"count": lambda t: t - 1},
    ),
    Mistake("step-count-ahead", "the step is counted from 2; the first one is 1", {"count": lambda t: t + 1}),
    Mistake(
        "step-count-stands", "the step is always the first in the bias correction; count it up", {"count": lambda t: 1}
    ),
    Mistake(
        "epsilon-inside-root",
        "epsilon is added inside of the root; add it after the root",
        {"denominator": lambda v, correction, eps: (v / correction + eps).sqrt()},
    ),
    Mistake(
        "epsilon-missing",
        "epsilon is missing in the denominator",
        {"denominator": lambda v, correction, eps: (v / correction).sqrt()},
    ),
    Mistake(
        "root-missing",
        "the step is divided by v; divide by its root",
        {"denominator": lambda v, correction, eps: v / correction + eps},
    ),
    Mistake("not-divided", "the step is not divided by the root of v", {"denominator": one}),
    Mistake(
        "betas-swapped", "β₁ and β₂ are swapped: β₁ is that of the gradient", {"betas": lambda one, two: (two, one)}
    ),
    Mistake(
        "betas-swapped",
        "the new gradient gets β and the mean 1 - β; it is the other way round",
        {
            "first": lambda m, g, beta: (1 - beta) * m + beta * g,
            "second": lambda v, g, m, beta: (1 - beta) * v + beta * g**2,
        },
    ),
    Mistake(
        "gradient-not-damped",
        "m is β m + g; the new gradient is multiplied by 1 - β",
        {"first": lambda m, g, beta: beta * m + g},
    ),
    Mistake(
        "square-missing",
        "v is a mean of the gradients; it is that of their squares",
        {"second": lambda v, g, m, beta: beta * v + (1 - beta) * g},
    ),
    Mistake(
        "absolute-for-square",
        "v is a mean of |g|; it is that of the squares",
        {"second": lambda v, g, m, beta: beta * v + (1 - beta) * g.abs()},
    ),
    Mistake(
        "square-of-m",
        "v is a mean of m²; it is that of g²",
        {"second": lambda v, g, m, beta: beta * v + (1 - beta) * m**2},
    ),
    Mistake(
        "squares-summed",
        "v is a sum of squares, as in Adagrad; it is a running mean",
        {"second": lambda v, g, m, beta: v + g**2},
    ),
    Mistake(
        "gradient-for-mean",
        "the step takes the gradient; it takes its running mean m",
        {"numerator": lambda m, g, correction: g},
    ),
    Mistake(
        "means-from-first-gradient",
        "the means begin at the first gradient; they begin at zero, which the bias correction undoes",
        {"is_from_first": True},
    ),
    Mistake("weight-decay-ignored", "weight decay has no effect", {"decay": _keep_gradient, "shrink": _keep_parameter}),
    Mistake(
        "weight-decay-sign",
        "weight decay has the wrong sign: parameters grow",
        {"decay": lambda g, p, wd: g - wd * p, "shrink": _keep_parameter},
    ),
    Mistake(
        "weight-decay-sign",
        "weight decay has the wrong sign: parameters grow",
        {"decay": _keep_gradient, "shrink": lambda p, lr, wd: p * (1 + lr * wd)},
    ),
    Mistake(
        "weight-decay-without-rate",
        "weight decay is not multiplied by the learning rate",
        {"decay": _keep_gradient, "shrink": lambda p, lr, wd: p * (1 - wd)},
    ),
)
PER_PARAMETER = Mistake(
    "step-count-per-parameter",
    "the step is counted up for every parameter; count it once for each step, or for each parameter by itself",
    {"counts": "updates"},
)
DECOUPLED = Mistake(
    "weight-decay-decoupled",
    "weight decay shrinks the parameter directly, as in AdamW; in Adam λ p is added to the gradient",
    {"decay": _keep_gradient, "shrink": _shrink},
)
COUPLED = (
    Mistake(
        "weight-decay-coupled",
        "weight decay is added to the gradient, as in Adam; in AdamW it shrinks the parameter directly, by lr · λ",
        {"decay": _decay_into_gradient, "shrink": _keep_parameter},
    ),
    Mistake(
        "weight-decay-after-the-step",
        "weight decay shrinks the parameter after the step; shrink it before",
        {"shrink": _keep_parameter, "shrink_after": _shrink},
    ),
    Mistake(
        "weight-decay-twice",
        "weight decay is added to the gradient and shrinks the parameter as well",
        {"decay": _decay_into_gradient},
    ),
)


def _epsilon_hat(v: Tensor, correction: float, eps: float) -> Tensor:
    """As at the end of section 2 of Adam's paper: the rate is corrected instead of v, so that epsilon is, too."""
    return (v.sqrt() + eps) / math.sqrt(correction)


def adam_designs(rules: AdamRules) -> list[OptimizerRules]:
    """With either place of epsilon, and with a count of steps for each parameter or for all."""
    counts: tuple[Literal["own", "steps"], ...] = ("own", "steps")
    both = (rules, replace(rules, denominator=_epsilon_hat))
    return [OptimizerRules(one, counts=count) for one in both for count in counts]


def adam_settings(**always: float) -> list[tuple[str, Options]]:
    return [
        ("with the default betas", {"lr": 0.1, **always}),
        ("with other betas", {"lr": 0.05, "beta1": 0.7, "beta2": 0.9, **always}),
        ("with a large epsilon", {"lr": 0.2, "eps": 0.3, **always}),
        ("with weight decay", {"lr": 0.1, **always, "weight_decay": 0.6}),
    ]


ADAM = optimizer_reference(
    "Adam",
    "Adam(params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0); step(): as torch.optim.Adam; or a function "
    "(params, grads, state, lr, …)",
    adam_settings(),
    adam_designs(AdamRules()),
    (*ADAM_MISTAKES, DECOUPLED),
    (PER_PARAMETER,),
)
ADAMW = optimizer_reference(
    "AdamW",
    "AdamW(params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01); step(): as torch.optim.AdamW; or a function "
    "(params, grads, state, lr, weight_decay, …)",
    adam_settings(weight_decay=0.0),
    adam_designs(AdamRules(decay=_keep_gradient, shrink=_shrink)),
    (*ADAM_MISTAKES, *COUPLED),
    (PER_PARAMETER,),
)


# --- Adagrad and RMSprop ---


@dataclass(frozen=True)
class AdaptiveRules:
    """Steps of optimizers that divide the gradient by the root of what its squares were."""

    accumulate: Callable[[Tensor, Tensor, float], Tensor]
    """The sum or mean of squares after a gradient."""
    eps: float
    decay: Callable[[Tensor, Tensor, float], Tensor] = _decay_into_gradient
    shrink: Callable[[Tensor, float, float], Tensor] = _keep_parameter
    denominator: Callable[[Tensor, float], Tensor] = lambda s, eps: s.sqrt() + eps
    uses: Callable[[Tensor, Tensor], Tensor] = lambda old, new: new
    numerator: Callable[[Tensor, float], Tensor] = lambda g, lr: lr * g
    start: Callable[[Tensor], Tensor] = torch.zeros_like

    def __call__(self, p: Tensor, g: Tensor, state: dict[str, Any], options: Options) -> Tensor:
        lr, eps, wd = options["lr"], options.get("eps", self.eps), options.get("weight_decay", 0.0)
        g = self.decay(g, p, wd)
        p = self.shrink(p, lr, wd)
        old = state.get("s", self.start(g))
        new = state["s"] = self.accumulate(old, g, options.get("smoothing", 0.99))
        return p - self.numerator(g, lr) / self.denominator(self.uses(old, new), eps)


def _add_square(s: Tensor, g: Tensor, smoothing: float) -> Tensor:
    return s + g**2


def _average_square(s: Tensor, g: Tensor, smoothing: float) -> Tensor:
    return smoothing * s + (1 - smoothing) * g**2


ADAPTIVE_MISTAKES = (
    Mistake(
        "epsilon-inside-root",
        "epsilon is added inside of the root; add it after the root",
        {"denominator": lambda s, eps: (s + eps).sqrt()},
    ),
    Mistake("epsilon-missing", "epsilon is missing in the denominator", {"denominator": lambda s, eps: s.sqrt()}),
    Mistake(
        "root-missing",
        "the step is divided by the squares; divide by their root",
        {"denominator": lambda s, eps: s + eps},
    ),
    Mistake("not-divided", "the step is not divided by the root of the squares", {"denominator": one}),
    Mistake(
        "old-squares",
        "the step is divided by the squares before this gradient; add this one first",
        {"uses": lambda old, new: old},
    ),
    Mistake(
        "square-missing",
        "the gradients are added up; add up their squares",
        {"accumulate": lambda s, g, smoothing: s + g},
    ),
    Mistake(
        "absolute-for-square",
        "|g| is added up; add up the squares",
        {"accumulate": lambda s, g, smoothing: s + g.abs()},
    ),
    Mistake(
        "one-number-for-all",
        "the squares of a whole parameter are summed to one number; each entry has its own",
        {"accumulate": lambda s, g, smoothing: s + (g**2).sum()},
    ),
    Mistake("starts-at-one", "the squares begin at one; they begin at zero", {"start": torch.ones_like}),
    Mistake("rate-missing", "the step is not multiplied by the learning rate", {"numerator": lambda g, lr: g}),
    Mistake("weight-decay-ignored", "weight decay has no effect", {"decay": _keep_gradient}),
    Mistake(
        "weight-decay-decoupled",
        "weight decay shrinks the parameter directly, as in AdamW; here λ p is added to the gradient",
        {"decay": _keep_gradient, "shrink": _shrink},
    ),
    Mistake(
        "weight-decay-sign", "weight decay has the wrong sign: it is g + λ p", {"decay": lambda g, p, wd: g - wd * p}
    ),
)
ADAGRAD = optimizer_reference(
    "Adagrad",
    "Adagrad(params, lr, eps=1e-10, weight_decay=0); step(): as torch.optim.Adagrad; or a function (params, grads, "
    "state, lr, …)",
    [
        ("with the default epsilon", {"lr": 0.1}),
        ("with a large epsilon", {"lr": 0.2, "eps": 0.3}),
        ("with weight decay", {"lr": 0.1, "weight_decay": 0.6}),
    ],
    [OptimizerRules(AdaptiveRules(_add_square, 1e-10))],
    (
        *ADAPTIVE_MISTAKES,
        Mistake(
            "running-mean",
            "the squares are averaged, as in RMSprop; Adagrad adds them up",
            {"accumulate": lambda s, g, smoothing: 0.9 * s + 0.1 * g**2},
        ),
        Mistake(
            "running-mean",
            "the squares are averaged, as in RMSprop; Adagrad adds them up",
            {"accumulate": _average_square},
        ),
    ),
)
RMSPROP = optimizer_reference(
    "RMSprop",
    "RMSprop(params, lr, alpha=0.99, eps=1e-8, weight_decay=0); step(): as torch.optim.RMSprop; or a function (params, "
    "grads, state, lr, …)",
    [
        ("with the default alpha", {"lr": 0.1}),
        ("with another alpha", {"lr": 0.1, "smoothing": 0.7}),
        ("with a large epsilon", {"lr": 0.2, "eps": 0.3}),
        ("with weight decay", {"lr": 0.1, "weight_decay": 0.6}),
    ],
    [OptimizerRules(AdaptiveRules(_average_square, 1e-8))],
    (
        *[
            mistake
            for mistake in ADAPTIVE_MISTAKES
            if mistake.name not in ("square-missing", "absolute-for-square", "one-number-for-all")
        ],
        Mistake(
            "squares-summed",
            "the squares are added up, as in Adagrad; RMSprop averages them",
            {"accumulate": _add_square},
        ),
        Mistake(
            "square-missing",
            "the gradients are averaged; average their squares",
            {"accumulate": lambda s, g, smoothing: smoothing * s + (1 - smoothing) * g},
        ),
        Mistake(
            "alpha-swapped",
            "the new square gets α and the mean 1 - α; it is the other way round",
            {"accumulate": lambda s, g, smoothing: (1 - smoothing) * s + smoothing * g**2},
        ),
        Mistake(
            "square-not-damped",
            "the mean is α v + g²; the new square is multiplied by 1 - α",
            {"accumulate": lambda s, g, smoothing: smoothing * s + g**2},
        ),
    ),
)

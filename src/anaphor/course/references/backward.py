"""Gradients derived by hand: `backward` functions of one layer each, and of the network of sheet 001.

A student's own is a function of the gradient of the output and of what went in. It may also be a
`torch.autograd.Function`, take what went in as one `cache`, or compute with NumPy. While it runs, autograd is off.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.course.catalog import find_reference
from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import random_values, same
from anaphor.course.student import match_call, match_name

CACHES = ("cache", "saved", "saved_tensors", "ctx")
"""Names of one argument that has all that went in."""
_AUTOGRAD_GRAD = torch.autograd.grad


def constant(value: float) -> Callable[..., float]:
    return lambda *arguments: value


@contextlib.contextmanager
def without_autograd() -> Iterator[None]:
    """Inside the block autograd computes no gradients: they are what the student is to derive."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("autograd is off here: derive the gradient by hand")

    before = torch.autograd.backward, torch.autograd.grad
    torch.autograd.backward = torch.autograd.grad = refuse
    try:
        with torch.no_grad():
            yield
    finally:
        torch.autograd.backward, torch.autograd.grad = before


def run_backward(name: str, target: Any, case: Case, sizes: Sizes) -> Outputs:
    """The gradients that a student's own returns, by name; `name` is that of the reference."""
    expected = find_reference(name)
    inputs = {name: value.detach() if isinstance(value, Tensor) else value for name, value in case.inputs.items()}
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        return _run_function_class(expected, target, inputs)
    if isinstance(target, type):
        target = target()
    arguments = _match(expected, target, inputs)
    if arguments is None:
        return {}
    with without_autograd():
        try:
            returned = target(**arguments)
        except (AttributeError, TypeError):
            returned = _run_with_numpy(target, arguments)
            if returned is None:
                raise
    dtype = next(value.dtype for value in inputs.values() if isinstance(value, Tensor) and value.is_floating_point())
    return _name_gradients(expected, returned, dtype)


def _match(expected: Reference, target: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments for a student's function; None where it does not take one of the inputs of this case."""
    names = [*inspect.signature(target).parameters]
    cache = next((name for name in names if name in CACHES), None)
    if cache is not None:
        first, *rest = [name for name in expected.arguments if inputs.get(name) is not None]
        if len(names) == 1:
            return {cache: tuple(inputs[name] for name in (first, *rest))}
        return {(names[1] if names[0] == cache else names[0]): inputs[first], cache: tuple(map(inputs.get, rest))}
    matched = match_call(expected, target, getattr(target, "__name__", type(target).__name__))
    if not matched:
        return dict(inputs)
    if any(value is not None and name not in matched for name, value in inputs.items() if name == "mask"):
        return None
    has_default = {
        name for name, one in inspect.signature(target).parameters.items() if one.default is not inspect.Parameter.empty
    }
    return {
        matched[name]: value
        for name, value in inputs.items()
        if name in matched and not (value is None and matched[name] in has_default)
    }


def _run_with_numpy(target: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What it returns for arrays; None where it does not take them either."""
    arrays = {name: _as_array(value) for name, value in arguments.items()}
    try:
        return target(**arrays)
    except Exception:  # noqa: BLE001 (the error that it raised for tensors is shown)
        return None


def _as_array(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_array, value))
    return value.cpu().numpy() if isinstance(value, Tensor) and value.device.type != "meta" else value


def _run_function_class(expected: Reference, target: Any, inputs: dict[str, Any]) -> Outputs:
    """Gradients through a student's `torch.autograd.Function`; the gradient of its output is given."""
    names = [*inspect.signature(target.forward).parameters][1:]
    known = [name for name in expected.arguments if name not in ("grad_y", "y")]
    ours = [match_name(name, known) for name in names]
    if any(name is None for name in ours):
        ours = [*known[: len(names)]]
    if inputs.get("mask") is not None and "mask" not in ours:
        return {}
    wanted = [output[1:] for output in expected.outputs if output[1:] in ours]
    for name in wanted:
        inputs[name] = inputs[name].requires_grad_()
    y = target.apply(*(inputs[str(name)] for name in ours))
    upstream = inputs.get("grad_y")
    found = _AUTOGRAD_GRAD(
        y, [inputs[name] for name in wanted], torch.ones_like(y) if upstream is None else upstream, allow_unused=True
    )
    return {
        f"d{name}": torch.zeros_like(inputs[name]) if one is None else one
        for name, one in zip(wanted, found, strict=True)
    }


def _name_gradients(expected: Reference, returned: Any, dtype: torch.dtype) -> Outputs:
    """What was returned, by the names of the reference: one value, several in its order or the other way round, or a
    dict."""
    names = expected.outputs
    if isinstance(returned, Mapping):
        plain = {re.sub(r"^(d_|d|grad_|g_)", "", name).lower(): name for name in names}
        found = {re.sub(r"^(d_|d(?=\w)|grad_|g_)", "", str(key).lower()): value for key, value in returned.items()}
        values = [found.get(key) for key in plain]
    elif len(names) == 1 and not (isinstance(returned, tuple | list) and len(returned) == 1):
        values = [returned]
    else:
        values = list(returned) if isinstance(returned, tuple | list) else [returned]
    if len(values) != len(names) or any(value is None for value in values):
        got = f"{len(values)} values" if isinstance(returned, tuple | list) else f"{type(returned).__name__}"
        raise TypeError(
            f"it returned {got}, some of them None"
            if len(values) == len(names)
            else f"it returned {got}; expected: {', '.join(names)}"
        )
    tensors = [torch.as_tensor(value) for value in values]
    tensors = [one if one.ndim else one.to(dtype) for one in tensors]  # a number has no dtype of its own
    return {name: one.detach() for name, one in zip(names, tensors, strict=True)}


def backward_reference(name: str, **values: Any) -> Reference:
    """A reference whose student's own is run as above."""
    return Reference(
        name=name, sizes={}, takes_class=True, tries_device=True, **{"run": partial(run_backward, name), **values}
    )


# --- y = x Wᵀ + b ---


@dataclass(frozen=True)
class LinearRules:
    """Gradients of a linear layer, from those of its output g, from x and from W."""

    dx: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda g, x, w: g @ w
    dw: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda g, x, w: g.T @ x
    db: Callable[[Tensor], Tensor] = lambda g: g.sum(0)


def compute_linear(w: Weights, inputs: Mapping[str, Any], rules: LinearRules) -> Outputs:
    g, x, matrix = (inputs[name].detach() for name in ("grad_y", "x", "w"))
    return {"dx": rules.dx(g, x, matrix), "dw": rules.dw(g, x, matrix), "db": rules.db(g)}


def linear_cases(sizes: Sizes) -> list[Case]:
    def inputs(rows: int, width: int, out: int) -> dict[str, Any]:
        values = {"grad_y": (rows, out), "x": (rows, width), "w": (out, width), "b": (out,)}
        return {name: random_values(*shape, seed=seed) for seed, (name, shape) in enumerate(values.items(), rows)}

    return [
        Case("of a square matrix", inputs(5, 3, 3), "of a square matrix"),
        Case("of a wide matrix", inputs(2, 4, 3), "of a wide matrix"),
    ]


LINEAR = backward_reference(
    "linear_backward",
    call="linear_backward(grad_y [N, out], x [N, in], W [out, in], b [out]) -> dx, dw, db of y = x Wᵀ + b; b may be "
    "left out",
    outputs=("dx", "dw", "db"),
    arguments=("grad_y", "x", "w", "b"),
    optional=("b",),
    cases=linear_cases,
    compute=compute_linear,
    designs=(LinearRules(),),
    mistakes=(
        Mistake(
            "dx-with-the-transpose",
            "dx is multiplied by the transpose of W; forward multiplies by Wᵀ, so backward by W",
            {"dx": lambda g, x, w: g @ w.T},
        ),
        Mistake(
            "matrix-as-in-out",
            "W is taken for [in, out], for y = x W; here it is [out, in] as in nn.Linear, for y = x Wᵀ",
            {"dx": lambda g, x, w: g @ w.T, "dw": lambda g, x, w: x.T @ g},
        ),
        Mistake(
            "dw-transposed",
            "dW is transposed; a gradient has the shape of its weight, [out, in]",
            {"dw": lambda g, x, w: x.T @ g},
        ),
        Mistake(
            "dw-averaged",
            "dW is divided by the number of rows; the gradient of a sum is the sum, the loss has its mean in grad_y",
            {"dw": lambda g, x, w: g.T @ x / len(x)},
        ),
        Mistake("db-averaged", "db is the mean over the batch; it is the sum", {"db": lambda g: g.mean(0)}),
        Mistake(
            "averaged",
            "dW and db are divided by the number of rows; they are sums over the batch, the loss has its mean in "
            "grad_y",
            {"dw": lambda g, x, w: g.T @ x / len(x), "db": lambda g: g.mean(0)},
        ),
        Mistake("db-not-summed", "db is not summed over the batch: every row adds to the same b", {"db": same}),
        Mistake(
            "db-summed-over-features",
            "db is summed over the features; sum over the batch, the first dimension",
            {"db": lambda g: g.sum(-1)},
        ),
        Mistake(
            "db-of-one",
            "db is the number of rows, as if the gradient of y were one",
            {"db": lambda g: torch.full_like(g[0], len(g))},
        ),
        Mistake(
            "dw-without-grad",
            "dW is the sum of x alone; multiply by the gradient of y",
            {"dw": lambda g, x, w: torch.ones_like(g).T @ x},
        ),
        Mistake(
            "dx-without-grad",
            "dx is that of a sum of y; multiply by the gradient of y",
            {"dx": lambda g, x, w: torch.ones_like(g) @ w},
        ),
        Mistake(
            "negative",
            "all gradients have the wrong sign: they are not steps of descent yet",
            {"dx": lambda g, x, w: -g @ w, "dw": lambda g, x, w: -g.T @ x, "db": lambda g: -g.sum(0)},
        ),
        Mistake(
            "dx-averaged",
            "dx is divided by the number of rows; that is part of grad_y",
            {"dx": lambda g, x, w: g @ w / len(x)},
        ),
    ),
)


# --- activations ---


@dataclass(frozen=True)
class ActivationRules:
    """The gradient of an activation from that of its output, from its input and from its output."""

    dx: Callable[[Tensor, Tensor, Tensor], Tensor]


def compute_activation(
    function: Callable[[Tensor], Tensor], w: Weights, inputs: Mapping[str, Any], rules: ActivationRules
) -> Outputs:
    x = inputs["x"].detach()
    return {"dx": rules.dx(inputs["grad_y"].detach(), x, function(x))}


def activation_cases(sizes: Sizes) -> list[Case]:
    cases = []
    for name, shape in (("of a matrix", (4, 5)), ("of three dimensions", (2, 3, 4))):
        x = random_values(*shape, seed=len(shape))
        inputs = {"grad_y": random_values(*shape, seed=7), "x": x}
        cases.append(Case(name, inputs, name))
    return cases


def run_activation(name: str, function: Callable[[Tensor], Tensor], target: Any, case: Case, sizes: Sizes) -> Outputs:
    """A student's own may take the output of the activation instead of its input, or beside it."""
    inputs = {**case.inputs, "y": function(case.inputs["x"].detach())}
    return run_backward(name, target, Case(case.name, inputs, case.checks), sizes)


Slope = Callable[[Tensor, Tensor], Tensor]
"""The derivative of an activation, from its input and its output."""


def activation_reference(
    layer: str, function: Callable[[Tensor], Tensor], slope: Slope, mistakes: tuple[Mistake, ...]
) -> Reference:
    name = f"{layer}_backward"
    return backward_reference(
        name,
        call=f"{name}(grad_y, x) -> dx of y = {layer}(x); y may be given instead of x, by that name",
        outputs=("dx",),
        arguments=("grad_y", "x", "y"),
        optional=("x", "y"),
        cases=activation_cases,
        compute=partial(compute_activation, function),
        designs=(ActivationRules(lambda g, x, y: g * slope(x, y)),),
        mistakes=(*_mistakes_of_both(slope), *mistakes),
        run=partial(run_activation, name, function),
    )


def _activation(name: str, text: str, dx: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Mistake:
    return Mistake(name, text, {"dx": dx})


def _mistakes_of_both(slope: Slope) -> tuple[Mistake, ...]:
    return (
        _activation(
            "grad-passed-through", "grad_y is passed on unchanged; multiply by the derivative", lambda g, x, y: g
        ),
        _activation("negative", "the gradient has the wrong sign", lambda g, x, y: -g * slope(x, y)),
        _activation(
            "averaged",
            "the gradient is divided by the number of rows; that is part of grad_y",
            lambda g, x, y: g * slope(x, y) / len(x),
        ),
        _activation(
            "summed-over-the-batch",
            "the gradient is summed over the batch; each input has its own",
            lambda g, x, y: (g * slope(x, y)).sum(0),
        ),
        _activation("grad-ignored", "this is the derivative alone; multiply it by grad_y", lambda g, x, y: slope(x, y)),
        _activation("grad-added", "grad_y is added to the derivative; multiply", lambda g, x, y: g + slope(x, y)),
        _activation(
            "input-for-derivative", "grad_y is multiplied by x; multiply by the derivative at x", lambda g, x, y: g * x
        ),
        _activation(
            "output-for-derivative", "grad_y is multiplied by y; multiply by the derivative at x", lambda g, x, y: g * y
        ),
        _activation("returns-the-output", "this is the forward pass, not the gradient", lambda g, x, y: y),
    )


RELU = activation_reference(
    "relu",
    torch.relu,
    lambda x, y: (x > 0).to(y),
    (
        _activation(
            "mask-inverted",
            "the gradient passes where x is negative; it passes where x is positive",
            lambda g, x, y: g * (x < 0),
        ),
        _activation(
            "relu-of-the-gradient",
            "the ReLU is applied to the gradient; where it passes is decided by x",
            lambda g, x, y: g.clamp(min=0),
        ),
        _activation(
            "positive-gradients-only",
            "only positive gradients pass; where they pass is decided by x alone",
            lambda g, x, y: g.clamp(min=0) * (x > 0),
        ),
        _activation(
            "sign-for-step", "the derivative is the sign of x; below zero it is 0", lambda g, x, y: g * x.sign()
        ),
        _activation(
            "leaky",
            "below zero the derivative is 0.01, that of a leaky ReLU; it is 0",
            lambda g, x, y: torch.where(x > 0, g, 0.01 * g),
        ),
        _activation(
            "threshold-of-one", "the gradient passes where x is above 1; it passes above 0", lambda g, x, y: g * (x > 1)
        ),
    ),
)

TANH = activation_reference(
    "tanh",
    torch.tanh,
    lambda x, y: 1 - y**2,
    (
        _activation("input-squared", "the derivative is 1 - x²; it is 1 - tanh(x)²", lambda g, x, y: g * (1 - x**2)),
        _activation("not-squared", "the derivative is 1 - tanh(x); it is 1 - tanh(x)²", lambda g, x, y: g * (1 - y)),
        _activation(
            "that-of-the-sigmoid",
            "the derivative is y (1 - y), that of the sigmoid; it is 1 - y²",
            lambda g, x, y: g * y * (1 - y),
        ),
        _activation("plus-for-minus", "the derivative is 1 + y²; it is 1 - y²", lambda g, x, y: g * (1 + y**2)),
        _activation(
            "tanh-of-the-output",
            "tanh is taken of y once more; y is the tanh already",
            lambda g, x, y: g * (1 - y.tanh() ** 2),
        ),
        _activation("one-missing", "the derivative is y²; it is 1 - y²", lambda g, x, y: g * y**2),
        _activation(
            "tanh-of-the-gradient",
            "tanh is taken of the gradient; the derivative is that at x",
            lambda g, x, y: 1 - g.tanh() ** 2,
        ),
        _activation(
            "square-after-gradient",
            "g is squared with tanh: 1 - (g y)²; it is g (1 - y²)",
            lambda g, x, y: 1 - (g * y) ** 2,
        ),
    ),
)


# --- softmax and cross entropy ---


CLASSES = 6


def hot(targets: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(targets, like.shape[-1]).to(like)


@dataclass(frozen=True)
class CrossEntropyRules:
    """The gradient of the mean cross entropy: (softmax(logits) - one-hot targets) / N."""

    probabilities: Callable[[Tensor], Tensor] = lambda logits: logits.softmax(-1)
    subtract: Callable[[Tensor, Tensor], Tensor] = lambda p, one_hot: p - one_hot
    weigh: Callable[[Tensor], Tensor] = lambda mask: mask / mask.sum()
    """The factor of each row, from 1 for real targets and 0 for padding."""
    targets: Callable[[Tensor, int], Tensor] = lambda targets, classes: targets


def compute_cross_entropy(w: Weights, inputs: Mapping[str, Any], rules: CrossEntropyRules) -> Outputs:
    logits, mask = inputs["logits"].detach(), inputs["mask"]
    mask = torch.ones_like(logits[:, 0]) if mask is None else mask.to(logits)
    targets = rules.targets(inputs["targets"], logits.shape[-1])
    return {"dlogits": rules.subtract(rules.probabilities(logits), hot(targets, logits)) * rules.weigh(mask)[..., None]}


def cross_entropy_cases(sizes: Sizes) -> list[Case]:
    targets = torch.tensor([2, 0, 5, 3, 3, 1, 5])
    mask = torch.tensor([1, 1, 0, 1, 0, 1, 1])
    return [
        Case(
            "of all targets",
            {"logits": random_values(7, CLASSES, seed=3), "targets": targets, "mask": None},
            "of all targets",
        ),
        Case(
            "with a mask",
            {"logits": random_values(7, CLASSES, seed=4), "targets": targets, "mask": mask},
            "with a mask",
        ),
        Case(
            "of large logits",
            {"logits": 1000 * random_values(4, CLASSES, seed=5), "targets": targets[3:], "mask": None},
            "of large logits",
        ),
    ]


CROSS_ENTROPY = backward_reference(
    "cross_entropy_backward",
    call="cross_entropy_backward(logits [N, V], targets [N], mask=None [N]) -> dlogits of the mean cross entropy; mask "
    "is 1 where a target counts",
    outputs=("dlogits",),
    arguments=("logits", "targets", "mask"),
    optional=("mask",),
    cases=cross_entropy_cases,
    compute=compute_cross_entropy,
    designs=(CrossEntropyRules(),),
    mistakes=(
        Mistake(
            "not-divided-by-n", "the gradient is that of the sum; divide by the number of targets", {"weigh": same}
        ),
        Mistake(
            "divided-by-padding",
            "the gradient is divided by the number of all targets; divide by that of the real ones",
            {"weigh": lambda mask: mask / len(mask)},
        ),
        Mistake(
            "mask-not-applied",
            "rows of padding have a gradient; it is zero there",
            {"weigh": lambda mask: torch.ones_like(mask) / len(mask)},
        ),
        Mistake(
            "mask-not-applied",
            "rows of padding have a gradient; it is zero there",
            {"weigh": lambda mask: torch.ones_like(mask) / mask.sum()},
        ),
        Mistake(
            "mask-inverted",
            "only rows of padding have a gradient; the mask is 1 for real targets",
            {"weigh": lambda mask: (1 - mask) / (1 - mask).sum() if mask.min() < 1 else mask / mask.sum()},
        ),
        Mistake(
            "divided-by-classes",
            "the gradient is divided by the number of all logits; divide by that of the rows",
            {"weigh": lambda mask: mask / mask.sum() / CLASSES},
        ),
        Mistake(
            "one-hot-not-subtracted",
            "this is the softmax alone; subtract 1 at the target",
            {"subtract": lambda p, one_hot: p},
        ),
        Mistake(
            "negative",
            "the gradient has the wrong sign: it is softmax minus one-hot",
            {"subtract": lambda p, one_hot: one_hot - p},
        ),
        Mistake("one-hot-added", "1 is added at the target; subtract it", {"subtract": lambda p, one_hot: p + one_hot}),
        Mistake(
            "target-only",
            "only the logit of the target has a gradient; the softmax spreads it over all",
            {"subtract": lambda p, one_hot: (p - 1) * one_hot},
        ),
        Mistake(
            "gradient-of-probabilities",
            "this is the gradient of the probabilities, -1/p at the target; go on through the softmax",
            {"subtract": lambda p, one_hot: -one_hot / p},
        ),
        Mistake(
            "softmax-missing", "the logits are taken for probabilities; take their softmax", {"probabilities": same}
        ),
        Mistake(
            "log-softmax",
            "the log of the softmax is taken for the probabilities",
            {"probabilities": lambda logits: logits.log_softmax(-1)},
        ),
        Mistake(
            "softmax-over-the-batch",
            "the softmax runs over the batch; it runs over the classes, dim=-1",
            {"probabilities": lambda logits: logits.softmax(0)},
        ),
        Mistake(
            "sigmoid",
            "a sigmoid of each logit is taken; the classes exclude each other, so take the softmax",
            {"probabilities": lambda logits: logits.sigmoid()},
        ),
        Mistake(
            "exp-not-normalized",
            "exp of the logits is not divided by its sum",
            {"probabilities": lambda logits: logits.exp()},
        ),
        Mistake(
            "softmax-overflows",
            "exp overflows for large logits; subtract their maximum first, or use torch.softmax",
            {"probabilities": lambda logits: logits.exp() / logits.exp().sum(-1, keepdim=True)},
        ),
    ),
)


# --- layer norm ---


@dataclass(frozen=True)
class LayerNormRules:
    """Gradients of y = gamma x̂ + beta, where x̂ = (x - mean) / √(variance + eps) over the features."""

    dims: tuple[int, ...] = (-1,)
    is_unbiased: bool = False
    scale: Callable[[Tensor, Tensor], Tensor] = lambda g, gamma: g * gamma
    """The gradient of x̂."""
    mean_term: Callable[[Tensor, Tensor], Tensor | float] = lambda g, x: g.mean(-1, keepdim=True)
    projection: Callable[[Tensor, Tensor], Tensor | float] = lambda g, x: x * (g * x).mean(-1, keepdim=True)
    divide: Callable[[Tensor, Tensor], Tensor] = lambda value, std: value / std
    dgamma: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda g, x, normed: (g * normed).sum(0)
    dbeta: Callable[[Tensor, Tensor], Tensor] = lambda g, normed: g.sum(0)
    combine: Callable[[Tensor, Any, Any], Tensor] = lambda g, mean, projection: g - mean - projection


def compute_layer_norm(w: Weights, inputs: Mapping[str, Any], rules: LayerNormRules) -> Outputs:
    g, x, gamma = (inputs[name].detach() for name in ("grad_y", "x", "gamma"))
    centered = x - x.mean(rules.dims, keepdim=True)
    std = (x.var(rules.dims, keepdim=True, correction=int(rules.is_unbiased)) + inputs["eps"]).sqrt()
    normed = centered / std
    scaled = rules.scale(g, gamma)
    dx = rules.combine(scaled, rules.mean_term(scaled, normed), rules.projection(scaled, normed))
    return {"dx": rules.divide(dx, std), "dgamma": rules.dgamma(g, x, normed), "dbeta": rules.dbeta(g, normed)}


def layer_norm_cases(sizes: Sizes) -> list[Case]:
    def inputs(rows: int, width: int) -> dict[str, Any]:
        return {
            "grad_y": random_values(rows, width, seed=rows),
            "x": 1.5 + 2 * random_values(rows, width, seed=1),
            "gamma": random_values(width, seed=2),
            "beta": random_values(width, seed=3),
            "eps": 1e-5,
        }

    return [Case("of four rows", inputs(4, 6), "of four rows"), Case("of seven rows", inputs(7, 3), "of seven rows")]


def zero(*arguments: Any) -> float:
    return 0.0


LAYER_NORM = backward_reference(
    "layer_norm_backward",
    call="layer_norm_backward(grad_y [N, D], x [N, D], gamma [D], beta [D], eps=1e-5) -> dx, dgamma, dbeta; beta and "
    "eps may be left out",
    outputs=("dx", "dgamma", "dbeta"),
    arguments=("grad_y", "x", "gamma", "beta", "eps"),
    optional=("beta", "eps"),
    cases=layer_norm_cases,
    compute=compute_layer_norm,
    designs=(LayerNormRules(),),
    mistakes=(
        Mistake(
            "mean-taken-as-constant",
            "dx lacks the mean of the gradient: the mean of x depends on x, too",
            {"mean_term": zero},
        ),
        Mistake(
            "variance-taken-as-constant",
            "dx lacks x̂ · mean(g x̂): the variance of x depends on x, too",
            {"projection": zero},
        ),
        Mistake(
            "statistics-taken-as-constants",
            "dx is g / std: mean and variance depend on x, too",
            {"mean_term": zero, "projection": zero},
        ),
        Mistake(
            "gamma-missing-in-dx",
            "gamma is missing in dx; the gradient of x̂ is grad_y · gamma",
            {"scale": lambda g, gamma: g},
        ),
        Mistake(
            "unbiased-variance",
            "the variance is divided by D - 1; layer norm divides by D, correction=0",
            {"is_unbiased": True},
        ),
        Mistake(
            "divided-by-the-variance",
            "dx is divided by the variance; divide by its root",
            {"divide": lambda value, std: value / std**2},
        ),
        Mistake(
            "not-divided-by-std", "dx is not divided by the standard deviation", {"divide": lambda value, std: value}
        ),
        Mistake(
            "multiplied-by-std",
            "dx is multiplied by the standard deviation; divide",
            {"divide": lambda value, std: value * std},
        ),
        Mistake(
            "sums-for-means",
            "the two terms in dx are sums; they are means over the features",
            {
                "mean_term": lambda g, x: g.sum(-1, keepdim=True),
                "projection": lambda g, x: x * (g * x).sum(-1, keepdim=True),
            },
        ),
        Mistake(
            "terms-averaged-over-the-batch",
            "the two terms in dx are means over the batch; they are means over the features",
            {
                "mean_term": lambda g, x: g.mean(0, keepdim=True),
                "projection": lambda g, x: x * (g * x).mean(0, keepdim=True),
            },
        ),
        Mistake(
            "terms-added",
            "the two terms in dx are added; subtract them",
            {"combine": lambda g, mean, projection: g + mean + projection},
        ),
        Mistake(
            "dgamma-of-x",
            "dgamma has x in it; it is the sum of grad_y · x̂",
            {"dgamma": lambda g, x, normed: (g * x).sum(0)},
        ),
        Mistake(
            "dgamma-not-summed", "dgamma is not summed over the batch", {"dgamma": lambda g, x, normed: g * normed}
        ),
        Mistake("dbeta-not-summed", "dbeta is not summed over the batch", {"dbeta": lambda g, normed: g}),
        Mistake(
            "parameters-not-summed",
            "dgamma and dbeta are not summed over the batch",
            {"dgamma": lambda g, x, normed: g * normed, "dbeta": lambda g, normed: g},
        ),
        Mistake(
            "parameters-averaged",
            "dgamma and dbeta are means over the batch; they are sums",
            {"dgamma": lambda g, x, normed: (g * normed).mean(0), "dbeta": lambda g, normed: g.mean(0)},
        ),
        Mistake(
            "dgamma-averaged",
            "dgamma is a mean over the batch; it is the sum",
            {"dgamma": lambda g, x, normed: (g * normed).mean(0)},
        ),
        Mistake(
            "dbeta-averaged", "dbeta is a mean over the batch; it is the sum", {"dbeta": lambda g, normed: g.mean(0)}
        ),
        Mistake(
            "summed-over-features",
            "dgamma and dbeta are summed over the features; sum over the batch",
            {"dgamma": lambda g, x, normed: (g * normed).sum(-1), "dbeta": lambda g, normed: g.sum(-1)},
        ),
        Mistake(
            "batch-norm",
            "mean and variance are taken over the batch, as batch norm does; take them over the features",
            {
                "dims": (0,),
                "mean_term": lambda g, x: g.mean(0, keepdim=True),
                "projection": lambda g, x: x * (g * x).mean(0, keepdim=True),
            },
        ),
    ),
)


# --- attention ---


@dataclass(frozen=True)
class AttentionBackwardRules:
    """Gradients of softmax(q kᵀ / √d) v, from those of the output; P are the weights."""

    weights: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(-1)
    mask: Callable[[Tensor, Tensor], Tensor] = lambda scores, mask: scores.masked_fill(mask == 0, -math.inf)
    scale: Callable[[float], float] = lambda d: d**-0.5
    """Of the scores, in the forward pass."""
    dv: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda g, p, scores: p.mT @ g
    dp: Callable[[Tensor, Tensor], Tensor] = lambda g, v: g @ v.mT
    softmax: Callable[[Tensor, Tensor], Tensor] = lambda p, dp: p * (dp - (dp * p).sum(-1, keepdim=True))
    dq: Callable[[Tensor, Tensor, float], Tensor] = lambda ds, k, scale: ds @ k * scale
    dk: Callable[[Tensor, Tensor, float], Tensor] = lambda ds, q, scale: ds.mT @ q * scale


def compute_attention_backward(w: Weights, inputs: Mapping[str, Any], rules: AttentionBackwardRules) -> Outputs:
    g, q, k, v = (inputs[name].detach() for name in ("grad_y", "q", "k", "v"))
    mask = inputs["mask"]
    scale = rules.scale(q.shape[-1])
    scores = q @ k.mT * scale
    scores = scores if mask is None else rules.mask(scores, mask)
    p = rules.weights(scores)
    ds = rules.softmax(p, rules.dp(g, v))
    dq, dk = rules.dq(ds, k, q.shape[-1] ** -0.5), rules.dk(ds, q, q.shape[-1] ** -0.5)
    return {"dq": dq, "dk": dk, "dv": rules.dv(g, p, scores)}


def attention_cases(sizes: Sizes) -> list[Case]:
    def inputs(rows: int, queries: int, keys: int, width: int, out: int, mask: Tensor | None) -> dict[str, Any]:
        shapes = {"grad_y": (queries, out), "q": (queries, width), "k": (keys, width), "v": (keys, out)}
        drawn = {name: random_values(rows, *shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
        return {**drawn, "mask": mask}

    causal = torch.ones(4, 4).tril().long()
    return [
        Case("of four tokens", inputs(2, 4, 4, 3, 3, None), "without a mask"),
        Case("with a causal mask", inputs(3, 4, 4, 5, 5, causal), "with a causal mask"),
        Case("of three queries and six keys", inputs(2, 3, 6, 5, 2, None), "of other keys than queries"),
    ]


def as_one_row(name: str, value: Any) -> Any:
    return value if name == "mask" or value is None else value[0].detach().requires_grad_()


ATTENTION_BACKWARD = backward_reference(
    "attention_backward",
    call="attention_backward(grad_y [B, T, K], q [B, T, K], k [B, S, K], v [B, S, K], mask=None) -> dq, dk, dv of "
    "softmax(q kᵀ / √K) v; mask is 1 where a query may attend; B may be missing",
    outputs=("dq", "dk", "dv"),
    arguments=("grad_y", "q", "k", "v", "mask"),
    optional=("mask",),
    forms={"a single row": as_one_row},
    cases=attention_cases,
    compute=compute_attention_backward,
    designs=(AttentionBackwardRules(),),
    mistakes=(
        Mistake(
            "scale-missing",
            "1/√d is missing in dq and dk: the scores are divided by it on the way forward",
            {"dq": lambda ds, k, scale: ds @ k, "dk": lambda ds, q, scale: ds.mT @ q},
        ),
        Mistake("scale-missing-in-dq", "1/√d is missing in dq", {"dq": lambda ds, k, scale: ds @ k}),
        Mistake("scale-missing-in-dk", "1/√d is missing in dk", {"dk": lambda ds, q, scale: ds.mT @ q}),
        Mistake(
            "scaled-twice",
            "dq and dk are divided by √d twice",
            {"dq": lambda ds, k, scale: ds @ k * scale**2, "dk": lambda ds, q, scale: ds.mT @ q * scale**2},
        ),
        Mistake(
            "forward-not-scaled",
            "the weights are computed from scores that are not divided by √d",
            {"scale": lambda d: 1.0},
        ),
        Mistake(
            "forward-not-scaled",
            "neither the scores nor dq and dk are divided by √d",
            {"scale": lambda d: 1.0, "dq": lambda ds, k, scale: ds @ k, "dk": lambda ds, q, scale: ds.mT @ q},
        ),
        Mistake(
            "softmax-row-sum-missing",
            "the gradient of the softmax lacks its sum: dS = P (dP - Σ dP P)",
            {"softmax": lambda p, dp: p * dp},
        ),
        Mistake(
            "softmax-elementwise",
            "the gradient of the softmax is P (1 - P) dP, that of a sigmoid: dS = P (dP - Σ dP P)",
            {"softmax": lambda p, dp: p * (1 - p) * dp},
        ),
        Mistake(
            "softmax-skipped",
            "the gradient does not go through the softmax: dS = P (dP - Σ dP P)",
            {"softmax": lambda p, dp: dp},
        ),
        Mistake(
            "softmax-weights-missing",
            "the gradient of the softmax is not multiplied by P: dS = P (dP - Σ dP P)",
            {"softmax": lambda p, dp: dp - (dp * p).sum(-1, keepdim=True)},
        ),
        Mistake(
            "sum-without-weights",
            "the sum in the gradient of the softmax is that of dP; it is the sum of dP P",
            {"softmax": lambda p, dp: p * (dp - dp.sum(-1, keepdim=True))},
        ),
        Mistake(
            "sum-over-queries",
            "the sum in the gradient of the softmax runs over the queries; it runs over the keys",
            {"softmax": lambda p, dp: p * (dp - (dp * p).sum(-2, keepdim=True))},
        ),
        Mistake(
            "softmax-over-queries",
            "the softmax runs over the queries; it runs over the keys, dim=-1",
            {
                "weights": lambda scores: scores.softmax(-2),
                "softmax": lambda p, dp: p * (dp - (dp * p).sum(-2, keepdim=True)),
            },
        ),
        Mistake("dv-not-transposed", "dv is P grad_y; it is Pᵀ grad_y", {"dv": lambda g, p, scores: p @ g}),
        Mistake("dk-not-transposed", "dk is dS q; it is dSᵀ q", {"dk": lambda ds, q, scale: ds @ q * scale}),
        Mistake("dq-transposed", "dq is dSᵀ k; it is dS k", {"dq": lambda ds, k, scale: ds.mT @ k * scale}),
        Mistake(
            "dv-from-scores",
            "dv is computed with the scores; take the weights, after the softmax",
            {"dv": lambda g, p, scores: scores.mT @ g},
        ),
        Mistake(
            "mask-not-applied",
            "the mask is not applied: hidden keys have a weight and a gradient",
            {"mask": lambda scores, mask: scores},
        ),
        Mistake(
            "mask-inverted",
            "the mask hides the wrong side: it is 1 where a query may attend",
            {"mask": lambda scores, mask: scores.masked_fill(mask != 0, -math.inf)},
        ),
        Mistake(
            "mask-as-zero",
            "hidden scores are set to 0; set them to -inf",
            {"mask": lambda scores, mask: scores.masked_fill(mask == 0, 0.0)},
        ),
        Mistake(
            "negative",
            "all gradients have the wrong sign",
            {
                "dq": lambda ds, k, scale: -ds @ k * scale,
                "dk": lambda ds, q, scale: -ds.mT @ q * scale,
                "dv": lambda g, p, scores: -p.mT @ g,
            },
        ),
        Mistake(
            "softmax-sign",
            "the gradient of the softmax has the wrong sign: dS = P (dP - Σ dP P)",
            {"softmax": lambda p, dp: p * ((dp * p).sum(-1, keepdim=True) - dp)},
        ),
    ),
)


# --- the network of sheet 001 ---


@dataclass(frozen=True)
class NetworkRules:
    """Gradients of z5 = u · ReLU(W x + b1) + b2."""

    active: Callable[[Tensor, Tensor], Tensor] = lambda z1, z2: (z2 > 0).to(z2)
    dz2: Callable[[Tensor, Tensor], Tensor] = lambda u, active: u * active
    dx: Callable[[Tensor, Tensor], Tensor] = lambda w, dz2: w.T @ dz2
    dw: Callable[[Tensor, Tensor], Tensor] = lambda x, dz2: torch.outer(dz2, x)
    db1: Callable[[Tensor, Tensor], Tensor] = lambda dz2, u: dz2
    du: Callable[[Tensor, Tensor], Tensor] = lambda z2, active: z2.clamp(min=0)
    db2: Callable[[Tensor, Tensor], Tensor] = lambda z5, b2: torch.ones_like(b2)


def compute_network(w: Weights, inputs: Mapping[str, Any], rules: NetworkRules) -> Outputs:
    x, matrix, b1, u, b2 = (inputs[name].detach() for name in ("x", "w", "b1", "u", "b2"))
    z1 = matrix @ x
    z2 = z1 + b1
    active = rules.active(z1, z2)
    dz2 = rules.dz2(u, active)
    return {
        "dx": rules.dx(matrix, dz2),
        "dw": rules.dw(x, dz2),
        "db1": rules.db1(dz2, u),
        "du": rules.du(z2, active),
        "db2": rules.db2(u @ z2.clamp(min=0) + b2, b2),
    }


def network_cases(sizes: Sizes) -> list[Case]:
    def inputs(width: int, hidden: int, seed: int) -> dict[str, Any]:
        shapes: dict[str, tuple[int, ...]] = {
            "x": (width,),
            "w": (hidden, width),
            "b1": (hidden,),
            "u": (hidden,),
            "b2": (),
        }
        return {name: random_values(*shape, seed=seed + at) for at, (name, shape) in enumerate(shapes.items())}

    return [
        Case("of a square matrix", inputs(5, 5, 11), "of a square matrix"),
        Case("of a wide matrix", inputs(4, 6, 21), "of a wide matrix"),
    ]


def run_network(target: Any, case: Case, sizes: Sizes) -> Outputs:
    """Gradients may be returned from the output to the input as well, as the sheet asks for them."""

    def turned(*arguments: Any, **named: Any) -> Any:
        returned = target(*arguments, **named)
        if isinstance(returned, tuple | list) and len(returned) == 5:
            first, *_, last = (torch.as_tensor(one) for one in returned)
            return tuple(returned)[::-1] if first.numel() == 1 and last.numel() > 1 else returned
        return returned

    is_class = isinstance(target, type)
    if not is_class:
        turned.__signature__ = inspect.signature(target)  # type: ignore[attr-defined]
        turned.__name__ = getattr(target, "__name__", "network_backward")
    return run_backward("network_backward", target if is_class else turned, case, sizes)


NETWORK = backward_reference(
    "network_backward",
    call="network_backward(x [D], W [H, D], b1 [H], u [H], b2) -> dx, dw, db1, du, db2 of u · ReLU(W x + b1) + b2, or "
    "from db2 to dx as the sheet has them",
    outputs=("dx", "dw", "db1", "du", "db2"),
    arguments=("x", "w", "b1", "u", "b2"),
    cases=network_cases,
    compute=compute_network,
    designs=(NetworkRules(),),
    run=run_network,
    mistakes=(
        Mistake(
            "relu-missing",
            "the gradient passes the ReLU everywhere; it is zero where z2 is negative",
            {"active": lambda z1, z2: torch.ones_like(z2)},
        ),
        Mistake(
            "relu-inverted",
            "the gradient passes the ReLU where z2 is negative; it passes where z2 is positive",
            {"active": lambda z1, z2: (z2 <= 0).to(z2)},
        ),
        Mistake(
            "relu-before-the-bias",
            "where the ReLU passes is decided by W x; it is decided by W x + b1",
            {"active": lambda z1, z2: (z1 > 0).to(z2)},
        ),
        Mistake(
            "u-missing", "u is missing in the gradients of all that lies before it", {"dz2": lambda u, active: active}
        ),
        Mistake(
            "relu-missing-in-dx", "dx does not go through the ReLU", {"dx": lambda w, dz2: w.T @ torch.ones_like(dz2)}
        ),
        Mistake("W-not-transposed", "dx is W dz2; it is Wᵀ dz2", {"dx": lambda w, dz2: w @ dz2}),
        Mistake(
            "dw-transposed",
            "dW is transposed; it has the shape of W, dz2 xᵀ",
            {"dw": lambda x, dz2: torch.outer(x, dz2)},
        ),
        Mistake(
            "dw-without-x",
            "dW is dz2 in every column; multiply by x",
            {"dw": lambda x, dz2: torch.outer(dz2, torch.ones_like(x))},
        ),
        Mistake(
            "dw-without-gradient",
            "dW is x in every row; multiply by dz2",
            {"dw": lambda x, dz2: torch.outer(torch.ones_like(dz2), x)},
        ),
        Mistake("db1-is-u", "db1 is u; it is zero where the ReLU is inactive", {"db1": lambda dz2, u: u}),
        Mistake("db1-is-one", "db1 is one everywhere; it is dz2", {"db1": lambda dz2, u: torch.ones_like(u)}),
        Mistake(
            "du-before-the-relu",
            "du is z2; it is ReLU(z2), that which u is multiplied with",
            {"du": lambda z2, active: z2},
        ),
        Mistake("du-is-the-mask", "du is where the ReLU is active; it is ReLU(z2)", {"du": lambda z2, active: active}),
        Mistake("db2-is-zero", "db2 is zero; it is one", {"db2": lambda z5, b2: torch.zeros_like(b2)}),
        Mistake("db2-is-the-output", "db2 is the output; it is one", {"db2": lambda z5, b2: z5}),
        Mistake("db2-is-the-bias", "db2 is b2; it is one", {"db2": lambda z5, b2: b2}),
    ),
)

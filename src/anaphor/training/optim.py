"""Optimizers by name, torch's own behind one face.

Their state is a flat dict of tensors, each named by its weight, so that it goes into a checkpoint as it is. Settings
are no part of it: they come from the spec, and the learning rate from the schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anaphor.config import check_types, look_up
from anaphor.errors import ConfigError
from anaphor.models.language_model import Head, LanguageModel
from anaphor.models.seq2seq import Seq2Seq
from anaphor.training.mismatch import Mismatch
from anaphor.training.muon import Muon

Kernel = torch.optim.Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """How weights follow their gradients. What the chosen optimizer does not understand is refused."""

    optimizer: str = "adamw"
    """Rule by which weights follow their gradients: sgd, adamw, adagrad or muon."""
    lr: float | None = None
    """Learning rate at its highest, scaled by the schedule; None means the optimizer's usual one."""
    weight_decay: float = 0.0
    """How strongly matrices are pulled to zero; constants and norms are not."""
    betas: tuple[float, ...] | None = None
    """How slowly adamw's averages of gradients and of their squares move; None means 0.9 and 0.95."""
    momentum: float | None = None
    """Share of the last direction that is kept; None means 0 for sgd and 0.95 for muon."""
    layer_lr: tuple[float, ...] = ()
    """What each layer's learning rate is multiplied by, from the first to the last; empty means by 1."""

    def __post_init__(self) -> None:
        check_types(self)
        rule = look_up(OPTIMIZERS, self.optimizer, "optimizer")
        for name in ("betas", "momentum"):
            given = getattr(self, name)
            if given is not None and name not in rule.options:
                able = sorted(other for other in OPTIMIZERS if name in OPTIMIZERS[other].options)
                raise ConfigError(f"{name}={given} means nothing to {self.optimizer}; it belongs to {', '.join(able)}")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ConfigError(f"lr={self.lr}: a learning rate must be above 0 and finite")
        if not 0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"weight_decay={self.weight_decay}: it must be 0 or more, and finite")
        if not all(0 <= rate < float("inf") for rate in self.layer_lr):
            raise ConfigError(f"layer_lr={self.layer_lr}: what the rate is multiplied by must be 0 or more, and finite")
        if self.betas is not None and len(self.betas) != 2:
            raise ConfigError(f"betas={self.betas}: two are needed, of gradients and of their squares")
        for name, shares in (("betas", self.betas or ()), ("momentum", (self.momentum or 0.0,))):
            if not all(0 <= share < 1 for share in shares):
                raise ConfigError(f"{name}={getattr(self, name)}: shares must be at least 0 and below 1")

    @property
    def rate(self) -> float:
        """The learning rate, also where none is given."""
        return OPTIMIZERS[self.optimizer].lr if self.lr is None else self.lr


class Weights(NamedTuple):
    """What is to be learned, sorted by what it does."""

    hidden: list[nn.Parameter]
    """Matrices inside: they turn vectors into vectors."""
    head: list[nn.Parameter]
    """Matrices that turn vectors into scores of tokens or classes."""
    embeddings: list[nn.Parameter]
    """Tables of vectors, also where the head uses them again."""
    vectors: list[nn.Parameter]
    """Constants and norms."""

    @staticmethod
    def of(model: nn.Module) -> Weights:
        tables, heads = _of_parts(model, nn.Embedding), _of_parts(model, Head)
        weights = Weights([], [], [], [])
        for weight in model.parameters():
            if not weight.requires_grad:
                continue
            if weight in tables:
                weights.embeddings.append(weight)
            elif _is_vector(weight):
                weights.vectors.append(weight)
            else:
                (weights.head if weight in heads else weights.hidden).append(weight)
        return weights


def _is_vector(weight: nn.Parameter) -> bool:
    """Whether it turns no vector into another. A constant for each head has an axis of length one only to be added or
    multiplied to all tokens; two axes are a matrix, however narrow."""
    return weight.ndim < 2 or (weight.ndim > 2 and 1 in weight.shape[-2:])


def _of_parts(model: nn.Module, kind: type[nn.Module]) -> set[nn.Parameter]:
    return {weight for part in model.modules() if isinstance(part, kind) for weight in part.parameters()}


@dataclass(frozen=True)
class Request:
    """What an optimizer is made from."""

    spec: OptimizerSpec
    weights: Weights
    factors: Mapping[nn.Parameter, float]
    """What the learning rate is multiplied by, for weights that have one of their own."""
    captured: bool
    """Whether the learning rate lies on the device, where a captured step finds its newest value."""

    @property
    def device(self) -> str:
        return next(weight.device.type for kind in self.weights for weight in kind)

    @property
    def betas(self) -> tuple[float, float]:
        first, second = self.spec.betas or (0.9, 0.95)
        return first, second

    def group(self, weights: list[nn.Parameter], decay: float) -> list[dict[str, Any]]:
        """Weights with their settings, those of one learning rate together; nothing where there are none."""
        alike: dict[float, list[nn.Parameter]] = defaultdict(list)
        for weight in weights:
            alike[self.factors.get(weight, 1.0)].append(weight)
        return [
            {"params": members, "weight_decay": decay, "lr": self.place(self.spec.rate * factor), "factor": factor}
            for factor, members in alike.items()
        ]

    def place(self, lr: float) -> float | Tensor:
        """A learning rate, where the step looks for it."""
        return torch.tensor(lr, dtype=torch.float32, device=self.device) if self.captured else lr

    def groups(self, matrices: list[nn.Parameter]) -> list[dict[str, Any]]:
        """The given matrices, embeddings, and all that never decays."""
        spec, weights = self.spec, self.weights
        return [
            *self.group(matrices, spec.weight_decay),
            *self.group(weights.embeddings, spec.weight_decay),
            *self.group(weights.vectors, 0.0),
        ]

    def all_groups(self) -> list[dict[str, Any]]:
        return self.groups(self.weights.hidden + self.weights.head)


def _sgd(request: Request) -> list[Kernel]:
    momentum = request.spec.momentum or 0.0
    # On a CPU the fused kernel is the slower one.
    return [torch.optim.SGD(request.all_groups(), momentum=momentum, fused=request.device == "cuda")]


def _adamw_on(groups: list[dict[str, Any]], request: Request) -> list[Kernel]:
    if not groups:
        return []
    fused = True if request.device in ("cpu", "cuda") else None
    return [torch.optim.AdamW(groups, betas=request.betas, fused=fused, capturable=request.captured)]


def _adamw(request: Request) -> list[Kernel]:
    return _adamw_on(request.all_groups(), request)


def _adagrad(request: Request) -> list[Kernel]:
    return [torch.optim.Adagrad(request.all_groups(), fused=True if request.device == "cpu" else None)]


def _muon(request: Request) -> list[Kernel]:
    spec, weights = request.spec, request.weights
    flat = [weight for weight in weights.hidden if weight.ndim == 2]
    deep = [weight for weight in weights.hidden if weight.ndim > 2]
    kernels: list[Kernel] = []
    if flat:
        momentum = 0.95 if spec.momentum is None else spec.momentum
        # One learning rate serves both kinds: this adjustment makes a step of Muon as long as one of AdamW.
        kernels.append(Muon(request.group(flat, spec.weight_decay), momentum=momentum, adjust_lr_fn="match_rms_adamw"))
    return kernels + _adamw_on(request.groups(deep + weights.head), request)


@dataclass(frozen=True)
class Rule:
    """An optimizer of the table."""

    make: Callable[[Request], list[Kernel]]
    lr: float
    """What people usually begin with."""
    options: frozenset[str] = frozenset()
    """Which of the fields that not all understand it does."""
    capturable: bool = True
    """Whether a step can be part of a CUDA graph."""


OPTIMIZERS: dict[str, Rule] = {
    "sgd": Rule(_sgd, lr=1.0, options=frozenset({"momentum"})),
    "adamw": Rule(_adamw, lr=1e-3, options=frozenset({"betas"})),
    "adagrad": Rule(_adagrad, lr=1e-2, capturable=False),  # it reads the learning rate on the host
    "muon": Rule(_muon, lr=2e-3, options=frozenset({"betas", "momentum"})),
}

# What each kernel remembers of a weight. A file with anything else is not of ours.
_REMEMBERED: dict[type[Kernel], tuple[str, ...]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Adagrad: ("step", "sum"),
    Muon: ("momentum_buffer",),
}


class Optimizer:
    """One or more of torch's optimizers that step together."""

    def __init__(
        self, kernels: Sequence[Kernel], names: Mapping[nn.Parameter, str], lr: float, capturable: bool
    ) -> None:
        self.kernels = tuple(kernels)
        self.names = dict(names)
        self.lr = lr
        """The learning rate of the next step, before any layer's factor."""
        self.capturable = capturable
        """Whether `step` may be captured in a CUDA graph."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for kernel in self.kernels for group in kernel.param_groups]

    def step(self) -> None:
        for kernel in self.kernels:
            kernel.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for kernel in self.kernels:
            kernel.zero_grad(set_to_none)

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next step, for all weights, each layer's times its factor."""
        self.lr = lr
        for group in self.param_groups:
            own = lr * group["factor"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def state_dict(self) -> dict[str, Tensor]:
        """All that is remembered: `layers.0.weight/exp_avg` and its like. The tensors themselves, not copies."""
        return {
            f"{self.names[weight]}/{field}": value
            for kernel, _, weight in self._weights()
            for field, value in kernel.state.get(weight, {}).items()
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave. Refuses anything that does not belong to these weights."""
        mismatch, known = Mismatch(), set()
        for kernel, _, weight in self._weights():
            wanted = {field: f"{self.names[weight]}/{field}" for field in _REMEMBERED[type(kernel)]}
            known |= set(wanted.values())
            present = {field: name for field, name in wanted.items() if name in tensors}
            if present:  # a weight that never had a gradient has no state; a part of one is damage
                mismatch.missing += [name for name in wanted.values() if name not in tensors]
            for field, name in present.items():
                mismatch.compare(name, tensors[name], torch.zeros(()) if field == "step" else weight)
        mismatch.extra += [name for name in tensors if name not in known]
        mismatch.refuse("the optimizer's state")
        for kernel, group, weight in self._weights():
            kernel.state.pop(weight, None)
            for field in _REMEMBERED[type(kernel)]:
                value = tensors.get(f"{self.names[weight]}/{field}")
                if value is not None:
                    # The count of steps stays on the host unless the kernel itself counts.
                    counts = field == "step"
                    on_host = counts and not (group.get("fused") or group.get("capturable"))
                    device, dtype = "cpu" if on_host else weight.device, value.dtype if counts else weight.dtype
                    kernel.state[weight][field] = value.detach().to(device, dtype, copy=True)

    def _weights(self) -> Iterator[tuple[Kernel, dict[str, Any], nn.Parameter]]:
        for kernel in self.kernels:
            for group in kernel.param_groups:
                for weight in group["params"]:
                    yield kernel, group, weight


def build_optimizer(spec: OptimizerSpec, model: nn.Module, *, captured: bool = False) -> Optimizer:
    """The optimizer of a model's weights.

    `captured` puts the learning rate on the device, so that `set_lr` reaches a step inside a CUDA graph; the result
    says by `capturable` whether its step may be in one.
    """
    rule = OPTIMIZERS[spec.optimizer]
    weights = Weights.of(model)
    if not any(weights):
        raise ConfigError(f"{type(model).__name__} has no weights to learn")
    captured = captured and rule.capturable
    kernels = rule.make(Request(spec, weights, _factors(spec.layer_lr, model), captured))
    return Optimizer(kernels, {weight: name for name, weight in model.named_parameters()}, spec.rate, captured)


def check_layer_lr(layer_lr: Sequence[float], layers: int) -> None:
    """Refuse layer_lr that are not one for each layer, where any are given."""
    if layer_lr and len(layer_lr) != layers:
        raise ConfigError(f"{len(layer_lr)} layer_lr are given for {layers} layers")


def _factors(layer_lr: Sequence[float], model: nn.Module) -> dict[nn.Parameter, float]:
    layers = model.blocks if isinstance(model, LanguageModel | Seq2Seq) else []
    check_layer_lr(layer_lr, len(layers))
    return {weight: rate for layer, rate in zip(layers, layer_lr, strict=False) for weight in layer.parameters()}

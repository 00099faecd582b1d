"""Optimizers by name: torch's own behind one interface.

Their state is a flat dict of tensors named by parameter, which goes into a checkpoint as it is. Settings are not part
of it: they come from the spec, and the learning rate from the schedule.
"""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.models.head import Head
from anaphor.operations import operation
from anaphor.registry import OPTIMIZERS
from anaphor.training.muon import Muon
from anaphor.training.optimizer_state import OPTIMIZER_STATE, load_optimizer_state, optimizer_state
from anaphor.training.spec import RunSpec, check_layer_lr
from anaphor.typecheck import check_types

TorchOptimizer = torch.optim.Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Settings of an optimizer. Those that the chosen one does not use are refused."""

    optimizer: str = "adamw"
    lr: float | None = None
    weight_decay: float = 0.0
    betas: tuple[float, ...] | None = None
    momentum: float | None = None
    layer_lr: tuple[float, ...] = ()

    @classmethod
    def of(cls, spec: RunSpec) -> OptimizerSpec:
        """The optimizer settings of a run."""
        return cls(
            optimizer=spec.optimizer,
            lr=spec.default_lr if spec.lr is None else spec.lr,
            weight_decay=spec.weight_decay,
            betas=spec.betas or None,
            momentum=spec.momentum,
            layer_lr=spec.layer_lr,
        )

    def __post_init__(self) -> None:
        check_types(self)
        factory = find_factory(self.optimizer)
        for name in ("betas", "momentum"):
            given = getattr(self, name)
            if given is not None and name not in factory.options:
                able = sorted(other for other in OPTIMIZERS if name in find_factory(other).options)
                raise ConfigError(f"{name}={given} is not used by {self.optimizer}; it belongs to {', '.join(able)}")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ConfigError(f"lr={self.lr}: a learning rate must be above 0 and finite")
        if not 0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"weight_decay={self.weight_decay}: it must be 0 or more, and finite")
        if not all(0 <= factor < float("inf") for factor in self.layer_lr):
            raise ConfigError(f"layer_lr={self.layer_lr}: factors of the learning rate must be 0 or more, and finite")
        if self.betas is not None and len(self.betas) != 2:
            raise ConfigError(f"betas={self.betas}: give two, of the first and the second moment")
        for name, shares in (("betas", self.betas or ()), ("momentum", (self.momentum or 0.0,))):
            if not all(0 <= share < 1 for share in shares):
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at least 0 and below 1")

    @property
    def peak_lr(self) -> float:
        """The learning rate, also where none is given."""
        return find_factory(self.optimizer).lr if self.lr is None else self.lr

    def used_settings(self) -> dict[str, Any]:
        """The settings that are used, with their values."""
        options = find_factory(self.optimizer).options
        values: dict[str, Any] = {"optimizer": self.optimizer, "lr": self.peak_lr, "weight_decay": self.weight_decay}
        if "betas" in options:
            values["betas"] = self.betas or DEFAULT_BETAS
        if "momentum" in options:
            default = find_factory(self.optimizer).momentum
            values["momentum"] = default if self.momentum is None else self.momentum
        return values | ({"layer_lr": self.layer_lr} if self.layer_lr else {})


DEFAULT_BETAS = (0.9, 0.95)


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
        """The weights of a model that are trained, sorted. Shared ones are counted once, as embeddings."""
        tables, heads = _find_weights(model, nn.Embedding), _find_weights(model, Head)
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


def _find_weights(model: nn.Module, kind: type[nn.Module]) -> set[nn.Parameter]:
    return {weight for part in model.modules() if isinstance(part, kind) for weight in part.parameters()}


@dataclass(frozen=True)
class ParameterGroups:
    """The weights of a model with their settings, in the groups from which a torch optimizer is made."""

    spec: OptimizerSpec
    weights: Weights
    factors: Mapping[nn.Parameter, float]
    """What the learning rate is multiplied by, for weights that have one of their own."""
    captured: bool
    """Whether the learning rate lies on the device, where a captured step finds its newest value."""

    @property
    def device(self) -> str:
        """Type of the device that the weights are on, `cpu` or `cuda`."""
        return next(weight.device.type for kind in self.weights for weight in kind)

    @property
    def betas(self) -> tuple[float, float]:
        """The betas of Adam, also where none are given."""
        first, second = self.spec.betas or DEFAULT_BETAS
        return first, second

    def group(self, weights: list[nn.Parameter], decay: float) -> list[dict[str, Any]]:
        """Weights with their settings, those of one learning rate together; nothing where there are none."""
        alike: dict[float, list[nn.Parameter]] = defaultdict(list)
        for weight in weights:
            alike[self.factors.get(weight, 1.0)].append(weight)
        return [
            {"params": members, "weight_decay": decay, "lr": self.place(self.spec.peak_lr * factor), "factor": factor}
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
        """Groups of all weights, for an optimizer that treats matrices as it treats the others."""
        return self.groups(self.weights.hidden + self.weights.head)


def _sgd(parameters: ParameterGroups) -> list[TorchOptimizer]:
    momentum = parameters.spec.momentum or 0.0
    # On a CPU the fused part is the slower one.
    return [torch.optim.SGD(parameters.all_groups(), momentum=momentum, fused=parameters.device == "cuda")]


def _adamw_on(groups: list[dict[str, Any]], parameters: ParameterGroups) -> list[TorchOptimizer]:
    if not groups:
        return []
    fused = True if parameters.device in ("cpu", "cuda") else None
    return [torch.optim.AdamW(groups, betas=parameters.betas, fused=fused, capturable=parameters.captured)]


def _adamw(parameters: ParameterGroups) -> list[TorchOptimizer]:
    return _adamw_on(parameters.all_groups(), parameters)


def _adagrad(parameters: ParameterGroups) -> list[TorchOptimizer]:
    return [torch.optim.Adagrad(parameters.all_groups(), fused=True if parameters.device == "cpu" else None)]


def _muon(parameters: ParameterGroups) -> list[TorchOptimizer]:
    spec, weights = parameters.spec, parameters.weights
    flat = [weight for weight in weights.hidden if weight.ndim == 2]
    deep = [weight for weight in weights.hidden if weight.ndim > 2]
    parts: list[TorchOptimizer] = []
    if flat:
        momentum = MUON.momentum if spec.momentum is None else spec.momentum
        # One learning rate serves both kinds: this adjustment makes a step of Muon as long as one of AdamW.
        parts.append(Muon(parameters.group(flat, spec.weight_decay), momentum=momentum, adjust_lr_fn="match_rms_adamw"))
    return parts + _adamw_on(parameters.groups(deep + weights.head), parameters)


@dataclass(frozen=True)
class OptimizerFactory:
    """Makes one of the registered optimizers, and says which settings it has."""

    make: Callable[[ParameterGroups], list[TorchOptimizer]]
    lr: float
    """Usual learning rate."""
    options: frozenset[str] = frozenset()
    """Which of betas and momentum it uses."""
    capturable: bool = True
    """Whether a step can be part of a CUDA graph."""
    momentum: float = 0.0
    """Usual momentum."""


SGD = OptimizerFactory(_sgd, lr=1.0, options=frozenset({"momentum"}))
ADAMW = OptimizerFactory(_adamw, lr=1e-3, options=frozenset({"betas"}))
ADAGRAD = OptimizerFactory(_adagrad, lr=1e-2, capturable=False)  # it reads the learning rate on the host
MUON = OptimizerFactory(_muon, lr=2e-3, options=frozenset({"betas", "momentum"}), momentum=0.95)


def find_factory(name: str) -> OptimizerFactory:
    """Returns the factory of the optimizer of that name.

    A user may register an `OptimizerFactory`, or a class with the interface of torch's optimizers.
    """
    entry = look_up(OPTIMIZERS, name, "optimizer")
    if isinstance(entry, OptimizerFactory):
        return entry
    return OptimizerFactory(lambda parameters: [entry(parameters.all_groups())], lr=1e-3, capturable=False)


class Optimizer:
    """One or more of torch's optimizers that step together."""

    def __init__(
        self, parts: Sequence[TorchOptimizer], names: Mapping[nn.Parameter, str], lr: float, captured: bool
    ) -> None:
        self.parts = tuple(parts)
        self.names = dict(names)
        self.lr = lr
        """The learning rate of the next step, before any layer's factor."""
        self.captured = captured
        """Whether `step` will be captured in a CUDA graph: asked for, and all of its parts can be."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts, as `torch.optim.Optimizer` has them."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self, clip: float = 0.0, norm: Tensor | None = None) -> None:
        """Update the weights by the gradients, clipped to `clip` by `norm`, which is that of all gradients together."""
        for part in self.parts:
            update([weight for group in part.param_groups for weight in group["params"]], part, clip, norm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

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
        """The state by name: `layers.0.weight/exp_avg` and the like. The tensors themselves, not copies."""
        return optimizer_state(self._weights(), self.names)

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what `state_dict` gave. Raises for anything that does not belong to these weights."""
        load_optimizer_state(list(self._weights()), self.names, tensors)

    def _weights(self) -> Iterator[tuple[TorchOptimizer, dict[str, Any], nn.Parameter]]:
        for part in self.parts:
            for group in part.param_groups:
                for weight in group["params"]:
                    yield part, group, weight


@operation
def update(weights: list[Tensor], part: TorchOptimizer, clip: float, norm: Tensor | None) -> None:
    """Update the weights of one optimizer by their gradients, clipped first unless `clip` is 0."""
    if clip:
        assert norm is not None, "gradients are clipped by their norm"
        nn.utils.clip_grads_with_norm_(weights, clip, norm)
    step_once(part)


def step_once(part: TorchOptimizer) -> None:
    """`part.step()`. Torch's own optimizers would import its compiler first, used or not, which takes as long as to
    import torch."""
    if type(part) not in OPTIMIZER_STATE or has_step_hooks(part):
        part.step()
        return
    with torch.no_grad():
        inspect.unwrap(type(part).step)(part)


def has_step_hooks(part: TorchOptimizer) -> bool:
    """Whether a hook is called before or after each step of this optimizer, or of all: torch wraps them around it."""
    own = (part._optimizer_step_pre_hooks, part._optimizer_step_post_hooks)
    return any((*own, torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks))


def _import_no_compiler() -> None:
    """For methods of torch's optimizers that are excluded from compilation: outside of it they are what they wrap."""
    for name in ("add_param_group", "zero_grad"):
        method = inspect.unwrap(getattr(TorchOptimizer, name))
        vars(method).setdefault("__dynamo_disable", method)  # where torch keeps the compiler's version of it


def build_optimizer(spec: OptimizerSpec, model: nn.Module, *, captured: bool = False) -> Optimizer:
    """The optimizer of a model's weights.

    `captured` puts the learning rate on the device, so that `set_lr` reaches a step inside a CUDA graph; that of the
    result says whether its step can be in one.
    """
    factory = find_factory(spec.optimizer)
    weights = Weights.of(model)
    if not any(weights):
        raise ConfigError(f"{type(model).__name__} has no parameters to train")
    captured = captured and factory.capturable
    if "torch._dynamo" not in sys.modules:
        _import_no_compiler()
    parts = factory.make(ParameterGroups(spec, weights, _lr_factors(spec.layer_lr, model), captured))
    return Optimizer(parts, {weight: name for name, weight in model.named_parameters()}, spec.peak_lr, captured)


def _lr_factors(layer_lr: Sequence[float], model: nn.Module) -> dict[nn.Parameter, float]:
    layers = getattr(model, "blocks", [])
    check_layer_lr(layer_lr, len(layers))
    factors = {weight: factor for layer, factor in zip(layers, layer_lr, strict=False) for weight in layer.parameters()}
    for part in model.modules():
        factor: float | None = getattr(part, "lr_factor", None)
        if factor is not None:
            factors |= dict.fromkeys(part.parameters(), factor)
    return factors

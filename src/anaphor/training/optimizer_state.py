"""The state of optimizers as a flat dict of tensors, named by parameter, as a checkpoint holds it, and back.

After an @ stands what it was: `layers.0.weight/count@number` is a number, and no tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.training.mismatch import Mismatch
from anaphor.training.muon import Muon

OPTIMIZER_STATE: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Adagrad: ("step", "sum"),
    Muon: ("momentum_buffer",),
}
"""Tensors of each optimizer's state. A file with others is refused."""

OptimizedWeight = tuple[torch.optim.Optimizer, dict[str, Any], nn.Parameter]
"""An optimizer, one of its groups, and a weight of that."""


def optimizer_state(weights: Iterable[OptimizedWeight], names: Mapping[nn.Parameter, str]) -> dict[str, Tensor]:
    """The state of optimizers by the name of the weight. The tensors themselves, not copies."""
    state: dict[str, Tensor] = {}
    for part, _, weight in weights:
        for key, value in part.state.get(weight, {}).items():
            name = f"{names[weight]}/{key}"
            if isinstance(value, Tensor):
                state[name] = value
            elif isinstance(value, int | float):
                double = torch.float64 if isinstance(value, float) else None  # so that no digit is lost
                state[f"{name}@number"] = torch.tensor(value, dtype=double)
            elif value is not None:
                kind = type(value).__name__
                raise ConfigError(f"{type(part).__name__} keeps a {kind} as {key!r}, which cannot be saved")
    return state


def load_optimizer_state(
    weights: Sequence[OptimizedWeight], names: Mapping[nn.Parameter, str], tensors: Mapping[str, Tensor]
) -> None:
    """Restore what `optimizer_state` returned. Raises for anything that does not belong to these weights."""
    mismatch, found = Mismatch(), set()
    by_weight: dict[str, dict[str, str]] = defaultdict(dict)
    for name in tensors:
        weight_name, _, key = name.rpartition("/")
        by_weight[weight_name][key.removesuffix("@number")] = name
    for part, _, weight in weights:
        present = by_weight.get(names[weight], {})
        expected = OPTIMIZER_STATE.get(type(part), tuple(present))
        if present:  # a weight that never had a gradient has no state; an incomplete one is damage
            mismatch.missing += [f"{names[weight]}/{key}" for key in expected if key not in present]
        for key, name in present.items():
            if key in expected:
                found.add(name)
            if key in expected and type(part) in OPTIMIZER_STATE:
                mismatch.compare(name, tensors[name], torch.zeros(()) if key == "step" else weight)
    mismatch.unexpected += [name for name in tensors if name not in found]
    mismatch.raise_if_any("the optimizer's state")
    for part, group, weight in weights:
        part.state.pop(weight, None)
        for key, name in by_weight.get(names[weight], {}).items():
            part.state[weight][key] = _restore(tensors[name], name, key, group, weight)


def _restore(value: Tensor, name: str, key: str, group: Mapping[str, Any], weight: nn.Parameter) -> Any:
    if name.endswith("@number"):
        return value.item()
    # The count of steps stays on the host unless the kernel itself counts.
    counts = key == "step"
    on_host = counts and not (group.get("fused") or group.get("capturable"))
    return value.detach().to("cpu" if on_host else weight.device, copy=True)

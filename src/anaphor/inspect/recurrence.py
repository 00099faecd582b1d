"""Gates and states of recurrent layers over time, one row for each unit that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.inspect.attention import as_row
from anaphor.inspect.record import recorded
from anaphor.mixers.recurrent import Recurrent

MOST = 64
SHARES = ("input", "forget", "output", "reset", "update")
"""Gates that lie between zero and one; everything else may be below zero."""


@dataclass(frozen=True)
class UnitMap:
    """One gate, or one tensor of the state, of one layer."""

    layer: str
    """Where the layer stands: `layers.0.mixer`."""
    kind: str
    """gates or states."""
    part: str
    """Which one: forget, hidden, …"""
    values: Tensor
    """[units, T]"""
    units: tuple[int, ...]
    """Which units these are, the same for all parts of a layer: those whose hidden state varies most over the text."""
    of: int
    """How many units the layer has."""

    @property
    def bounded(self) -> bool:
        """Whether it lies between zero and one."""
        return self.kind == "gates" and self.part in SHARES


def unit_maps(model: nn.Module, *inputs: Any, most: int = MOST) -> list[UnitMap]:
    """Run `model(*inputs)` on one text, and give what its recurrent layers did; nothing where there are none."""
    if not any(isinstance(module, Recurrent) for module in model.modules()):
        return []
    # Whatever is watched in a recurrent layer makes it walk step by step, so both taps cost as much as one.
    with eval_mode(model), torch.no_grad(), recorded(model, "*gates") as gates, recorded(model, "*states") as states:
        model(*as_row(inputs))
    return units_of(model, {**gates, **states}, most)


def units_of(model: nn.Module, seen: Mapping[str, Tensor], most: int = MOST) -> list[UnitMap]:
    """The same from what was recorded: states first, then gates, layer after layer."""
    if most < 1:
        raise ConfigError(f"most={most}: show at least 1 unit")
    found = []
    for path, layer in model.named_modules():
        prefix = f"{path}." if path else ""
        if not isinstance(layer, Recurrent) or f"{prefix}states" not in seen:
            continue
        states, gates = (_one_text(f"{prefix}{tap}", seen[f"{prefix}{tap}"], path) for tap in ("states", "gates"))
        units = _that_vary_most(states[:, 0], most)
        parts = [("states", name, states[:, place]) for place, name in enumerate(layer.state_type._fields)]
        parts += [("gates", name, gates[:, place]) for place, name in enumerate(layer.gate_names) if name != "hidden"]
        for kind, name, values in parts:
            shown = values.T[torch.tensor(units)]
            found.append(UnitMap(path, kind, name, shown, units, of=values.shape[-1]))
    return found


def _one_text(name: str, tensor: Tensor, path: str) -> Tensor:  # [1, T, parts, D] -> [T, parts, D]
    if len(tensor) != 1:
        raise ConfigError(f"a map is of one text, but {name} saw {len(tensor)} rows: give one of them")
    if "returning" in path.split("."):  # read from the end
        tensor = tensor.flip(1)
    return tensor[0].detach().cpu()


def _that_vary_most(hidden: Tensor, most: int) -> tuple[int, ...]:
    """Their numbers, in order. [T, D]"""
    spread = hidden.double().std(0, correction=0)
    return tuple(sorted(spread.argsort(descending=True, stable=True)[:most].tolist()))

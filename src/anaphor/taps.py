"""Taps: named identity modules whose input can be recorded.

A tap costs nothing while it is not recorded. While it is, a layer takes its explicit path, so that the tensor exists at
all. The name of a tap is its path in the model: `layers.2.mixer.weights`. To record is to have a hook: a hook of torch
that somebody else registers on a tap is called like ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from anaphor.errors import ConfigError


class Tap(nn.Module):
    """Returns its input. `is_recorded` tells the layer whether the tensor must be computed."""

    @property
    def is_recorded(self) -> bool:
        """Whether it has a hook, ours or another."""
        return bool(self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks)

    def forward(self, tensor: Tensor, parts: Sequence[tuple[Tensor, ...]] = ()) -> Tensor:
        """`parts` are what the tensor was stacked from, where the computation continues with those instead of the
        stack: the gradient of the tensor is theirs."""
        return tensor

    def __call__(self, tensor: Tensor, parts: Sequence[tuple[Tensor, ...]] = ()) -> Any:
        version = _version(tensor)
        result = super().__call__(tensor, parts)
        if parts and (result is not tensor or _version(tensor) != version):
            raise ConfigError(
                "a hook changes the tensor of a tap that only shows what its layer computes step by step: the layer "
                "does not read it again. Leave the tensor as it is and return None; to intervene, put the hook on the "
                "layer itself and change its output"
            )
        return result


def _version(tensor: Tensor) -> int:
    """Number of changes in place; torch does not count those of tensors made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def taps_of(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}

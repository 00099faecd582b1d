"""Taps: named identity modules whose input can be recorded.

A tap costs nothing while it is not recorded. While it is, a layer takes its explicit path, so that the tensor exists at
all. The name of a tap is its path in the model: `layers.2.mixer.weights`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Tap(nn.Module):
    """Returns its input. `is_recorded` tells the layer whether the tensor must be computed."""

    def __init__(self) -> None:
        super().__init__()
        self.recordings = 0
        """Number of open recordings: two of the same tap may be open at once."""

    @property
    def is_recorded(self) -> bool:
        return self.recordings > 0

    def forward(self, tensor: Tensor, parts: Sequence[tuple[Tensor, ...]] = ()) -> Tensor:
        """`parts` are what the tensor was stacked from, where the computation continues with those instead of the
        stack: the gradient of the tensor is theirs."""
        return tensor


def taps_of(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}

"""Named places where one may look.

A tap is an identity module. It costs nothing while nobody watches; while somebody does, a layer takes its explicit
path, so that the tensor exists at all. The tap's name is its place in the model: `layers.2.mixer.weights`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Tap(nn.Module):
    """Hands its input on. `watched` tells the layer whether the tensor must be made."""

    def __init__(self) -> None:
        super().__init__()
        # A count, because two recordings of the same tap may be open at once.
        self.watchers = 0

    @property
    def watched(self) -> bool:
        return self.watchers > 0

    def forward(self, tensor: Tensor, parts: Sequence[tuple[Tensor, ...]] = ()) -> Tensor:
        """`parts` are what the tensor was stacked from, where a computation went on with those and not with the whole:
        the gradient of such a tensor is theirs."""
        return tensor


def taps_of(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model under its stable name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}

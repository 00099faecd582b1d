"""Averages of weights along training: often better than the last ones, and never worse for the training itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.training.mismatch import Mismatch

Share = Callable[[int], float]
"""How much of the average the newest of so many weights gets."""


def exponential(decay: float | None) -> Share:
    """Older weights count less and less. The shares add up to one from the first on: no start value shows through."""
    forget = 0.999 if decay is None else decay
    if not 0 <= forget < 1:
        raise ConfigError(f"decay={decay}: it must be at least 0 and below 1")
    return lambda count: (1 - forget) / (1 - forget**count)


def tail(decay: float | None) -> Share:
    """All weights since the first that was given count the same."""
    if decay is not None:
        raise ConfigError(f"decay={decay} means nothing to a tail average; it belongs to ema")
    return lambda count: 1 / count


AVERAGES: dict[str, Callable[[float | None], Share]] = {"ema": exponential, "tail": tail}


class Average:
    """A running average of a model's weights. Whoever trains decides when it begins, by the first `update`."""

    def __init__(self, model: nn.Module, share: Share) -> None:
        self.weights = {name: weight.detach() for name, weight in model.named_parameters()}
        """The model's own, which change as it learns."""
        self.share = share
        self.updates = 0
        # At least single precision: small changes must not be rounded away.
        self.means = {
            name: torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
            for name, weight in self.weights.items()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        self.updates += 1
        means = list(self.means.values())
        weights = [weight.to(mean.dtype) for mean, weight in zip(means, self.weights.values(), strict=True)]
        torch._foreach_lerp_(means, weights, self.share(self.updates))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model has the average as its weights; afterwards it has its own again, bit for bit.

        Values are copied, not exchanged, because kernels and captured graphs know where weights lie.
        """
        if self.updates == 0:
            yield
            return
        own = {name: weight.clone() for name, weight in self.weights.items()}
        try:
            self._write(self.means)
            yield
        finally:
            self._write(own)

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(values[name])

    def state_dict(self) -> dict[str, Tensor]:
        """The averages and how many weights are in them. The tensors themselves, not copies."""
        means = {f"weights/{name}": mean for name, mean in self.means.items()}
        return {**means, "updates": torch.tensor(self.updates)}

    def load_state_dict(self, tensors: Mapping[str, Tensor] | None) -> None:
        """Go on from what `state_dict` gave. None means that nothing was averaged so far."""
        if tensors is None:
            self.updates = 0  # the first weights then take the place of whatever the means are
            return
        wanted, mismatch = self.state_dict(), Mismatch()
        mismatch.missing += [name for name in wanted if name not in tensors]
        mismatch.extra += [name for name in tensors if name not in wanted]
        for name in wanted.keys() & tensors.keys():
            mismatch.compare(name, tensors[name], wanted[name])
        mismatch.refuse("the average of the weights")
        self.updates = int(tensors["updates"])
        for name, mean in self.means.items():
            mean.copy_(tensors[f"weights/{name}"])


def build_average(name: str, model: nn.Module, *, decay: float | None = None) -> Average:
    """A running average by name: ema, which forgets (`decay`; None means 0.999), or tail, which does not."""
    return Average(model, look_up(AVERAGES, name, "average")(decay))

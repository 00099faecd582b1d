"""Record any named tap while a model runs: its last tensor, all of them, or its gradient too."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.config import nearest
from anaphor.errors import ConfigError
from anaphor.taps import Tap, taps_of

Parts = Sequence[tuple[Tensor, ...]]
Keep = Callable[[str, Tensor, Parts], None]  # the tap's name, what passed it, and what that was stacked from


@contextmanager
def recorded(model: nn.Module, wanted: str = "*") -> Iterator[dict[str, Tensor]]:
    """Collect what passes the taps whose names match, as in `recorded(model, "layers.*.weights")`.

    The dictionary holds the tensor of the last call under the tap's name. Inside the block the layers concerned take
    their explicit path; afterwards they are fast again.
    """
    found: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor, parts: Parts) -> None:
        found[name] = tensor

    with _watched(model, wanted, keep):
        yield found


@contextmanager
def recorded_calls(model: nn.Module, wanted: str = "*") -> Iterator[dict[str, list[Tensor]]]:
    """The same for every call inside the block, from the first to the last: one list for each tap that was passed."""
    found: dict[str, list[Tensor]] = {}

    def keep(name: str, tensor: Tensor, parts: Parts) -> None:
        found.setdefault(name, []).append(tensor)

    with _watched(model, wanted, keep):
        yield found


class Recording:
    """What passed the taps in the last call and, once something was differentiated, the gradients there."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self._parts: dict[str, Parts] = {}

    @property
    def gradients(self) -> dict[str, Tensor]:
        """How the differentiated number changes with each value, all that follows from the value included: for the
        state of a recurrent layer also what it does to later states. Several backward passes add up."""
        return {name: self._gradient(name) for name in self.values}

    def _gradient(self, name: str) -> Tensor:
        whole, parts = self.values[name], self._parts[name]
        kept = [tensor.grad for step in parts for tensor in step] if parts else [whole.grad]
        if all(gradient is None for gradient in kept):
            raise ConfigError(
                f"no gradient has come back to {name!r}: differentiate something that depends on it, "
                f"with backward(), where torch.no_grad and inference_mode are off"
            )
        if not parts:
            assert whole.grad is not None, "it was just looked for"
            return whole.grad
        # A step after the last one that counts has no gradient, which is to say zero.
        steps = [
            torch.stack([torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in step], dim=1)
            for step in parts
        ]
        return torch.stack(steps, dim=1)

    def _keep(self, name: str, tensor: Tensor, parts: Parts) -> None:
        self.values[name], self._parts[name] = tensor, parts
        for one in [part for step in parts for part in step] if parts else [tensor]:
            if one.requires_grad:
                one.retain_grad()


@contextmanager
def recorded_gradients(model: nn.Module, wanted: str = "*") -> Iterator[Recording]:
    """Record tensors and their gradients: run the model inside the block, differentiate, then read `.gradients`."""
    found = Recording()
    with _watched(model, wanted, found._keep):
        yield found


@contextmanager
def _watched(model: nn.Module, wanted: str, keep: Keep) -> Iterator[None]:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"taps are in a model, a torch.nn.Module, and {type(model).__name__} is none")
    known = taps_of(model)
    taps = {name: tap for name, tap in known.items() if fnmatch.fnmatchcase(name, wanted)}
    if not taps:
        deeper = f"*.{wanted}"
        hint = f"; did you mean {deeper!r}?" if fnmatch.filter(known, deeper) else nearest(wanted, known)
        raise ConfigError(f"no tap is called {wanted!r}{hint} (known: {', '.join(known) or 'none'})")
    handles = [tap.register_forward_hook(partial(_passed, keep, name)) for name, tap in taps.items()]
    for tap in taps.values():
        tap.watchers += 1
    try:
        yield
    finally:
        for tap, handle in zip(taps.values(), handles, strict=True):
            tap.watchers -= 1
            handle.remove()


def _passed(keep: Keep, name: str, tap: Tap, inputs: tuple[Any, ...], output: Tensor) -> None:
    keep(name, output, inputs[1] if len(inputs) > 1 else ())

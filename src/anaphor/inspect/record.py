"""Record named taps while a model runs: the last tensor, all of them, or also gradients."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.config import nearest
from anaphor.errors import ConfigError
from anaphor.models.language_model import TokenModel
from anaphor.models.text_encoder import TextEncoder
from anaphor.taps import Tap, taps_of

Parts = Sequence[tuple[Tensor, ...]]
Keep = Callable[[str, Tensor, Parts], None]  # name of the tap, its tensor, and the tensors it was stacked from


@contextmanager
def recorded(model: nn.Module, wanted: str = "*") -> Iterator[dict[str, Tensor]]:
    """Record the taps whose names match a pattern: `recorded(model, "layers.*.weights")`.

    The dictionary holds the tensor of the last call by the tap's name. Inside the block these layers run their explicit
    path, without fused kernels.
    """
    tensors: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor, parts: Parts) -> None:
        tensors[name] = tensor

    with _hooks(model, wanted, keep):
        yield tensors


def hidden_states(model: TokenModel | TextEncoder, tokens: Tensor) -> tuple[Tensor, ...]:
    """The embeddings and the output of every layer, first to last, [B, T, D] each, as transformers has them.

    The last one is the input of the head: after the final norm and projection where the model has them.
    """
    states: list[Tensor] = []
    with ExitStack() as stack, torch.no_grad():
        embedded = model.embedder.register_forward_hook(lambda module, inputs, output: states.append(output))
        stack.callback(embedded.remove)
        for block in model.blocks:
            handle = block.register_forward_hook(lambda module, inputs, output: states.append(output[0]))
            stack.callback(handle.remove)
        hidden_states = model.compute_hidden_states(tokens)
    return (*states[:-1], hidden_states if isinstance(hidden_states, Tensor) else hidden_states[0])


@contextmanager
def recorded_calls(model: nn.Module, wanted: str = "*") -> Iterator[dict[str, list[Tensor]]]:
    """The same for every call inside the block: a list of tensors by the tap's name, in order."""
    calls: dict[str, list[Tensor]] = {}

    def keep(name: str, tensor: Tensor, parts: Parts) -> None:
        calls.setdefault(name, []).append(tensor)

    with _hooks(model, wanted, keep):
        yield calls


class Recording:
    """Tensors of the last call by the tap's name and, after a backward pass, their gradients."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self._parts: dict[str, Parts] = {}

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Total gradients: for a state of a recurrent layer, including its effect on later states. They accumulate over
        backward passes."""
        return {name: self._gradient(name) for name in self.values}

    def _gradient(self, name: str) -> Tensor:
        tensor, parts = self.values[name], self._parts[name]
        gradients = [part.grad for step in parts for part in step] if parts else [tensor.grad]
        if all(gradient is None for gradient in gradients):
            raise ConfigError(
                f"{name!r} has no gradient: call backward() on something that depends on it, "
                f"outside torch.no_grad and inference_mode"
            )
        if not parts:
            assert tensor.grad is not None, "checked above"
            return tensor.grad
        # Steps that the loss does not depend on have gradient zero.
        steps = [
            torch.stack([torch.zeros_like(part) if part.grad is None else part.grad for part in step], dim=1)
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
    """Record tensors and their gradients: run model and backward inside the block, then read `.gradients`."""
    recording = Recording()
    with _hooks(model, wanted, recording._keep):
        yield recording


@contextmanager
def _hooks(model: nn.Module, wanted: str, keep: Keep) -> Iterator[None]:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"expected a torch.nn.Module with taps, not {type(model).__name__}")
    available = taps_of(model)
    taps = {name: tap for name, tap in available.items() if fnmatch.fnmatchcase(name, wanted)}
    if not taps:
        deeper = f"*.{wanted}"
        hint = f"; did you mean {deeper!r}?" if fnmatch.filter(available, deeper) else nearest(wanted, available)
        known = ", ".join(available) or "none"
        raise ConfigError(f"no tap is called {wanted!r}{_explain_missing(model, wanted)}{hint} (known: {known})")
    handles = [tap.register_forward_hook(partial(_on_forward, keep, name)) for name, tap in taps.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _explain_missing(model: nn.Module, wanted: str) -> str:
    """Which layer has no implied attention, and why, where the weights of such a one are wanted."""
    for path, module in model.named_modules():
        reason = getattr(getattr(module, "spec", None), "sequential_reason", "")
        name = f"{path}.weights" if path else "weights"
        if reason and fnmatch.fnmatchcase(name, wanted):
            return f": {path or type(module).__name__} has no implied attention, because {reason}"
    return ""


def _on_forward(keep: Keep, name: str, tap: Tap, inputs: tuple[Any, ...], output: Tensor) -> None:
    keep(name, output, inputs[1] if len(inputs) > 1 else ())

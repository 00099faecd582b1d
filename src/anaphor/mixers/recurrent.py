"""Recurrent mixers on the framework's kernels: RNN (tanh, relu, identity), GRU and LSTM.

Each has a readable cell as its slow twin. The cell is what runs while a tap inside the recurrence is watched, and tests
hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anaphor.config import look_up
from anaphor.mixers.base import Mixer, MixerSpec, Span
from anaphor.taps import Tap


class Hidden(NamedTuple):
    """State of an RNN or a GRU."""

    hidden: Tensor  # [B, D]


class HiddenAndCell(NamedTuple):
    """State of an LSTM."""

    hidden: Tensor  # [B, D]
    cell: Tensor  # [B, D]


Step = tuple[tuple[Tensor, ...], Tensor]  # the next state's tensors, hidden first; and the gates, side by side


class Recurrent(Mixer):
    """What the three families share: the kernel, packing, and the walk step by step."""

    state_type: ClassVar[type[Hidden] | type[HiddenAndCell]] = Hidden
    gate_names: ClassVar[tuple[str, ...]]
    """What the tap `gates` [B, T, gates, D] shows, in order."""

    def __init__(self, spec: MixerSpec, kernel: nn.RNNBase) -> None:
        super().__init__(spec)
        self.kernel = kernel
        self.gates = Tap()
        self.states = Tap()

    def cell(self, drive: Tensor, state: tuple[Tensor, ...]) -> Step:
        """One step for all rows. `drive` is what the input says to every gate, computed for all steps beforehand."""
        raise NotImplementedError(f"{type(self).__name__} has no cell")

    @property
    def has_kernel(self) -> bool:
        return True

    @property
    def input_weights(self) -> tuple[Tensor, Tensor]:
        """Matrix and constant by which the input speaks to the gates."""
        return cast(Tensor, self.kernel.weight_ih_l0), cast(Tensor, self.kernel.bias_ih_l0)

    @property
    def recurrent_weights(self) -> tuple[Tensor, Tensor]:
        """Matrix and constant by which the previous hidden state speaks to the gates."""
        return cast(Tensor, self.kernel.weight_hh_l0), cast(Tensor, self.kernel.bias_hh_l0)

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (self.width_out,)

    def initial_state(self, like: Tensor) -> Hidden | HiddenAndCell:
        weight = self.recurrent_weights[0]
        return self.state_type(*(weight.new_zeros(like.shape[0], self.width_out) for _ in self.state_type._fields))

    def mix(self, x: Tensor, state: Hidden | HiddenAndCell, span: Span) -> tuple[Tensor, Hidden | HiddenAndCell]:
        if self.gates.watched or self.states.watched or not self.has_kernel:
            return self._step_by_step(x, state, span)
        return self._on_kernel(x, state, span)

    def _on_kernel(self, x: Tensor, state: Hidden | HiddenAndCell, span: Span) -> tuple[Tensor, Hidden | HiddenAndCell]:
        # The kernels want [layers, B, D]; this is the one place where a state is not batch-first.
        before = tuple(tensor.unsqueeze(0) for tensor in state)
        if span.full:
            y, after = self.kernel(x, before if len(before) > 1 else before[0])
        else:
            # Packing stops each row after its last real token. It refuses rows without any, which therefore walk one
            # step through padding and get their old state back.
            lengths = span.lengths
            packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
            y, after = self.kernel(packed, before if len(before) > 1 else before[0])
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        # Under autocast a kernel answers in its own type; a state keeps the one it came with.
        after = after if len(before) > 1 else (after,)
        tensors = [new.squeeze(0).to(old.dtype) for new, old in zip(after, state, strict=True)]
        if not span.full:
            moved = (lengths > 0)[:, None]
            tensors = [torch.where(moved, new, old) for new, old in zip(tensors, state, strict=True)]
        return y, self.state_type(*tensors)

    def _step_by_step(
        self, x: Tensor, state: Hidden | HiddenAndCell, span: Span
    ) -> tuple[Tensor, Hidden | HiddenAndCell]:
        drive = F.linear(x, *self.input_weights)
        current: tuple[Tensor, ...] = tuple(state)
        states, gates = [], []
        for step in range(x.shape[1]):
            following, gate = self.cell(drive[:, step], current)
            if not span.full:
                real = span.valid[:, step, None]
                following = tuple(torch.where(real, new, old) for new, old in zip(following, current, strict=True))
            current = following
            states.append(torch.stack(current, dim=1))
            gates.append(gate)
        every_state = self.states(torch.stack(states, dim=1))  # [B, T, tensors of the state, D]
        self.gates(torch.stack(gates, dim=1).unflatten(-1, (-1, self.width_out)))
        return every_state[:, :, 0], self.state_type(*current)


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda x: x,
}


@dataclass(frozen=True, kw_only=True)
class RNNSpec(MixerSpec):
    """h = f(W x + U h): the plain recurrence."""

    nonlinearity: str = "tanh"
    """What f is: tanh, relu or identity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(NONLINEARITIES, self.nonlinearity, "nonlinearity")

    def build(self) -> RNN:
        return RNN(self)


class RNN(Recurrent):
    """The framework has no kernel for the identity: there its module only holds the weights, and the cell walks."""

    gate_names = ("hidden",)
    spec: RNNSpec

    def __init__(self, spec: RNNSpec) -> None:
        known = spec.nonlinearity if spec.nonlinearity in ("tanh", "relu") else "tanh"
        super().__init__(spec, nn.RNN(spec.width, spec.out, nonlinearity=known, batch_first=True))
        self.nonlinearity = NONLINEARITIES[spec.nonlinearity]

    @property
    def has_kernel(self) -> bool:
        return self.spec.nonlinearity != "identity"

    def cell(self, drive: Tensor, state: tuple[Tensor, ...]) -> Step:
        (hidden,) = state
        hidden = self.nonlinearity(drive + F.linear(hidden, *self.recurrent_weights))
        return (hidden,), hidden


@dataclass(frozen=True, kw_only=True)
class GRUSpec(MixerSpec):
    """Gated recurrent unit: a gate mixes the old state with a proposal."""

    def build(self) -> GRU:
        return GRU(self)


class GRU(Recurrent):
    gate_names = ("reset", "update", "proposal")

    def __init__(self, spec: GRUSpec) -> None:
        super().__init__(spec, nn.GRU(spec.width, spec.out, batch_first=True))

    def cell(self, drive: Tensor, state: tuple[Tensor, ...]) -> Step:
        (hidden,) = state
        recall = F.linear(hidden, *self.recurrent_weights)
        reset_in, update_in, proposal_in = drive.chunk(3, dim=-1)
        reset_old, update_old, proposal_old = recall.chunk(3, dim=-1)
        reset = torch.sigmoid(reset_in + reset_old)
        update = torch.sigmoid(update_in + update_old)
        proposal = torch.tanh(proposal_in + reset * proposal_old)
        hidden = (1 - update) * proposal + update * hidden
        return (hidden,), torch.cat((reset, update, proposal), dim=-1)


@dataclass(frozen=True, kw_only=True)
class LSTMSpec(MixerSpec):
    """Long short-term memory: gates decide what a cell takes in, keeps and shows."""

    def build(self) -> LSTM:
        return LSTM(self)


class LSTM(Recurrent):
    state_type = HiddenAndCell
    gate_names = ("input", "forget", "proposal", "output")

    def __init__(self, spec: LSTMSpec) -> None:
        super().__init__(spec, nn.LSTM(spec.width, spec.out, batch_first=True))

    def cell(self, drive: Tensor, state: tuple[Tensor, ...]) -> Step:
        hidden, cell = state
        gates = drive + F.linear(hidden, *self.recurrent_weights)
        take, keep, proposal, show = gates.chunk(4, dim=-1)
        take, keep, show = torch.sigmoid(take), torch.sigmoid(keep), torch.sigmoid(show)
        proposal = torch.tanh(proposal)
        cell = keep * cell + take * proposal
        hidden = show * torch.tanh(cell)
        return (hidden, cell), torch.cat((take, keep, proposal, show), dim=-1)

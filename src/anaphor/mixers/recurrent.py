"""Recurrent mixers on the framework's kernels: RNN (tanh, relu, identity), GRU and LSTM.

Each has a readable cell as its slow twin. The cell is what runs while a tap inside the recurrence is watched, and tests
hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from anaphor.config import look_up
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.spec import MixerSpec, RecurrentOptions, check_probability, required
from anaphor.taps import Tap


class Hidden(NamedTuple):
    """State of an RNN or a GRU."""

    hidden: Tensor  # [B, D]


class HiddenAndCell(NamedTuple):
    """State of an LSTM."""

    hidden: Tensor  # [B, D]
    cell: Tensor  # [B, D]


@dataclass(frozen=True, kw_only=True)
class RecurrentSpec(MixerSpec, RecurrentOptions):
    """Base class of the specs of recurrent mixers."""

    defaults: ClassVar[Mapping[str, Any]] = {"weight_drop": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability(weight_drop=self.weight_drop)


Step = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # the next state's tensors, hidden first; and the gates


class Recurrent(Mixer):
    """What the three families share: the kernel, packing, and the walk step by step."""

    state_type: ClassVar[type[Hidden] | type[HiddenAndCell]] = Hidden
    gate_names: ClassVar[tuple[str, ...]]
    """What the tap `gates` [B, T, gates, D] shows, in order."""
    spec: RecurrentSpec

    def __init__(self, spec: RecurrentSpec, kernel: nn.RNNBase, function: Callable[..., tuple[Tensor, ...]]) -> None:
        """`kernel` holds the weights, where the framework lays them out as its `function` likes them."""
        super().__init__(spec)
        self.kernel = kernel
        self.function = function
        self.gates = Tap()
        self.states = Tap()

    def cell(self, drive: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        """One step for all rows. `drive` is what the input says to every gate, computed for all steps beforehand;
        `weights` are the recurrent ones."""
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
        weights = self._weights_now(x)
        x = x.to(weights[0].dtype)
        # The kernels want [layers, B, D]; this is the one place where a state is not batch-first.
        before = tuple(tensor.unsqueeze(0).to(x.dtype) for tensor in state)
        with torch.autocast(x.device.type, enabled=False):
            if span.full:
                y, after = self._run(x, before, weights)
            elif x.is_cuda:
                y, after = self._through_padding(x, before, weights, span)
            else:
                y, after = self._packed(x, before, weights, span)
        # A kernel may work in a narrower type; a state keeps the one it came with.
        tensors = [new.squeeze(0).to(old.dtype) for new, old in zip(after, state, strict=True)]
        if not span.full:
            moved = (span.lengths > 0)[:, None]
            tensors = [torch.where(moved, new, old) for new, old in zip(tensors, state, strict=True)]
        return y, self.state_type(*tensors)

    def _weights_now(self, x: Tensor) -> list[Tensor]:
        """The weights as the kernel is to see them: some of them dropped, and in the type of the computation.

        Left to itself, autocast would choose float16, in which small gradients vanish.
        """
        kind = x.device.type
        weights: list[Tensor] = self.kernel._flat_weights  # type: ignore[assignment]
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weights[0].dtype
        if dtype == weights[0].dtype and not self._drops:
            return weights
        (matrix_in, constant_in), (matrix, constant) = self.input_weights, self._recurrent_now()
        changed = [matrix_in, matrix, constant_in, constant]
        # Side by side in one piece of memory, or the kernel would first have to gather them.
        pieces = torch.cat([weight.flatten() for weight in changed]).to(dtype)
        sizes = [weight.numel() for weight in changed]
        return [piece.view(weight.shape) for piece, weight in zip(pieces.split(sizes), changed, strict=True)]

    @property
    def _drops(self) -> bool:
        return self.training and required(self.spec.weight_drop) > 0

    def _recurrent_now(self) -> tuple[Tensor, Tensor]:
        """The recurrent weights of one call, in training with new gaps at every call."""
        matrix, constant = self.recurrent_weights
        return (F.dropout(matrix, required(self.spec.weight_drop)) if self._drops else matrix), constant

    def _run(self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        start = before if len(before) > 1 else before[0]
        y, *after = self.function(x, start, weights, True, 1, 0.0, self.training, False, True)
        return y, tuple(after)

    def _packed(
        self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Packing stops each row after its last real token. It refuses rows without any, which therefore walk one step
        through padding and get their old state back from the caller."""
        lengths = span.lengths.clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        assert packed.sorted_indices is not None, "asked to sort, it says how it sorted"
        sorted_before = tuple(tensor.index_select(1, packed.sorted_indices) for tensor in before)
        start = sorted_before if len(before) > 1 else sorted_before[0]
        y, *after = self.function(packed.data, packed.batch_sizes, start, weights, True, 1, 0.0, self.training, False)
        whole = PackedSequence(y, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        padded, _ = pad_packed_sequence(whole, batch_first=True, total_length=x.shape[1])
        assert packed.unsorted_indices is not None, "as above"
        return padded, tuple(tensor.index_select(1, packed.unsorted_indices) for tensor in after)

    def _through_padding(
        self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All rows walk to the end. For packing, the host would have to know lengths that lie on the device."""
        x = span.clear(x)  # whatever stands there, no gradient may come back from it
        y, _ = self._run(x, before, weights)
        return span.clear(y), tuple(tensor[None] for tensor in self._stopped(x, y, before, weights, span))

    def _stopped(
        self, x: Tensor, y: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, ...]:
        """The state after each row's last real token, where there is any. [B, D] each"""
        last = (span.lengths - 1).clamp(min=0).long()[:, None, None].expand(-1, 1, y.shape[-1])
        return (y.gather(1, last).squeeze(1),)

    def _step_by_step(
        self, x: Tensor, state: Hidden | HiddenAndCell, span: Span
    ) -> tuple[Tensor, Hidden | HiddenAndCell]:
        drive, weights = F.linear(x, *self.input_weights), self._recurrent_now()
        current: tuple[Tensor, ...] = tuple(state)
        states, gates = [], []
        for step in range(x.shape[1]):
            following, gate = self.cell(drive[:, step], current, weights)
            if not span.full:
                real = span.valid[:, step, None]
                following = tuple(torch.where(real, new, old) for new, old in zip(following, current, strict=True))
            current = following
            states.append(current)
            gates.append(gate)
        every_state = self.states(_stacked(states), states)  # [B, T, tensors of the state, D]
        self.gates(_stacked(gates), gates)
        return every_state[:, :, 0], self.state_type(*current)


def _stacked(steps: list[tuple[Tensor, ...]]) -> Tensor:
    """T times n tensors [B, D] -> [B, T, n, D]"""
    return torch.stack([torch.stack(step, dim=1) for step in steps], dim=1)


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda x: x,
}


@dataclass(frozen=True, kw_only=True)
class RNNSpec(RecurrentSpec):
    """h = f(W x + U h): the plain recurrence."""

    nonlinearity: str = "tanh"
    """What f is: tanh, relu or identity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(NONLINEARITIES, self.nonlinearity, "nonlinearity")

    def build(self) -> RNN:
        return RNN(self)


RNN_TANH = partial(RNNSpec, nonlinearity="tanh")
RNN_RELU = partial(RNNSpec, nonlinearity="relu")
RNN_IDENTITY = partial(RNNSpec, nonlinearity="identity")


class RNN(Recurrent):
    """The framework has no kernel for the identity: there its module only holds the weights, and the cell walks."""

    gate_names = ("hidden",)
    spec: RNNSpec

    def __init__(self, spec: RNNSpec) -> None:
        known = spec.nonlinearity if spec.nonlinearity in ("tanh", "relu") else "tanh"
        function = torch.rnn_relu if known == "relu" else torch.rnn_tanh
        super().__init__(spec, nn.RNN(spec.width, spec.out, nonlinearity=known, batch_first=True), function)
        self.nonlinearity = NONLINEARITIES[spec.nonlinearity]

    @property
    def has_kernel(self) -> bool:
        return self.spec.nonlinearity != "identity"

    def cell(self, drive: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        (hidden,) = state
        hidden = self.nonlinearity(drive + F.linear(hidden, *weights))
        return (hidden,), (hidden,)


@dataclass(frozen=True, kw_only=True)
class GRUSpec(RecurrentSpec):
    """Gated recurrent unit: a gate mixes the old state with a proposal."""

    def build(self) -> GRU:
        return GRU(self)


class GRU(Recurrent):
    gate_names = ("reset", "update", "proposal")

    def __init__(self, spec: GRUSpec) -> None:
        super().__init__(spec, nn.GRU(spec.width, spec.out, batch_first=True), torch.gru)

    def cell(self, drive: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        (hidden,) = state
        recall = F.linear(hidden, *weights)
        reset_in, update_in, proposal_in = drive.chunk(3, dim=-1)
        reset_old, update_old, proposal_old = recall.chunk(3, dim=-1)
        reset = torch.sigmoid(reset_in + reset_old)
        update = torch.sigmoid(update_in + update_old)
        proposal = torch.tanh(proposal_in + reset * proposal_old)
        hidden = (1 - update) * proposal + update * hidden
        return (hidden,), (reset, update, proposal)


@cache
def _own_steps(device: torch.device) -> ModuleType | None:
    """Kernels of our own for small LSTM layers, if they work on that device."""
    try:
        from anaphor.mixers.kernels import lstm
    except ImportError:  # without Triton cuDNN does the same work, only slower
        return None
    return lstm if lstm.able(device) else None


@dataclass(frozen=True, kw_only=True)
class LSTMSpec(RecurrentSpec):
    """Long short-term memory: gates decide what a cell takes in, keeps and shows."""

    def build(self) -> LSTM:
        return LSTM(self)


class LSTM(Recurrent):
    state_type = HiddenAndCell
    gate_names = ("input", "forget", "proposal", "output")

    def __init__(self, spec: LSTMSpec) -> None:
        super().__init__(spec, nn.LSTM(spec.width, spec.out, batch_first=True), torch.lstm)

    def cell(self, drive: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        hidden, cell = state
        gates = drive + F.linear(hidden, *weights)
        take, keep, proposal, show = gates.chunk(4, dim=-1)
        take, keep, show = torch.sigmoid(take), torch.sigmoid(keep), torch.sigmoid(show)
        proposal = torch.tanh(proposal)
        cell = keep * cell + take * proposal
        hidden = show * torch.tanh(cell)
        return (hidden, cell), (take, keep, proposal, show)

    def _run(self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        own = _own_steps(x.device) if x.is_cuda and self.training else None
        if own is None or not own.suits(x, self.width_out):
            return super()._run(x, before, weights)
        matrix_in, matrix, constant_in, constant = weights
        drive = F.linear(x, matrix_in, constant_in + constant)
        hiddens, cell = own.recurrence(drive, *(tensor.squeeze(0) for tensor in before), matrix)
        return hiddens[:, 1:], (hiddens[None, :, -1], cell[None])

    def _stopped(
        self, x: Tensor, y: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, ...]:
        """A kernel tells the last cell only. But all outputs being known, the gates of all steps are one product, and
        what is left of the recurrence is a weighted sum. Padding keeps the cell as it is."""
        matrix_in, matrix, constant_in, constant = weights
        hidden, cell = (tensor.squeeze(0) for tensor in before)
        gates = F.linear(x, matrix_in, constant_in) + F.linear(
            torch.cat((hidden[:, None], y[:, :-1]), 1), matrix, constant
        )
        take, keep, proposal, _ = gates.chunk(4, dim=-1)
        real = span.valid[..., None]
        keeps = torch.sigmoid(keep).masked_fill(~real, 1).unbind(1)
        gains = (torch.sigmoid(take) * torch.tanh(proposal)).masked_fill(~real, 0).unbind(1)
        for kept, gained in zip(keeps, gains, strict=True):
            cell = torch.addcmul(gained, kept, cell)
        return (*super()._stopped(x, y, before, weights, span), cell)

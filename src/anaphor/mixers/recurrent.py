"""Recurrent mixers on torch's kernels: RNN (tanh, relu, identity), GRU and LSTM.

Each also has a readable cell, which runs while a tap inside the recurrence is recorded. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from anaphor.config import look_up
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.spec import MixerSpec, RecurrentOptions, check_probability, require
from anaphor.operations import operation
from anaphor.row_draws import random_rows
from anaphor.taps import Tap


class HiddenState(NamedTuple):
    """State of an RNN or a GRU."""

    hidden: Tensor  # [B, D]


class LSTMState(NamedTuple):
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

    @property
    def stands_alone(self) -> bool:
        return True


State = HiddenState | LSTMState
Step = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # tensors of the next state, hidden first; and the gates


class Recurrent(Mixer):
    """Base class of the three families: kernels, padding, and the explicit loop over time."""

    state_type: ClassVar[type[State]] = HiddenState
    gate_names: ClassVar[tuple[str, ...]]
    """Names of what the tap `gates` [B, T, gates, D] records, in order."""
    spec: RecurrentSpec

    def __init__(self, spec: RecurrentSpec, kernel: nn.RNNBase, function: Callable[..., tuple[Tensor, ...]]) -> None:
        """`kernel`, a module of torch, holds the weights in the layout that `function` needs."""
        super().__init__(spec)
        self.kernel = kernel
        self.function = function
        self.gates = Tap()
        self.states = Tap()

    def reset_parameters(self) -> None:
        """As torch, uniform in ±1/√width: with a normal of std 0.02 a recurrence would forget within a few steps."""
        self.kernel.reset_parameters()

    def cell(self, gate_inputs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        """One step for all rows. `gate_inputs` is the input's part of the pre-activations, computed for all steps at
        once; `weights` are the recurrent ones."""
        raise NotImplementedError(f"{type(self).__name__} does not define cell")

    @property
    def has_kernel(self) -> bool:
        return True

    @property
    def input_weights(self) -> tuple[Tensor, Tensor]:
        """Matrix and bias from the input to the gates."""
        return cast(Tensor, self.kernel.weight_ih_l0), cast(Tensor, self.kernel.bias_ih_l0)

    @property
    def recurrent_weights(self) -> tuple[Tensor, Tensor]:
        """Matrix and bias from the previous hidden state to the gates."""
        return cast(Tensor, self.kernel.weight_hh_l0), cast(Tensor, self.kernel.bias_hh_l0)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of what the tap `states` [B, T, tensors, D] records, in order."""
        return self.state_type._fields

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (self.width_out,)

    def initial_state(self, like: Tensor) -> State:
        weight = self.recurrent_weights[0]
        return self.state_type(*(weight.new_zeros(like.shape[0], self.width_out) for _ in self.state_type._fields))

    def mix(self, x: Tensor, state: State, span: Span) -> tuple[Tensor, State]:
        if self.gates.is_recorded or self.states.is_recorded or not self.has_kernel:
            return self._run_explicitly(x, state, span)
        return self._run_on_kernel(x, state, span)

    def _run_on_kernel(self, x: Tensor, state: State, span: Span) -> tuple[Tensor, State]:
        weights = self._kernel_weights(x)
        x = x.to(weights[0].dtype)
        # The kernels take [layers, B, D]; only here a state is not batch-first.
        before = tuple(tensor.unsqueeze(0).to(x.dtype) for tensor in state)
        with torch.autocast(x.device.type, enabled=False):
            if not span.has_padding:
                y, after = self._run(x, before, weights)
            elif x.is_cuda:
                y, after = self._run_through_padding(x, before, weights, span)
            else:
                y, after = self._run_packed(x, before, weights, span)
        # A kernel may compute in a narrower dtype; the state keeps its own.
        tensors = [new.squeeze(0).to(old.dtype) for new, old in zip(after, state, strict=True)]
        if span.has_padding:
            has_tokens = (span.lengths > 0)[:, None]
            tensors = [torch.where(has_tokens, new, old) for new, old in zip(tensors, state, strict=True)]
        return y, self.state_type(*tensors)

    def _kernel_weights(self, x: Tensor) -> list[Tensor]:
        """The weights after weight drop, in the dtype of the computation.

        By itself, autocast would choose float16 for them, in which small gradients vanish.
        """
        device = x.device.type
        weights: list[Tensor] = self.kernel._flat_weights  # type: ignore[assignment]
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weights[0].dtype
        if dtype == weights[0].dtype and not self._uses_weight_drop:
            return weights
        (w_ih, b_ih), (w_hh, b_hh) = self.input_weights, self._drop_recurrent_weights()
        changed = [w_ih, w_hh, b_ih, b_hh]
        # Contiguous in memory, or the kernel would copy them together first.
        flat = torch.cat([weight.flatten() for weight in changed]).to(dtype)
        sizes = [weight.numel() for weight in changed]
        return [part.view(weight.shape) for part, weight in zip(flat.split(sizes), changed, strict=True)]

    @property
    def _uses_weight_drop(self) -> bool:
        return self.training and require(self.spec.weight_drop) > 0

    @property
    def _needs_backward(self) -> bool:
        """Whether a kernel keeps what its backward pass reads: cuDNN does so in training mode only."""
        return self.training or torch.is_grad_enabled()

    def _drop_recurrent_weights(self) -> tuple[Tensor, Tensor]:
        """The recurrent weights of one call; weight drop draws a new mask at every call."""
        matrix, bias = self.recurrent_weights
        with random_rows(None):
            return (F.dropout(matrix, require(self.spec.weight_drop)) if self._uses_weight_drop else matrix), bias

    def _run(self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        start = before if len(before) > 1 else before[0]
        y, *after = self.function(x, start, weights, True, 1, 0.0, self._needs_backward, False, True)
        return y, tuple(after)

    def _run_packed(
        self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Packing ends each row after its last valid token. It does not accept empty rows, which therefore run one step
        of padding and get their old state back from the caller."""
        lengths = span.lengths.clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        assert packed.sorted_indices is not None, "it was asked to sort"
        sorted_before = tuple(tensor.index_select(1, packed.sorted_indices) for tensor in before)
        start = sorted_before if len(before) > 1 else sorted_before[0]
        y, *after = self.function(
            packed.data, packed.batch_sizes, start, weights, True, 1, 0.0, self._needs_backward, False
        )
        outputs = PackedSequence(y, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
        assert packed.unsorted_indices is not None, "it was asked to sort"
        return padded, tuple(tensor.index_select(1, packed.unsorted_indices) for tensor in after)

    def _run_through_padding(
        self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All rows run to the end. Packing would have to copy the lengths from the device, which syncs."""
        x = span.zero_padding(x)  # no gradient may come back from values in padding
        y, _ = self._run(x, before, weights)
        last = self._last_state(x, y, before, weights, span)
        return span.zero_padding(y), tuple(tensor[None] for tensor in last)

    def _last_state(
        self, x: Tensor, y: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, ...]:
        """The state after the last valid token of each row that has one. [B, D] each"""
        last = (span.lengths - 1).clamp(min=0).long()[:, None, None].expand(-1, 1, y.shape[-1])
        return (y.gather(1, last).squeeze(1),)

    def _run_explicitly(self, x: Tensor, state: State, span: Span) -> tuple[Tensor, State]:
        gate_inputs, weights = F.linear(x, *self.input_weights), self._drop_recurrent_weights()
        current: tuple[Tensor, ...] = tuple(state)
        states, gates = [], []
        for step in range(x.shape[1]):
            following, gate = self.cell(gate_inputs[:, step], current, weights)
            if span.has_padding:
                valid = span.valid[:, step, None]
                following = tuple(torch.where(valid, new, old) for new, old in zip(following, current, strict=True))
            current = following
            states.append(current)
            gates.append(gate)
        all_states = self.states(_stack_steps(states), states)  # [B, T, tensors of the state, D]
        self.gates(_stack_steps(gates), gates)
        return all_states[:, :, 0], self.state_type(*current)


def _stack_steps(steps: list[tuple[Tensor, ...]]) -> Tensor:
    """T times n tensors [B, D] -> [B, T, n, D]"""
    return torch.stack([torch.stack(step, dim=1) for step in steps], dim=1)


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda x: x,
}


@dataclass(frozen=True, kw_only=True)
class RNNSpec(RecurrentSpec):
    """Elman RNN: h = f(W x + U h)."""

    nonlinearity: str = "tanh"
    """Nonlinearity f: tanh, relu or identity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(NONLINEARITIES, self.nonlinearity, "nonlinearity")

    def build(self) -> RNN:
        return RNN(self)


RNN_TANH = partial(RNNSpec, nonlinearity="tanh")
RNN_RELU = partial(RNNSpec, nonlinearity="relu")
RNN_IDENTITY = partial(RNNSpec, nonlinearity="identity")


class RNN(Recurrent):
    """torch has no kernel for the identity: its module then only holds the weights, and the explicit loop runs."""

    gate_names = ("hidden",)
    spec: RNNSpec

    def __init__(self, spec: RNNSpec) -> None:
        nonlinearity = "relu" if spec.nonlinearity == "relu" else "tanh"
        function = torch.rnn_relu if nonlinearity == "relu" else torch.rnn_tanh
        super().__init__(spec, nn.RNN(spec.width, spec.out, nonlinearity=nonlinearity, batch_first=True), function)
        self.nonlinearity = NONLINEARITIES[spec.nonlinearity]

    @property
    def has_kernel(self) -> bool:
        return self.spec.nonlinearity != "identity"

    def cell(self, gate_inputs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        (hidden,) = state
        hidden = self.nonlinearity(gate_inputs + F.linear(hidden, *weights))
        return (hidden,), (hidden,)


@dataclass(frozen=True, kw_only=True)
class GRUSpec(RecurrentSpec):
    """Gated recurrent unit (Cho et al., 2014)."""

    def build(self) -> GRU:
        return GRU(self)


class GRU(Recurrent):
    """Gated recurrent unit, with the gates of `torch.nn.GRU`."""

    gate_names = ("reset", "update", "candidate")

    def __init__(self, spec: GRUSpec) -> None:
        super().__init__(spec, nn.GRU(spec.width, spec.out, batch_first=True), torch.gru)

    def cell(self, gate_inputs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        (h,) = state
        r_x, z_x, n_x = gate_inputs.chunk(3, dim=-1)
        r_h, z_h, n_h = F.linear(h, *weights).chunk(3, dim=-1)
        r = torch.sigmoid(r_x + r_h)
        z = torch.sigmoid(z_x + z_h)
        n = torch.tanh(n_x + r * n_h)
        h = (1 - z) * n + z * h
        return (h,), (r, z, n)


@dataclass(frozen=True, kw_only=True)
class LSTMSpec(RecurrentSpec):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997)."""

    def build(self) -> LSTM:
        return LSTM(self)


class LSTM(Recurrent):
    """Long short-term memory, with the gates of `torch.nn.LSTM`."""

    state_type = LSTMState
    gate_names = ("input", "forget", "candidate", "output")

    def __init__(self, spec: LSTMSpec) -> None:
        super().__init__(spec, nn.LSTM(spec.width, spec.out, batch_first=True), torch.lstm)

    def cell(self, gate_inputs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, Tensor]) -> Step:
        h, c = state
        i, f, g, o = (gate_inputs + F.linear(h, *weights)).chunk(4, dim=-1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        return (h, c), (i, f, g, o)

    def _run(self, x: Tensor, before: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden, cell = before
        y, *after = run_lstm(x, hidden, cell, weights, self.training)
        return y, tuple(after)

    def _last_state(
        self, x: Tensor, y: Tensor, before: tuple[Tensor, ...], weights: list[Tensor], span: Span
    ) -> tuple[Tensor, ...]:
        """Kernels return the last cell only. Since all outputs are known, the gates of all steps are one product, and
        what is left of the recurrence is a weighted sum. Padding leaves the cell unchanged."""
        w_ih, w_hh, b_ih, b_hh = weights
        h, c = (tensor.squeeze(0) for tensor in before)
        gates = F.linear(x, w_ih, b_ih) + F.linear(torch.cat((h[:, None], y[:, :-1]), 1), w_hh, b_hh)
        i, f, g, _ = gates.chunk(4, dim=-1)
        valid = span.valid[..., None]
        forget = torch.sigmoid(f).masked_fill(~valid, 1).unbind(1)
        added = (torch.sigmoid(i) * torch.tanh(g)).masked_fill(~valid, 0).unbind(1)
        for f_t, added_t in zip(forget, added, strict=True):
            c = torch.addcmul(added_t, f_t, c)
        return (*super()._last_state(x, y, before, weights, span), c)


@operation
def run_lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor], training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps of a layer by torch; `LSTM.cell` is a step to read. `weights` are those of `nn.LSTM`, two matrices and
    two biases. [B, T, D], [1, B, E], [1, B, E] -> [B, T, E], [1, B, E], [1, B, E]"""
    needs_backward = training or torch.is_grad_enabled()
    return torch.lstm(x, (hidden, cell), weights, True, 1, 0.0, needs_backward, False, True)

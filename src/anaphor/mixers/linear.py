"""Linear recurrences: linear attention and the quasi-recurrent network (QRNN). No matrix is applied to a state, so that
all products are computed for many tokens at once.

In linear attention weights are products of features, so the past fits into one matrix of constant size. The same
function in two forms: `parallel` is the one to read, a matrix of weights over the new tokens, as in softmax attention;
`chunkwise` is the one that runs, parallel within a chunk, recurrent between chunks. Tests compare them with each other
and with the recurrence token by token.

The gates of a QRNN depend on the input only. What is left to do step by step is `scan_qrnn`, which is one kernel on a
GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.layers import linear
from anaphor.mixers.short_convolution import MAX_KERNEL_SIZE, join_past
from anaphor.mixers.spec import (
    ConvolutionOptions,
    LinearOptions,
    MixerSpec,
    RecurrentOptions,
    check_heads,
    check_probability,
    require,
)
from anaphor.operations import operation
from anaphor.row_draws import random_rows
from anaphor.taps import Tap

# Features are positive, so that weights are; a little is added where they may all be zero.
FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    # elu(x) + 1 would round away what is near minus one; this is the same, exp(x) below zero.
    "elu": lambda x: F.relu(x) + x.clamp(max=0).exp(),
    "relu": lambda x: F.relu(x) + 1e-3,
    "softmax": lambda x: torch.softmax(x, dim=-1),
}


class LinearState(NamedTuple):
    """Sums over the past."""

    kv_sum: Tensor  # [B, H, K, K]: Σ f(k) vᵀ
    k_sum: Tensor  # [B, H, K]: Σ f(k)


def parallel(
    q: Tensor, k: Tensor, v: Tensor, past: LinearState, tap: Callable[[Tensor], Tensor] = lambda w: w
) -> tuple[Tensor, LinearState]:
    """q and k are features; all three are [B, H, T, K]. `tap` gets the weights of the new tokens [B, H, T, T]."""
    products = (q @ k.transpose(-1, -2)).tril()
    normalizer = _clamp_positive(products.sum(-1, keepdim=True) + q @ past.k_sum[..., None])
    w = tap(products / normalizer)
    y = w @ v + q @ past.kv_sum / normalizer
    return y, LinearState(past.kv_sum + k.transpose(-1, -2) @ v, past.k_sum + k.sum(-2))


def chunkwise(q: Tensor, k: Tensor, v: Tensor, past: LinearState, size: int) -> tuple[Tensor, LinearState]:
    """`parallel` on chunks of `size` tokens: linear time, and matrix products throughout."""
    outputs = []
    for chunks in zip(q.split(size, -2), k.split(size, -2), v.split(size, -2), strict=True):
        y, past = parallel(*chunks, past)
        outputs.append(y)
    return torch.cat(outputs, dim=-2), past


def _clamp_positive(normalizer: Tensor) -> Tensor:
    """It is zero for padding in a row without tokens; zero divided by zero would make the gradient NaN."""
    return normalizer.clamp(min=torch.finfo(normalizer.dtype).tiny)


@dataclass(frozen=True, kw_only=True)
class LinearSpec(MixerSpec, LinearOptions):
    """Attention with a state of constant size. It computes no scores: no mask, no window, no position encoding."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4, "bias": True, "feature_map": "elu"}

    chunk: int = 64
    """Number of tokens per chunk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(require(self.heads), self.width)
        check_at_least(1, chunk=self.chunk)
        look_up(FEATURE_MAPS, require(self.feature_map), "feature map")

    def build(self) -> Linear:
        return Linear(self)


class Linear(Mixer):
    """Linear attention: a state of fixed size, the sum over past tokens of φ(k) vᵀ, in place of keys and values."""

    spec: LinearSpec
    state_type = LinearState
    follows_init_scheme = True

    def __init__(self, spec: LinearSpec) -> None:
        super().__init__(spec)
        self.heads = require(spec.heads)
        self.feature_map = FEATURE_MAPS[require(spec.feature_map)]
        self.project = nn.Linear(spec.width, 3 * spec.width, bias=require(spec.bias))
        self.weights = Tap()
        self.out = nn.Linear(spec.width, spec.out, bias=require(spec.bias))

    @property
    def state_shape(self) -> tuple[int, int, int]:
        size = self.width_in // self.heads
        return (self.heads, size, size)

    def initial_state(self, like: Tensor) -> LinearState:
        rows, dtype = like.shape[0], torch.promote_types(self.out.weight.dtype, torch.float32)
        heads, size, _ = self.state_shape
        return LinearState(
            self.out.weight.new_zeros(rows, heads, size, size, dtype=dtype),
            self.out.weight.new_zeros(rows, heads, size, dtype=dtype),
        )

    def mix(self, x: Tensor, state: LinearState, span: Span) -> tuple[Tensor, LinearState]:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1)
        )  # [B, H, T, K]
        # Sums over a long text overflow half precision: they and what is added are in single precision at least.
        q, k, v = (part.to(state.kv_sum.dtype) for part in (q, k, v))
        q, k = self.feature_map(q), self.feature_map(k)
        if span.has_padding:
            padding = ~span.valid[:, None, :, None]
            q, k = q.masked_fill(padding, 0), k.masked_fill(padding, 0)
        if self.weights.is_recorded:
            y, state = parallel(q, k, v, state, self.weights)
        else:
            y, state = chunkwise(q, k, v, state, self.spec.chunk)
        return self.out(y.transpose(1, 2).flatten(2).to(x.dtype)), state


class QRNNState(NamedTuple):
    """State of a QRNN."""

    cell: Tensor  # [B, D]
    inputs: Tensor  # [B, kernel_size - 1, width_in]: the newest ones


@dataclass(frozen=True, kw_only=True)
class QRNNSpec(MixerSpec, RecurrentOptions, ConvolutionOptions):
    """Quasi-recurrent network (Bradbury, Merity, Xiong and Socher, 2017) with fo-pooling: c = f c + (1 - f) z, y = o c.
    Candidates z and gates f, o are a causal convolution of the input."""

    defaults: ClassVar[Mapping[str, Any]] = {"weight_drop": 0.0, "kernel_size": 2}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability(weight_drop=self.weight_drop)
        if not 1 <= require(self.kernel_size) <= MAX_KERNEL_SIZE:  # every input is copied so many times
            raise ConfigError(f"kernel_size={self.kernel_size}: it must be from 1 to {MAX_KERNEL_SIZE}")

    @property
    def stands_alone(self) -> bool:
        return True

    def build(self) -> QRNN:
        return QRNN(self)


class QRNN(Mixer):
    """Quasi-recurrent layer: gates from a convolution over the last tokens, a recurrence without a matrix product."""

    spec: QRNNSpec
    state_type = QRNNState
    gate_names: ClassVar[tuple[str, ...]] = ("candidate", "forget", "output")
    """Names of what the tap `gates` [B, T, gates, D] records, in order."""
    state_names: ClassVar[tuple[str, ...]] = ("cell",)
    """Names of what the tap `states` [B, T, tensors, D] records, in order."""

    def __init__(self, spec: QRNNSpec) -> None:
        super().__init__(spec)
        self.kernel_size = require(spec.kernel_size)
        # One product for all gates; its inputs are the last tokens, oldest first.
        self.project = nn.Linear(self.kernel_size * spec.width, 3 * spec.out)
        self.gates = Tap()
        self.states = Tap()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's linear map, but the bias of the forget gate is one: with zero a cell would lose half of its
        content with every token before anything is learned."""
        self.project.reset_parameters()
        nn.init.ones_(self.project.bias.detach().chunk(3)[1])

    @property
    def state_shape(self) -> tuple[int]:
        return (self.width_out,)

    def initial_state(self, like: Tensor) -> QRNNState:
        weight, rows = self.project.weight, like.shape[0]
        # A cell that changes slowly adds what half precision would round away.
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return QRNNState(
            weight.new_zeros(rows, self.width_out, dtype=dtype),
            weight.new_zeros(rows, self.kernel_size - 1, self.width_in),
        )

    def mix(self, x: Tensor, state: QRNNState, span: Span) -> tuple[Tensor, QRNNState]:
        x = span.zero_padding(x)  # no gradient may come back from values in padding
        if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
            x = x.to(torch.get_autocast_dtype(x.device.type))  # before it is copied for each token of the kernel
        joined, inputs = join_past(x, state.inputs, span)
        # The last `kernel_size` inputs of each token [B, T, kernel_size D].
        windows = torch.cat([joined[:, age : age + span.count] for age in range(self.kernel_size)], dim=-1)
        gate_inputs = linear(windows, self._drop_weights(), self.project.bias, self.training)
        if span.has_padding:  # a forget gate of one: the cell is kept, and nothing is added
            z, f, o = gate_inputs.chunk(3, dim=-1)
            gate_inputs = torch.cat((z, f.masked_fill(~span.valid[..., None], torch.inf), o), dim=-1)
        y, cell = scan_qrnn(gate_inputs, state.cell, self.gates, self.states)
        return y, QRNNState(cell, inputs)

    def _drop_weights(self) -> Tensor:
        """The weights of one call; weight drop draws a new mask at every call."""
        with random_rows(None):
            return F.dropout(self.project.weight, require(self.spec.weight_drop), self.training)


@operation
def scan_qrnn(gate_inputs: Tensor, cell: Tensor, gates: Tap, states: Tap) -> tuple[Tensor, Tensor]:
    """Outputs and the last cell, from the pre-activations of candidate, forget and output gate and the initial cell.
    The taps get the gates [B, T, 3, D] and the cells [B, T, 1, D]. [B, T, 3D], [B, D] -> [B, T, D], [B, D]"""
    z, f, o = gate_inputs.to(cell.dtype).chunk(3, dim=-1)
    z, f, o = torch.tanh(z), torch.sigmoid(f), torch.sigmoid(o)
    if gates.is_recorded:
        z, f, o = gates(torch.stack((z, f, o), dim=2)).unbind(2)
    cells = []
    for f_t, added in zip(f.unbind(1), ((1 - f) * z).unbind(1), strict=True):
        cell = torch.addcmul(added, f_t, cell)
        cells.append(cell)
    all_cells = states(torch.stack(cells, dim=1)[:, :, None], [(c,) for c in cells])
    return (o * all_cells[:, :, 0]).to(gate_inputs.dtype), cell

"""Recurrent decoder with attention and input feeding (Luong, Pham and Manning, 2015).

At every step the layers read the token and what attention made of the step before; the top one looks at the source:

    scores = hᵀ W k        context c = softmax(scores) · source        h̃ = tanh(W [c; h])

h̃ is the output, and the input of the next step. Sequences run in `kernels.input_feeding`; the explicit loop below runs
while the tap `weights` is recorded, and for single tokens without gradient. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.mixers.attention.normalize import softmax
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.dropout import DROPOUTS
from anaphor.mixers.kernels.input_feeding import CELLS, Walk, arranged
from anaphor.mixers.spec import MixerSpec, RecurrentOptions, check_at_least, check_probability, required
from anaphor.taps import Tap


class Fed(NamedTuple):
    """State of a decoder with input feeding. The source in it never changes; gradient flows through it."""

    hidden: Tensor
    """[B, L, D]"""
    cell: Tensor | None
    """[B, L, D]; a GRU has none."""
    fed: Tensor
    """[B, D]: h̃ of the last token."""
    keys: Tensor
    """[B, S, D]: the source as the top layer's output is compared with it."""
    values: Tensor
    """[B, S, D]: what each source token adds to h̃ before the tanh; zero where there is none."""
    valid: Tensor
    """[B, S]"""


@dataclass(frozen=True, kw_only=True)
class InputFeedingSpec(MixerSpec, RecurrentOptions):
    """Stacked LSTM or GRU cells with attention to a source and input feeding."""

    defaults: ClassVar[Mapping[str, Any]] = {"weight_drop": 0.0}

    cell: str = "lstm"
    """What the layers are: lstm or gru."""
    layers: int = 1
    """How many there are; the top one looks at the source."""
    source_width: int | None = None
    """Size of every source vector; None means the same as the tokens."""
    dropout: float = 0.0
    """Share of what a layer hands up to the next that is set to zero in training."""
    dropout_kind: str = "each"
    """What is set to zero: each value by itself, or the same features for all tokens of a row (locked)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(CELLS, self.cell, "cell")
        check_at_least(1, layers=self.layers, source_width=self.source_width)
        look_up(DROPOUTS, self.dropout_kind, "kind of dropout")
        check_probability(dropout=self.dropout, weight_drop=self.weight_drop)

    def build(self) -> InputFeeding:
        return InputFeeding(self)


class InputFeeding(Mixer):
    """The framework's cells hold the weights of the layers; the first one reads [token; h̃]."""

    spec: InputFeedingSpec
    state_type = Fed

    def __init__(self, spec: InputFeedingSpec) -> None:
        super().__init__(spec)
        width = spec.out
        self.kind = CELLS[spec.cell]
        self.source_width = spec.width if spec.source_width is None else spec.source_width
        make = nn.LSTMCell if spec.cell == "lstm" else nn.GRUCell
        below = [spec.width + width] + [width] * (spec.layers - 1)
        self.cells = nn.ModuleList(make(size, width) for size in below)
        self.score = nn.Linear(self.source_width, width, bias=False)
        self.out = nn.Linear(self.source_width + width, width, bias=False)
        self.weights = Tap()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the framework draws its own."""
        for part in (*self.cells, self.score, self.out):
            part.reset_parameters()

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (self.spec.layers, self.width_out)

    def initial_state(self, like: Tensor, lengths: Tensor | None = None) -> Fed:
        """`like` is the source itself [B, S, D], `lengths` how much of each row is real."""
        if like.ndim != 3 or like.shape[-1] != self.source_width:
            raise ConfigError(f"the source must be [rows, tokens, {self.source_width}], but it is {list(like.shape)}")
        weight, span = self.out.weight, Span.whole(like, lengths)
        hidden = weight.new_zeros(len(like), self.spec.layers, self.width_out)
        # W [c; h] = W₁ c + W₂ h, and W₁ of an average is the average of W₁: done here once, for the whole source.
        values = span.clear(F.linear(like, weight[:, : self.source_width]).to(weight.dtype))
        return Fed(
            hidden,
            torch.zeros_like(hidden) if self.kind.keeps_cell else None,
            weight.new_zeros(len(like), self.width_out),
            self.score(like).to(weight.dtype),
            values,
            span.valid,
        )

    def begin(self, state: Fed, layers: list[tuple[Tensor, ...]]) -> Fed:
        """The state with another past: hidden (and cell) [B, D] of each layer."""
        hidden, *cell = (torch.stack(tensors, 1).to(state.fed.dtype) for tensors in zip(*layers, strict=True))
        return state._replace(hidden=hidden, cell=cell[0] if cell else None)

    def state_bytes(self, tokens: int) -> int:
        """Of one row whose source has so many tokens."""
        held = (self.spec.layers * (2 if self.kind.keeps_cell else 1) + 1) * self.width_out
        return (held + 2 * tokens * self.width_out) * self.out.weight.element_size() + tokens

    def mix(self, x: Tensor, state: Fed, span: Span) -> tuple[Tensor, Fed]:
        dropped = None
        if self.training and self.spec.dropout and self.spec.layers > 1:
            shape = (self.spec.layers - 1, x.shape[1], x.shape[0], self.width_out)
            dropped = DROPOUTS[self.spec.dropout_kind](state.fed.new_ones(shape), self.spec.dropout)
        if self.weights.watched or (x.shape[1] == 1 and not torch.is_grad_enabled()):
            return self._step_by_step(x, state, span, dropped)
        return self._walk(x, state, span, dropped)

    def _own_now(self) -> list[Tensor]:
        """Each layer's matrix from its last hidden state, in training with new gaps at every call."""
        matrices = [cast(Tensor, cell.weight_hh) for cell in self.cells]
        if not (self.training and self.spec.weight_drop):
            return matrices
        return [F.dropout(matrix, required(self.spec.weight_drop)) for matrix in matrices]

    @property
    def inner(self) -> Tensor:
        """The part of the output's matrix that reads the top layer. [D, D]"""
        return self.out.weight[:, self.source_width :]

    def _walk(self, x: Tensor, state: Fed, span: Span, dropped: Tensor | None) -> tuple[Tensor, Fed]:
        below = [self.width_in] + [0] * (self.spec.layers - 1)
        parts = zip(self.cells, self._own_now(), below, strict=True)
        weights = [arranged(self.kind, cast(nn.RNNCellBase, cell), own, outside) for cell, own, outside in parts]
        (entering, _, constants), *above = weights
        # Time first, so that a step is one piece of memory.
        drive = F.linear(x.transpose(0, 1), entering, constants).to(state.fed.dtype)
        lowest = torch.finfo(state.keys.dtype).min / 4
        hindrance = torch.zeros_like(state.valid, dtype=state.keys.dtype).masked_fill_(~state.valid, lowest)
        # In the weights' own type whatever the rest computes in: steps are too small to gain by another one.
        with torch.autocast(x.device.type, enabled=False):
            y, hidden, cell = Walk.apply(  # type: ignore[no-untyped-call]
                self.kind,
                drive.contiguous(),
                state.hidden,
                state.cell,
                state.fed,
                state.keys,
                state.values,
                hindrance[:, None],
                self.inner,
                span.real,
                dropped,
                *(matrix for _, matrix, _ in weights),
                *(constant for _, _, constant in above),
            )
        return y, state._replace(hidden=hidden, cell=cell, fed=_last(y, state.fed, span))

    def _step_by_step(self, x: Tensor, state: Fed, span: Span, dropped: Tensor | None) -> tuple[Tensor, Fed]:
        """The same as one would write it down."""
        x = x.to(state.fed.dtype)
        parts = (state.hidden,) if state.cell is None else (state.hidden, state.cell)
        layers = list(zip(*(part.unbind(1) for part in parts), strict=True))  # hidden and cell of each
        fed, outputs, maps = state.fed, [], []
        pairs = list(zip(self.cells, self._own_now(), strict=True))
        with torch.autocast(x.device.type, enabled=False):
            for step in range(x.shape[1]):
                real = span.valid[:, step, None]
                below = torch.cat((x[:, step], fed), dim=-1)
                for height, (cell, own) in enumerate(pairs):
                    before = layers[height]
                    after = _stepped(cast(nn.RNNCellBase, cell), own, below, before)
                    layers[height] = tuple(torch.where(real, new, old) for new, old in zip(after, before, strict=True))
                    below = (
                        after[0] if dropped is None or height + 1 == len(layers) else after[0] * dropped[height, step]
                    )
                scores = torch.bmm(below[:, None], state.keys.mT).squeeze(1)  # [B, S]
                weights = softmax(scores, state.valid)
                found = torch.bmm(weights[:, None], state.values).squeeze(1)
                following = torch.tanh(found + F.linear(below, self.inner))
                outputs.append(following)
                maps.append((weights,))
                fed = torch.where(real, following, fed)
        self.weights(torch.stack([weights for (weights,) in maps], 1), maps)
        hidden, *cells = (torch.stack(tensors, 1) for tensors in zip(*layers, strict=True))
        return torch.stack(outputs, 1), state._replace(hidden=hidden, cell=cells[0] if cells else None, fed=fed)


def _stepped(cell: nn.RNNCellBase, own: Tensor, below: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step of a cell, with `own` as its matrix from the past: hidden (and cell) [B, D] -> the next."""
    weights = (cell.weight_ih, own, cell.bias_ih, cell.bias_hh)
    if len(before) > 1:
        return torch.lstm_cell(below, before, *weights)
    return (torch.gru_cell(below, before[0], *weights),)


def _last(y: Tensor, before: Tensor, span: Span) -> Tensor:
    """The output of each row's last real token, or what stood there before. [B, T, D], [B, D] -> [B, D]"""
    if span.real is None:
        return y[:, -1].clone()
    last = (span.real - 1).clamp(min=0)[:, None, None].expand(-1, 1, y.shape[-1])
    return torch.where((span.real > 0)[:, None], y.gather(1, last.long()).squeeze(1), before)

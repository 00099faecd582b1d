"""Recurrent decoder with attention and input feeding (Luong, Pham and Manning, 2015).

At every step the layers read the token and the attentional vector h̃ of the step before; the top one attends to the
source:

    scores = hᵀ W k        context c = softmax(scores) · source        h̃ = tanh(W [c; h])

h̃ is the output, and the input of the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.attention.score import softmax
from anaphor.mixers.base import DROPOUTS, Mixer, Span
from anaphor.mixers.spec import MixerSpec, RecurrentOptions, check_probability, require
from anaphor.operations import operation
from anaphor.row_draws import random_rows
from anaphor.taps import Tap

CELLS: dict[str, type[nn.LSTMCell] | type[nn.GRUCell]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


class InputFeedingState(NamedTuple):
    """State of a decoder with input feeding. The source in it never changes; gradient flows through it."""

    hidden: Tensor
    """[B, L, D]"""
    cell: Tensor | None
    """[B, L, D]; None for a GRU."""
    feed: Tensor
    """[B, D]: h̃ of the last token."""
    keys: Tensor
    """[B, S, D]: W k of the source."""
    values: Tensor
    """[B, S, D]: what each source token adds to h̃ before the tanh; zero in padding."""
    valid: Tensor
    """[B, S]"""


@dataclass(frozen=True, kw_only=True)
class InputFeedingSpec(MixerSpec, RecurrentOptions):
    """Stacked LSTM or GRU cells with attention to a source and input feeding."""

    defaults: ClassVar[Mapping[str, Any]] = {"weight_drop": 0.0}

    cell: str = "lstm"
    """Recurrent cell: lstm or gru."""
    layers: int = 1
    """Number of layers; the top one attends to the source."""
    source_width: int | None = None
    """Dimension of the source vectors; None means the same as the input."""
    dropout: float = 0.0
    """Dropout probability between the layers."""
    dropout_kind: str = "each"
    """Kind of dropout: each value by itself (each), or the same features for all tokens of a row (locked)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(CELLS, self.cell, "cell")
        check_at_least(1, layers=self.layers, source_width=self.source_width)
        look_up(DROPOUTS, self.dropout_kind, "kind of dropout")
        check_probability(dropout=self.dropout, weight_drop=self.weight_drop)

    def build(self) -> InputFeeding:
        return InputFeeding(self)


class InputFeeding(Mixer):
    """torch's cells hold the weights of the layers; the first one reads [token; h̃]."""

    spec: InputFeedingSpec
    state_type = InputFeedingState

    def __init__(self, spec: InputFeedingSpec) -> None:
        super().__init__(spec)
        width = spec.out
        self.has_cell = spec.cell == "lstm"
        """Whether the state has a cell beside the hidden vector."""
        self.source_width = spec.width if spec.source_width is None else spec.source_width
        cell = CELLS[spec.cell]
        widths_in = [spec.width + width] + [width] * (spec.layers - 1)
        self.cells = nn.ModuleList(cell(size, width) for size in widths_in)
        self.score = nn.Linear(self.source_width, width, bias=False)
        self.out = nn.Linear(self.source_width + width, width, bias=False)
        self.weights = Tap()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as torch initializes its own modules."""
        for part in (*self.cells, self.score, self.out):
            part.reset_parameters()

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (self.spec.layers, self.width_out)

    def initial_state(self, like: Tensor, lengths: Tensor | None = None) -> InputFeedingState:
        """`like` is the source itself [B, S, D], `lengths` the number of valid tokens in each row."""
        if like.ndim != 3 or like.shape[-1] != self.source_width:
            raise ConfigError(f"the source must be [rows, tokens, {self.source_width}], but it is {list(like.shape)}")
        weight, span = self.out.weight, Span.whole(like, lengths)
        hidden = weight.new_zeros(len(like), self.spec.layers, self.width_out)
        # W [c; h] = W₁ c + W₂ h, and W₁ of an average is the average of W₁: done here once, for the whole source.
        values = span.zero_padding(F.linear(like, weight[:, : self.source_width]).to(weight.dtype))
        return InputFeedingState(
            hidden,
            torch.zeros_like(hidden) if self.has_cell else None,
            weight.new_zeros(len(like), self.width_out),
            self.score(like).to(weight.dtype),
            values,
            span.valid,
        )

    def replace_hidden(self, state: InputFeedingState, layers: list[tuple[Tensor, ...]]) -> InputFeedingState:
        """The state with the given hidden (and cell) [B, D] of each layer."""
        hidden, *cell = (torch.stack(tensors, 1).to(state.feed.dtype) for tensors in zip(*layers, strict=True))
        return state._replace(hidden=hidden, cell=cell[0] if cell else None)

    def state_bytes(self, tokens: int) -> int:
        """Bytes of one row whose source has so many tokens."""
        own = (self.spec.layers * (2 if self.has_cell else 1) + 1) * self.width_out
        return (own + 2 * tokens * self.width_out) * self.out.weight.element_size() + tokens

    def mix(self, x: Tensor, state: InputFeedingState, span: Span) -> tuple[Tensor, InputFeedingState]:
        dropout_mask = None
        if self.training and self.spec.dropout and self.spec.layers > 1:
            shape = (self.spec.layers - 1, x.shape[1], x.shape[0], self.width_out)
            with random_rows(2):
                dropout_mask = DROPOUTS[self.spec.dropout_kind](state.feed.new_ones(shape), self.spec.dropout)
        return run_input_feeding(x, self, state, span, dropout_mask)

    def recurrent_weights(self) -> list[Tensor]:
        """The hidden-to-hidden matrix of each layer; weight drop draws a new mask at every call."""
        matrices = [cast(Tensor, cell.weight_hh) for cell in self.cells]
        if not (self.training and self.spec.weight_drop):
            return matrices
        with random_rows(None):
            return [F.dropout(matrix, require(self.spec.weight_drop)) for matrix in matrices]

    @property
    def hidden_weight(self) -> Tensor:
        """W₂, the part of the output's matrix that reads the top layer. [D, D]"""
        return self.out.weight[:, self.source_width :]


@operation
def run_input_feeding(
    x: Tensor, mixer: InputFeeding, state: InputFeedingState, span: Span, dropout_mask: Tensor | None
) -> tuple[Tensor, InputFeedingState]:
    """All steps of the decoder: outputs and the next state. `dropout_mask` [L - 1, T, B, D] multiplies the output of
    each layer but the top one."""
    x = x.to(state.feed.dtype)
    parts = (state.hidden,) if state.cell is None else (state.hidden, state.cell)
    layers = list(zip(*(part.unbind(1) for part in parts), strict=True))  # hidden and cell of each
    feed, outputs, maps = state.feed, [], []
    cells = list(zip(mixer.cells, mixer.recurrent_weights(), strict=True))
    # In the dtype of the weights whatever autocast says: steps are too small to gain by a narrower one.
    with torch.autocast(x.device.type, enabled=False):
        for step in range(x.shape[1]):
            valid = span.valid[:, step, None]
            below = torch.cat((x[:, step], feed), dim=-1)
            for layer, (cell, w_hh) in enumerate(cells):
                before = layers[layer]
                after = _run_cell(cast(nn.RNNCellBase, cell), w_hh, below, before)
                layers[layer] = tuple(torch.where(valid, new, old) for new, old in zip(after, before, strict=True))
                below = after[0]
                if dropout_mask is not None and layer + 1 < len(layers):
                    below = below * dropout_mask[layer, step]
            scores = torch.bmm(below[:, None], state.keys.mT).squeeze(1)  # [B, S]
            weights = softmax(scores, state.valid)
            context = torch.bmm(weights[:, None], state.values).squeeze(1)
            output = torch.tanh(context + F.linear(below, mixer.hidden_weight))
            outputs.append(output)
            maps.append((weights,))
            feed = torch.where(valid, output, feed)
    mixer.weights(torch.stack([weights for (weights,) in maps], 1), maps)
    hidden, *c = (torch.stack(tensors, 1) for tensors in zip(*layers, strict=True))
    return torch.stack(outputs, 1), state._replace(hidden=hidden, cell=c[0] if c else None, feed=feed)


def _run_cell(cell: nn.RNNCellBase, w_hh: Tensor, x: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step of a cell with the given hidden-to-hidden matrix: hidden (and cell) [B, D] -> the next."""
    weights = (cell.weight_ih, w_hh, cell.bias_ih, cell.bias_hh)
    if len(before) > 1:
        return torch.lstm_cell(x, before, *weights)
    return (torch.gru_cell(x, before[0], *weights),)

"""A decoder with input feeding as one autograd function with a hand-written backward pass, in torch's functions.

Each step needs the one before, so there is a loop. What can be computed for all steps at once is outside of it: the
input's part of the gates before, the gradients of all weights after, and before the backward loop every factor of a
cell's derivative that does not depend on the incoming gradient. Autograd would compute all of that at every step.

Time is the first axis in here, so that a step is contiguous.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from anaphor.mixers.base import Span
from anaphor.mixers.input_feeding import InputFeeding, InputFeedingState


def applies(x: Tensor, mixer: InputFeeding, state: InputFeedingState, span: Span, dropout_mask: Tensor | None) -> bool:
    """Whether nobody looks at the weights, and there is more than one token or a gradient."""
    return not mixer.weights.is_recorded and (x.shape[1] > 1 or torch.is_grad_enabled())


def run_input_feeding(
    x: Tensor, mixer: InputFeeding, state: InputFeedingState, span: Span, dropout_mask: Tensor | None
) -> tuple[Tensor, InputFeedingState]:
    kind = CELLS[mixer.spec.cell]
    outside = [mixer.width_in] + [0] * (mixer.spec.layers - 1)
    parts = zip(mixer.cells, mixer.recurrent_weights(), outside, strict=True)
    weights = [pack_weights(kind, cast(nn.RNNCellBase, cell), w_hh, size) for cell, w_hh, size in parts]
    (input_weight, _, input_bias), *upper = weights
    gate_inputs = F.linear(x.transpose(0, 1), input_weight, input_bias).to(state.feed.dtype)
    lowest = torch.finfo(state.keys.dtype).min / 4
    score_mask = torch.zeros_like(state.valid, dtype=state.keys.dtype).masked_fill_(~state.valid, lowest)
    with torch.autocast(x.device.type, enabled=False):
        y, hidden, cell = InputFeedingFunction.apply(  # type: ignore[no-untyped-call]
            kind,
            gate_inputs.contiguous(),
            state.hidden,
            state.cell,
            state.feed,
            state.keys,
            state.values,
            score_mask[:, None],
            mixer.hidden_weight,
            span.given_lengths,
            dropout_mask,
            *(matrix for _, matrix, _ in weights),
            *(bias for _, _, bias in upper),
        )
    return y, state._replace(hidden=hidden, cell=cell, feed=_last_output(y, state.feed, span))


def _last_output(y: Tensor, before: Tensor, span: Span) -> Tensor:
    """The output of the last valid token of each row, or `before` in rows without any. [B, T, D], [B, D] -> [B, D]"""
    lengths = span.given_lengths
    if lengths is None:
        return y[:, -1].clone()
    last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, y.shape[-1])
    return torch.where((lengths > 0)[:, None], y.gather(1, last.long()).squeeze(1), before)


class Cell:
    """Buffers of one recurrent layer. Both kinds have four pre-activations per feature, [T, B, 4·D].

    `inputs` [T + 1, B, 2·D] is what the layer reads at each step: the output of the layer below, and its own last one.
    `reorder_input` and `reorder_hidden` bring torch's weights into our order of the gates, [n·D, ...] -> [4·D, ...].
    `step` goes from pre-activations to the next hidden vector. `prepare_backward` computes what the backward steps
    share; it gets the gradient of returned cells [T + 1, B, D]. `step_backward` goes from the gradient of the hidden
    vector [B, D] to that of what the layer read [B, 2·D].
    """

    has_cell: ClassVar[bool]
    """Whether the state has a cell beside the hidden vector, as that of an LSTM."""
    saved_steps: ClassVar[tuple[int, ...]]
    """For each saved tensor, how many more steps it has than there are."""

    def __init__(self, inputs: Tensor, gates: Tensor, saved: tuple[Tensor, ...]) -> None:
        self.inputs, self.gates, self.saved = inputs, gates, saved
        self.width = inputs.shape[-1] // 2
        self.below, self.h = (inputs[..., half].unbind() for half in (slice(self.width), slice(self.width, None)))
        self.inputs_at, self.gates_at = inputs.unbind(), gates.unbind()
        self.gate = [gates[..., n * self.width : (n + 1) * self.width].unbind() for n in range(4)]

    @classmethod
    def allocate(cls, like: Tensor, steps: int, rows: int, width: int) -> Self:
        """Buffers for a whole sequence."""
        saved = tuple(like.new_empty(steps + extra, rows, width) for extra in cls.saved_steps)
        return cls(like.new_empty(steps + 1, rows, 2 * width), like.new_empty(steps, rows, 4 * width), saved)


class LSTMCell(Cell):
    """Order of the gates: o, i, f, g, so that the three sigmoids are adjacent, and the three that enter the cell are.
    Saved: the cell before and after every step, and its tanh."""

    has_cell = True
    saved_steps = (1, 0)

    def __init__(self, inputs: Tensor, gates: Tensor, saved: tuple[Tensor, ...]) -> None:
        super().__init__(inputs, gates, saved)
        self.sigmoids = gates[..., : 3 * self.width].unbind()
        self.c, self.tanh_c = saved[0].unbind(), saved[1].unbind()

    @staticmethod
    def reorder_input(rows: Tensor) -> Tensor:
        return rows.roll(len(rows) // 4, 0)  # torch's order is i, f, g, o

    reorder_hidden = reorder_input

    def step(self, t: int) -> None:
        o, i, f, g = (part[t] for part in self.gate)
        self.sigmoids[t].sigmoid_()
        g.tanh_()
        torch.mul(f, self.c[t], out=self.c[t + 1]).addcmul_(i, g)
        torch.tanh(self.c[t + 1], out=self.tanh_c[t])
        torch.mul(o, self.tanh_c[t], out=self.h[t + 1])

    def prepare_backward(self, grad_cell: Tensor | None) -> None:
        c, tanh_c = self.saved
        steps, rows, width = tanh_c.shape
        o, i, f, g = self.gates.view(steps, rows, 4, width).unbind(2)
        slopes = self.gates.new_empty(steps, rows, 4, width)
        torch.mul(tanh_c, o * (1 - o), out=slopes[:, :, 0])
        torch.mul(g, i * (1 - i), out=slopes[:, :, 1])
        torch.mul(c[:-1], f * (1 - f), out=slopes[:, :, 2])
        torch.mul(i, 1 - g * g, out=slopes[:, :, 3])
        self.slope_o, self.slopes_ifg = slopes[:, :, 0].unbind(), slopes[:, :, 1:].unbind()
        self.slope_c = (o * (1 - tanh_c * tanh_c)).unbind()
        self.grad_gates = torch.empty_like(self.gates)
        by_gate = self.grad_gates.view(steps, rows, 4, width)
        self.grad_o, self.grad_ifg = by_gate[:, :, 0].unbind(), by_gate[:, :, 1:].unbind()
        self.grad_gates_at = self.grad_gates.unbind()
        self.grad_cell_at = None if grad_cell is None else grad_cell.unbind()
        self.grad_c = self.gates.new_zeros(rows, width) if grad_cell is None else grad_cell[-1].clone()

    def step_backward(self, t: int, grad_h: Tensor, matrix: Tensor, grad_input: Tensor) -> None:
        self.grad_c.addcmul_(grad_h, self.slope_c[t])
        torch.mul(grad_h, self.slope_o[t], out=self.grad_o[t])
        torch.mul(self.grad_c.unsqueeze(1), self.slopes_ifg[t], out=self.grad_ifg[t])
        self.grad_c.mul_(self.gate[2][t])
        if self.grad_cell_at is not None:
            self.grad_c.add_(self.grad_cell_at[t])
        torch.mm(self.grad_gates_at[t], matrix, out=grad_input)


class GRUCell(Cell):
    """Order of the gates: r, z, the input's part of n, the hidden vector's part of n. Saved: n."""

    has_cell = False
    saved_steps = (0,)

    def __init__(self, inputs: Tensor, gates: Tensor, saved: tuple[Tensor, ...]) -> None:
        super().__init__(inputs, gates, saved)
        self.sigmoids = gates[..., : 2 * self.width].unbind()
        self.n = saved[0].unbind()

    @staticmethod
    def reorder_input(rows: Tensor) -> Tensor:
        return torch.cat((rows, torch.zeros_like(rows[: len(rows) // 3])))

    @staticmethod
    def reorder_hidden(rows: Tensor) -> Tensor:
        r_z, n = rows.split((len(rows) // 3 * 2, len(rows) // 3))
        return torch.cat((r_z, torch.zeros_like(n), n))

    def step(self, t: int) -> None:
        r, z, n_x, n_h = (part[t] for part in self.gate)
        self.sigmoids[t].sigmoid_()
        torch.addcmul(n_x, r, n_h, out=self.n[t]).tanh_()
        torch.lerp(self.n[t], self.h[t], z, out=self.h[t + 1])

    def prepare_backward(self, grad_cell: Tensor | None) -> None:
        (n,) = self.saved
        steps, rows, width = n.shape
        r, z, _, n_h = self.gates.view(steps, rows, 4, width).unbind(2)
        h = self.inputs[:-1, :, width:]
        slopes = self.gates.new_empty(steps, rows, 4, width)
        slope_n_x = torch.mul(1 - z, 1 - n * n, out=slopes[:, :, 2])
        slope_n_h = torch.mul(slope_n_x, r, out=slopes[:, :, 3])
        torch.mul(slope_n_h, n_h * (1 - r), out=slopes[:, :, 0])
        torch.mul(h - n, z * (1 - z), out=slopes[:, :, 1])
        self.slopes = slopes.unbind()
        self.grad_gates = torch.empty_like(self.gates)
        self.grad_by_gate = self.grad_gates.view(steps, rows, 4, width).unbind()
        self.grad_gates_at = self.grad_gates.unbind()

    def step_backward(self, t: int, grad_h: Tensor, matrix: Tensor, grad_input: Tensor) -> None:
        torch.mul(grad_h.unsqueeze(1), self.slopes[t], out=self.grad_by_gate[t])
        torch.mm(self.grad_gates_at[t], matrix, out=grad_input)
        grad_input[:, self.width :].addcmul_(grad_h, self.gate[1][t])


CellType = type[LSTMCell] | type[GRUCell]
CELLS: dict[str, CellType] = {"lstm": LSTMCell, "gru": GRUCell}


def pack_weights(kind: CellType, cell: nn.RNNCellBase, w_hh: Tensor, outside: int) -> tuple[Tensor, Tensor, Tensor]:
    """torch's weights as the loop needs them: the columns of the first `outside` input features, whose products are
    computed before the loop; the matrix of the other features and of the hidden vector [4·D, 2·D]; and the bias. `w_hh`
    replaces the cell's own."""
    w_ih = kind.reorder_input(cell.weight_ih)
    bias = kind.reorder_input(cell.bias_ih) + kind.reorder_hidden(cell.bias_hh)
    return w_ih[:, :outside], torch.cat((w_ih[:, outside:], kind.reorder_hidden(w_hh)), dim=1), bias


class InputFeedingFunction(torch.autograd.Function):
    """gate inputs [T, B, 4·D], state, source -> outputs [B, T, D], last hidden [B, L, D], last cell (or None)"""

    @staticmethod
    def forward(
        ctx: Any,
        kind: CellType,
        gate_inputs: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        feed: Tensor,
        keys: Tensor,
        values: Tensor,
        score_mask: Tensor,
        hidden_weight: Tensor,
        lengths: Tensor | None,
        dropout_mask: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`score_mask` [B, 1, S] is added to the scores; `dropout_mask` [L - 1, T, B, D] multiplies the output of a
        layer; `weights` are a matrix for each layer, then a bias for each but the first."""
        steps, rows = gate_inputs.shape[:2]
        layers, width = hidden.shape[1:]
        matrices, biases = [matrix.t() for matrix in weights[:layers]], weights[layers:]
        cells = [kind.allocate(gate_inputs, steps, rows, width) for _ in range(layers)]
        for layer, start in zip(cells, hidden.unbind(1), strict=True):
            layer.h[0].copy_(start)
        if cell is not None:
            for layer, start in zip(cells, cell.unbind(1), strict=True):
                layer.saved[0][0].copy_(start)
        cells[0].below[0].copy_(feed)
        attn = gate_inputs.new_empty(steps, rows, 1, keys.shape[1])
        gate_inputs_at, attn_at, keys_t = gate_inputs.unbind(), attn.unbind(), keys.mT
        masks = None if dropout_mask is None else [mask.unbind() for mask in dropout_mask]
        top_h = cells[-1].inputs[..., width:].unsqueeze(2).unbind()
        context = gate_inputs.new_empty(rows, 1, width)
        context_2d, hidden_weight_t = context.squeeze(1), hidden_weight.t()
        for t in range(steps):
            for number, layer in enumerate(cells):
                torch.addmm(
                    gate_inputs_at[t] if number == 0 else biases[number - 1],
                    layer.inputs_at[t],
                    matrices[number],
                    out=layer.gates_at[t],
                )
                layer.step(t)
                if number + 1 < layers:
                    above = cells[number + 1].below[t]
                    if masks is None:
                        above.copy_(layer.h[t + 1])
                    else:
                        torch.mul(layer.h[t + 1], masks[number][t], out=above)
            attn_t = attn_at[t]
            torch.softmax(torch.baddbmm(score_mask, top_h[t + 1], keys_t, out=attn_t), -1, out=attn_t)
            torch.mm(cells[-1].h[t + 1], hidden_weight_t, out=context_2d)
            context.baddbmm_(attn_t, values)
            torch.tanh(context_2d, out=cells[0].below[t + 1])
        ctx.kind, ctx.layers = kind, layers
        ctx.set_materialize_grads(False)  # the last state may not be used
        saved = [tensor for layer in cells for tensor in (layer.inputs, layer.gates, *layer.saved)]
        ctx.save_for_backward(keys, values, hidden_weight, lengths, dropout_mask, attn, *weights[:layers], *saved)
        outputs = cells[0].inputs[1:, :, :width].transpose(0, 1).contiguous()
        last_cell = None if cell is None else _gather_last([layer.saved[0] for layer in cells], lengths)
        return outputs, _gather_last([layer.inputs[..., width:] for layer in cells], lengths), last_cell

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_outputs: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return _backward(ctx, grad_outputs, grad_hidden, grad_cell)


def _backward(
    ctx: Any, grad_outputs: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None
) -> tuple[Tensor | None, ...]:
    keys, values, hidden_weight, lengths, dropout_mask, attn, *others = ctx.saved_tensors
    layers, size = ctx.layers, (len(others) - ctx.layers) // ctx.layers
    matrices, saved = others[:layers], others[layers:]
    cells = [ctx.kind(*saved[n : n + 2], tuple(saved[n + 2 : n + size])) for n in range(0, len(saved), size)]
    steps, rows, width = attn.shape[0], attn.shape[1], cells[0].width
    hidden_at = _scatter_last(grad_hidden, steps, lengths)
    cell_at = _scatter_last(grad_cell, steps, lengths)
    for number, layer in enumerate(cells):
        layer.prepare_backward(None if cell_at is None else cell_at[number])

    outputs = cells[0].inputs[1:, :, :width]
    slope = 1 - outputs * outputs
    direct = torch.zeros_like(slope) if grad_outputs is None else grad_outputs.transpose(0, 1) * slope
    grad_tanh = slope.new_empty(steps, rows, 1, width)  # by the argument of the tanh
    grad_scores = torch.empty_like(attn)
    grad_attn = attn.new_empty(rows, 1, keys.shape[1])
    grad_inputs = [slope.new_zeros(rows, 2 * width) for _ in cells]
    grad_below, grad_h = [grad[:, :width] for grad in grad_inputs], [grad[:, width:] for grad in grad_inputs]
    grad_top, grad_lower = slope.new_empty(rows, 1, width), slope.new_empty(rows, width)
    grad_top_2d, values_t = grad_top.squeeze(1), values.mT
    slope_at, direct_at, grad_scores_at, attn_at = slope.unbind(), direct.unbind(), grad_scores.unbind(), attn.unbind()
    grad_tanh_at, grad_tanh_2d_at = grad_tanh.unbind(), grad_tanh.squeeze(2).unbind()
    masks = None if dropout_mask is None else [mask.unbind() for mask in dropout_mask]
    for t in reversed(range(steps)):
        torch.addcmul(direct_at[t], grad_below[0], slope_at[t], out=grad_tanh_2d_at[t])
        torch.bmm(grad_tanh_at[t], values_t, out=grad_attn)
        _softmax_backward(grad_attn, attn_at[t], -1, attn.dtype, grad_input=grad_scores_at[t])
        torch.addmm(grad_h[-1], grad_tanh_2d_at[t], hidden_weight, out=grad_top_2d)
        grad_top.baddbmm_(grad_scores_at[t], keys)
        grad = grad_top_2d
        for number in reversed(range(layers)):
            if number + 1 < layers:
                if masks is None:
                    grad = torch.add(grad_h[number], grad_below[number + 1], out=grad_lower)
                else:
                    grad = torch.addcmul(grad_h[number], grad_below[number + 1], masks[number][t], out=grad_lower)
            if hidden_at is not None:
                grad = grad + hidden_at[number][t + 1]
            cells[number].step_backward(t, grad, matrices[number], grad_inputs[number])

    if hidden_at is not None:
        grad_h = [grad + at[0] for grad, at in zip(grad_h, hidden_at, strict=True)]
    top_h, grad_tanh = cells[-1].inputs[1:, :, width:], grad_tanh.squeeze(2)
    return (
        None,
        cells[0].grad_gates,
        torch.stack(grad_h, 1),
        torch.stack([layer.grad_c for layer in cells], 1) if ctx.kind.has_cell else None,
        grad_below[0],
        torch.bmm(grad_scores.squeeze(2).permute(1, 2, 0), top_h.transpose(0, 1)),
        torch.bmm(attn.squeeze(2).permute(1, 2, 0), grad_tanh.transpose(0, 1)),
        None,
        _weight_grad(grad_tanh, top_h),
        None,
        None,
        *(_weight_grad(layer.grad_gates, layer.inputs[:-1]) for layer in cells),
        *(layer.grad_gates.sum((0, 1)) for layer in cells[1:]),
    )


_softmax_backward = torch.ops.aten._softmax_backward_data.out


def _weight_grad(grad_output: Tensor, inputs: Tensor) -> Tensor:
    """Gradient of a matrix over all steps. [T, B, O], [T, B, I] -> [O, I]"""
    return grad_output.flatten(0, 1).t() @ inputs.flatten(0, 1)


def _gather_last(histories: list[Tensor], lengths: Tensor | None) -> Tensor:
    """Each layer after the last valid token of each row; steps in padding are computed and ignored. -> [B, L, D]"""
    if lengths is None:
        return torch.stack([history[-1] for history in histories], 1)
    rows = torch.arange(len(lengths), device=lengths.device)
    return torch.stack([history[lengths, rows] for history in histories], 1)


def _scatter_last(grad: Tensor | None, steps: int, lengths: Tensor | None) -> list[Tensor] | None:
    """Backward of `_gather_last`: for each layer [T + 1, B, D], zero except after the last valid tokens."""
    if grad is None:
        return None
    rows = torch.arange(len(grad), device=grad.device)
    ends = torch.full_like(rows, steps) if lengths is None else lengths
    scattered = []
    for layer in grad.unbind(1):
        at = grad.new_zeros(steps + 1, *layer.shape)
        at[ends, rows] = layer
        scattered.append(at)
    return scattered

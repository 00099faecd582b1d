"""The walk of a decoder with input feeding, as one function with a gradient of its own.

Each step needs the one before, so there must be a loop. What can be done for all steps at once is done outside of it:
before, what the input says to the gates; afterwards, the gradients of all weights; and before the way back, everything
in the slope of a cell that does not depend on what comes back. Autograd would do all of that anew at every step.

Time comes first in here, so that a step is one piece of memory. `InputFeeding` has the readable twin.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Cell:
    """One recurrent layer on its way. Both kinds have four pre-activations for each feature, [T, B, 4·D].

    `reads` [T + 1, B, 2·D] is what the layer reads at each step: what comes from below, and its own last output.
    """

    keeps_cell: ClassVar[bool]
    """Whether there is a cell beside the output, as an LSTM has."""

    def __init__(self, reads: Tensor, gates: Tensor, kept: tuple[Tensor, ...]) -> None:
        self.reads, self.gates, self.kept = reads, gates, kept
        self.width = reads.shape[-1] // 2
        self.below, self.own = (reads[..., half].unbind() for half in (slice(self.width), slice(self.width, None)))
        self.all_reads, self.all_gates = reads.unbind(), gates.unbind()
        self.parts = [gates[..., n * self.width : (n + 1) * self.width].unbind() for n in range(4)]

    @classmethod
    def empty(cls, like: Tensor, steps: int, rows: int, width: int) -> Cell:
        """Memory for a whole walk."""
        raise NotImplementedError(f"{cls.__name__} has no memory")

    @staticmethod
    def arranged(rows: Tensor) -> Tensor:
        """Rows of what speaks from below to the gates, in our order. [n·D, ...] -> [4·D, ...]"""
        raise NotImplementedError("no rows")

    @staticmethod
    def arranged_own(rows: Tensor) -> Tensor:
        """The same for what speaks from the layer's own past."""
        raise NotImplementedError("no rows")

    def step(self, time: int) -> None:
        """From pre-activations to the next output."""
        raise NotImplementedError(f"{type(self).__name__} takes no step")

    def turn(self, by_cell: Tensor | None) -> None:
        """Make ready for the way back. `by_cell` [T + 1, B, D] is what came back to each cell from elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} has no way back")

    def back(self, time: int, by_output: Tensor, matrix: Tensor, by_read: Tensor) -> None:
        """From the gradient by the output [B, D] to that by what the layer read [B, 2·D]."""
        raise NotImplementedError(f"{type(self).__name__} has no way back")


class LSTMCell(Cell):
    """Order: output, input and forget gate, proposal. The first three are squashed alike, the last three meet in the
    cell. Kept: the cell before and after every step, and its tanh."""

    keeps_cell = True

    @classmethod
    def empty(cls, like: Tensor, steps: int, rows: int, width: int) -> Cell:
        kept = (like.new_empty(steps + 1, rows, width), like.new_empty(steps, rows, width))
        return cls(like.new_empty(steps + 1, rows, 2 * width), like.new_empty(steps, rows, 4 * width), kept)

    def __init__(self, reads: Tensor, gates: Tensor, kept: tuple[Tensor, ...]) -> None:
        super().__init__(reads, gates, kept)
        self.squashed = gates[..., : 3 * self.width].unbind()
        self.level, self.shown = kept[0].unbind(), kept[1].unbind()

    @staticmethod
    def arranged(rows: Tensor) -> Tensor:
        return rows.roll(len(rows) // 4, 0)  # the framework's order is input, forget, proposal, output

    arranged_own = arranged

    def step(self, time: int) -> None:
        show, take, keep, proposal = (part[time] for part in self.parts)
        self.squashed[time].sigmoid_()
        proposal.tanh_()
        torch.mul(keep, self.level[time], out=self.level[time + 1]).addcmul_(take, proposal)
        torch.tanh(self.level[time + 1], out=self.shown[time])
        torch.mul(show, self.shown[time], out=self.own[time + 1])

    def turn(self, by_cell: Tensor | None) -> None:
        steps, rows, width = self.kept[1].shape
        show, take, keep, proposal = self.gates.view(steps, rows, 4, width).unbind(2)
        level, shown = self.kept
        slopes = self.gates.new_empty(steps, rows, 4, width)
        torch.mul(shown, show * (1 - show), out=slopes[:, :, 0])
        torch.mul(proposal, take * (1 - take), out=slopes[:, :, 1])
        torch.mul(level[:-1], keep * (1 - keep), out=slopes[:, :, 2])
        torch.mul(take, 1 - proposal * proposal, out=slopes[:, :, 3])
        self.of_output, self.of_cell = slopes[:, :, 0].unbind(), slopes[:, :, 1:].unbind()
        self.through = (show * (1 - shown * shown)).unbind()
        self.by_gates = torch.empty_like(self.gates)
        whole = self.by_gates.view(steps, rows, 4, width)
        self.by_output_gate, self.by_others, self.by_all = (
            whole[:, :, 0].unbind(),
            whole[:, :, 1:].unbind(),
            self.by_gates.unbind(),
        )
        self.arriving = None if by_cell is None else by_cell.unbind()
        self.by_level = self.gates.new_zeros(rows, width) if by_cell is None else by_cell[-1].clone()

    def back(self, time: int, by_output: Tensor, matrix: Tensor, by_read: Tensor) -> None:
        self.by_level.addcmul_(by_output, self.through[time])
        torch.mul(by_output, self.of_output[time], out=self.by_output_gate[time])
        torch.mul(self.by_level.unsqueeze(1), self.of_cell[time], out=self.by_others[time])
        self.by_level.mul_(self.parts[2][time])
        if self.arriving is not None:
            self.by_level.add_(self.arriving[time])
        torch.mm(self.by_all[time], matrix, out=by_read)


class GRUCell(Cell):
    """Order: reset and update gate, the proposal's part from below, its part from the past. Kept: the proposal."""

    keeps_cell = False

    @classmethod
    def empty(cls, like: Tensor, steps: int, rows: int, width: int) -> Cell:
        kept = (like.new_empty(steps, rows, width),)
        return cls(like.new_empty(steps + 1, rows, 2 * width), like.new_empty(steps, rows, 4 * width), kept)

    def __init__(self, reads: Tensor, gates: Tensor, kept: tuple[Tensor, ...]) -> None:
        super().__init__(reads, gates, kept)
        self.squashed = gates[..., : 2 * self.width].unbind()
        self.proposal = kept[0].unbind()

    @staticmethod
    def arranged(rows: Tensor) -> Tensor:
        return torch.cat((rows, torch.zeros_like(rows[: len(rows) // 3])))

    @staticmethod
    def arranged_own(rows: Tensor) -> Tensor:
        gates, proposal = rows.split((len(rows) // 3 * 2, len(rows) // 3))
        return torch.cat((gates, torch.zeros_like(proposal), proposal))

    def step(self, time: int) -> None:
        reset, update, new, old = (part[time] for part in self.parts)
        self.squashed[time].sigmoid_()
        torch.addcmul(new, reset, old, out=self.proposal[time]).tanh_()
        torch.lerp(self.proposal[time], self.own[time], update, out=self.own[time + 1])

    def turn(self, by_cell: Tensor | None) -> None:
        (proposal,) = self.kept
        steps, rows, width = proposal.shape
        reset, update, _, old = self.gates.view(steps, rows, 4, width).unbind(2)
        before = self.reads[:-1, :, width:]
        slopes = self.gates.new_empty(steps, rows, 4, width)
        new = torch.mul(1 - update, 1 - proposal * proposal, out=slopes[:, :, 2])
        from_past = torch.mul(new, reset, out=slopes[:, :, 3])
        torch.mul(from_past, old * (1 - reset), out=slopes[:, :, 0])
        torch.mul(before - proposal, update * (1 - update), out=slopes[:, :, 1])
        self.slopes = slopes.unbind()
        self.by_gates = torch.empty_like(self.gates)
        self.by_parts, self.by_all = self.by_gates.view(steps, rows, 4, width).unbind(), self.by_gates.unbind()

    def back(self, time: int, by_output: Tensor, matrix: Tensor, by_read: Tensor) -> None:
        torch.mul(by_output.unsqueeze(1), self.slopes[time], out=self.by_parts[time])
        torch.mm(self.by_all[time], matrix, out=by_read)
        by_read[:, self.width :].addcmul_(by_output, self.parts[1][time])


CELLS: dict[str, type[Cell]] = {"lstm": LSTMCell, "gru": GRUCell}


def arranged(kind: type[Cell], cell: nn.RNNCellBase, own: Tensor, outside: int) -> tuple[Tensor, Tensor, Tensor]:
    """The framework's weights as a walk wants them: what the first `outside` features of the input say to the gates,
    what the rest and the layer's own past say, as one matrix [4·D, 2·D], and the constants. `own` stands in for the
    cell's matrix from its past."""
    entering, own = kind.arranged(cell.weight_ih), kind.arranged_own(own)
    constants = kind.arranged(cell.bias_ih) + kind.arranged_own(cell.bias_hh)
    return entering[:, :outside], torch.cat((entering[:, outside:], own), dim=1), constants


class Walk(torch.autograd.Function):
    """drive [T, B, 4·D], start, source -> outputs [B, T, D], last hidden [B, L, D], last cell [B, L, D] or None."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: type[Cell],
        drive: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        fed: Tensor,
        keys: Tensor,
        values: Tensor,
        hindrance: Tensor,
        inner: Tensor,
        lengths: Tensor | None,
        dropped: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`hindrance` [B, 1, S] is added to the scores; `dropped` [L - 1, T, B, D] multiplies what a layer hands up;
        `weights` are a matrix for each layer, then constants for each but the first."""
        steps, rows = drive.shape[:2]
        layers, width = hidden.shape[1:]
        matrices, constants = [matrix.t() for matrix in weights[:layers]], weights[layers:]
        cells = [kind.empty(drive, steps, rows, width) for _ in range(layers)]
        for layer, start in zip(cells, hidden.unbind(1), strict=True):
            layer.own[0].copy_(start)
        if cell is not None:
            for layer, start in zip(cells, cell.unbind(1), strict=True):
                layer.kept[0][0].copy_(start)
        cells[0].below[0].copy_(fed)
        shares = drive.new_empty(steps, rows, 1, keys.shape[1])
        drives, share_at, turned = drive.unbind(), shares.unbind(), keys.mT
        masks = None if dropped is None else [mask.unbind() for mask in dropped]
        tops = cells[-1].reads[..., width:].unsqueeze(2).unbind()
        found = drive.new_empty(rows, 1, width)
        flat, map_of_top = found.squeeze(1), inner.t()
        for time in range(steps):
            for height, layer in enumerate(cells):
                torch.addmm(
                    drives[time] if height == 0 else constants[height - 1],
                    layer.all_reads[time],
                    matrices[height],
                    out=layer.all_gates[time],
                )
                layer.step(time)
                if height + 1 < layers:
                    above = cells[height + 1].below[time]
                    if masks is None:
                        above.copy_(layer.own[time + 1])
                    else:
                        torch.mul(layer.own[time + 1], masks[height][time], out=above)
            share = share_at[time]
            torch.softmax(torch.baddbmm(hindrance, tops[time + 1], turned, out=share), -1, out=share)
            torch.mm(cells[-1].own[time + 1], map_of_top, out=flat)
            found.baddbmm_(share, values)
            torch.tanh(flat, out=cells[0].below[time + 1])
        ctx.kind, ctx.layers = kind, layers
        ctx.set_materialize_grads(False)  # nobody may have asked for the last state
        kept = [tensor for layer in cells for tensor in (layer.reads, layer.gates, *layer.kept)]
        ctx.save_for_backward(keys, values, inner, lengths, dropped, shares, *weights[:layers], *kept)
        outputs = cells[0].reads[1:, :, :width].transpose(0, 1).contiguous()
        cell_after = None if cell is None else _taken([layer.kept[0] for layer in cells], lengths)
        return outputs, _taken([layer.reads[..., width:] for layer in cells], lengths), cell_after

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_outputs: Tensor | None, by_hidden: Tensor | None, by_cell: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return _way_back(ctx, by_outputs, by_hidden, by_cell)


def _way_back(
    ctx: Any, by_outputs: Tensor | None, by_hidden: Tensor | None, by_cell: Tensor | None
) -> tuple[Tensor | None, ...]:
    keys, values, inner, lengths, dropped, shares, *others = ctx.saved_tensors
    layers, size = ctx.layers, (len(others) - ctx.layers) // ctx.layers
    matrices, kept = others[:layers], others[layers:]
    cells = [ctx.kind(*kept[n : n + 2], tuple(kept[n + 2 : n + size])) for n in range(0, len(kept), size)]
    steps, rows, width = shares.shape[0], shares.shape[1], cells[0].width
    hidden_at = _placed(by_hidden, steps, lengths)
    cell_at = _placed(by_cell, steps, lengths)
    for height, layer in enumerate(cells):
        layer.turn(None if cell_at is None else cell_at[height])

    outputs = cells[0].reads[1:, :, :width]
    slope = 1 - outputs * outputs
    arriving = torch.zeros_like(slope) if by_outputs is None else by_outputs.transpose(0, 1) * slope
    by_found = slope.new_empty(steps, rows, 1, width)  # what is inside the tanh
    by_scores = torch.empty_like(shares)
    by_share = shares.new_empty(rows, 1, keys.shape[1])
    by_reads = [slope.new_zeros(rows, 2 * width) for _ in cells]
    by_below, by_own = [read[:, :width] for read in by_reads], [read[:, width:] for read in by_reads]
    by_top, by_lower = slope.new_empty(rows, 1, width), slope.new_empty(rows, width)
    flat_top, turned = by_top.squeeze(1), values.mT
    slopes, arrivals, found_at, score_at, share_at = (
        slope.unbind(),
        arriving.unbind(),
        by_found.unbind(),
        by_scores.unbind(),
        shares.unbind(),
    )
    flat_found = by_found.squeeze(2).unbind()
    masks = None if dropped is None else [mask.unbind() for mask in dropped]
    for time in reversed(range(steps)):
        torch.addcmul(arrivals[time], by_below[0], slopes[time], out=flat_found[time])
        torch.bmm(found_at[time], turned, out=by_share)
        _softmax_back(by_share, share_at[time], -1, shares.dtype, grad_input=score_at[time])
        torch.addmm(by_own[-1], flat_found[time], inner, out=flat_top)
        by_top.baddbmm_(score_at[time], keys)
        by_output = flat_top
        for height in reversed(range(layers)):
            if height + 1 < layers:
                if masks is None:
                    by_output = torch.add(by_own[height], by_below[height + 1], out=by_lower)
                else:
                    by_output = torch.addcmul(by_own[height], by_below[height + 1], masks[height][time], out=by_lower)
            if hidden_at is not None:
                by_output = by_output + hidden_at[height][time + 1]
            cells[height].back(time, by_output, matrices[height], by_reads[height])

    if hidden_at is not None:
        by_own = [own + at[0] for own, at in zip(by_own, hidden_at, strict=True)]
    every = slice(None, -1)
    by_matrices = [_weights(layer.by_gates, layer.reads[every]) for layer in cells]
    by_constants = [layer.by_gates.sum((0, 1)) for layer in cells[1:]]
    tops, by_found = cells[-1].reads[1:, :, width:], by_found.squeeze(2)
    return (
        None,
        cells[0].by_gates,
        torch.stack(by_own, 1),
        torch.stack([layer.by_level for layer in cells], 1) if ctx.kind.keeps_cell else None,
        by_below[0],
        torch.bmm(by_scores.squeeze(2).permute(1, 2, 0), tops.transpose(0, 1)),
        torch.bmm(shares.squeeze(2).permute(1, 2, 0), by_found.transpose(0, 1)),
        None,
        _weights(by_found, tops),
        None,
        None,
        *by_matrices,
        *by_constants,
    )


_softmax_back = torch.ops.aten._softmax_backward_data.out


def _weights(by_output: Tensor, given: Tensor) -> Tensor:
    """Gradient of a matrix over all steps. [T, B, O], [T, B, I] -> [O, I]"""
    return by_output.flatten(0, 1).t() @ given.flatten(0, 1)


def _taken(histories: list[Tensor], lengths: Tensor | None) -> Tensor:
    """Each row where it stopped: padding stands at the end and is walked through in vain. -> [B, L, D]"""
    if lengths is None:
        return torch.stack([history[-1] for history in histories], 1)
    rows = torch.arange(len(lengths), device=lengths.device)
    return torch.stack([history[lengths, rows] for history in histories], 1)


def _placed(gradient: Tensor | None, steps: int, lengths: Tensor | None) -> list[Tensor] | None:
    """The way back of `_taken`: for each layer [T + 1, B, D], zero but where the rows stopped."""
    if gradient is None:
        return None
    rows = torch.arange(len(gradient), device=gradient.device)
    stops = torch.full_like(rows, steps) if lengths is None else lengths
    placed = []
    for part in gradient.unbind(1):
        at = gradient.new_zeros(steps + 1, *part.shape)
        at[stops, rows] = part
        placed.append(at)
    return placed

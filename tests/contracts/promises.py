"""The five promises of a mixer, as functions: each takes a mixer and data, and asserts."""

from itertools import pairwise

import torch
from torch import Tensor

from anaphor.mixers import Mixer, Span, detach, select_rows
from anaphor.mixers.state import tensors_of

TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}


def assert_close(actual: Tensor, expected: Tensor, message: str) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCE, msg=lambda detail: f"{message}: {detail}")


def run(mixer: Mixer, x: Tensor, state=None, seen: Tensor | None = None, lengths: Tensor | None = None):
    """One call. Rows that have seen something continue there."""
    state = mixer.initial_state(x) if state is None else state
    seen = x.new_zeros(len(x), dtype=torch.long) if seen is None else seen
    return mixer(x, state, Span.after(seen, x.shape[1], lengths))


def run_in_pieces(mixer: Mixer, x: Tensor, cuts: list[int]):
    edges = [0, *sorted(cuts), x.shape[1]]
    state, outputs = mixer.initial_state(x), []
    for start, end in pairwise(edges):
        y, state = run(mixer, x[:, start:end], state, torch.full((len(x),), start))
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def chunks_equal_whole(mixer: Mixer, x: Tensor, cuts: list[int]) -> None:
    whole, _ = run(mixer, x)
    pieces, _ = run_in_pieces(mixer, x, cuts)
    assert_close(pieces, whole, f"cut at {cuts}")


def padding_leaves_no_trace(mixer: Mixer, x: Tensor, more: Tensor, lengths: Tensor) -> None:
    """Each row alone, and in company that is longer: same outputs, zeros behind them, and the same future."""
    padded = x.clone()
    padded[~(torch.arange(x.shape[1]) < lengths[:, None])] = 1e3  # what stands in padding must not matter
    together, state = run(mixer, padded, lengths=lengths)
    if mixer.streams:
        future, _ = run(mixer, more, state, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone_x = x[row : row + 1, :length]
        alone, alone_state = run(mixer, alone_x)
        assert_close(together[row, :length], alone[0], f"row {row} of length {length}")
        assert not together[row, length:].any(), "outputs are zero where there is no token"
        if mixer.streams:
            alone_future, _ = run(mixer, more[row : row + 1], alone_state, torch.tensor([length]))
            assert_close(future[row], alone_future[0], f"future of row {row} of length {length}")


def rows_can_be_reordered(mixer: Mixer, x: Tensor, more: Tensor, order: Tensor) -> None:
    seen = torch.full((len(x),), x.shape[1])
    together, state = run(mixer, x)
    picked, _ = run(mixer, x[order])
    assert_close(picked, together[order], f"rows {order.tolist()}")
    if mixer.streams:
        future, _ = run(mixer, more, state, seen)
        picked_future, _ = run(mixer, more[order], select_rows(state, order), seen[order])
        assert_close(picked_future, future[order], f"future of rows {order.tolist()}")


def gradient_crosses_the_seam_unless_detached(mixer: Mixer, x: Tensor, more: Tensor) -> None:
    """The gradient through a carried state is the gradient of one long call; a detached state passes none."""
    seen = torch.full((len(x),), x.shape[1])
    probe = torch.randn(more.shape[0], more.shape[1], mixer.width_out)

    past = x.clone().requires_grad_()
    _, state = run(mixer, past)
    (crossing,) = torch.autograd.grad((run(mixer, more, state, seen)[0] * probe).sum(), past)
    past_of_whole = x.clone().requires_grad_()
    whole, _ = run(mixer, torch.cat((past_of_whole, more), dim=1))
    (expected,) = torch.autograd.grad((whole[:, x.shape[1] :] * probe).sum(), past_of_whole)
    assert_close(crossing, expected, "gradient across the seam")
    assert crossing.any(), "some gradient must cross"

    _, state = run(mixer, past)
    cut, _ = run(mixer, more, detach(state), seen)
    (stopped,) = torch.autograd.grad((cut * probe).sum() + 0 * past.sum(), past)
    assert not stopped.any(), "a detached state passes no gradient"


def old_state_survives(mixer: Mixer, x: Tensor, more: Tensor) -> None:
    """Two futures of one past, with and without gradient, and the past is what it was."""
    seen = torch.full((len(x),), x.shape[1])
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            _, state = run(mixer, x)
            for _ in range(2):  # the second time the state has been extended in place, where that is possible
                _, state = run(mixer, more[:, :1], state, seen)
                seen = seen + 1
            kept = [tensor.clone() for tensor in tensors_of(state)]
            first, first_state = run(mixer, more, state, seen)
            run(mixer, -more, state, seen)
            again, _ = run(mixer, more, state, seen)
            assert_close(again, first, "the same future twice")
            for tensor, copy in zip(tensors_of(state), kept, strict=True):
                assert torch.equal(tensor, copy), "the state was written to"
            later, _ = run(mixer, more, first_state, seen + more.shape[1])
            straight, _ = run(mixer, more, run(mixer, more, state, seen)[1], seen + more.shape[1])
            assert_close(later, straight, "a state extended before another took its place")

"""The six promises of a mixer, as functions that raise `PromiseBroken` and say where. `check.py` runs all of them.

Every function takes a mixer in evaluation mode and inputs [B, T, D]; double precision leaves no room for excuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anaphor.mixers.base import Mixer, Span, detach, select_rows, tensors_of
from anaphor.taps import taps_of

TOLERANCES = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (2e-3, 2e-3),
    torch.bfloat16: (5e-2, 5e-2),
}
"""Relative and absolute tolerance by dtype; the absolute one is for values of size one. A GPU may multiply single
precision in a narrower type."""
MANY = 32
"""From so many tokens on only those at the cuts are changed, to see what depends on them."""
FEW_CUTS = 6
"""More cuts than these are counted in a message, not listed."""

PROMISES = {
    "chunks_equal_whole": "cutting a sequence anywhere changes nothing",
    "padding_leaves_no_trace": "padding changes neither the outputs nor the state",
    "rows_can_be_reordered": "rows of a state can be selected, repeated and reordered",
    "gradient_crosses_the_seam": "gradient flows through a carried state unless it is detached",
    "old_state_survives": "a call leaves the state it was given unchanged",
    "recording_changes_nothing": "recording taps changes neither outputs, state nor gradient",
}


class PromiseBroken(AssertionError):
    """A mixer does not do what its contract says."""


def run(
    mixer: Mixer, x: Tensor, state: Any = None, past_length: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Any]:
    """One call from the initial state, or from a state after `past_length` tokens."""
    state = mixer.initial_state(x) if state is None else state
    past_length = x.new_zeros(len(x), dtype=torch.long) if past_length is None else past_length
    outputs: tuple[Tensor, Any] = mixer(x, state, Span.after(past_length, x.shape[1], lengths))
    return outputs


def run_in_chunks(mixer: Mixer, x: Tensor, cuts: list[int]) -> Tensor:
    """The outputs of consecutive calls, cut before the given tokens."""
    state, outputs = mixer.initial_state(x), []
    for start, end in pairwise([0, *sorted(cuts), x.shape[1]]):
        y, state = run(mixer, x[:, start:end], state, _past_length(x, start))
        outputs.append(y)
    return torch.cat(outputs, dim=1)


def chunks_equal_whole(mixer: Mixer, x: Tensor, cuts: list[int]) -> None:
    """Cutting a sequence anywhere changes nothing."""
    whole, _ = run(mixer, x)
    again, _ = run(mixer, x)
    assert_close(again, whole, "two calls with the same input differ: {where} by {by}; it is random or keeps something")
    chunks = run_in_chunks(mixer, x, cuts)
    if _first_difference(chunks, whole) is not None:
        _raise_if_it_sees_the_future(mixer, x, whole, cuts)
    cut = f"before token {', '.join(map(str, sorted(cuts)))}"
    if len(cuts) > FEW_CUTS:
        cut = f"into {len(cuts) + 1} pieces"
    assert_close(chunks, whole, f"output of {{where}} differs by {{by}} when the sequence is cut {cut}")


def _raise_if_it_sees_the_future(mixer: Mixer, x: Tensor, whole: Tensor, cuts: Sequence[int]) -> None:
    count = x.shape[1]
    for token in range(1, count) if count <= MANY else [cut for cut in cuts if 0 < cut < count]:
        changed = x.clone()
        changed[:, token] += 1
        difference = _first_difference(run(mixer, changed)[0][:, :token], whole[:, :token])
        if difference is not None:
            changes = f"output of token {difference[0][1]} changes when token {token} changes"
            raise PromiseBroken(f"{changes}: the mixer sees the future")


def padding_leaves_no_trace(mixer: Mixer, x: Tensor, more: Tensor, lengths: Tensor) -> None:
    """Each row alone, and padded to the longest: same outputs, zeros in the padding, and the same future."""
    padded = x.clone()
    padded[~(torch.arange(x.shape[1], device=x.device) < lengths[:, None])] = 1e3  # values in padding must not matter
    together, state = run(mixer, padded, lengths=lengths)
    if mixer.streams:
        future, _ = run(mixer, more, state, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, alone_state = run(mixer, x[row : row + 1, :length])
        name, own = f"row {row} of length {length}", slice(row, row + 1)
        message = f"output of {name} at {{token}} differs by {{by}} from the row alone"
        assert_close(together[own, :length], alone, message)
        if together[row, length:].any():
            raise PromiseBroken(f"outputs of {name} are not zero in the padding")
        if mixer.streams:
            following, _ = run(mixer, more[own], alone_state, torch.tensor([length], device=x.device))
            message = f"padding gets into the state of {name}: {{token}} after it differs by {{by}} from the row alone"
            assert_close(future[own], following, message)


def rows_can_be_reordered(mixer: Mixer, x: Tensor, more: Tensor, order: Tensor) -> None:
    """Rows of a state can be selected, repeated and reordered."""
    past_length, rows = _past_length(x, x.shape[1]), f"when rows are selected in the order {order.tolist()}"
    together, state = run(mixer, x)
    assert_close(run(mixer, x[order])[0], together[order], f"output of {{where}} differs by {{by}} {rows}")
    if mixer.streams:
        future, _ = run(mixer, more, state, past_length)
        selected, _ = run(mixer, more[order], select_rows(state, order), past_length[order])
        assert_close(selected, future[order], f"output of {{where}} after a state differs by {{by}} {rows}")


def gradient_crosses_the_seam(mixer: Mixer, x: Tensor, more: Tensor) -> None:
    """The gradient through a carried state is that of one long call; a detached state passes none."""
    past_length = _past_length(x, x.shape[1])
    probe = torch.randn(*more.shape[:2], mixer.width_out, dtype=x.dtype, device=x.device)
    past = x.clone().requires_grad_()
    _, state = run(mixer, past)
    crossing = _gradient(run(mixer, more, state, past_length)[0] * probe, past)
    expected = _gradient(run(mixer, torch.cat((past, more), dim=1))[0][:, x.shape[1] :] * probe, past)
    if expected.any() and not crossing.any():
        raise PromiseBroken("no gradient flows through a carried state: the mixer detaches it")
    assert_close(crossing, expected, "gradient through a carried state differs by {by} at {where} from one long call")
    if not crossing.any():
        raise PromiseBroken(
            "no output has a gradient with respect to an earlier chunk: the mixer moves nothing along time"
        )
    _, state = run(mixer, past)
    if _gradient(run(mixer, more, detach(state), past_length)[0] * probe, past).any():
        raise PromiseBroken("gradient flows through a detached state: the mixer keeps tensors outside of it")


def old_state_survives(mixer: Mixer, x: Tensor, more: Tensor) -> None:
    """Two continuations of one state, with and without gradient, and the state is what it was."""
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            past_length = _past_length(x, x.shape[1])
            _, state = run(mixer, x)
            for _ in range(2):  # the second time a buffer has been extended in place, where that is possible
                _, state = run(mixer, more[:, :1], state, past_length)
                past_length = past_length + 1
            copies = [tensor.clone() for tensor in tensors_of(state)]
            first, first_state = run(mixer, more, state, past_length)
            run(mixer, -more, state, past_length)
            for number, (tensor, copy) in enumerate(zip(tensors_of(state), copies, strict=True)):
                if not torch.equal(tensor, copy):
                    raise PromiseBroken(f"tensor {number} of the state was changed in place by a later call")
            again, _ = run(mixer, more, state, past_length)
            assert_close(again, first, "output of {where} differs by {by} when a state is continued a second time")
            later, _ = run(mixer, more, first_state, past_length + more.shape[1])
            straight, _ = run(mixer, more, run(mixer, more, state, past_length)[1], past_length + more.shape[1])
            assert_close(later, straight, "output of {where} differs by {by} after another continuation of its past")


def recording_changes_nothing(mixer: Mixer, x: Tensor, more: Tensor, lengths: Tensor) -> None:
    """Outputs, state and gradient while all taps are recorded are those without, where a kernel may run."""
    found = []
    for is_recorded in (False, True):
        with ExitStack() as stack:
            for tap in taps_of(mixer).values() if is_recorded else ():
                stack.callback(tap.register_forward_hook(lambda tap, given, result: None).remove)
            past = x.clone().requires_grad_()
            y, state = run(mixer, past, lengths=lengths)
            following = run(mixer, more, state, lengths)[0] if mixer.streams else y
            probe = torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype, device=y.device)
            found.append((y, following, _gradient(torch.cat((y, following), 1) * probe, past)))
    for what, plain, watched in zip(("output", "output after a state", "gradient"), *found, strict=True):
        assert_close(watched, plain, f"{what} of {{where}} differs by {{by}} while taps are recorded")


def is_same(mixer: Mixer, twin: Mixer, x: Tensor, more: Tensor, lengths: Tensor) -> None:
    """Outputs and gradient are those of another mixer with the same weights, also in padding and after a state."""
    found = []
    for one in (twin, mixer):
        past = x.clone().requires_grad_()
        y, state = run(one, past, lengths=lengths)
        following = run(one, more, state, lengths)[0] if one.streams and mixer.streams else y
        found.append((y, following, _gradient(y * y, past)))
    for what, expected, actual in zip(("output", "output after a state", "gradient"), *found, strict=True):
        assert_close(actual, expected, f"{what} of {{where}} differs by {{by}} from the twin's")


def assert_close(actual: Tensor, expected: Tensor, message: str) -> None:
    """Raise where two outputs [B, T, ...] differ first. The message may name `where`, `token` and `by` (how much)."""
    difference = _first_difference(actual, expected)
    if difference is not None:
        (row, token), by = difference
        place = {"where": f"row {row}, token {token}", "token": f"token {token}", "by": f"{by:.2g}"}
        raise PromiseBroken(message.format(**place))


def _first_difference(actual: Tensor, expected: Tensor) -> tuple[tuple[int, int], float] | None:
    """Row and token of the first difference, and the largest absolute difference there. NaN differs from all."""
    actual, expected = actual.detach(), expected.detach()
    if not expected.numel():
        return None
    rtol, atol = TOLERANCES[expected.dtype]
    largest = expected.abs().max().clamp(min=1).nan_to_num(posinf=1)  # sums over many tokens lose digits
    differs = ~((actual - expected).abs() <= atol * largest + rtol * expected.abs()).flatten(2).all(-1)  # [B, T]
    if not differs.any():
        return None
    token, row = differs.t().nonzero()[0].tolist()
    return (row, token), float((actual[row, token] - expected[row, token]).abs().max())


def _gradient(outputs: Tensor, of: Tensor) -> Tensor:
    """Zeros where the outputs do not depend on it."""
    gradient = None
    if outputs.requires_grad:
        (gradient,) = torch.autograd.grad(outputs.sum(), of, allow_unused=True)
    return torch.zeros_like(of) if gradient is None else gradient


def _past_length(x: Tensor, tokens: int) -> Tensor:
    return torch.full((len(x),), tokens, device=x.device)

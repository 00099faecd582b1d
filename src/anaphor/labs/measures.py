"""Measured costs: processor time, peak memory and depth, and the exponent by which a cost grows with n."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from scipy.stats import linregress, t
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

MIN_SECONDS = 0.02  # a call is repeated until its processor time adds up to this
GROUPS = 4  # of calls that are timed together; the fastest counts
MAX_WAIT = 0.5  # seconds by the wall clock for a group to become long enough
MIN_SECONDS = 1e-9  # a time of zero has no logarithm
MIN_RUN = 1e-3  # least processor time of the largest computation; below it fixed costs of a call are a large share
QUADRATIC = (1.7, 2.3)  # exponents that count as quadratic
LINEAR = 1.35  # largest exponent that counts as linear


def processor_seconds(function: Callable[..., Any], *inputs: Any) -> float:
    """Minimum processor time of a call in this thread: other processes and other threads are not counted.

    Calls are timed in groups, because some machines have a thread clock that advances by milliseconds.
    """
    calls, seconds, start = 1, 0.0, perf_counter()
    while (seconds := _group_seconds(function, inputs, calls)) < MIN_SECONDS / GROUPS:
        if perf_counter() - start > MAX_WAIT:  # the clock stands still
            break
        calls *= 2
    groups = [seconds, *(_group_seconds(function, inputs, calls) for _ in range(GROUPS - 1))]
    best, mean = min(groups), sum(groups) / GROUPS
    # Groups are equal work: where one seems to take less than half of the others, that is the clock's rounding.
    return max((best if best > mean / 2 else mean) / calls, MIN_SECONDS)


def _group_seconds(function: Callable[..., Any], inputs: Sequence[Any], calls: int) -> float:
    start = thread_time()
    for _ in range(calls):
        function(*inputs)
    return thread_time() - start


@dataclass(frozen=True)
class Power:
    """y grows as n to this exponent, with its 95 % confidence interval."""

    exponent: float
    low: float
    high: float


def fit_power(n: Sequence[float], y: Sequence[float]) -> Power:
    """Linear regression of log y on log n; the interval is Student's t of the slope, nan for two points."""
    fit = linregress(np.log(np.asarray(n, dtype=float)), np.log(np.asarray(y, dtype=float)))
    degrees = len(n) - 2
    half = float(t.ppf(0.975, degrees) * fit.stderr) if degrees > 0 else float("nan")
    return Power(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def count_flops(function: Callable[..., Any], *inputs: Any) -> int:
    """Multiplications plus additions, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    return int(counter.get_total_flops())


class CostMode(TorchDispatchMode):
    """Measures peak memory and depth of all operations run inside its block.

    Tensors that existed before are not counted, nor is what a fused kernel allocates inside. Run it without gradients:
    tensors that autograd saves are not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        """Largest number of bytes alive at the same time."""
        self.depth = 0
        """Length of the longest chain of dependent operations: a lower bound on sequential steps."""
        self._live = 0
        self._sizes: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self._depths: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; disabling the compiler would cost as much time as the counting."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = _tensors_in((args, kwargs or {}))
        depth_before = max((self._depths.get(_storage(tensor), 0) for tensor in inputs), default=0)
        present = {_storage(tensor) for tensor in inputs}
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors_in(result):
            key = _storage(tensor)
            is_new = key not in present
            if is_new and key not in self._sizes:
                self._sizes[key] = tensor.untyped_storage().nbytes()
                self._live += self._sizes[key]
                self.peak = max(self.peak, self._live)
            # A view shares its storage and costs no step.
            if is_new or not function.is_view:
                self._depths[key] = max(self._depths.get(key, 0), depth_before + 1)
                self.depth = max(self.depth, self._depths[key])
            if key in self._sizes:
                self._holders[key] = self._holders.get(key, 0) + 1
                weakref.finalize(tensor, self._release, key)
        return result

    def _release(self, key: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            self._live -= self._sizes.pop(key)
            del self._holders[key]
            self._depths.pop(key, None)


def _storage(tensor: Tensor) -> int:
    """Identity of a tensor's storage, which its views share."""
    return int(tensor.untyped_storage()._cdata)


def _tensors_in(value: Any) -> list[Tensor]:
    """The tensors in lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]

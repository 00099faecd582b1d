"""Books kept while tensors are computed: how many bytes live at once, and how long the longest chain of steps is."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anaphor.inspect.graph.program import tensors_in


class Ledger(TorchDispatchMode):
    """Counts what operations make inside its block; what was there before is not counted.

    It sees operations, not what a fused kernel needs inside one. Only without gradients does a tensor that nobody holds
    count as gone: what autograd keeps is out of sight.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        """The most bytes that lived at once."""
        self.depth = 0
        """Operations of which each needs the one before: no number of processors makes these run side by side."""
        self._live = 0
        self._sizes: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self._depths: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here, so the compiler need not be kept out, which costs as much as the counting."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tensors_in((args, kwargs or {}))
        before = max((self._depths.get(_key(tensor), 0) for tensor in given), default=0)
        known = {_key(tensor) for tensor in given}
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            key = _key(tensor)
            fresh = key not in known
            if fresh and key not in self._sizes:
                self._sizes[key] = tensor.untyped_storage().nbytes()
                self._live += self._sizes[key]
                self.peak = max(self.peak, self._live)
            # A view is the same numbers under another shape and costs no step.
            if fresh or not function.is_view:
                self._depths[key] = max(self._depths.get(key, 0), before + 1)
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


def _key(tensor: Tensor) -> int:
    """The memory a tensor stands on, shared by its views."""
    return int(tensor.untyped_storage()._cdata)

"""Where a student's code made a tensor on the CPU that meets others elsewhere: the line to mend."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class CPUTensors(TorchFunctionMode):
    """Inside the block, the line of a folder's code that made each tensor on the CPU is remembered."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.made: dict[int, tuple[Tensor, str]] = {}
        """Tensors by their `id`, which are kept so that it stays theirs, and where they were made."""
        self.culprit = ""
        """File and line of the tensor that the last failing function got; empty if there is none."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [one for one in _tensors([*args, *(kwargs or {}).values()]) if _is_on_cpu(one)]
        places = [self.made[id(one)][1] for one in given if id(one) in self.made]
        try:
            found = func(*args, **(kwargs or {}))
        except Exception:
            self.culprit = self.culprit or (places[0] if places else "")
            raise
        for one in _tensors([found]):
            if _is_on_cpu(one) and id(one) not in self.made:
                self.made[id(one)] = one, places[0] if places else self._place()
        return found

    def _place(self) -> str:
        """The innermost line of the folder's code that is running."""
        frame = sys._getframe(1)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.parent == self.folder:
                return f"{path.name}:{frame.f_lineno}"
            if frame.f_back is None:
                break
            frame = frame.f_back
        return ""


def _is_on_cpu(value: Tensor) -> bool:
    """Whether it may not meet tensors of another device: one without dimensions may."""
    return value.device == torch.device("cpu") and value.ndim > 0


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    return [one for value in values for one in _tensors(value)] if isinstance(values, list | tuple) else []

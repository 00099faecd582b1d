"""Order of a text in an epoch of training: where rows begin, and how their tokens are arranged. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class StreamOrder:
    """Changes a text before it is cut into segments, by the epoch. Every method has a default that changes nothing.

    A run that is resumed asks again: the same epoch must always have the same order.
    """

    max_offset: int = 0
    """The largest offset of all epochs."""

    def offset(self, epoch: int) -> int:
        """Number of tokens at the beginning of the text that are left out, so that all rows begin as much later."""
        return 0

    def starts(self, rows: int, length: int, epoch: int) -> NDArray[np.int64] | None:
        """Where each row starts, which is then a circle. [rows] None: at its first token."""
        return None

    def arrange(self, rows: Tensor, epoch: int) -> Tensor:
        """The tokens of the rows in another order, for texts in memory only. [B, length] -> [B, length]"""
        return rows

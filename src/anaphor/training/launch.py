"""Which of several processes this is, as `torchrun` tells each of them. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets; a process without one of them is alone."""


@dataclass(frozen=True)
class Launch:
    """A process among those that were started together."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    """Its number on its machine, which is that of its GPU."""
    restarts: int = 0
    """How often all of them have been started again, by `torchrun --max-restarts`."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0


def read_launch() -> Launch:
    """This process among those that torchrun has started; alone where it was not torchrun."""
    if any(not os.environ.get(name) for name in VARIABLES):
        return Launch()
    return Launch(*map(_read, ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")))


def _read(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0

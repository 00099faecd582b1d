"""The parts of the benchmark by name: each is a file of this folder, and its docstring says what it compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from anaphor.registry import has_shelf
from benchmarks import feeding, finetune, generation, images, overhead, recording, recurrences, start, training
from benchmarks.timing import Finding

Tick = Callable[[str], None]
"""Called after every timing with what was timed, for a progress bar."""


class Part(Protocol):
    """What a file needs to be a part."""

    def measure(self, pairs: int, device: torch.device, tick: Tick) -> list[Finding]: ...

    def count_ticks(self, pairs: int, device: torch.device) -> int:
        """How often `measure` ticks."""


PARTS: dict[str, Part] = {
    "overhead": overhead,
    "generation": generation,
    "recording": recording,
    "training": training,
    "images": images,
    "finetune": finetune,
    "feeding": feeding,
    "start": start,
    "recurrences": recurrences,
}
"""With the parts of the shelves that are there, which are added below."""

if has_shelf("extras"):
    from benchmarks import adaptation

    PARTS["adaptation"] = adaptation
if has_shelf("kernels"):
    from benchmarks import kernels

    PARTS["kernels"] = kernels
if has_shelf("interchange"):
    from benchmarks import decoding, smollm2

    PARTS |= {"decoding": decoding, "smollm2": smollm2}
if has_shelf("studies"):
    from benchmarks import packing

    PARTS["packing"] = packing
if has_shelf("web"):
    from benchmarks import web

    PARTS["web"] = web

SCALING = "scaling"
"""The one part that has no peer and no ratios: `scaling.py` gives costs, in a report of their own."""
DEFAULT_PARTS = tuple(
    name
    for name in PARTS
    if name not in ("decoding", "finetune", "kernels", "packing", "recurrences", "smollm2", "web")
)
"""All but those that take long or need packages that are not installed with Anaphor."""


def count_ticks(names: Sequence[str], pairs: int, device: torch.device) -> int:
    """How often `measure` ticks."""
    return sum(part.count_ticks(pairs, device) for name, part in PARTS.items() if name in names)


def measure(names: Sequence[str], pairs: int, device: torch.device, tick: Tick) -> list[Finding]:
    """The findings of the named parts, in the order of the table."""
    return [finding for name, part in PARTS.items() if name in names for finding in part.measure(pairs, device, tick)]

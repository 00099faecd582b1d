"""Each kernel against the readable code of its operation, in steps of the recipes that use it.

The table of kernels is walked: what runs in a step of a recipe is recorded, and the step is timed with all kernels and
without each of them. A kernel that gains less than a twentieth of a step in every recipe is not worth its lines.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from unittest.mock import patch

import torch

from anaphor import operations
from anaphor.operations import KERNELS
from anaphor.training.build import build_experiment, build_step
from benchmarks.scaling import find_recipes, locate_data
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, run_steps, time_rounds
from benchmarks.training import OurLoop

RECIPES = {
    "cpu": ("word-language-model-lstm", "word-language-model-transformer", "multi30k-lstm"),
    "cuda": (
        "word-language-model-lstm", "word-language-model-transformer", "wikitext-2-lstm", "wikitext-2-qrnn",
        "wikitext-2-hybrid", "multi30k-lstm", "multi30k-transformer", "cifar-10-90s",
    ),
}  # fmt: skip
"""Together their steps run every kernel that is for training."""
STEPS = {"cpu": 1, "cuda": 50}
"""Steps that are timed together."""
WARM_UP = {"cpu": 1, "cuda": 150}
"""Steps before: on a GPU until those of all shapes are captured as CUDA graphs."""
MIN_RATIO = 1.05


def count_ticks(pairs: int, device: torch.device) -> int:
    return pairs * len(RECIPES[device.type])


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """A finding for each recipe and each kernel that runs in its step."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            finding
            for recipe in RECIPES[device.type]
            for finding in compare_kernels(recipe, Path(folder), pairs, device, partial(tick, recipe))
        ]


def compare_kernels(
    recipe: str, folder: Path, pairs: int, device: torch.device, tick: Callable[[], None]
) -> list[Finding]:
    """Steps with all kernels, and without each one that runs in them. On its data, or drawn data of the same sizes."""
    ((_, spec),) = find_recipes([recipe]).values()
    data, described = locate_data(spec.data, folder)
    build = partial(build_loop, dataclasses.replace(spec, data=data, device=device.type))
    used, count = record_kernels(build()), STEPS[device.type]
    loops = {name: loop_without(name, build()) for name in ("", *used)}
    for step in loops.values():
        run_steps(step, WARM_UP[device.type], device.type == "cuda")
    works = {name: partial(run_steps, step, count, device.type == "cuda") for name, step in loops.items()}
    seconds = time_rounds(works, pairs, tick)
    findings = []
    for name in used:
        times = list(zip(seconds[""], seconds[name], strict=True))
        ratio = estimate_ratio(times)
        with_all, without = (1000 * mean / count for mean in mean_seconds(times))
        findings.append(
            ratio.finding(
                f"{recipe}: a step with the kernel {name}",
                "the same step with the readable code of this operation",
                promise=f"at least {MIN_RATIO} in one of the recipes",
                kept=ratio.value >= MIN_RATIO,
                detail=f"{with_all:.2f} against {without:.2f} ms; {described}",
            )
        )
    return findings


def build_loop(spec: object) -> OurLoop:
    torch.manual_seed(0)
    experiment = build_experiment(spec)
    experiment.model.train()
    return OurLoop(build_step(experiment), cycle(experiment.batches(0)), experiment.initial_carry())


def record_kernels(loop: OurLoop) -> list[str]:
    """The kernels that run in a step, by their names in the table."""
    names, find, chosen = {kernel: name for name, kernel in KERNELS.items()}, operations.find_kernel, set()

    def find_and_record(*arguments: object) -> operations.Kernel | None:
        kernel = find(*arguments)
        chosen.add(kernel)
        return kernel

    with patch.object(operations, "find_kernel", find_and_record):
        loop.step()
    return [name for kernel, name in names.items() if kernel in chosen]


def loop_without(name: str, loop: OurLoop) -> Callable[[], object]:
    """Its step, for which the kernel of that name is not in the table."""

    def step() -> None:
        with hidden_kernel(name):
            loop.step()

    return step


@contextmanager
def hidden_kernel(name: str) -> Iterator[None]:
    entries = {other: kernel for other, kernel in KERNELS.items() if other != name}
    with patch.object(KERNELS, "_entries", entries):
        yield

"""Each kernel against the readable code of its operation, in steps of the recipes that use it.

The table of kernels is walked: which of them run in a step of a recipe is recorded, and the step is timed with all of
them and without each one. A kernel that gains less than a twentieth of a step in every recipe is not worth its lines.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from anaphor import operations
from anaphor.operations import KERNELS, Kernel
from anaphor.training.build import build_experiment, build_step
from anaphor.training.spec import RunSpec
from benchmarks.our_loop import OurLoop
from benchmarks.scaling import find_recipes, locate_data
from benchmarks.timing import Finding, Ratio, estimate_ratio, mean_seconds, run_steps, time_rounds

RECIPES = {
    "cpu": ("word-language-model-lstm", "word-language-model-transformer", "multi30k-lstm"),
    "cuda": (
        "word-language-model-lstm", "word-language-model-transformer", "wikitext-2-lstm", "wikitext-2-qrnn",
        "wikitext-2-hybrid", "multi30k-lstm", "multi30k-transformer", "cifar-10-90s",
    ),
}  # fmt: skip
"""Their steps run all kernels that are for training."""
SMALLER: dict[tuple[str, str], dict[str, Any]] = {("cpu", "multi30k-lstm"): {"batch_size": 16}}
"""Settings of recipes that are made for another device."""
STEPS = {"cpu": 1, "cuda": 50}
"""Steps that are timed together."""
WARM_UP = {"cpu": 1, "cuda": 150}
"""Steps before: on a GPU until those of all shapes are captured as CUDA graphs."""
MIN_RATIO = 1.05


@dataclass(frozen=True)
class Comparison:
    """A step of a recipe with all kernels and without one."""

    recipe: str
    kernel: str
    ratio: Ratio
    detail: str

    def to_finding(self, kept: bool) -> Finding:
        return self.ratio.to_finding(
            f"{self.recipe}: a step with the kernel {self.kernel}",
            "the same step with the readable code of this operation",
            promise=f"at least {MIN_RATIO} in one of the recipes",
            kept=kept,
            detail=self.detail,
        )


def count_ticks(pairs: int, device: torch.device) -> int:
    return pairs * len(RECIPES[device.type])


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """A finding for each recipe and each kernel that runs in its step."""
    with tempfile.TemporaryDirectory() as folder:
        compared = [
            comparison
            for recipe in RECIPES[device.type]
            for comparison in compare_kernels(recipe, Path(folder), pairs, device, partial(tick, recipe))
        ]
    worthwhile = {one.kernel for one in compared if one.ratio.value >= MIN_RATIO}
    return [one.to_finding(kept=one.kernel in worthwhile) for one in compared]


def compare_kernels(
    recipe: str, folder: Path, pairs: int, device: torch.device, tick: Callable[[], None]
) -> list[Comparison]:
    """Steps on the data set of a recipe where it is on this machine, else on drawn data of the same sizes."""
    ((_, spec),) = find_recipes([recipe]).values()
    data, described = locate_data(spec.data, folder)
    changed: Any = {"data": data, "device": device.type, **SMALLER.get((device.type, recipe), {})}
    spec = dataclasses.replace(spec, **changed)
    count, on_gpu, used = STEPS[device.type], device.type == "cuda", record_kernels(build_loop(spec))
    steps = {"": build_loop(spec).step, **{name: step_without(name, build_loop(spec)) for name in used}}
    for step in steps.values():
        run_steps(step, WARM_UP[device.type], on_gpu)
    seconds = time_rounds({name: partial(run_steps, step, count, on_gpu) for name, step in steps.items()}, pairs, tick)
    compared = []
    for name in used:
        times = list(zip(seconds[""], seconds[name], strict=True))
        with_it, without = (1000 * mean / count for mean in mean_seconds(times))
        detail = f"{with_it:.2f} against {without:.2f} ms; {described}"
        compared.append(Comparison(recipe, name, estimate_ratio(times), detail))
    return compared


def build_loop(spec: RunSpec) -> OurLoop:
    torch.manual_seed(0)
    experiment = build_experiment(spec)
    experiment.model.train()
    return OurLoop(build_step(experiment), cycle(experiment.batches(0)), experiment.initial_carry())


def record_kernels(loop: OurLoop) -> list[str]:
    """The kernels that run in a step, by their names in the table."""
    find, chosen = operations.find_kernel, set()

    def find_and_record(*arguments: Any) -> Kernel | None:
        kernel = find(*arguments)
        chosen.add(kernel)
        return kernel

    with patch.object(operations, "find_kernel", find_and_record):
        loop.step()
    return [name for name, kernel in KERNELS.items() if kernel in chosen]


def step_without(name: str, loop: OurLoop) -> Callable[[], object]:
    """Its step, with the readable code in place of this kernel."""

    def step() -> None:
        with hidden_kernel(name):
            loop.step()

    return step


@contextmanager
def hidden_kernel(name: str) -> Iterator[None]:
    """Inside the block a kernel is not in the table."""
    others = {other: kernel for other, kernel in KERNELS.items() if other != name}
    with patch.object(KERNELS, "_entries", others):
        yield

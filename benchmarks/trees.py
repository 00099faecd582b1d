"""This source tree against another one, for example that of the commit before a change: start, and steps of training.

Both run alternately on the same data, each in processes of its own that use the command and `anaphor.train` alone, so
that the trees may differ in everything else. A ratio above one means that this tree is faster.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

import anaphor
from anaphor.errors import ConfigError, DataError
from benchmarks import start, tree_worker
from benchmarks.processes import build_environment
from benchmarks.scaling import find_recipes, locate_data
from benchmarks.timing import Finding, Ratio, estimate_ratio, mean_seconds, time_alternately, time_rounds

PARTS = ("start", "training")
RECIPES = {
    "cpu": ("word-language-model-lstm", "word-language-model-transformer"),
    "cuda": ("word-language-model-lstm", "word-language-model-transformer", "cifar-10-90s"),
}
STEPS = {"cpu": 2, "cuda": 50}
"""Steps that are timed together."""
WARM_UP = {"cpu": 4, "cuda": 100}
"""Steps before: on a GPU until they are captured as a CUDA graph."""
ENDLESS = 1_000_000
"""Steps of a training and between its validations: more than are ever timed."""
MIN_RATIO = 0.95
THIS_TREE = Path(anaphor.__file__).parents[1]


def find_source(folder: Path) -> Path:
    """The folder that contains the package: the one given, or `src` in a repository."""
    for source in (folder, folder / "src"):
        if (source / "anaphor" / "__init__.py").is_file():
            return source.resolve()
    raise ConfigError(f"against={folder}: neither it nor its folder src contains the package anaphor")


def count_ticks(parts: Sequence[str], recipes: Sequence[str], pairs: int, device: torch.device) -> int:
    ticks = {"start": min(pairs, start.ROUNDS), "training": pairs * len(recipes or RECIPES[device.type])}
    return sum(ticks[part] for part in parts)


def measure(
    other: Path, parts: Sequence[str], recipes: Sequence[str], pairs: int, device: torch.device,
    tick: Callable[[str], None],
) -> list[Finding]:  # fmt: skip
    """One finding for each command of `start.py` and for each recipe, or for those named."""
    findings = []
    if "start" in parts:
        findings += compare_start(other, pairs, tick)
    if "training" in parts:
        names = recipes or RECIPES[device.type]
        findings += [compare_training(name, other, pairs, device, partial(tick, name)) for name in names]
    return findings


def compare_start(other: Path, pairs: int, tick: Callable[[str], None]) -> list[Finding]:
    """Seconds of help, and those of small trainings beyond the import of torch, which is the same for both trees."""
    with tempfile.TemporaryDirectory() as folder:
        functions = {("", start.IMPORT): start.import_torch}
        for tree in (THIS_TREE, other):
            commands = start.list_commands(Path(folder) / "run", tree)
            functions |= {(str(tree), command): run for command, run in commands.items()}
        seconds = time_rounds(functions, min(pairs, start.ROUNDS), partial(tick, "start"))
    imported = seconds["", start.IMPORT]
    findings = []
    for command in (*start.HELPS, *start.TRAININGS):
        ours, theirs = seconds[str(THIS_TREE), command], seconds[str(other), command]
        what = f"`anaphor {command}`"
        if command in start.TRAININGS:
            what += f", beyond `{start.IMPORT}`"
            ours, theirs = start.subtract(ours, imported), start.subtract(theirs, imported)
        ratio = estimate_ratio(list(zip(ours, theirs, strict=True)))
        detail = f"medians {statistics.median(ours):.2f} against {statistics.median(theirs):.2f} s"
        findings.append(_describe(what, other, ratio, detail))
    return findings


def compare_training(
    recipe: str, other: Path, pairs: int, device: torch.device, tick: Callable[[], None]
) -> Finding:  # fmt: skip
    """Steps of a recipe on its data set where it is on this machine, else on drawn data of the same sizes."""
    ((task, spec),) = find_recipes([recipe]).values()
    count = STEPS[device.type]
    with tempfile.TemporaryDirectory() as folder:
        data, described = locate_data(spec.data, Path(folder))
        settings = {
            "recipe": recipe, "data": data, "device": device.type, "threads": torch.get_num_threads(),
            "steps": ENDLESS, "eval_every": ENDLESS, "no_test": True,
        }  # fmt: skip
        with (
            steps_of_tree(THIS_TREE, task.name, {**settings, "out": f"{folder}/ours"}) as ours,
            steps_of_tree(other, task.name, {**settings, "out": f"{folder}/theirs"}) as theirs,
        ):
            for run in (ours, theirs):
                run(WARM_UP[device.type])
            times = time_alternately(partial(ours, count), partial(theirs, count), pairs, tick)
    milliseconds = [1000 * seconds / count for seconds in mean_seconds(times)]
    detail = f"{milliseconds[0]:.2f} against {milliseconds[1]:.2f} ms; {described}"
    where = "a GPU" if device.type == "cuda" else "CPU"
    return _describe(f"{recipe}: a step of training on {where}", other, estimate_ratio(times), detail)


@contextmanager
def steps_of_tree(source: Path, task: str, settings: dict[str, object]) -> Iterator[Callable[[int], None]]:
    """A training with the package of a source tree; the function that is yielded lets it do so many steps."""
    argv = [sys.executable, tree_worker.__file__, task, json.dumps(settings)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=build_environment(source)
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def wait() -> None:
            if not answers.readline():
                raise DataError(f"training with the package of {source} ended; what it printed is above")

        def run_steps(count: int) -> None:
            print(count, file=requests, flush=True)
            wait()

        try:
            wait()
            yield run_steps
        finally:
            requests.close()


def _describe(what: str, other: Path, ratio: Ratio, detail: str) -> Finding:
    promise, kept = f"at least {MIN_RATIO}", ratio.value >= MIN_RATIO
    return ratio.to_finding(what, f"the same with {other}", promise=promise, kept=kept, detail=detail)

"""What a token costs when the batch grows, the largest language model that fits, and what more data would cost.

No peer and no target: every recipe is trained for a few steps at multiples of its batch size. Where the data set of a
recipe is not on this machine, data of its sizes are drawn, so that nothing is downloaded.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.config import look_up
from anaphor.data.batches import Stream
from anaphor.data.dataset import LABELED_COLUMNS, SPLITS, TRAIN
from anaphor.data.datasets import NamedDataset, find_dataset
from anaphor.data.tokenizer import Byte
from anaphor.errors import DataError, describe_exception
from anaphor.flags import from_yaml
from anaphor.operations import is_out_of_memory
from anaphor.registry import DATASETS, TASKS
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training.build import build_experiment, build_step
from anaphor.training.device import choose_dtype
from anaphor.training.spec import RunSpec
from anaphor.training.step import CUDAGraphStep, Step
from anaphor.training.task import TaskDefinition, recipes_of
from benchmarks.our_loop import OurLoop, no_dataset
from benchmarks.scaling_report import (
    ACCUMULATE,
    FAILED,
    MIN_PASSES,
    MULTIPLES,
    SAMPLES,
    LargestModel,
    Point,
    RecipeCost,
    Scaling,
)
from benchmarks.timing import measure_seconds, run_steps
from benchmarks.training import VOCABULARY

MIN_SECONDS = {"cpu": 0.0, "cuda": 0.4}
"""`MIN_PASSES` over the batches are timed, and more until so many seconds are over."""
MAX_WARM_UP = 8
"""Passes before, at most: until all steps are captured."""
POINT_SECONDS = 20.0
"""A batch size whose warm-up is predicted to take longer is skipped; after so many seconds no more passes are timed."""
RECIPE_SECONDS, SEARCH_SECONDS = 300.0, 60.0
"""Time limits of all recipes, and of the search for the largest model; what is left then is not measured."""


@dataclass(frozen=True)
class TextShape:
    """Sizes of the train split of a text data set, from which one like it is drawn."""

    rows: int
    words: tuple[float, ...]
    """Mean number of words of a row, in each column of text."""
    vocabulary: tuple[int, ...]
    """Different words of each column."""
    separator: str = " "
    """Between words; empty where the words are single characters."""


@dataclass(frozen=True)
class ImageShape:
    """Sizes of the train split of an image data set."""

    images: int
    size: int
    classes: int


SHAPES: dict[str, TextShape | ImageShape] = {
    "wikitext-2": TextShape(36_718, (55.9,), (33_277,)),
    "tinyshakespeare": TextShape(35_526, (27.3,), (65,), separator=""),
    "multi30k": TextShape(29_000, (11.9, 11.1), (15_456, 24_889)),
    "sst2": TextShape(6_920, (19.3,), (16_248,)),
    "cifar-10": ImageShape(45_000, 32, 10),
}
"""As counted in the data sets themselves."""
HELD_OUT = 100
"""Rows of valid and test of drawn data: they are not read, but a data set has them."""


@dataclass(frozen=True)
class Search:
    """Family of language models: so many layers and heads, and a width of `head_width` for each of them."""

    largest: int
    """Most layers that are tried."""
    head_width: int
    rows: int
    context: int
    vocabulary: int
    steps: int
    """Updates that are timed together."""


SEARCHES = {
    "cuda": Search(largest=63, head_width=128, rows=1, context=1024, vocabulary=VOCABULARY, steps=4),
    "cpu": Search(largest=3, head_width=32, rows=1, context=64, vocabulary=1000, steps=1),
}
"""On a GPU the aspect of GPT-3 6.7B, which has 32 layers of width 4,096; on a CPU a small one, to try it out."""


def find_recipes(names: Sequence[str] = ()) -> dict[str, tuple[TaskDefinition, RunSpec]]:
    """The recipes of all tasks, or those named."""
    paths = {name: (TASKS[task], path) for task in TASKS for name, path in recipes_of(TASKS[task]).items()}
    chosen = {name: look_up(paths, name, "recipe") for name in names or paths}
    return {name: (task, from_yaml(task.run_spec, path)) for name, (task, path) in chosen.items()}


def count_ticks(recipes: Sequence[str], device: torch.device) -> int:
    return len(find_recipes(recipes)) * len(MULTIPLES) + SEARCHES[device.type].largest.bit_length()


def measure(recipes: Sequence[str], device: torch.device, tick: Callable[[str], None]) -> Scaling:
    """All recipes, or those named, at all batch sizes; then the largest model."""
    with tempfile.TemporaryDirectory(prefix="anaphor-scaling-") as folder:
        costs, left_out = measure_recipes(find_recipes(recipes), device, Path(folder), tick)
    return Scaling(costs, find_largest(SEARCHES[device.type], device, tick), left_out)


def measure_recipes(
    recipes: Mapping[str, tuple[TaskDefinition, RunSpec]],
    device: torch.device,
    folder: Path,
    tick: Callable[[str], None],
) -> tuple[list[RecipeCost], dict[str, str]]:
    """Costs of all recipes, and why some were left out. Small batches of all come first: if the time runs out, large
    ones are missing. Data that must be drawn are written into the folder."""
    costs: dict[str, RecipeCost] = {}
    specs: dict[str, RunSpec] = {}
    warm_ups: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, (task, spec) in recipes.items():
        try:
            path, described = locate_data(spec.data, folder)
        except DataError as error:
            left_out[name] = str(error)
            continue
        specs[name] = replace(spec, data=path, device=device.type)
        dtype = str(choose_dtype(spec.dtype, device)).removeprefix("torch.")
        given = {budget: getattr(spec, budget) for budget in ("epochs", "steps", "minutes")}
        budget = {key: value for key, value in given.items() if value is not None}
        costs[name] = RecipeCost(
            name, task.name, task.unit, described, dtype, budget or {"epochs": spec.default_epochs}
        )
    end = time.monotonic() + RECIPE_SECONDS
    for multiple in MULTIPLES:
        for name in recipes:
            tick(f"{name}, {multiple} × the batch")
            if name not in costs:
                continue
            cost, rows = costs[name], multiple * specs[name].batch_size
            reason = ""
            if cost.points and cost.points[-1].reason:
                reason = cost.points[-1].reason  # a larger batch will not do what a smaller one does not
            elif 2 * warm_ups.get(name, 0.0) > POINT_SECONDS:
                reason = "too slow"
            elif time.monotonic() > end:
                reason = "no time left"
            if reason:
                cost.points.append(Point(multiple, rows, reason=reason))
                continue
            point, warm_ups[name] = measure_point(replace(specs[name], batch_size=rows), multiple, cost, device)
            cost.points.append(point)
    return list(costs.values()), left_out


def locate_data(name: str, folder: Path) -> tuple[str, str]:
    """Where data are, and a description: the data set itself where it is on this machine, else one that is drawn."""
    if name not in DATASETS:
        return name, name
    entry = find_dataset(name)
    if all(file.find() is not None for file in entry.files):
        return name, name
    if name not in SHAPES:
        raise DataError(f"the data set {name} is not on this machine: get it by `anaphor data get {name}`")
    path = folder / name
    if not path.exists():
        path.mkdir()
        draw_data(entry, SHAPES[name], path)
    images = path / "images.npz"
    return str(images if images.is_file() else path), f"drawn at random in the sizes of {name}"


def draw_data(entry: NamedDataset, shape: TextShape | ImageShape, folder: Path) -> None:
    """Write a data set of these sizes, in a form that `--data` reads."""
    random = np.random.default_rng(0)
    if isinstance(shape, ImageShape):
        arrays: dict[str, Any] = {}
        for split in SPLITS:
            count = shape.images if split == TRAIN else HELD_OUT
            arrays[f"x_{split}"] = random.integers(0, 256, (count, shape.size, shape.size, 3), np.uint8)
            arrays[f"y_{split}"] = np.arange(count) % shape.classes
        np.savez(folder / "images.npz", **arrays)
        return
    columns = [
        draw_lines(shape.rows, words, vocabulary, shape.separator, random)
        for words, vocabulary in zip(shape.words, shape.vocabulary, strict=True)
    ]
    if entry.columns == LABELED_COLUMNS:
        rows = zip(columns[0], random.integers(0, 2, shape.rows).tolist(), strict=True)
        columns = [[f"{text}\t{label}" for text, label in rows]]
        endings: Sequence[str] = ("tsv",)
    else:
        endings = entry.open().languages or ("txt",)
    for split in SPLITS:
        for ending, lines in zip(endings, columns, strict=True):
            header = ["text\tlabel"] if ending == "tsv" else []
            some = lines if split == TRAIN else lines[:HELD_OUT]
            (folder / f"{split}.{ending}").write_text("\n".join([*header, *some, ""]), encoding="utf-8")


def draw_lines(rows: int, words: float, vocabulary: int, separator: str, random: np.random.Generator) -> list[str]:
    """Rows of words whose frequencies follow Zipf's law; each word of the vocabulary occurs."""
    lengths = 1 + random.poisson(words - 1, rows)
    weights = 1 / np.arange(1, vocabulary + 1)
    ranks = random.choice(vocabulary, max(lengths.sum(), vocabulary), p=weights / weights.sum())
    ranks[:vocabulary] = np.arange(vocabulary)
    random.shuffle(ranks)
    spelled = [np.base_repr(rank, 36).lower() if separator else chr(ord("!") + rank) for rank in range(vocabulary)]
    ends = np.cumsum(lengths)
    return [
        separator.join(spelled[rank] for rank in ranks[end - length : end])
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]


def measure_point(spec: RunSpec, multiple: int, cost: RecipeCost, device: torch.device) -> tuple[Point, float]:
    """A recipe at one batch size, and the seconds of its warm-up. The first one also fills in the sizes of the
    recipe."""
    release_memory(device)
    point_at = partial(Point, multiple, spec.batch_size)
    try:
        rate, spread, warm_up = time_steps(spec, cost, device)
    except DataError as error:
        return point_at(reason=str(error)), 0.0
    except Exception as error:  # noqa: BLE001 (what the others measured is not lost with it)
        if is_out_of_memory(error):
            return point_at(reason="does not fit"), 0.0
        return point_at(reason=f"{FAILED}: {describe_exception(error, '')[:200]}"), 0.0
    return point_at(rate, spread, read_peak_memory(device)), warm_up


def time_steps(spec: RunSpec, cost: RecipeCost, device: torch.device) -> tuple[float, float | None, float]:
    """Items per second, the spread of passes where there are several, and the seconds of the warm-up."""
    experiment = build_experiment(spec)
    experiment.model.train()
    epoch = list(experiment.batches(0))
    if not cost.items_per_epoch:
        cost.parameters = sum(weight.numel() for weight in experiment.model.parameters())
        cost.items_per_epoch = sum(batch.count for batch in epoch)
        cost.batches_per_epoch = len(epoch) / spec.accumulate
    batches = sample_batches(epoch, spec.batch_size, SAMPLES[device.type])
    loop = OurLoop(build_step(experiment), cycle(batches))
    run = partial(run_steps, loop.step, len(batches), device.type == "cuda")
    warm_up = measure_seconds(partial(run_until_captured, run, loop.step_once))
    times = [measure_seconds(run)]
    while is_short(times, device) and warm_up + sum(times) < POINT_SECONDS:
        times.append(measure_seconds(run))
    mean = statistics.fmean(times)
    spread = max(abs(one / mean - 1) for one in times) if len(times) > 1 else None
    return sum(batch.count for batch in batches) / mean, spread, warm_up


def is_short(times: Sequence[float], device: torch.device) -> bool:
    """Whether more passes are to be timed."""
    return len(times) < MIN_PASSES[device.type] or sum(times) < MIN_SECONDS[device.type]


def run_until_captured(run: Callable[[], object], step: Step) -> None:
    """Passes over the batches until all steps are captured, and a carried state has its full size."""
    for _ in range(MAX_WARM_UP):
        before = count_uncaptured(step)
        run()
        if count_uncaptured(step) == before:
            return


def count_uncaptured(step: Step) -> int:
    """Steps so far that were not replays of a graph; none where steps are not captured."""
    return sum(step.captured.seen.values()) if isinstance(step, CUDAGraphStep) else 0


def sample_batches(batches: Sequence[Any], rows: int, count: int) -> list[Any]:
    """Batches at even distances from the smallest to the largest one, so that their mean is that of an epoch. Batches
    with fewer rows are left out, and those that start a stream, whose state would have to grow again."""
    later = [batch for batch in batches if not getattr(batch, "restarts", False)] or list(batches)
    full = [batch for batch in later if len(tensors_of_batch(batch)[0]) == rows] or later
    full.sort(key=lambda batch: sum(tensor.numel() for tensor in tensors_of_batch(batch)))
    count = min(count, len(full))
    return [full[int((number + 0.5) * len(full) / count)] for number in range(count)]


def tensors_of_batch(batch: Any) -> list[Tensor]:
    return [value for value in vars(batch).values() if isinstance(value, Tensor)]


def release_memory(device: torch.device) -> None:
    """Free what the measurement before has left on a GPU, and start its peak anew."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def read_peak_memory(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None


def find_largest(search: Search, device: torch.device, tick: Callable[[str], None]) -> LargestModel | None:
    """The model with most layers that fits, by bisection; None where not even one layer does."""
    fits, fails = 0, search.largest + 1
    found: LargestModel | None = None
    end, bound = time.monotonic() + SEARCH_SECONDS, ""
    while fails - fits > 1:
        if time.monotonic() > end:
            bound = "the time limit of the search"
            break
        layers = (fits + fails) // 2
        tick(f"largest model: {layers} layers")
        release_memory(device)
        model = try_model(search, layers, device)
        fits, fails, found = (fits, layers, found) if model is None else (layers, fails, model)
    bound = bound or ("the most layers that are tried" if fits == search.largest else "memory")
    return None if found is None else replace(found, bound=bound)


def try_model(search: Search, layers: int, device: torch.device) -> LargestModel | None:
    """Train a model for a few steps; None where it does not fit."""
    try:
        return time_model(search, layers, device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            return None
        raise


def time_model(search: Search, layers: int, device: torch.device) -> LargestModel:
    """Plain steps: kernels are so long that a graph would save nothing."""
    spec = LanguageRunSpec(
        model="gpt2", layers=layers, heads=layers, width=layers * search.head_width, max_positions=search.context,
        dropout=0.0, batch_size=search.rows, bptt=search.context, carry=False, optimizer="adamw", dtype="bfloat16",
        cuda_graph=False, device=device.type,
    )  # fmt: skip
    with device:  # initial weights are drawn there: on the CPU that would take minutes
        model = spec.model_spec(vocabulary=search.vocabulary).build()
        tokens = torch.randint(search.vocabulary, (search.rows * (search.context + 1),))
    experiment = StreamExperiment(spec, model.train(), Byte(), no_dataset, device=device)
    step = build_step(experiment)
    (batch,) = Stream(tokens, search.rows, search.context)
    run = partial(run_steps, partial(step, [batch], None), search.steps, device.type == "cuda")
    accumulated = partial(run_steps, partial(step, [batch] * ACCUMULATE, None), 1, device.type == "cuda")
    run()
    seconds = measure_seconds(run)
    accumulated_seconds = measure_seconds(accumulated)
    return LargestModel(
        layers,
        layers * search.head_width,
        sum(weight.numel() for weight in model.parameters()),
        search.rows,
        search.context,
        search.vocabulary,
        tokens_per_second=search.steps * batch.count / seconds,
        tokens_per_second_accumulated=ACCUMULATE * batch.count / accumulated_seconds,
        peak_memory=read_peak_memory(device),
    )

"""Results of the benchmark of scaling: costs, hours on paper, the table, the page and the figure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from anaphor.cli.table import print_table
from anaphor.draw import line_style, new_figure, save_all, set_log_ticks, set_ticks

MULTIPLES = (1, 2, 4, 8, 16)
"""Batch sizes, relative to that of the recipe."""
SAMPLES = {"cpu": 1, "cuda": 8}
"""Batches of an epoch that are trained on, again and again."""
MIN_PASSES = {"cpu": 2, "cuda": 3}
"""Passes over them that are timed, unless they take too long."""
FAILED = "failed"
"""How the reason of a point begins whose step raised an error other than missing memory."""
MORE_DATA = 100
"""Factor of the data in the estimates on paper."""
TITLES = {"lm": "language models", "translate": "translation", "classify": "text classification"}
"""Titles of panels, where the name of the task is no word for it."""
WIKITEXT_2_TOKENS = 2_088_628
TOKENS_PER_PARAMETER = 20
ACCUMULATE = 8
"""Batches per update in the second timing of the largest model."""


@dataclass(frozen=True)
class Point:
    """A recipe at one batch size."""

    multiple: int
    batch_size: int
    items_per_second: float | None = None
    """None where it was not measured."""
    spread: float | None = None
    """Largest deviation of the time of one pass from the mean, relative to it; None where there was one pass."""
    peak_memory: float | None = None
    """Largest memory of all tensors on the GPU in GB; None on a CPU."""
    reason: str = ""
    """Why it was not measured."""

    @property
    def seconds_per_million(self) -> float | None:
        return None if self.items_per_second is None else 1e6 / self.items_per_second


@dataclass
class RecipeCost:
    """A recipe at all batch sizes."""

    recipe: str
    task: str
    unit: str
    """What a task counts: tokens, images or sentences."""
    data: str
    """Name of the data set, or what was drawn in place of it."""
    dtype: str
    budget: dict[str, float]
    """Epochs, steps or minutes of the recipe."""
    parameters: int = 0
    items_per_epoch: int = 0
    batches_per_epoch: float = 0.0
    """Batches that an update takes one of, or several with gradient accumulation."""
    points: list[Point] = field(default_factory=list)

    def relative_cost(self, point: Point) -> float | None:
        """Cost of an item relative to that at the recipe's own batch size."""
        first = self.points[0].items_per_second
        return None if first is None or point.items_per_second is None else first / point.items_per_second

    @property
    def cheapest(self) -> Point | None:
        measured = [point for point in self.points if point.items_per_second is not None]
        return max(measured, key=lambda point: point.items_per_second or 0.0, default=None)

    def estimate(self) -> dict[str, float] | None:
        """Hours on paper, from the measured speed alone; None where the recipe's own batch size was not measured."""
        own, best = self.points[0].items_per_second, self.cheapest
        if own is None or best is None or best.items_per_second is None:
            return None
        if "minutes" in self.budget:
            epochs = 60 * self.budget["minutes"] * own / self.items_per_epoch
        elif "steps" in self.budget:
            epochs = self.budget["steps"] / self.batches_per_epoch
        else:
            epochs = self.budget["epochs"]
        hours = self.items_per_epoch / own / 3600
        best_hours = self.items_per_epoch / best.items_per_second / 3600
        return {
            "epochs": epochs,
            "hours": epochs * hours,
            "hours_more_data": MORE_DATA * epochs * hours,
            "hours_more_data_one_epoch": MORE_DATA * hours,
            "cheapest_multiple": best.multiple,
            "hours_more_data_cheapest": MORE_DATA * epochs * best_hours,
            "hours_more_data_one_epoch_cheapest": MORE_DATA * best_hours,
        }

    def to_plain(self) -> dict[str, Any]:
        points = [
            {
                **dataclasses.asdict(point),
                "seconds_per_million": point.seconds_per_million,
                "relative_cost": self.relative_cost(point),
            }
            for point in self.points
        ]
        return {**vars(self), "points": points, "estimate": self.estimate()}


@dataclass(frozen=True)
class LargestModel:
    """A language model that trains with AdamW on one device."""

    layers: int
    width: int
    parameters: int
    rows: int
    context: int
    vocabulary: int
    tokens_per_second: float
    """With an update after each batch."""
    tokens_per_second_accumulated: float
    """With an update after several batches."""
    peak_memory: float | None
    """GB; None on a CPU."""
    bound: str = ""
    """What ended the search: memory, the most layers that are tried, or the time."""

    def teraflops(self, tokens_per_second: float) -> float:
        return 6 * self.parameters * tokens_per_second / 1e12

    def estimate(self) -> dict[str, float]:
        """Hours on paper, at the speed with accumulated batches."""
        rate = self.tokens_per_second_accumulated
        return {
            "hours_more_data": MORE_DATA * WIKITEXT_2_TOKENS / rate / 3600,
            "hours_compute_optimal": TOKENS_PER_PARAMETER * self.parameters / rate / 3600,
        }

    def to_plain(self) -> dict[str, Any]:
        return {
            **vars(self),
            "teraflops": self.teraflops(self.tokens_per_second),
            "teraflops_accumulated": self.teraflops(self.tokens_per_second_accumulated),
            "estimate": self.estimate(),
        }


@dataclass(frozen=True)
class Scaling:
    """All that was measured."""

    costs: list[RecipeCost]
    largest: LargestModel | None
    left_out: dict[str, str]
    """Recipes that could not be built, each with the reason."""

    @property
    def failed(self) -> bool:
        """Whether a step raised an error."""
        return any(point.reason.startswith(FAILED) for cost in self.costs for point in cost.points)

    def to_plain(self) -> dict[str, Any]:
        return {
            "recipes": [cost.to_plain() for cost in self.costs],
            "largest_model": None if self.largest is None else self.largest.to_plain(),
            "left_out": self.left_out,
        }


def print_report(console: Console, scaling: Scaling) -> None:
    """Print the costs, what was left out, and the largest model."""
    print_table(console, build_table(scaling))
    for name, reason in scaling.left_out.items():
        console.print(f"{name} is left out: {reason}")
    if (model := scaling.largest) is not None:
        console.print(
            f"largest model: {model.parameters:,} parameters, {model.tokens_per_second_accumulated:,.0f} tokens/s"
        )


def build_table(scaling: Scaling) -> Table:
    """Seconds per million items at each batch size."""
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe")
    table.add_column("seconds per million")
    for multiple in MULTIPLES:
        table.add_column(f"{multiple} ×", justify="right")
    for cost in scaling.costs:
        values = [point.reason or format_number(point.seconds_per_million) for point in cost.points]
        table.add_row(cost.recipe, cost.unit, *values)
    return table


def write_report(out: Path, scaling: Scaling, machine: Mapping[str, str | int], command: str) -> list[Path]:
    """Write scaling.md, scaling.json and, where anything was measured, scaling.png. Returns their paths."""
    figure = draw_figure(scaling, out / "scaling.png")
    plain = {"command": command, "machine": machine, **scaling.to_plain()}
    (out / "scaling.md").write_text(render_page(scaling, machine, command, figure), encoding="utf-8")
    (out / "scaling.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return [*([figure] if figure else []), out / "scaling.md", out / "scaling.json"]


def draw_figure(scaling: Scaling, path: Path) -> Path | None:
    """Cost against batch size, a panel for each task; None where nothing was measured."""
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    units: dict[str, str] = {}
    for cost in scaling.costs:
        points = [(point.multiple, point.seconds_per_million) for point in cost.points]
        measured = [(float(x), y) for x, y in points if y is not None]
        if measured:
            x, y = map(list, zip(*measured, strict=True))
            title = TITLES.get(cost.task, cost.task)
            panels.setdefault(title, {})[cost.recipe] = (x, y)
            units[title] = f"seconds per million {cost.unit}"
    if not panels:
        return None
    return curve_panels(panels, path, x_label="batch size, relative to that of the recipe", y_labels=units)


def format_number(value: float | None) -> str:
    """Three digits, no exponent: 0.0123, 1.23, 12.3, 123, 1,230."""
    if value is None:
        return "–"
    rounded = float(f"{value:.3g}")
    digits = 2 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(0, digits)}f}"


def format_budget(cost: RecipeCost) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in cost.budget.items())


def render_page(scaling: Scaling, machine: Mapping[str, str | int], command: str, figure: Path | None) -> str:
    """Tables of costs, the largest model and hours on paper, with command and machine."""
    details = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    parts = [
        "# Scaling",
        (
            "What training costs when the batch grows, measured; the largest language model that fits; and, on paper, "
            "what more data would cost. Training steps alone: without validation, weight averaging and start. Each "
            f"point: on a GPU up to {SAMPLES['cuda']} batches spread over an epoch from the smallest to the largest, "
            "after all steps are captured and a carried state has its full size, in at least "
            f"{MIN_PASSES['cuda']} passes; on a CPU {SAMPLES['cpu']} batch of middle size in {MIN_PASSES['cpu']} "
            "passes after one more; fewer passes where they are slow. Speed only: no model was trained to its end, "
            "and a larger batch may need other settings to learn as much."
        ),
        f"- command: `{command}`\n{details}",
        "## Recipes",
        _table(
            ("recipe", "task", "parameters", "precision", "items per epoch", "data"),
            [
                (
                    cost.recipe, cost.task, f"{cost.parameters:,}" if cost.parameters else "–", cost.dtype,
                    f"{cost.items_per_epoch:,} {cost.unit}" if cost.items_per_epoch else "–", cost.data,
                )
                for cost in scaling.costs
            ],
        ),
    ]  # fmt: skip
    if scaling.left_out:
        parts.append("\n".join(f"- {name} is left out: {reason}" for name, reason in scaling.left_out.items()))
    parts += [
        "## Cost against batch size",
        (
            "The cost is relative to that at the recipe's own batch size: below one, an item is cheaper in a larger "
            "batch. The spread is the largest deviation of one timed pass from their mean. Peak memory is "
            "that of all tensors on the GPU, data included."
        ),
        _table(
            ("recipe", "batch size", "items/s", "seconds per million items", "cost", "spread", "peak memory, GB"),
            [row for cost in scaling.costs for row in _point_rows(cost)],
        ),
    ]
    if figure is not None:
        parts.append(f"![Seconds per million items against the batch size]({figure.name})")
    parts += ["## The largest model", _describe_largest(scaling.largest), "## On paper", *_describe_estimates(scaling)]
    return "\n\n".join(parts) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _point_rows(cost: RecipeCost) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for point in cost.points:
        size = f"{point.batch_size:,} ({point.multiple} ×)"
        if point.items_per_second is None:
            rows.append((cost.recipe, size, point.reason, "–", "–", "–", "–"))
            continue
        relative = cost.relative_cost(point)
        values = map(format_number, (point.seconds_per_million, relative))
        spread = "–" if point.spread is None else f"{100 * point.spread:.1f} %"
        speed = f"{point.items_per_second:,.0f} {cost.unit}/s"
        rows.append((cost.recipe, size, speed, *values, spread, format_number(point.peak_memory)))
    return rows


def _describe_largest(model: LargestModel | None) -> str:
    if model is None:
        return "No model of the family fits."
    memory = "" if model.peak_memory is None else f" Peak memory {format_number(model.peak_memory)} GB."
    rows = [
        (f"{batches}", f"{rate:,.0f}", format_number(model.teraflops(rate)))
        for batches, rate in ((1, model.tokens_per_second), (ACCUMULATE, model.tokens_per_second_accumulated))
    ]
    return (
        f"A GPT of **{model.parameters:,} parameters**: {model.layers} layers and heads, width {model.width:,} "
        f"({model.width // model.layers} per layer), vocabulary {model.vocabulary:,}, tied. AdamW, autocast to "
        f"bfloat16 with weights, gradients and moments in float32, no activation checkpointing, {model.rows} × "
        f"{model.context:,} tokens per batch, plain steps.{memory} The search ended at: {model.bound}.\n\n"
        + _table(("batches per update", "tokens/s", "TFLOP/s = 6 · parameters · tokens/s / 10¹²"), rows)
    )


def _describe_estimates(scaling: Scaling) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for cost in scaling.costs:
        paper = cost.estimate()
        if paper is None:
            rows.append((cost.recipe, format_budget(cost), *["–"] * 7))
            continue
        rows.append((
            cost.recipe, format_budget(cost), format_number(paper["epochs"]), format_number(paper["hours"]),
            format_number(paper["hours_more_data"]), format_number(paper["hours_more_data_one_epoch"]),
            f"{paper['cheapest_multiple']:g} ×", format_number(paper["hours_more_data_cheapest"]),
            format_number(paper["hours_more_data_one_epoch_cheapest"]),
        ))  # fmt: skip
    parts = [
        (
            f"Hours on this machine = factor of the data · epochs · items per epoch / (items per second) / 3600, with "
            f"the factor 1 for the recipe as it is and {MORE_DATA} for {MORE_DATA} × the data. Epochs are those of "
            "the recipe; of a budget in steps, steps / steps per epoch; of one in minutes, 60 · minutes · items per "
            "second / items per epoch, as if all of them were spent on training steps. The vocabulary and the model "
            "stay as they are. The last columns have the speed of the batch size whose items are cheapest."
        ),
        _table(
            (
                "recipe", "budget", "epochs", "hours", f"{MORE_DATA} × the data", f"{MORE_DATA} × the data, one epoch",
                "cheapest batch", f"{MORE_DATA} × the data there", f"{MORE_DATA} × the data there, one epoch",
            ),
            rows,
        ),
    ]  # fmt: skip
    if scaling.largest is not None:
        hours = scaling.largest.estimate()
        tokens = TOKENS_PER_PARAMETER * scaling.largest.parameters
        parts.append(
            f"The largest model, with {ACCUMULATE} batches per update, hours = tokens / (tokens per second) / 3600: "
            f"{format_number(hours['hours_more_data'])} hours for one pass over {MORE_DATA} × WikiText-2 "
            f"({MORE_DATA * WIKITEXT_2_TOKENS:,} tokens), {format_number(hours['hours_compute_optimal'])} hours for "
            f"{TOKENS_PER_PARAMETER} tokens per parameter ({tokens:,} tokens)."
        )
    return parts


def curve_panels(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    path: Path,
    *,
    x_label: str,
    y_labels: Mapping[str, str],
) -> Path:
    """Named lines (x, y) in panels, two side by side, each with its own scale and legend; both axes logarithmic."""
    across = min(2, len(panels))
    ticks = sorted({value for series in panels.values() for x, _ in series.values() for value in x})
    lines = -(-len(panels) // across)
    figure = new_figure(4.5 * across + 0.3, 4.2 * lines)
    axes = list(figure.subplots(lines, across, squeeze=False).flat)
    for one, (title, series) in zip(axes, panels.items(), strict=False):
        for number, (name, (x, y)) in enumerate(series.items()):
            one.plot(x, y, label=name, markersize=5, **line_style(number))
        one.set_title(title, fontsize=10)
        one.set(xlabel=x_label, ylabel=y_labels[title], xscale="log", yscale="log")
        set_ticks(one.xaxis, ticks)
        low, high = one.get_ylim()
        if high < 3 * low:  # equal values would look different on a scale of their noise
            middle = math.sqrt(low * high)
            one.set_ylim(middle / math.sqrt(3), middle * math.sqrt(3))
        set_log_ticks(one.yaxis)
        one.grid(alpha=0.3)
        one.legend(
            frameon=False,
            fontsize=8,
            handlelength=2.8,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
            ncols=2,
            columnspacing=1,
        )
    for one in axes[len(panels) :]:
        one.set_axis_off()
    save_all(figure, [path], "")
    return path

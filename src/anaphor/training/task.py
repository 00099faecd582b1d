"""What a task says of itself: settings, metrics, models, recipes, and what builds its experiment. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any

from anaphor.config import compose_spec, look_up
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric, format_values
from anaphor.registry import CALLBACKS, TASKS, extra_settings, extras_of
from anaphor.shipped_files import files_by_name
from anaphor.training.spec import RunSpec


class StudySupport:
    """How a study compares runs of a task. The defaults suit a task whose values on the same data are comparable.

    A `result` is that of one split as plain values, as `result.json` has it.
    """

    options: type | None = None
    """Settings of `TaskDefinition.measure`, a dataclass; its fields are keys of a study file. `measure` gets them as
    `wanted` and returns, where it has them: `columns`, results by name, for the table; `numbers`, by name, likewise;
    `tables`, by name, each with `axes`, `rows` (a value for each axis, and a result) and a `remark`; and `losses`, the
    name of a safetensors file in the folder with the `losses` of single items and the numbers of their `lines`."""
    metric: str | None = None
    """Metric that settings are compared by unless a study names one. None: the task's first."""

    def data_key(self, spec: RunSpec) -> Any:
        """Settings that decide which data are read, hashable; specs with the same key have the same digests."""
        return replace(spec, seed=0)

    def open_data(self, spec: RunSpec) -> Any:
        """The data set of a run, for the digests of its splits. None: as the experiment's fingerprint says."""
        return None

    def validate(self, spec: RunSpec, metric: Metric, *, names_only: bool = False) -> None:
        """Raise ConfigError for settings that could not be run, or have no such metric, without opening data. Of a
        search only names are checked, because its settings are not known yet."""

    def validate_longer(self, spec: RunSpec) -> None:
        """Raise ConfigError for settings with which the task's `evaluate_longer` does not work."""

    def validate_search(self, changed: set[str], metric: Metric) -> None:
        """Raise ConfigError where a search must not vary these settings, because values would not be comparable."""
        if "data" in changed:
            raise ConfigError("it changes the data: give each data set its own study")

    def value(self, result: Mapping[str, Any], metric: Metric) -> float | None:
        """Value of a metric; None where it was not measured."""
        value = result.get(metric.name)
        return None if value is None else float(value)

    def missing_reason(self, result: Mapping[str, Any], metric: Metric) -> str:
        """Why a result has no value of a metric."""
        return f"the result has no {metric.name}"

    def exclusion(self, spec: RunSpec, metric: Metric) -> str:
        """Why a run is never ranked; empty where it may be."""
        return ""

    def unit(self, spec: RunSpec, digests: Mapping[str, str], result: Mapping[str, Any], metric: Metric) -> Any:
        """Values of a metric are comparable where this is equal."""
        return digests.get("valid")

    def difference_reason(self, units: set[Any], results: Sequence[Mapping[str, Any]], metric: Metric) -> str:
        """Why values with different units are not comparable."""
        return "the settings are evaluated on different data: give each data set its own study"


@dataclass(frozen=True)
class ModelRow:
    """A model preset in the table of `anaphor models`."""

    plain: Mapping[str, Any]
    """As JSON."""
    text: Mapping[str, str]
    """Columns of text by heading."""
    numbers: Mapping[str, str]
    """Columns of numbers by heading, after those of text."""
    remark: str = ""
    """Line below the table."""
    notes: tuple[str, ...] = ()
    """Lines below it that are about this model."""


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """What a task says of itself. The command line, studies, curves and reports go by this alone."""

    name: str
    """What `train` calls it."""
    spec: type[RunSpec]
    """Settings of a run, in sections, without those of extras; see `run_spec`."""
    metrics: tuple[Metric, ...]
    """What is measured; the first one selects the best checkpoint unless `--select` names another."""
    build: str | Callable[..., Any]
    """`(spec, saved=None, data_path=None) -> Experiment`, or "module:function"."""
    columns: tuple[str, ...] = ()
    """Columns of the data sets it reads, such as ("text",); empty where it has no data sets by name."""
    unit: str = "examples"
    """What throughput counts, in the plural."""
    describe: Callable[[Mapping[str, Any]], list[str]] | None = None
    """Lines for people about a result of one split, given as plain values. None: all metrics and the signature."""
    evaluate: str | None = None
    """Options of its own for `evaluate`, as "module:class"."""
    look: str | None = None
    """Options of `look` and what it shows, as "module:class"."""
    predict: str | None = None
    """Inputs and options of `predict`, as "module:class"."""
    models: str | None = None
    """What `models` shows of a preset, as "module:function": `(name, vocabulary, tokens) -> ModelRow`."""
    measure: str | Callable[..., Any] | None = None
    """What a study measures as well: `(experiment, folder, split, wanted) -> dict`, see `StudySupport.options`."""
    evaluate_longer: str | Callable[..., Any] | None = None
    """Evaluates a split on examples, or segments, that are longer than those of training, for `accuracy_2x` in the
    `report` of a study: `(experiment, split, factor) -> Result`, or None where the model cannot, or "module:function".
    None: the task has no length."""
    study: str | StudySupport | None = None
    """How a study compares runs, or "module:object". None: values on the same data are compared as they are."""
    page: Mapping[str, str] = field(default_factory=dict)
    """What the live page shows of its models, "module:function" by verb (see `anaphor.web.inference.VERBS`): look,
    tokens, passages, continue."""
    items: str | None = None
    """What passages of two runs are compared by, before they are scored, as "module:function":
    `(experiment, split) -> SplitLosses` without losses."""
    interchange: str | None = None
    """How it takes and gives pretrained models, as "module:object"; see `training.pretrained.Interchange`."""
    recipes: Path | None = None
    """Folder of recipes, YAML files of settings that are known to work."""
    extras: tuple[str, ...] = ()
    """Kinds of extras that its experiment asks for, see `registry.EXTRAS`."""
    counted: InitVar[str | None] = None
    """What `unit` was called before."""

    def __post_init__(self, counted: str | None) -> None:
        if counted is not None:
            raise ConfigError(f"task {self.name!r}: counted={counted!r} is now unit={counted!r}")
        if not self.metrics:
            raise ConfigError(f"task {self.name!r} has no metrics: name at least one")
        if getattr(self.spec, "task", self.name) != self.name:
            raise ConfigError(f"task {self.name!r} has the spec of the task {self.spec.task!r}")
        self.spec.task = self.name

    @property
    def run_spec(self) -> type[RunSpec]:
        """The settings of a run: `spec` and the settings of the extras that are registered for this task."""
        for kind, extra in extras_of(self.name):
            if kind not in self.extras and kind != CALLBACKS.kind:  # these are the loop's
                raise ConfigError(
                    f"{kind} {extra.name!r} is registered for `train {self.name}`, which takes no such extra "
                    f"(it takes: {', '.join(self.extras) or 'none'})"
                )
        declared: Any = self.spec
        composed: type[RunSpec] = compose_spec(declared, extra_settings(self.name))
        return composed

    def describe_split(self, split: str, result: Mapping[str, Any]) -> list[str]:
        """Lines for people about the result of a split; the first one has all metrics and the signature."""
        if self.describe is None:
            return [f"{split}: {format_values(self.metrics, result)} ({result['signature']})"]
        first, *others = self.describe(result)
        return [f"{split}: {first}", *(f"  {line}" for line in others)]


def recipes_of(task: TaskDefinition) -> dict[str, Path]:
    """The recipes of a task by name."""
    return {} if task.recipes is None else files_by_name(task.recipes, ".yaml")


def recipe_file(name: str, task: TaskDefinition) -> Path:
    """The file of a recipe; an unknown name is refused with the known ones."""
    recipes = recipes_of(task)
    for other in TASKS:
        if name not in recipes and name in recipes_of(TASKS[other]):
            listed = ", ".join(recipes) or "none"
            raise ConfigError(
                f"recipe {name!r} is for `train {other}`, not for `train {task.name}` (known there: {listed})"
            )
    return look_up(recipes, name, "recipe")

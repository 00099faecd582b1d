"""All that makes a training run: a flat spec in sections, and what a task says of itself. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from anaphor.config import check_at_least_one, compose_spec, look_up, read_mapping, section_of, settings_of
from anaphor.errors import ConfigError
from anaphor.flags import from_yaml
from anaphor.metrics.result import Metric, format_values
from anaphor.registry import CALLBACKS, TASKS, extra_settings, extras_of, model_settings
from anaphor.typecheck import check_types

DTYPES = {"auto": "bfloat16 on a GPU, else float32", "float32": "single precision", "bfloat16": "half precision"}
DEVICES = {"auto": "a GPU where there is one, else the CPU", "cpu": "the CPU", "cuda": "a GPU"}
MAX_SEED = 2**63 - 1
AVERAGES = {"none": "no average", "ema": "an average that forgets", "tail": "the mean of the last part"}


def check_seed(seed: int, name: str = "seed") -> None:
    """Refuse a seed that the random generators cannot take."""
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"{name}={seed}: it must be from 0 to {MAX_SEED}")


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """Where the examples come from. Tasks add their own fields."""

    section: ClassVar[str] = "data"

    data: str
    """Data set: a name from `anaphor data list`, a folder or a file."""
    max_examples: int | None = None
    """Number of training examples to use; the rest is left out."""


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model by name. Tasks add the fields of their model spec."""

    section: ClassVar[str] = "model"

    model: str
    """Model preset; `anaphor models` lists them."""


@dataclass(frozen=True, kw_only=True)
class TrainingSection:
    """Budget, optimizer, schedule and device."""

    section: ClassVar[str] = "training"
    default_epochs: ClassVar[float] = 3.0
    """Budget where none is given."""

    epochs: float | None = None
    """Passes over the training data (3 unless --steps or --minutes is given)."""
    steps: int | None = None
    """Number of optimizer steps."""
    minutes: float | None = None
    """Minutes for the whole command: training, validation, scoring and figures."""
    batch_size: int = 20
    """Examples (rows) per batch."""
    lr: float | None = None
    """Learning rate (peak value); the optimizer's usual one if not given."""
    optimizer: str = "adamw"
    """Optimizer: sgd, adamw, adagrad or muon."""
    schedule: str = "cosine"
    """Learning rate schedule: constant, linear, cosine or plateau."""
    warmup: float = 0.0
    """Fraction of the budget with linear warmup."""
    seed: int = 0
    """Random seed."""
    device: str = "auto"
    """Device: auto, cpu or cuda."""
    dtype: str = "auto"
    """Precision: auto, float32 or bfloat16 (autocast)."""
    clip: float = 1.0
    """Gradient norm clipping; 0 for none."""
    weight_decay: float = 0.0
    """Weight decay of matrices; biases and norms have none."""
    betas: tuple[float, ...] = ()
    """Adam betas (0.9 0.95 if not given)."""
    momentum: float | None = None
    """Momentum (0 for sgd, 0.95 for muon if not given)."""
    layer_lr: tuple[float, ...] = ()
    """Learning rate factor of each layer, encoder layers first; embeddings and head have factor 1."""
    min_lr_ratio: float | None = None
    """Final learning rate of linear and cosine, relative to --lr (0 if not given)."""
    plateau_factor: float | None = None
    """Divisor of the learning rate on a plateau (4 if not given)."""
    accumulate: int = 1
    """Batches per optimizer step (gradient accumulation)."""
    average: str = "none"
    """Weight averaging for evaluation: none, ema or tail."""
    cuda_graph: bool = True
    """Capture the training step as a CUDA graph; the same numbers, faster."""

    def __post_init__(self) -> None:
        look_up(DEVICES, self.device, "device")
        look_up(DTYPES, self.dtype, "dtype")
        look_up(AVERAGES, self.average, "average")
        check_at_least_one(batch_size=self.batch_size, accumulate=self.accumulate, steps=self.steps)
        budgets = {name: given for name in ("epochs", "steps", "minutes") if (given := getattr(self, name)) is not None}
        for name, given in budgets.items():
            if not 0 < given < float("inf"):
                raise ConfigError(f"{name}={given}: it must be above 0")
        if len(budgets) > 1:
            raise ConfigError(f"{', '.join(f'{name}={given}' for name, given in budgets.items())}: give one of them")
        if not 0 <= self.clip < float("inf"):
            raise ConfigError(f"clip={self.clip}: it must be 0 or more, and finite")
        check_seed(self.seed)


FREE_WITH_INIT = ("dropout", "input_dropout", "output_dropout", "word_dropout", "dropout_kind")
"""Options of a model that pretrained weights leave open."""


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Training that starts from pretrained weights, for tasks with models of text."""

    section: ClassVar[str] = "training"

    init: str | None = None
    """Run, or folder of transformers, with the initial weights; model and tokenizer come with them."""
    freeze: int | None = None
    """Freeze the embeddings and so many of the first layers."""
    lora: int | None = None
    """LoRA, with --init: rank of adapters of all linear maps of the layers; other weights but the head are frozen."""

    @property
    def is_fine_tuning(self) -> bool:
        """Whether anything but training from scratch is asked for."""
        return any(value is not None for value in (self.init, self.freeze, self.lora))

    def reject_adopted_flags(self: Any, flags: Collection[str], free: Collection[str]) -> None:
        """Refuse flags for what comes with pretrained weights, except those in `free`, and adapters of random ones."""
        if "lora" in flags and self.init is None and self.lora is not None:
            raise ConfigError(f"lora={self.lora} adapts pretrained weights: give them with --init, or leave out --lora")
        extras = [name for settings in self.model_extras() for name in vars(settings)]
        for name in ("model", "tokenizer", "vocabulary", *self.model_options(), *extras):
            if self.init is not None and name in flags and name not in free:
                raise ConfigError(f"{name}={getattr(self, name)!r} has no effect: it comes with init={self.init}")

    def check_fine_tuning(self) -> None:
        """Raise for numbers of frozen layers and ranks of adapters that do not exist."""
        check_at_least_one(lora=self.lora)
        if self.freeze is not None and self.freeze < 0:
            raise ConfigError(f"freeze={self.freeze}: it must be at least 0")


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """When and how the model is evaluated."""

    section: ClassVar[str] = "evaluation"

    eval_every: int | None = None
    """Steps between validations (once an epoch if not given)."""
    patience: int | None = None
    """Stop after this many validations without improvement."""
    select: str | None = None
    """Metric that selects the best checkpoint (the task's first one if not given)."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(EvaluationSection, TrainingSection, ModelSection, DataSection):
    """What every training run has. A task adds fields in sections of its own, by inheritance; extras add theirs to the
    task's, see `TaskDefinition.run_spec`."""

    task: ClassVar[str]
    """What `train` calls it."""
    has_extras: ClassVar[bool] = True
    """For messages: an unknown setting may be that of an extra."""
    replaced: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "optimizer": ("betas", "momentum"),
        "schedule": ("min_lr_ratio", "plateau_factor"),
        "model": ("layer_lr",),
    }
    """Settings of a file that a flag invalidates: another optimizer does not keep the betas of the first."""

    def __post_init__(self) -> None:
        check_types(self)
        super().__post_init__()
        check_at_least_one(max_examples=self.max_examples, patience=self.patience, eval_every=self.eval_every)

    @property
    def default_lr(self) -> float | None:
        """Learning rate where none is given; None means the optimizer's usual one."""
        return None

    def model_options(self) -> dict[str, Any]:
        """The options of the model that were given, as overrides of its preset."""
        kind: Any = type(self)
        names = [field.name for field in fields(self) if section_of(kind, field.name) == ModelSection.section]
        values = {name: getattr(self, name) for name in names if name != "model"}
        return {name: value for name, value in values.items() if value not in (None, ())}

    def model_extras(self) -> tuple[Any, ...]:
        """The settings of the extras that the model has."""
        found: list[Any] = [settings_of(self, kind) for kind in model_settings(self.task)]
        return tuple(settings for settings in found if settings != type(settings)())

    def check_extras(self, model: Any) -> None:
        """Raise where the settings of an extra do not go with a model, given as its spec."""
        for kind in extra_settings(self.task):
            settings: Any = settings_of(self, kind)
            if hasattr(settings, "check_model"):
                settings.check_model(model)

    @classmethod
    def drop_implied(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a run's spec file without those that others imply, such as the options of its model preset and
        the usual learning rate of its optimizer: they are not to stay when a flag names another one."""
        from anaphor.training.optimizers import OptimizerSpec

        usual = OptimizerSpec.of(cls(**{**settings, "lr": None})).peak_lr
        return {name: value for name, value in settings.items() if name != "lr" or value != usual}

    def reject_unused_flags(self, flags: Collection[str]) -> None:
        """Refuse flags of the command line that this run would not use. Settings of a recipe or a study are not flags:
        they are for many runs."""


BUDGETS = ("epochs", "steps", "minutes")


def merge_settings(kind: type[RunSpec], base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a file under those that are given: a budget replaces any other, and see `RunSpec.replaced`."""
    gone = set(BUDGETS) if any(given.get(name) is not None for name in BUDGETS) else set()
    for owner in kind.__mro__:
        for name, others in owner.__dict__.get("replaced", {}).items():
            if given.get(name) not in (None, base.get(name)):
                gone |= set(others)
    return {**{name: value for name, value in base.items() if name not in gone}, **given}


def read_base_settings(kind: type[RunSpec], path: Path, given: Collection[str]) -> dict[str, Any]:
    """The settings of a file, for others to be given over them. A run's spec file has the values of all settings that
    were left open. They are left open again where any setting is given, so that another model does not get the values
    of the first."""
    settings = dict(vars(from_yaml(kind, path)))
    if given and "environment" in read_mapping(path):
        with suppress(ConfigError):  # the file alone does not make a model; with what is given it may
            settings = kind.drop_implied(settings)
    return settings


class StudySupport:
    """How a study compares runs of a task. The defaults suit a task whose values on the same data are comparable.

    A `result` is that of one split as plain values, as `result.json` has it.
    """

    options: type | None = None
    """Settings of `TaskDefinition.measure`, a dataclass; its fields are keys of a study file. `measure` gets them as
    `wanted` and returns, where it has them: `columns`, results by name, for the table; `tables`, by name, each with
    `axes`, `rows` (a value for each axis, and a result) and a `remark`; and `losses`, the name of a safetensors file in
    the folder with the `losses` of single items and the numbers of their `lines`."""
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
    return {} if task.recipes is None else {path.stem: path for path in sorted(task.recipes.glob("*.yaml"))}


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

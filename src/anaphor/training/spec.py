"""The settings of a training run: a flat spec in sections. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from anaphor.config import check_at_least, look_up, section_of, settings_of
from anaphor.errors import ConfigError
from anaphor.flags import from_yaml
from anaphor.models.spec import repeat_last
from anaphor.registry import extra_settings, model_settings
from anaphor.typecheck import check_types
from anaphor.yaml_files import read_mapping

DTYPES = {"auto": "bfloat16 on a GPU, else float32", "float32": "single precision", "bfloat16": "half precision"}
DEVICES = {
    "auto": "a GPU where there is one, else the CPU",
    "cpu": "the CPU",
    "cuda": "a GPU",
    "mps": "the GPU of a Mac",
}
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
    """Number of training examples to use; the rest is left out (all are used if not given)."""


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model by name. Tasks add the fields of their model spec."""

    section: ClassVar[str] = "model"
    presets: ClassVar[str | None] = None
    """Name in `registry.PRESETS` of the table that `model` is looked up in; None: the task looks it up itself."""

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
    """Number of optimizer steps, in place of --epochs."""
    minutes: float | None = None
    """Minutes for the whole command, in place of --epochs: training, validation, scoring and figures."""
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
    """Learning rate factor of each layer, encoder layers first; embeddings and head have factor 1 (all have it
    if not given)."""
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
        check_at_least(1, batch_size=self.batch_size, accumulate=self.accumulate, steps=self.steps)
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
    """Freeze the embeddings and this many of the first layers (nothing is frozen if not given)."""
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
        check_at_least(1, lora=self.lora)
        check_at_least(0, freeze=self.freeze)


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """When and how the model is evaluated."""

    section: ClassVar[str] = "evaluation"

    eval_every: int | None = None
    """Steps between validations (once an epoch if not given)."""
    patience: int | None = None
    """Stop after this many validations without improvement (never before the end if not given)."""
    select: str | None = None
    """Metric that selects the best checkpoint (the task's first one if not given)."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(EvaluationSection, TrainingSection, ModelSection, DataSection):
    """What every training run has. A task adds fields in sections of its own, by inheritance; extras add theirs to the
    task's, see `TaskDefinition.run_spec`."""

    task: ClassVar[str]
    """What `train` calls it."""
    help_examples: ClassVar[tuple[str, ...]] = ()
    """Commands with which `--help` begins; of a task that has none it makes them."""
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
        check_at_least(1, max_examples=self.max_examples, patience=self.patience, eval_every=self.eval_every)

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


def check_layer_lr(layer_lr: Sequence[float], layers: int) -> None:
    """Raise unless there is one factor for each layer, where any are given."""
    if layer_lr and len(layer_lr) != layers:
        raise ConfigError(f"{len(layer_lr)} layer_lr are given for {layers} layers")


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
    is_of_run = "environment" in read_mapping(path)
    if is_of_run:
        settings = spell_out_mixers(settings)
    if given and is_of_run:
        with suppress(ConfigError):  # the file alone does not make a model; with what is given it may
            settings = kind.drop_implied(settings)
    return settings


def read_run_spec(kind: type[RunSpec], path: Path) -> RunSpec:
    """The spec in a run's own file."""
    return kind(**spell_out_mixers(vars(from_yaml(kind, path))))


def spell_out_mixers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run with a mixer for each layer, where they differ. Runs of earlier versions name fewer where
    the last ones are the same."""
    spelled_out = dict(settings)
    for name, layers in (("mixers", "layers"), ("decoder", "layers"), ("encoder", "encoder_layers")):
        mixers, count = settings.get(name), settings.get(layers)
        if mixers and count and 1 < len(mixers) < count:
            spelled_out[name] = type(mixers)(repeat_last(mixers, count))
    return spelled_out

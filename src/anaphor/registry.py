"""Named parts: mixers, tasks, data sets, tokenizers, presets, optimizers, extras and verbs. `register_*` adds a user's
own.

Built-in parts are written as "module:attribute" and imported on first use, so that listing names needs no torch.
Shelves, the packages of `anaphor` that may be missing, register theirs as a user does. A user's parts come from a file
(`import_file`, the flag `--import`), from an installed package (entry-point group `anaphor.plugins`), or from a call in
a notebook.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context, ContextVar
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError, describe_exception, print_warning
from anaphor.imported_files import IMPORTED, ImportedFile, names_in, registering_file

PLUGINS = "anaphor.plugins"
SHELVES = ("extras", "kernels", "interchange", "studies", "trace", "labs", "course", "web")
"""Packages of `anaphor` that may be deleted. The `__init__` of each imports no torch and has a function `register`."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass
class _Plugin:
    """An installed package that registers parts, while it is imported."""

    name: str
    added: list[tuple[Registry, str]]


_loads_shelves: ContextVar[bool] = ContextVar("loads_shelves", default=False)
_current_plugin: ContextVar[_Plugin | None] = ContextVar("current_plugin", default=None)


class Registry(Mapping[str, Any]):
    """Parts of one kind by name. Iterating gives the names; a value is imported when it is first looked up."""

    hint = "; your own: with --import FILE"
    """What an error adds to the known names."""

    def __init__(self, kind: str, builtin: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = dict(builtin or {})
        self._builtin = set(self._entries)
        self._origin: dict[str, Path] = {}
        self._plugins: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            load_plugins()
        value = self._entries[name]
        if isinstance(value, str):
            value = self._entries[name] = import_object(value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The part of that name, or the default. Quick also where there is none: operations ask at every call."""
        if name not in self._entries:
            load_plugins()
        return self[name] if name in self._entries else default

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(dict(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            load_plugins()
        return name in self._entries

    def is_registered(self, name: str) -> bool:
        """Whether a part was added by `add`, and so may be a user's own: its code may change."""
        return name in self._entries and name not in self._builtin

    def is_builtin(self, name: str) -> bool:
        """Whether the part is one of ours, and not of a user's file, of Python code or of a plug-in."""
        return name in self._builtin and name not in self._origin and name not in self._plugins

    def origin(self, name: str) -> Path | None:
        """The file that registered a part; None for the others."""
        return self._origin.get(name)

    def add(self, name: str, value: Any) -> bool:
        """Register a part. A taken name is refused, unless the same file registers it again. A part of a file or a call
        takes the place of an installed plug-in's.

        Returns:
            Whether it was added: not the part of a plug-in whose name a call has taken before.
        """
        load_shelves()  # first, because their names are taken
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{self.kind} name {name!r}: use lower-case letters, digits, '-', '_' and '.'")
        origin, plugin = registering_file(), _current_plugin.get()
        if origin is not None:
            load_plugins()  # so that it is known what the file takes the place of
        self._check_free(name, origin, plugin)
        owner = self._plugins.pop(name, None)
        if plugin is not None:
            if name in self._entries and owner is None:
                return False
            plugin.added.append((self, name))
            self._plugins[name] = plugin.name
        elif owner is not None and origin is not None:
            print_warning(f"{self.kind} {name!r} of {origin} takes the place of that of the plug-in {owner}")
        self._entries[name] = value
        if _loads_shelves.get():
            self._builtin.add(name)
        if origin is not None:
            self._origin[name] = origin
        return True

    def _check_free(self, name: str, origin: Path | None, plugin: _Plugin | None) -> None:
        """Raise for a name of ours, of another file, or for a plug-in of another plug-in."""
        owner = self._plugins.get(name)
        is_own = name in self._entries and owner is None  # by a file or a call
        if plugin is not None:
            is_taken = owner not in (None, plugin.name)
        else:
            is_taken = is_own and origin is not None and self._origin.get(name) != origin
        if name in self._builtin or is_taken:
            by = "" if owner is None else f" by the plug-in {owner}"
            raise ConfigError(f"{self.kind} name {name!r} is already registered{by}: choose another name")

    def remove(self, name: str) -> None:
        """Forget a part that was added."""
        self._entries.pop(name, None)
        self._plugins.pop(name, None)


class DatasetRegistry(Registry):
    """Data sets. Options may follow a name: `recall:pairs=64,vocabulary=8192` is in the table if `recall` is."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(split_options(name)[0] if isinstance(name, str) else name)


def split_options(name: str) -> tuple[str, str]:
    """The name of a data set and its options, which are empty where there are none."""
    base, _, options = name.partition(":")
    return base, options


def import_object(reference: str | Callable[..., Any]) -> Any:
    """The object behind "module:attribute"; anything else is the object itself."""
    if not isinstance(reference, str):
        return reference
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True)
class Verb:
    """A verb of the command."""

    summary: str
    """Its line in `anaphor --help`."""
    function: str | Callable[[list[str]], int | None]
    """What is called with the arguments after the verb and returns the exit code."""

    def run(self, argv: list[str]) -> int:
        return int(import_object(self.function)(argv) or 0)


VERBS = Registry(
    "verb",
    {
        "train": Verb("train a model, keep the best checkpoint, evaluate it", "anaphor.cli.train:run"),
        "evaluate": Verb("evaluate a run on validation or test, at other lengths too", "anaphor.cli.evaluate:run"),
        "generate": Verb("generate text with a trained language model", "anaphor.cli.generate:run"),
        "score": Verb("loss of sentences, token by token", "anaphor.cli.score:run"),
        "translate": Verb("translate sentences with a trained model, with alignments", "anaphor.cli.translate:run"),
        "predict": Verb("predict labels of new inputs, with the probability of each class", "anaphor.cli.predict:run"),
        "bleu": Verb("score translations against references", "anaphor.cli.bleu:run"),
        "look": Verb(
            "look inside a run: attention, gates, losses and heat maps, as figures and one page", "anaphor.cli.look:run"
        ),
        "check-mixer": Verb("check that a mixer keeps the six promises of the contract", "anaphor.cli.check_mixer:run"),
        "data": Verb("list data sets and weights, show their files, download data sets", "anaphor.cli.data:run"),
        "models": Verb("list model presets, with their size and the size of their state", "anaphor.cli.models:run"),
    },
)
RECURRENCES = {
    "retention": "anaphor.mixers.recurrences.retention:RetentionSpec",
    "gla": "anaphor.mixers.recurrences.gla:GLASpec",
    "delta": "anaphor.mixers.recurrences.delta:DeltaSpec",
    "gated-delta": "anaphor.mixers.recurrences.gated_delta:GatedDeltaSpec",
    "mamba2": "anaphor.mixers.recurrences.mamba2:Mamba2Spec",
    "rwkv7": "anaphor.mixers.recurrences.rwkv7:RWKV7Spec",
    "mlstm": "anaphor.mixers.recurrences.mlstm:MLSTMSpec",
    "slstm": "anaphor.mixers.recurrences.slstm:SLSTMSpec",
    "rg-lru": "anaphor.mixers.recurrences.rg_lru:RGLRUSpec",
    "min-gru": "anaphor.mixers.recurrences.min_gru:MinGRUSpec",
    "min-lstm": "anaphor.mixers.recurrences.min_lstm:MinLSTMSpec",
}
"""Recurrences of recent papers; all but `slstm` are computed in parallel. Each is a mixer, and a language model of four
such layers in blocks."""
MIXERS = Registry(
    "mixer",
    {
        "rnn-tanh": "anaphor.mixers.recurrent:RNN_TANH",
        "rnn-relu": "anaphor.mixers.recurrent:RNN_RELU",
        "rnn-identity": "anaphor.mixers.recurrent:RNN_IDENTITY",
        "gru": "anaphor.mixers.recurrent:GRUSpec",
        "lstm": "anaphor.mixers.recurrent:LSTMSpec",
        "qrnn": "anaphor.mixers.linear:QRNNSpec",
        "attention": "anaphor.mixers.attention.layer:AttentionSpec",
        "linear": "anaphor.mixers.linear:LinearSpec",
        **RECURRENCES,
        "low-rank": "anaphor.mixers.noncausal:LowRankSpec",
        "svd": "anaphor.mixers.noncausal:SVDSpec",
        "pooled": "anaphor.mixers.noncausal:PooledSpec",
        "bidirectional-gru": "anaphor.mixers.noncausal:BIDIRECTIONAL_GRU",
        "bidirectional-lstm": "anaphor.mixers.noncausal:BIDIRECTIONAL_LSTM",
        "bidirectional-linear": "anaphor.mixers.noncausal:BIDIRECTIONAL_LINEAR",
    },
)
TASKS = Registry(
    "task",
    {
        "lm": "anaphor.tasks.lm:TASK",
        "translate": "anaphor.tasks.translate:TASK",
        "images": "anaphor.tasks.images:TASK",
        "classify": "anaphor.tasks.classify:TASK",
    },
)
DATASETS = DatasetRegistry(
    "data set",
    {
        "python-reference": "anaphor.data.datasets:PYTHON_REFERENCE",
        "grammar": "anaphor.data.datasets:GRAMMAR",
        "wikitext-2": "anaphor.data.datasets:WIKITEXT_2",
        "tinyshakespeare": "anaphor.data.datasets:TINYSHAKESPEARE",
        "echo": "anaphor.data.datasets:ECHO",
        "echo-fit": "anaphor.data.datasets:ECHO_FIT",
        "reverse": "anaphor.data.datasets:REVERSE",
        "dates": "anaphor.data.datasets:DATES",
        "multi30k": "anaphor.data.datasets:MULTI30K",
        "shapes": "anaphor.data.datasets:SHAPES",
        "cifar-10": "anaphor.data.datasets:CIFAR_10",
        "negation": "anaphor.data.datasets:NEGATION",
        "sst2": "anaphor.data.datasets:SST2",
        "recall": "anaphor.data.datasets:RECALL",
        "copy": "anaphor.data.datasets:COPY",
        "selective-copy": "anaphor.data.datasets:SELECTIVE_COPY",
        "induction": "anaphor.data.datasets:INDUCTION",
        "flip-flop": "anaphor.data.datasets:FLIP_FLOP",
        "parity": "anaphor.data.datasets:PARITY",
        "modular": "anaphor.data.datasets:MODULAR",
        "dyck": "anaphor.data.datasets:DYCK",
        "permutations": "anaphor.data.datasets:PERMUTATIONS",
    },
)
SYNTHETIC = frozenset(
    ["recall", "copy", "selective-copy", "induction", "flip-flop", "parity", "modular", "dyck", "permutations"]
)
"""Data sets with known answers, which alone are learned."""
WEIGHTS = Registry("weights")
"""Pretrained weights that others have published, and how to get them; `anaphor data` lists them."""
TOKENIZERS = Registry(
    "tokenizer",
    {
        "word": "anaphor.data.tokenizer:Word",
        "treebank": "anaphor.data.treebank:Treebank",
        "character": "anaphor.data.tokenizer:Character",
        "byte": "anaphor.data.tokenizer:Byte",
        "bpe": "anaphor.data.bpe:BPE",
    },
)
"""Those that are trained on a text; `PretrainedTokenizer` comes with weights."""
OPTIMIZERS = Registry(
    "optimizer",
    {name: f"anaphor.training.optimizers:{name.upper()}" for name in ("sgd", "adamw", "adagrad", "muon")},
)
PRESETS = Registry(
    "task",
    {
        "lm": "anaphor.models.presets:PRESETS",
        "translate": "anaphor.models.presets:SEQ2SEQ_PRESETS",
        "images": "anaphor.models.presets:IMAGE_PRESETS",
        "classify": "anaphor.models.presets:TEXT_PRESETS",
    },
)
"""Model presets of each task, a registry each: overrides of the fields of its model spec."""
EMBEDDERS, HEADS, LOSS_TERMS = Registry("embedder"), Registry("head"), Registry("loss term")
STREAM_ORDERS, CALLBACKS = Registry("stream order"), Registry("callback")
EXTRAS = {table.kind: table for table in (EMBEDDERS, HEADS, LOSS_TERMS, STREAM_ORDERS, CALLBACKS)}
"""Parts that the settings of a run may ask for, each an `Extra`, by kind. A `TaskDefinition` names the kinds it
takes."""
EVALUATIONS = Registry("evaluation")


@dataclass(frozen=True)
class TrackerKind:
    """A program that logs runs."""

    package: str | None
    """The package that it needs, as it is imported."""
    make: str | Callable[..., Any]
    """`make(run)`, or "module:function", begins to log a run, also one that is resumed."""

    def refuse_missing(self, name: str) -> None:
        """Raise before training if the package is not installed."""
        if self.package is not None and find_spec(self.package) is None:
            extra = f"'anaphor[{name}]'" if TRACKERS.is_builtin(name) else self.package
            raise ConfigError(f"--log {name} needs a package that is not installed: pip install {extra}")


TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": TrackerKind("tensorboardX", "anaphor.training.trackers.tensorboard:open_events"),
        "wandb": TrackerKind("wandb", "anaphor.training.trackers.wandb:WandbTracker"),
        "trackio": TrackerKind("trackio", "anaphor.training.trackers.trackio:TrackioTracker"),
        "mlflow": TrackerKind("mlflow", "anaphor.training.trackers.mlflow:MlflowTracker"),
    },
)
"""What `evaluate` shows beside the score of a run, each an `Extra`: its settings are flags of `evaluate`."""
SERVICES = Registry("service")
"""What shelves do for the core: `read-pretrained` reads a `Pretrained` from a folder of another library, `show-run`
and `show-look` make what a notebook shows of a run and of a look inside."""


def _check_callable(kind: str, name: str, value: Any, wanted: str) -> None:
    """Raise where a part is neither callable nor the place of one, "module:name"."""
    if not callable(value) and not (isinstance(value, str) and value.count(":") == 1):
        raise ConfigError(f"{kind} {name!r} is {value!r:.80}: register {wanted}")


def register_mixer(name: str, spec: Any) -> None:
    """Add a mixer: `spec` is a `MixerSpec` subclass whose `build` makes it, or a function that returns a spec.

    A language model of two such layers has the same name, unless a preset has it: `--model NAME`, `anaphor models`.
    """
    _check_callable("mixer", name, spec, "a MixerSpec subclass, or a function that returns a spec")
    if not MIXERS.add(name, spec):
        return
    models = PRESETS["lm"]
    if name not in models or models.origin(name) == MIXERS.origin(name) is not None:
        models.add(name, {"mixers": (name,), "layers": 2})


def register_task(definition: Any) -> None:
    """Add a task by its `TaskDefinition`; `train NAME` then trains it."""
    TASKS.add(definition.name, definition)


def register_dataset(name: str, dataset: Any) -> None:
    """Add a named data set: a `Dataset`, a function that returns one, or a `NamedDataset`."""
    DATASETS.add(name, dataset)


def register_tokenizer(name: str, tokenizer: Any) -> None:
    """Add a tokenizer: a subclass of `anaphor.data.Tokenizer` under a name for `--tokenizer`.

    The class gets the name as its `kind`, by which a checkpoint that holds its description names it.
    """
    if TOKENIZERS.add(name, tokenizer):
        tokenizer.kind = name


def register_preset(task: str, name: str, settings: Mapping[str, Any]) -> None:
    """Add a model preset of a task: settings of its model spec under a name for `--model`."""
    if task not in PRESETS:
        PRESETS.add(task, Registry("model"))
    PRESETS[task].add(name, dict(settings))


def register_optimizer(name: str, optimizer: Any) -> None:
    """Add an optimizer: an `OptimizerFactory`, or a class with the interface of torch's optimizers."""
    if not hasattr(optimizer, "make"):
        _check_callable("optimizer", name, optimizer, "an OptimizerFactory, or a class like torch.optim.SGD")
    OPTIMIZERS.add(name, optimizer)


def register_verb(name: str, summary: str, run: str | Callable[[list[str]], int | None]) -> None:
    """Add a verb: `anaphor NAME …` calls `run` with the arguments after it.

    Args:
        name: The verb.
        summary: Its line in `anaphor --help`.
        run: A function that takes a list of arguments and returns the exit code, or "module:function": imported when
            the verb is used, so that `anaphor --help` need not wait for what it imports.
    """
    if not callable(run) and not (isinstance(run, str) and run.count(":") == 1):
        raise ConfigError(f'verb {name!r}: run={run!r} must be a function or "module:function"')
    VERBS.add(name, Verb(" ".join(summary.split()), run))


@dataclass(frozen=True)
class Extra:
    """A part beside those that every run has: the idea of one paper, with settings of its own."""

    name: str
    make: str | Callable[..., Any]
    """Function that returns the part, or "module:function"; None where the settings do not ask for it."""
    settings: type | None
    """Dataclass of its settings, which become settings of a run."""
    tasks: tuple[str, ...] | None
    """The tasks whose runs may have it; None: all."""

    def suits(self, task: str) -> bool:
        """Whether runs of a task may have it."""
        return self.tasks is None or task in self.tasks


def register_embedder(
    name: str, make: str | Callable[..., Any], settings: type, tasks: Sequence[str] = ("lm",)
) -> None:
    """Add embeddings of tokens that take the place of the plain table.

    Args:
        name: What messages call it.
        make: `make(settings, spec)` returns an `anaphor.models.Embedding` for `spec.vocabulary` tokens with vectors of
            `spec.width_in` dimensions, or None where the settings ask for none; `spec.words` are the words. A string
            "module:function" is imported when the first model is built.
        settings: A frozen dataclass of its settings; see `check_settings_class`.
        tasks: Names of the tasks whose models may have it.
    """
    _add_extra(EMBEDDERS, name, make, settings, tasks)


def register_head(name: str, make: str | Callable[..., Any], settings: type, tasks: Sequence[str] = ("lm",)) -> None:
    """Add what may stand between the head of a model and its predictions. A model has at most one.

    Args:
        name: The part of the model, as its weights and messages have it.
        make: `make(settings, spec)` returns an `anaphor.models.HeadWrapper` for hidden states of `spec.width_out`
            dimensions, or None where the settings ask for none. A string "module:function" is imported when the first
            model is built. It is called after the other weights are initialized.
        settings: A frozen dataclass of its settings; see `check_settings_class`.
        tasks: Names of the tasks whose models may have it.
    """
    _add_extra(HEADS, name, make, settings, tasks)


def register_loss_term(
    name: str, make: str | Callable[..., Any], settings: type | None = None, tasks: Sequence[str] = ("lm",)
) -> None:
    """Add a loss term: a penalty beside the loss, part of the gradient and of no score.

    Args:
        name: What messages call it.
        make: `make(settings)` returns the term, a function `term(hidden_states, head, batch)` that returns the sum of
            the penalties of all tokens with a target as a scalar tensor (loss and penalty are divided by the same
            `batch.denominator`), or None where the settings ask for none. It must not read values on the host: a step
            may be a CUDA graph. A term that needs more is an `anaphor.training.loss_terms.LossTerm`. A string
            "module:function" is imported when the first run is built.
        settings: A frozen dataclass of the term's settings, whose fields become flags of `train`; see
            `check_settings_class`.
        tasks: Names of the tasks whose runs may have it.
    """
    _add_extra(LOSS_TERMS, name, make, settings, tasks)


def register_stream_order(
    name: str, make: str | Callable[..., Any], settings: type | None = None, tasks: Sequence[str] = ("lm",)
) -> None:
    """Add an order of the text of training, which changes from epoch to epoch.

    Args:
        name: What messages call it.
        make: `make(settings, spec)` returns an `anaphor.data.StreamOrder` for a run with this spec, or None where the
            settings ask for none. A string "module:function" is imported when the first run is built.
        settings: A frozen dataclass; see `check_settings_class`.
        tasks: Names of the tasks whose runs may have it.
    """
    _add_extra(STREAM_ORDERS, name, make, settings, tasks)


def register_evaluation(
    name: str, make: str | Callable[..., Any], settings: type | None = None, tasks: Sequence[str] = ("lm",)
) -> None:
    """Add rows to `evaluate`, or variants of the model for each of which all rows are repeated.

    Args:
        name: What messages call it.
        make: `make(settings, experiment, run)` returns an `anaphor.Evaluation` for a run that is loaded, or None where
            it has nothing to say of it; `run` is the folder. A string "module:function" is imported when a run is
            evaluated.
        settings: A frozen dataclass, whose fields become flags of `evaluate`; see `check_settings_class`.
        tasks: Names of the tasks whose runs it can evaluate.
    """
    _add_extra(EVALUATIONS, name, make, settings, tasks)


def evaluation_settings(task: str) -> tuple[type, ...]:
    """The settings classes of the evaluations for runs of a task."""
    extras: list[Extra] = [EVALUATIONS[name] for name in EVALUATIONS]
    return tuple(dict.fromkeys(one.settings for one in extras if one.suits(task) and one.settings is not None))


def register_callback(
    name: str, make: str | Callable[..., Any], settings: type | None = None, tasks: Sequence[str] | None = None
) -> None:
    """Add a callback of training, which is called beside the progress bar.

    Args:
        name: What messages call it.
        make: `make(settings, experiment, run)` returns an `anaphor.Callback` when training begins, also where a run is
            resumed, or None where the settings ask for none; `run` is the folder, which may be written to. A string
            "module:function" is imported then.
        settings: A frozen dataclass; see `check_settings_class`.
        tasks: Names of the tasks whose runs may have it; None: all tasks.
    """
    _add_extra(CALLBACKS, name, make, settings, tasks)


def register_tracker(name: str, make: str | Callable[..., Any], package: str | None = None) -> None:
    """Add a program that logs runs, for `--log NAME`.

    Args:
        name: What `--log` calls it.
        make: `make(run)` begins to log an `anaphor.training.trackers.TrackedRun` and returns a `Tracker`; a string
            "module:function" is imported then.
        package: The package that it needs, as it is imported; a run without it is refused before training.
    """
    TRACKERS.add(name, TrackerKind(package, make))


def _add_extra(table: Registry, name: str, make: Any, settings: type | None, tasks: Sequence[str] | None) -> None:
    if isinstance(tasks, str):
        raise ConfigError(f"{table.kind} {name!r}: tasks={tasks!r} is not a list of names: write ({tasks!r},)")
    if settings is not None:
        check_settings_class(settings)
    table.add(name, Extra(name, make, settings, None if tasks is None else tuple(tasks)))


def check_settings_class(kind: Any) -> None:
    """Raise unless a class can hold the settings of an extra: a frozen dataclass whose fields all have defaults, with a
    `section`, which becomes a section of `--help` and of spec files. Its `__post_init__` may refuse values, and
    its method `check_model(model)` models, given as their specs."""
    name = getattr(kind, "__name__", repr(kind))
    if not (is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen):  # noqa: B009 (unknown to mypy)
        raise ConfigError(f"settings={name}: it must be a frozen dataclass")
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"settings={name}: the field {field.name!r} needs a default, with which nothing changes")
    section = getattr(kind, "section", None)
    if not isinstance(section, str) or not section.isidentifier():
        raise ConfigError(f"settings={name}: section={section!r} must be a name of letters, digits and '_'")


def extras_of(task: str) -> list[tuple[str, Extra]]:
    """The extras of a task, each with its kind."""
    every = [(kind, table[name]) for kind, table in EXTRAS.items() for name in table]
    return [(kind, extra) for kind, extra in every if extra.suits(task)]


def extra_settings(task: str) -> tuple[type, ...]:
    """The settings classes of the extras of a task. Extras of several kinds may share one."""
    return tuple(dict.fromkeys(extra.settings for _, extra in extras_of(task) if extra.settings is not None))


def model_settings(task: str | None = None) -> tuple[type, ...]:
    """The settings classes of extras that are parts of a model, its embedder and its head; of all tasks, or of one."""
    every = [table[name] for table in (EMBEDDERS, HEADS) for name in table]
    return tuple(dict.fromkeys(extra.settings for extra in every if task is None or extra.suits(task)))


def collect_extras(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a model in which those of extras, given by name, are objects under `extras`, as its spec has them."""
    rest, extras = dict(settings), list(settings.get("extras", ()))
    for kind in model_settings():
        given = {field.name: rest.pop(field.name) for field in fields(kind) if field.name in rest}
        if given and not any(isinstance(one, kind) for one in extras):
            extras.append(kind(**given))
    return {**rest, "extras": tuple(extras)} if extras else rest


def make_extras(table: Registry, task: str, settings_for: Callable[[type], Any], *context: Any) -> list[Any]:
    """The parts of one kind that the settings of a run ask for. `settings_for` returns the settings of a class."""
    parts = []
    for extra in (table[name] for name in table):
        if extra.suits(task):
            settings = () if extra.settings is None else (settings_for(extra.settings),)
            parts.append(import_object(extra.make)(*settings, *context))
    return [part for part in parts if part is not None]


def changed_settings(table: Registry, task: str, settings_for: Callable[[type], Any]) -> dict[str, Any]:
    """The settings of the extras of one kind that do not have their defaults."""
    kinds = [table[name].settings for name in table if table[name].suits(task)]
    pairs = [(vars(settings_for(kind)), vars(kind())) for kind in kinds if kind is not None]
    return {name: value for given, defaults in pairs for name, value in given.items() if value != defaults[name]}


def files_used_by(task: str, settings: Mapping[str, Any]) -> list[ImportedFile]:
    """The imported files whose parts a run uses: its task, extras of this task, or names among the values of its
    settings."""
    names = {task, *names_in(settings)}
    tables = (MIXERS, TASKS, DATASETS, TOKENIZERS, OPTIMIZERS, *PRESETS.values())
    paths = {table.origin(name) for table in tables for name in names}
    paths |= {EXTRAS[kind].origin(extra.name) for kind, extra in extras_of(task)}
    return [IMPORTED[path] for path in IMPORTED if path in paths]


def has_shelf(name: str) -> bool:
    """Whether the package of this shelf is there. A deleted one may leave a folder of compiled files behind."""
    return Path(__file__).with_name(name).joinpath("__init__.py").is_file()


def load_shelves() -> None:
    """Let the shelves that are there register their parts."""
    if not _loads_shelves.get():
        _register_shelves()


@cache
def _register_shelves() -> None:
    """In a context of its own: what shelves register belongs to no file that is being imported."""

    def register_all() -> None:
        _loads_shelves.set(True)
        for shelf in filter(has_shelf, SHELVES):
            import_module(f"anaphor.{shelf}").register()

    Context().run(register_all)


def load_plugins() -> None:
    """Import the shelves and the installed packages that add parts. One that fails is named, and its parts are left
    out."""
    if _current_plugin.get() is None:  # it may ask for a name while it is imported
        _import_plugins()


@cache
def _import_plugins() -> None:
    from importlib.metadata import entry_points  # takes 20 ms, which a verb of ours need not spend

    load_shelves()
    for entry in sorted(entry_points(group=PLUGINS), key=lambda entry: (entry.name, entry.value)):
        package = "" if entry.dist is None or entry.dist.name == entry.name else f" of the package {entry.dist.name}"
        plugin = _Plugin(f"{entry.name!r}{package}", [])
        try:
            # In a context of its own: what it registers belongs to no file that is being imported.
            Context().run(_import_plugin, plugin, entry.load)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (one broken package, which may exit, must not end the others)
            for table, name in plugin.added:
                table.remove(name)
            print_warning(f"the plug-in {plugin.name} is left out: {describe_exception(error, '')}")


def _import_plugin(plugin: _Plugin, load: Callable[[], Any]) -> None:
    _current_plugin.set(plugin)
    load()

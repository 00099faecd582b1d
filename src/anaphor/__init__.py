"""A workbench for sequence models: train, compare and look inside recurrent, attention and hybrid models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anaphor.api import train
    from anaphor.errors import AnaphorError, CheckpointError, ConfigError, DataError, Diverged
    from anaphor.inspect import recorded, trace
    from anaphor.metrics.result import Metric, Result
    from anaphor.mixers import Span
    from anaphor.models import LanguageModel, LanguageModelSpec, build, build_seq2seq, preset
    from anaphor.registry import (
        import_file,
        register_dataset,
        register_mixer,
        register_optimizer,
        register_preset,
        register_task,
    )
    from anaphor.training.experiment import Experiment, Loss
    from anaphor.training.load import Run, load_run
    from anaphor.training.run import execute
    from anaphor.training.spec import RunSpec, TaskDefinition

__version__ = "0.1.0"

# Looked up on first use, so that `anaphor --help` need not wait for torch.
_PACKAGES = ("config", "draw", "errors", "inspect", "mixers", "models", "taps")
_PUBLIC = {
    "anaphor.api": ("train",),
    "anaphor.errors": ("AnaphorError", "CheckpointError", "ConfigError", "DataError", "Diverged"),
    "anaphor.inspect": ("recorded", "trace"),
    "anaphor.labs.lab": ("LABS",),
    "anaphor.metrics.bleu": ("bleu", "corpus_bleu", "ngram_counts"),
    "anaphor.metrics.result": ("Metric", "Result"),
    "anaphor.mixers": ("MIXERS", "Span", "count_bytes", "detach", "mixer_spec", "select_rows"),
    "anaphor.models": (
        "FFN",
        "PRESETS",
        "AttentionHead",
        "AttentionResidual",
        "BilinearAttention",
        "LanguageModel",
        "LanguageModelSpec",
        "MultiHeadedAttention",
        "Seq2Seq",
        "Seq2SeqSpec",
        "Transformer",
        "build",
        "build_seq2seq",
        "preset",
    ),
    "anaphor.training.load": ("Run", "load_run"),
    "anaphor.training.run": ("execute",),
    "anaphor.registry": (
        "import_file",
        "register_dataset",
        "register_mixer",
        "register_optimizer",
        "register_preset",
        "register_task",
    ),
    "anaphor.studies": ("StudySpec", "read_study"),
    "anaphor.tasks.lm": ("LanguageRunSpec",),
    "anaphor.tasks.translate": ("TranslationRunSpec",),
    "anaphor.training.experiment": ("Experiment", "Loss"),
    "anaphor.training.spec": ("RunSpec", "TaskDefinition"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"anaphor.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'anaphor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOME, *_PACKAGES, "__version__"])

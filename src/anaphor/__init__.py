"""A workbench for sequence models: train, compare and look inside recurrent, attention and hybrid models."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Looked up on first use, so that `anaphor --help` need not wait for torch.
_PACKAGES = ("config", "draw", "errors", "inspect", "mixers", "models", "taps")
_PUBLIC = {
    "anaphor.errors": ("AnaphorError", "CheckpointError", "ConfigError", "DataError", "Diverged"),
    "anaphor.inspect": ("recorded", "trace"),
    "anaphor.labs.lab": ("LABS",),
    "anaphor.metrics.bleu": ("bleu", "corpus_bleu", "ngram_counts"),
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
        "register_dataset",
        "register_mixer",
        "register_optimizer",
        "register_preset",
        "register_task",
    ),
    "anaphor.studies": ("StudySpec", "read_study"),
    "anaphor.training.spec": ("LanguageRunSpec", "TranslationRunSpec"),
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

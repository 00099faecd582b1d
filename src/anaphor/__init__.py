"""A workbench for sequence models: train, compare and look inside recurrent, attention and hybrid models."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # names for type checkers and editors; at run time they are looked up on first use
    from anaphor import config as config
    from anaphor import draw as draw
    from anaphor import errors as errors
    from anaphor import inspect as inspect
    from anaphor import interchange as interchange
    from anaphor import mixers as mixers
    from anaphor import models as models
    from anaphor import taps as taps
    from anaphor.api import execute as execute
    from anaphor.api import load_run as load_run
    from anaphor.api import train as train
    from anaphor.data.masked_batches import MaskedBatch as MaskedBatch
    from anaphor.data.masked_batches import MaskedBatches as MaskedBatches
    from anaphor.errors import AnaphorError as AnaphorError
    from anaphor.errors import CheckpointError as CheckpointError
    from anaphor.errors import ConfigError as ConfigError
    from anaphor.errors import DataError as DataError
    from anaphor.errors import Diverged as Diverged
    from anaphor.imported_files import import_file as import_file
    from anaphor.inspect import recorded as recorded
    from anaphor.interchange.conversion import convert as convert
    from anaphor.interchange.conversion import export as export
    from anaphor.interchange.programs import export_onnx as export_onnx
    from anaphor.interchange.programs import export_program as export_program
    from anaphor.labs.lab import LABS as LABS
    from anaphor.metrics.bleu import bleu as bleu
    from anaphor.metrics.bleu import corpus_bleu as corpus_bleu
    from anaphor.metrics.bleu import ngram_counts as ngram_counts
    from anaphor.metrics.result import Metric as Metric
    from anaphor.metrics.result import Result as Result
    from anaphor.mixers import MIXERS as MIXERS
    from anaphor.mixers import Span as Span
    from anaphor.mixers import count_bytes as count_bytes
    from anaphor.mixers import detach as detach
    from anaphor.mixers import mixer_spec as mixer_spec
    from anaphor.mixers import select_rows as select_rows
    from anaphor.models import FFN as FFN
    from anaphor.models import PRESETS as PRESETS
    from anaphor.models import AttentionHead as AttentionHead
    from anaphor.models import AttentionResidual as AttentionResidual
    from anaphor.models import BilinearAttention as BilinearAttention
    from anaphor.models import DialogueGPT as DialogueGPT
    from anaphor.models import DialogueLoss as DialogueLoss
    from anaphor.models import LanguageModel as LanguageModel
    from anaphor.models import LanguageModelSpec as LanguageModelSpec
    from anaphor.models import MultiHeadedAttention as MultiHeadedAttention
    from anaphor.models import PatchEmbed as PatchEmbed
    from anaphor.models import Seq2Seq as Seq2Seq
    from anaphor.models import Seq2SeqSpec as Seq2SeqSpec
    from anaphor.models import Transformer as Transformer
    from anaphor.models import build as build
    from anaphor.models import build_seq2seq as build_seq2seq
    from anaphor.models import preset as preset
    from anaphor.registry import register_callback as register_callback
    from anaphor.registry import register_dataset as register_dataset
    from anaphor.registry import register_embedder as register_embedder
    from anaphor.registry import register_evaluation as register_evaluation
    from anaphor.registry import register_head as register_head
    from anaphor.registry import register_loss_term as register_loss_term
    from anaphor.registry import register_mixer as register_mixer
    from anaphor.registry import register_optimizer as register_optimizer
    from anaphor.registry import register_preset as register_preset
    from anaphor.registry import register_stream_order as register_stream_order
    from anaphor.registry import register_task as register_task
    from anaphor.registry import register_tokenizer as register_tokenizer
    from anaphor.registry import register_tracker as register_tracker
    from anaphor.registry import register_verb as register_verb
    from anaphor.studies import StudySpec as StudySpec
    from anaphor.studies import read_study as read_study
    from anaphor.studies.api import study as study
    from anaphor.studies.results import StudyResult as StudyResult
    from anaphor.tasks.evaluations import Evaluation as Evaluation
    from anaphor.tasks.evaluations import Variant as Variant
    from anaphor.tasks.lm import LanguageRunSpec as LanguageRunSpec
    from anaphor.tasks.metrics import position_metrics as position_metrics
    from anaphor.tasks.model_options import LanguageModelSection as LanguageModelSection
    from anaphor.tasks.token_experiment import TokenExperiment as TokenExperiment
    from anaphor.tasks.token_experiment import score_positions as score_positions
    from anaphor.tasks.translate import TranslationRunSpec as TranslationRunSpec
    from anaphor.trace import trace as trace
    from anaphor.training.callbacks import Callback as Callback
    from anaphor.training.callbacks import EvaluationInfo as EvaluationInfo
    from anaphor.training.callbacks import NullCallback as NullCallback
    from anaphor.training.callbacks import StepInfo as StepInfo
    from anaphor.training.experiment import Experiment as Experiment
    from anaphor.training.experiment import Loss as Loss
    from anaphor.training.load import Run as Run
    from anaphor.training.spec import RunSpec as RunSpec
    from anaphor.training.task import TaskDefinition as TaskDefinition
    from anaphor.web.inference import compare_runs as compare_runs

__version__ = "1.0.0"

# Threads that wait for each other spin before they sleep. With the 300,000 rounds of libgomp a process beside another
# busy one hardly advances; with none it has half its speed on a quiet machine. libgomp reads the number when torch
# is loaded. docs/training.md has the measurement.
if "OMP_WAIT_POLICY" not in os.environ:  # the user's own choice; a spin count would override it
    os.environ.setdefault("GOMP_SPINCOUNT", "500")

# Looked up on first use, so that `anaphor --help` need not wait for torch.
_PACKAGES = ("config", "draw", "errors", "inspect", "interchange", "mixers", "models", "taps", "trace")
_PUBLIC = {
    "anaphor.api": ("execute", "load_run", "train"),
    "anaphor.data.masked_batches": ("MaskedBatch", "MaskedBatches"),
    "anaphor.errors": ("AnaphorError", "CheckpointError", "ConfigError", "DataError", "Diverged"),
    "anaphor.imported_files": ("import_file",),
    "anaphor.inspect": ("recorded",),
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
        "DialogueGPT",
        "DialogueLoss",
        "LanguageModel",
        "LanguageModelSpec",
        "MultiHeadedAttention",
        "PatchEmbed",
        "Seq2Seq",
        "Seq2SeqSpec",
        "Transformer",
        "build",
        "build_seq2seq",
        "preset",
    ),
    "anaphor.interchange.conversion": ("convert", "export"),
    "anaphor.interchange.programs": ("export_onnx", "export_program"),
    "anaphor.training.load": ("Run",),
    "anaphor.registry": (
        "register_callback",
        "register_tracker",
        "register_dataset",
        "register_embedder",
        "register_evaluation",
        "register_head",
        "register_loss_term",
        "register_mixer",
        "register_optimizer",
        "register_preset",
        "register_stream_order",
        "register_task",
        "register_tokenizer",
        "register_verb",
    ),
    "anaphor.studies": ("StudySpec", "read_study"),
    "anaphor.studies.api": ("study",),
    "anaphor.studies.results": ("StudyResult",),
    "anaphor.tasks.evaluations": ("Evaluation", "Variant"),
    "anaphor.tasks.model_options": ("LanguageModelSection",),
    "anaphor.tasks.metrics": ("position_metrics",),
    "anaphor.tasks.token_experiment": ("TokenExperiment", "score_positions"),
    "anaphor.training.callbacks": ("Callback", "EvaluationInfo", "NullCallback", "StepInfo"),
    "anaphor.training.experiment": ("Experiment", "Loss"),
    "anaphor.training.spec": ("RunSpec",),
    "anaphor.training.task": ("TaskDefinition",),
    "anaphor.web.inference": ("compare_runs",),
}
_RUN_SPECS = {"LanguageRunSpec": "lm", "TranslationRunSpec": "translate"}
"""The settings of a run of each task, those of extras included."""
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}


if not TYPE_CHECKING:  # which would take every name for known

    def __getattr__(name: str) -> Any:
        home = f"anaphor.{name}" if name in _PACKAGES else _HOME.get(name)
        if home is not None:
            _require_shelf(home, f"anaphor.{name}")
            return import_module(home) if name in _PACKAGES else getattr(import_module(home), name)
        if name in _RUN_SPECS:
            return import_module("anaphor.registry").TASKS[_RUN_SPECS[name]].run_spec
        if (new := import_module("anaphor.deprecated").find_renamed(name)) is not None:
            return __getattr__(new)
        raise AttributeError(f"module 'anaphor' has no attribute {name!r}")


def _require_shelf(module: str, what: str) -> None:
    """Raise where the module belongs to a part of Anaphor that was deleted."""
    from anaphor.errors import NotInstalled
    from anaphor.registry import SHELVES, has_shelf

    part = module.split(".")[1]
    if part in SHELVES and not has_shelf(part):
        raise NotInstalled(what, f"anaphor.{part}")


def __dir__() -> list[str]:
    from anaphor.registry import SHELVES, has_shelf

    missing = {shelf for shelf in SHELVES if not has_shelf(shelf)}
    names = [name for name, home in _HOME.items() if home.split(".")[1] not in missing]
    return sorted([*names, *(name for name in _PACKAGES if name not in missing), *_RUN_SPECS, "__version__"])

"""Build the experiment of a language model: its data, its tokenizer, its model, and how the text becomes batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from anaphor.data.corpus import build_tokenizer
from anaphor.data.dataset import TEXT_COLUMNS, Dataset
from anaphor.data.datasets import open_dataset
from anaphor.data.synthetic.base import SyntheticDataset
from anaphor.data.tokenizer import END, UNKNOWN, Tokenizer, Word, tokenizer_from_plain
from anaphor.errors import ConfigError
from anaphor.models.presets import PRESETS
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.answers import AnswersExperiment
from anaphor.tasks.lm.experiment import LanguageModelExperiment, PaddedExperiment, StreamExperiment
from anaphor.tasks.model_options import LanguageModelOptions
from anaphor.training.device import choose_device
from anaphor.training.finetune import Initial, adopt_model, load_initial, prepare_fine_tuning
from anaphor.training.paths import resolve_data_path
from anaphor.training.random_state import use_seed
from anaphor.training.spec import FREE_WITH_INIT

BATCHING: dict[str, type[LanguageModelExperiment]] = {
    "stream": StreamExperiment,
    "padded": PaddedExperiment,
    "answers": AnswersExperiment,
}


def build(
    spec: LanguageRunSpec, saved: Mapping[str, Any] | None = None, data_path: str | None = None
) -> LanguageModelExperiment:
    """Build the model for its data. A run that exists brings its `saved` fingerprint with the tokenizer, and the
    `data_path` where its data were; its data are not opened before a split is read."""
    device = choose_device(spec.device)

    @cache
    def open_text() -> Dataset:
        exists = saved is not None or data_path is not None
        return open_dataset(resolve_data_path(spec.data, data_path) if exists else spec.data, TEXT_COLUMNS)

    initial = None
    if saved is not None:
        tokenizer = tokenizer_from_plain(saved["tokenizer"])
    elif spec.init is not None:
        initial = load_initial(spec.init)
        spec, tokenizer = _adopt_model(spec, initial), initial.tokenizer
    else:
        tokenizer = choose_tokenizer(open_text(), spec)
    with use_seed(spec.seed, keep_state=saved is not None):
        model = spec.model_spec(len(tokenizer), tokenizer.tokens).build()
        if spec.is_fine_tuning:
            prepare_fine_tuning(model, spec, initial)
    return BATCHING[spec.batching](spec, model.to(device), tokenizer, open_text, device=device, saved=saved)


def choose_tokenizer(text: Dataset, spec: LanguageRunSpec) -> Tokenizer:
    """That of the settings, trained on the text. A synthetic task has words of its own."""
    if not isinstance(text, SyntheticDataset):
        return build_tokenizer(text, spec.tokenizer, spec.vocabulary)
    given = f"tokenizer={spec.tokenizer}" if spec.tokenizer != Word.kind else f"vocabulary={spec.vocabulary}"
    if given != "vocabulary=None":
        raise ConfigError(f"{given}: {text.name} has words of its own; leave out --tokenizer and --vocabulary")
    return Word((END, UNKNOWN, *text.words))


def _adopt_model(spec: LanguageRunSpec, initial: Initial) -> LanguageRunSpec:
    """The settings with the model and the tokenizer of pretrained weights."""
    if "tied" not in initial.options:  # only language models have it
        raise ConfigError(f"init={initial.name}: its model is no language model")
    adopted: LanguageRunSpec = adopt_model(spec, initial, LanguageModelOptions, PRESETS, free=FREE_WITH_INIT)
    return replace(adopted, tokenizer=initial.tokenizer.kind, vocabulary=None)

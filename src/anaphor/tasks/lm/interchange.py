"""Language models of other libraries as runs, and runs for other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from anaphor.errors import DataError
from anaphor.models.language_model import LanguageModel
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import LanguageModelExperiment
from anaphor.tasks.model_options import LanguageModelOptions
from anaphor.training.pretrained import Pretrained
from anaphor.training.run_folder import NO_DATA

MAX_SEGMENT = 1024


class LanguageInterchange:
    """Of `train lm`."""

    def settings(self, pretrained: Pretrained) -> tuple[LanguageRunSpec, Mapping[str, Any]] | None:
        model = pretrained.model
        if not isinstance(model, LanguageModel):
            return None
        if pretrained.tokenizer is None:
            raise DataError("the folder has no tokenizer.json: a language model needs the tokenizer of its weights")
        settings = model.spec.used_settings()
        options = {field.name: settings[field.name] for field in fields(LanguageModelOptions) if field.name in settings}
        longest = MAX_SEGMENT if model.max_positions is None else min(model.max_positions, MAX_SEGMENT)
        spec = LanguageRunSpec(
            data=NO_DATA,
            tokenizer=pretrained.tokenizer.kind,
            model="gpt2",
            bptt=longest,
            carry=False,
            **options,
        )
        return spec, {"tokenizer": pretrained.tokenizer.to_plain()}

    def pretrained(self, experiment: LanguageModelExperiment) -> Pretrained:
        return Pretrained(experiment.model, experiment.tokenizer)


INTERCHANGE = LanguageInterchange()

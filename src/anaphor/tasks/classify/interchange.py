"""Text encoders of other libraries as runs, and runs for other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from anaphor.errors import DataError
from anaphor.models.text_encoder import TextEncoder
from anaphor.tasks.classify import ClassifyModelOptions, ClassifyRunSpec
from anaphor.tasks.classify.experiment import ClassifyExperiment
from anaphor.training.pretrained import Pretrained
from anaphor.training.run_folder import NO_DATA


class ClassifyInterchange:
    """Of `train classify`. A model without a head becomes a run without classes, which `--init` takes."""

    def settings(self, pretrained: Pretrained) -> tuple[ClassifyRunSpec, Mapping[str, Any]] | None:
        model = pretrained.model
        if not isinstance(model, TextEncoder):
            return None
        if pretrained.tokenizer is None:
            raise DataError("the folder has no tokenizer.json: a text encoder needs the tokenizer of its weights")
        settings = model.spec.used_settings()
        options = {field.name: settings[field.name] for field in fields(ClassifyModelOptions) if field.name in settings}
        spec = ClassifyRunSpec(data=NO_DATA, tokenizer=pretrained.tokenizer.kind, model="transformer", **options)
        return spec, {"tokenizer": pretrained.tokenizer.to_plain(), "classes": list(pretrained.classes or ())}

    def pretrained(self, experiment: ClassifyExperiment) -> Pretrained:
        return Pretrained(experiment.model, experiment.tokenizer, experiment.classes or None)


INTERCHANGE = ClassifyInterchange()

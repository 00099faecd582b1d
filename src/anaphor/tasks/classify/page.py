"""What the live page shows of text classification: a look inside, and the texts of a split with their losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from anaphor.errors import ConfigError
from anaphor.inspect.parts import LookParts, check_tokens, split_look
from anaphor.inspect.split_losses import Groups
from anaphor.tasks.class_losses import ClassLosses, class_losses
from anaphor.tasks.classify.experiment import ClassifyExperiment
from anaphor.tasks.classify.look import look_at, predict_or_none

LENGTHS = (4, 8, 16, 32, 64, 128, 256)
SHOWN = 2000  # characters of a text


def look(
    experiment: ClassifyExperiment,
    *,
    text: str | None = None,
    example: int | None = None,
    length: int = 0,
    image: str | None = None,
) -> LookParts:
    """A text inside the model; `example` is the index of a text of validation."""
    if image is not None:
        raise ConfigError("a classifier of texts reads no images: give a text")
    true = None
    if text is None:
        rows = experiment.split("valid").values
        assert example is not None, "one of them was given"
        if example >= len(rows):
            raise ConfigError(f"example={example}: validation has the texts 0 to {len(rows) - 1:,}")
        text, true = rows[example]
    check_tokens(len(experiment.tokenizer.encode_text(text)))
    found = look_at(experiment, text)
    cut = [f"the text was truncated to {experiment.max_length} tokens"] if experiment.encode_text(text)[1] else []
    row = predict_or_none(experiment, text)
    more = {"probabilities": row["probabilities"], "true": true, "losses": None, "next": None}
    return split_look(found, kind="label", text=text, **more, notes=[*cut, *found.notes])


def text_losses(experiment: ClassifyExperiment, split: str) -> ClassLosses:
    """The texts of a split, by label and by length."""
    loaded = experiment.split(split)
    words = np.array([len(text.split()) for text, _ in loaded.values])

    def describe(index: int) -> dict[str, Any]:
        text = loaded.values[index][0]
        return {"text": text if len(text) <= SHOWN else f"{text[:SHOWN]}…"}

    return class_losses(
        experiment.logits(loaded.batches),
        loaded.labels,
        experiment.classes,
        metadata=experiment.signature_metadata(split),
        digest=loaded.digest,
        describe=describe,
        groups={"length": Groups.by_count("Words of the text", words, LENGTHS)},
    )

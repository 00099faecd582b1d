"""What `anaphor models` shows of text classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np

from anaphor.models import text_preset
from anaphor.models.bag_of_words import BagOfWords
from anaphor.models.initialize import without_weights
from anaphor.tasks.classify import BAG_OF_WORDS
from anaphor.tasks.tables import format_size, join_layers
from anaphor.training.task import ModelRow

CLASSES = 2


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it."""
    plain: dict[str, Any]
    remark = f"{CLASSES} classes; a bag of words also has a weight for each bigram of its training data"
    with without_weights():
        if name == BAG_OF_WORDS:
            parameters = BagOfWords(vocabulary, CLASSES, np.empty(0, np.int64)).count_parameters()
            plain = {"name": name, "layers": [], "width": None, "parameters": parameters, "classes": CLASSES}
            sizes = format_size(0, parameters) | {"width": ""}
            return ModelRow(plain, {"classification": name, "layers": "none"}, sizes, remark)
        spec = text_preset(name, vocabulary=vocabulary, classes=CLASSES)
        model = spec.build()
    width = spec.widths_by_layer[-1]
    plain = {
        "name": name,
        "layers": spec.mixers_by_layer,
        "width": width,
        "parameters": model.count_parameters(),
        "pooling": spec.pooling,
        "classes": CLASSES,
    }
    text = {"classification": name, "layers": join_layers(spec.mixers_by_layer)}
    return ModelRow(plain, text, format_size(width, plain["parameters"]), remark)

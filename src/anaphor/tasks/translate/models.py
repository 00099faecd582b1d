"""What `anaphor models` shows of translation models."""

from __future__ import annotations

import re
from typing import Any

from anaphor.models import seq2seq_preset
from anaphor.models.initialize import without_weights
from anaphor.tasks.tables import format_size, join_layers
from anaphor.training.task import ModelRow


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it, with two vocabularies of the same size."""

    spec = seq2seq_preset(name, source_vocabulary=vocabulary, vocabulary=vocabulary)
    with without_weights():
        model = spec.build()
    plain: dict[str, Any] = {
        "name": name,
        "encoder": spec.encoder_spec().mixers_by_layer,
        "decoder": spec.decoder_spec().mixers_by_layer,
        "width": spec.decoder_spec().widths_by_layer[-1],
        "parameters": model.count_parameters(),
        "state_bytes": model.state_bytes(tokens, tokens),
        "tokens": tokens,
        "state_grows": model.state_grows,
        "limit": model.max_positions,
    }
    # 'bidirectional-lstm' would not leave room for all columns in a terminal of 80.
    encoder = [re.sub("^bidirectional-(.*)", r"\1 both ways", mixer) for mixer in plain["encoder"]]
    text = {"translation": name, "encoder": join_layers(encoder), "decoder": join_layers(plain["decoder"])}
    remark = "two vocabularies of the same size; state and limit with --json"
    return ModelRow(plain, text, format_size(plain["width"], plain["parameters"]), remark)

"""What `anaphor models` shows of language models."""

from __future__ import annotations

import dataclasses

from anaphor.errors import count_noun
from anaphor.models import preset, summarize
from anaphor.registry import MIXERS
from anaphor.tasks.tables import format_size, join_layers
from anaphor.training.task import ModelRow


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it: layers, size, and the state after some tokens."""
    spec = preset(name, vocabulary=vocabulary)
    summary = summarize(spec, tokens)
    numbers = {
        **format_size(summary.width, summary.parameters),
        "state": _format_bytes(summary.state_bytes),
        "grows": "yes" if summary.state_grows else "no",
        "limit": "none" if summary.max_positions is None else f"{summary.max_positions:,}",
    }
    remark = f"state: of one row after {count_noun(tokens, 'token')}; limit: number of learned positions"
    text = {"model": name, "layers": join_layers(summary.layers)}
    plain = dataclasses.asdict(summary)
    plain["limit"] = plain.pop("max_positions")  # the key that scripts read
    notes = {
        f"{mixer}: no parallel form, no implied attention: {reason}": None
        for mixer in spec.mixers_by_layer
        if (reason := getattr(MIXERS[mixer], "sequential_reason", ""))
    }
    return ModelRow({"name": name, **plain}, text, numbers, remark, tuple(notes))


def _format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"

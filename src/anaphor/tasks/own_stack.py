"""What was chosen around mixers that are named in place of those of a preset, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anaphor.models.stacks import describe_surroundings, names_other_mixers
from anaphor.tasks.tables import join_layers


def describe_own_stack(spec: Any, presets: Mapping[str, Mapping[str, Any]], model: Any) -> list[str]:
    """A line for the notes of a run; none where the preset's own mixers, or those of pretrained weights, are used."""
    if spec.init is not None or not names_other_mixers(presets[spec.model], vars(spec)):
        return []
    return [f"layers {join_layers(model.spec.mixers_by_layer)}: {describe_surroundings(model.spec)}"]

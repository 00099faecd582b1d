"""Look inside a model while it runs."""

from anaphor.inspect.look import Look, TextLook, compare_losses, look_at, look_inside
from anaphor.inspect.maps import (
    HeadSummary,
    UnitMap,
    attention_maps,
    head_average,
    rank_heads,
    rollout,
    select_maps,
    select_units,
    summarize_heads,
    unit_maps,
)
from anaphor.inspect.record import Recording, hidden_states, recorded, recorded_calls, recorded_gradients

__all__ = [
    "HeadSummary", "Look", "Recording", "TextLook", "UnitMap", "attention_maps", "compare_losses", "head_average",
    "hidden_states", "look_at", "look_inside", "rank_heads", "recorded", "recorded_calls", "recorded_gradients",
    "rollout", "select_maps", "select_units", "summarize_heads", "unit_maps",
]  # fmt: skip

"""Look inside a model while it runs."""

from anaphor.inspect.attention import attention_maps, head_average, maps_of, rollout
from anaphor.inspect.graph.graph import Edge, Graph, Node
from anaphor.inspect.graph.tracing import Traced, trace
from anaphor.inspect.heads import HeadSummary, ranked, summarise
from anaphor.inspect.look import Look, look_at
from anaphor.inspect.record import Recording, recorded, recorded_calls, recorded_gradients
from anaphor.inspect.recurrence import UnitMap, unit_maps, units_of
from anaphor.inspect.tokens import differences, losses_of

__all__ = [
    "Edge",
    "Graph",
    "HeadSummary",
    "Look",
    "Node",
    "Recording",
    "Traced",
    "UnitMap",
    "attention_maps",
    "differences",
    "head_average",
    "look_at",
    "losses_of",
    "maps_of",
    "ranked",
    "recorded",
    "recorded_calls",
    "recorded_gradients",
    "rollout",
    "summarise",
    "trace",
    "unit_maps",
    "units_of",
]

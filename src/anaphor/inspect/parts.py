"""A look in parts, for a page that asks for one map at a time: everything but the maps, and each map packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from anaphor.config import look_up
from anaphor.errors import ConfigError, TooLarge
from anaphor.inspect.look import Look, layer_label
from anaphor.inspect.maps import UnitMap, head_average, layer_of
from anaphor.inspect.page import STEPS, pack_units, pack_weights, plain_tokens

MAX_TOKENS = 4096
ATTENTION, ROLLOUT, MEAN = "attention", "rollout", "mean"


@dataclass(frozen=True)
class LookParts:
    """One input in one model."""

    plain: Mapping[str, Any]
    """Everything but the maps, as JSON."""
    maps: Mapping[str, Mapping[str, Tensor]]
    """[H, rows, columns] by kind, such as attention, and by tap."""
    rollouts: Mapping[str, Tensor] = field(default_factory=dict)
    """[rows, columns] by tap."""
    units: Mapping[str, UnitMap] = field(default_factory=dict)
    is_image: bool = False
    """Whether a map is over the patches of an image: then it is packed as one row with one scale."""

    @property
    def weights(self) -> int:
        """Number of values that are held."""
        held = [*self.rollouts.values(), *(unit.values for unit in self.units.values())]
        return sum(one.numel() for one in (*held, *(map_ for maps in self.maps.values() for map_ in maps.values())))

    def head(self, tap: str, head: int | str, of: str = ATTENTION) -> dict[str, Any]:
        """One head of a map, `mean` for the average of all, or `rollout` for the rollout up to this layer."""
        if head == ROLLOUT:
            weights = look_up(self.rollouts, tap, "rollout")
        else:
            heads = look_up(look_up(self.maps, of, "map"), tap, "tap")
            if head != MEAN and not (isinstance(head, int) and 0 <= head < len(heads)):
                raise ConfigError(f"head={head!r}: it must be mean, rollout, or from 0 to {len(heads) - 1}")
            weights = heads[head] if isinstance(head, int) else head_average(heads)
        packed = pack_weights(weights.reshape(1, -1) if self.is_image else weights, STEPS[0])
        return {"tap": tap, "head": head, "of": of, **packed}

    def unit(self, key: str) -> dict[str, Any]:
        """One gate, or one tensor of the state, of a recurrent layer."""
        return {"key": key, **pack_units(look_up(self.units, key, "unit"))}


def split_look(look: Look, **more: Any) -> LookParts:
    """A look at a sequence in parts; `more` is added to its plain data."""
    units = {f"{one.layer}.{one.kind}.{one.part}": one for one in look.units}
    plain = {
        **plain_tokens(look),
        "summary": getattr(look, "summary", ""),
        "layers": [describe_map(tap, maps, look.rollouts) for tap, maps in look.maps.items()],
        "heads": [{**head.to_plain(), "label": layer_label(head.name)} for head in look.heads],
        "units": [
            {
                "key": key,
                "layer": one.layer,
                "label": layer_label(f"{one.layer}.{one.kind}"),
                "kind": one.kind,
                "part": one.part,
                "bounded": one.bounded,
                "rows": one.values.shape[0],
                "columns": one.values.shape[1],
            }
            for key, one in units.items()
        ],
        "notes": list(look.notes),
        **more,
    }
    return LookParts(plain, {ATTENTION: look.maps}, look.rollouts, units)


def describe_map(tap: str, maps: Tensor, rollouts: Mapping[str, Tensor]) -> dict[str, Any]:
    """The shape of a layer's map. [H, rows, columns]"""
    heads, rows, columns = maps.shape
    return {
        "tap": tap,
        "layer": layer_of(tap),
        "label": layer_label(tap),
        "heads": heads,
        "rows": rows,
        "columns": columns,
        "causal": rows == columns and not bool(maps.triu(1).any()),
        "rollout": tap in rollouts,
    }


def check_tokens(tokens: int) -> None:
    """Refuse a text that is too long for a page."""
    if tokens > MAX_TOKENS:
        raise TooLarge(f"the text has {tokens:,} tokens, and the limit of the page is {MAX_TOKENS:,}: cut it")

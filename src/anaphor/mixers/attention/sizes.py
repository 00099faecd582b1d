"""The few numbers that a part of attention may need to build itself."""

from __future__ import annotations

from dataclasses import dataclass

from anaphor.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """Handed to every part, so that all of them are made alike and a table can hold them."""

    width: int
    """Size of a token vector."""
    heads: int
    """Parallel heads."""
    head_width: int
    """Size of a query, a key and a value within one head."""
    limit: int
    """How many positions a table of them covers."""


def check_heads(heads: int, width: int) -> None:
    """Refuse heads that do not share the width evenly."""
    if heads < 1:
        raise ConfigError(f"heads={heads}: there must be at least 1")
    if width % heads:
        divisors = [number for number in range(1, width + 1) if width % number == 0]
        closest = min(divisors, key=lambda number: abs(number - heads))
        raise ConfigError(f"heads={heads} does not divide width={width}; the nearest that does is heads={closest}")

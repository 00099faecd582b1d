"""`anaphor models`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

import tyro

from anaphor.config import parse
from anaphor.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """List models: their layers, how many parameters they have and how much they remember of a text."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Models to show; none means all of them."""
    vocabulary: int = 33_278
    """How many different tokens the model knows; the default is WikiText-2's."""
    tokens: int = 1024
    """After how many tokens the size of the state is told."""
    json: bool = False
    """Print one JSON list instead of a table."""

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ConfigError(f"tokens={self.tokens}: a text has at least 0")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor models")

    from anaphor.models.presets import PRESETS, preset
    from anaphor.models.summary import summarise

    names = options.names or tuple(PRESETS)
    summaries = {name: summarise(preset(name, vocabulary=options.vocabulary), options.tokens) for name in names}
    if options.json:
        print(json.dumps([{"name": name, **dataclasses.asdict(summary)} for name, summary in summaries.items()]))
        return 0

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("model", "layers"):
        table.add_column(heading, no_wrap=True)
    for heading in ("width", "parameters", "state", "grows", "limit"):
        table.add_column(heading, no_wrap=True, justify="right")
    for name, summary in summaries.items():
        table.add_row(
            name,
            shorten(summary.layers),
            f"{summary.width:,}",
            f"{summary.parameters / 1e6:,.1f} M",
            in_bytes(summary.state_bytes),
            "yes" if summary.state_grows else "no",
            "none" if summary.limit is None else f"{summary.limit:,}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"state: kept of one text after {options.tokens:,} tokens; limit: known positions",
        style="dim",
    )
    return 0


def shorten(layers: Sequence[str]) -> str:
    """'lstm, 3 × attention' for a stack of four."""
    runs = [(name, len(list(same))) for name, same in groupby(layers)]
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in runs)


def in_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"

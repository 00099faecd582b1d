"""Attention and recurrent layers as figures for print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from anaphor.draw import Panel, heat_maps
from anaphor.inspect.attention import head_average
from anaphor.inspect.look import Look, place_of
from anaphor.inspect.tokens import shown

ENDINGS = ("png", "svg")
ROOM = 44  # letters of a name that fit above a single panel; half of them do above one of several


def draw_attention(
    look: Look,
    folder: Path,
    layer: int | None = None,
    head: int | None = None,
    *,
    stem: str = "attention",
    run: str = "",
) -> list[Path]:
    """`attention.png` and `.svg`: one head, all heads of a layer and their average, or all heads of all layers.

    `stem` is another name for the files; `run` stands above the heads and tells whose they are.
    """
    if not look.maps:
        return []
    panels: list[Panel | None]
    if layer is None:
        panels, across = _in_lines(
            [[_panel(look, name, head) for head in range(len(look.maps[name]))] for name in look.maps]
        )
    else:
        chosen = look.heads_of(layer, head)
        panels = [_panel(look, name, number) for name, number in chosen]
        if len(panels) > 1:
            average = head_average(torch.stack([look.maps[name][number] for name, number in chosen]))
            panels.append(_shown(f"layer {layer}, average", average))
        across = min(len(panels), 4)
    paths = [folder / f"{stem}.{ending}" for ending in ENDINGS]
    names = shown(look.tokens)
    heat_maps(
        _under(run, panels, across), paths, across=across, rows=names, columns=names, x_label="looked at",
        y_label="token that looks", label="weight",
        sqrt_scale=all(panel is None or panel.low >= 0 for panel in panels),
    )  # fmt: skip
    return paths


def draw_units(look: Look, folder: Path, *, stem: str = "states", run: str = "") -> list[Path]:
    """`states.png` and `.svg`: states and gates of every recurrent layer, those units that vary most.

    `stem` and `run` are as for attention.
    """
    if not look.units:
        return []
    lines: dict[str, list[Panel]] = {}
    for one in look.units:
        most = max(float(one.values.abs().max()), 1e-9)
        low, high = (0.0, 1.0) if one.bounded else (-most, most)
        title = f"{one.layer.removesuffix('.mixer').replace('layers.', 'layer ')} {one.part}"
        lines.setdefault(one.layer, []).append(Panel(title, one.values.numpy(), low, high))
    panels, across = _in_lines([*lines.values()])
    counts = {f"{len(one.units)} of {one.of}" if len(one.units) < one.of else f"all {one.of}" for one in look.units}
    paths = [folder / f"{stem}.{ending}" for ending in ENDINGS]
    shares = f"units ({', '.join(sorted(counts))})"
    heat_maps(
        _under(run, panels, across), paths, across=across, rows=(), columns=shown(look.tokens), x_label="token",
        y_label=shares,
    )  # fmt: skip
    return paths


def _under(run: str, panels: Sequence[Panel | None], across: int) -> list[Panel | None]:
    """The same panels, those of the first line with the run's name above their titles."""
    if not run:
        return list(panels)
    longest = ROOM if across == 1 else ROOM // 2
    name = run if len(run) <= longest else f"…{run[1 - longest :]}"  # its end tells more than its beginning
    name = name.replace("$", r"\$")  # else two of them would make a formula
    first = [panel and replace(panel, title=f"{name}\n{panel.title}") for panel in panels[:across]]
    return [*first, *panels[across:]]


def _in_lines(lines: Sequence[Sequence[Panel]]) -> tuple[list[Panel | None], int]:
    """One line for each layer, filled up with empty places, and how long a line is."""
    across = max(map(len, lines))
    return [line[place] if place < len(line) else None for line in lines for place in range(across)], across


def _panel(look: Look, name: str, head: int) -> Panel:
    return _shown(f"layer {place_of(name)} head {head}", look.maps[name][head])


def _shown(title: str, weights: Tensor) -> Panel:
    # What may not be seen weighs exactly zero, and is left grey.
    low = -1.0 if bool((weights < 0).any()) else 0.0
    return Panel(title, torch.where(weights == 0, torch.nan, weights).float().numpy(), low, 1.0)

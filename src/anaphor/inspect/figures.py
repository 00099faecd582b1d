"""Figures of attention maps and of recurrent layers, and tokens as labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from anaphor.draw import COLORS, Panel, heat_maps, new_figure, save_all
from anaphor.inspect.look import ClassLook, Look, layer_label
from anaphor.inspect.maps import head_average

SUFFIXES = ("png", "svg")
MAX_NAME = 44  # characters above a single panel; half of them above one of several
MAX_BARS = 80
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def token_labels(tokens: Sequence[str]) -> tuple[str, ...]:
    """Tokens as labels: visible symbols for white space, escapes for unprintable characters."""
    return tuple("".join(VISIBLE.get(letter, _escape(letter)) for letter in token) for token in tokens)


def _escape(letter: str) -> str:
    return letter if letter.isprintable() else f"\\x{ord(letter):02x}"


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

    `stem` is the file name without suffix; `run` is a title above the panels.
    """
    if not look.maps:
        return []
    panels: list[Panel | None]
    if layer is None:
        panels, across = _grid(
            [[_head_panel(look, name, head) for head in range(len(look.maps[name]))] for name in look.maps]
        )
    else:
        heads = look.heads_of(layer, head)
        panels = [_head_panel(look, name, number) for name, number in heads]
        if len(panels) > 1:
            average = head_average(torch.stack([look.maps[name][number] for name, number in heads]))
            panels.append(_panel(f"layer {layer}, average", average))
        across = min(len(panels), 4)
    paths = [folder / f"{stem}.{suffix}" for suffix in SUFFIXES]
    names = token_labels(look.tokens)
    if all(panel is None or panel.low >= 0 for panel in panels):
        panels = [panel if panel is None else replace(panel, scale="sqrt") for panel in panels]
    labels = {"x_label": "key", "y_label": "query", "label": "attention weight"}
    panels = _add_title(run, panels, across)
    heat_maps(panels, paths, across=across, rows=names, columns=names, **labels)
    return paths


def draw_units(look: Look, folder: Path, *, stem: str = "states", run: str = "") -> list[Path]:
    """`states.png` and `.svg`: states and gates of every recurrent layer, for the units that vary most."""
    if not look.units:
        return []
    lines: dict[str, list[Panel]] = {}
    for unit_map in look.units:
        largest = max(float(unit_map.values.abs().max()), 1e-9)
        low, high = (0.0, 1.0) if unit_map.bounded else (-largest, largest)
        title = f"{unit_map.layer.removesuffix('.mixer').replace('layers.', 'layer ')} {unit_map.part}"
        lines.setdefault(unit_map.layer, []).append(Panel(title, unit_map.values.numpy(), low, high))
    panels, across = _grid([*lines.values()])
    counts = {f"{len(one.units)} of {one.of}" if len(one.units) < one.of else f"all {one.of}" for one in look.units}
    paths = [folder / f"{stem}.{suffix}" for suffix in SUFFIXES]
    labels = {"x_label": "token", "y_label": f"units ({', '.join(sorted(counts))})"}
    panels, columns = _add_title(run, panels, across), token_labels(look.tokens)
    heat_maps(panels, paths, across=across, rows=(), columns=columns, **labels)
    return paths


def draw_contributions(look: ClassLook, folder: Path, *, stem: str = "contributions") -> list[Path]:
    """`contributions.png` and `.svg`: gradient × input of every token as a bar, of the first ones of a long text.
    None without contributions."""
    if not look.contributions:
        return []
    tokens, values = token_labels(look.tokens)[:MAX_BARS], look.contributions[:MAX_BARS]
    figure = new_figure(max(4.0, 1.2 + 0.3 * len(tokens)), 3.2)
    axes = figure.subplots()
    axes.bar(range(len(values)), values, color=[COLORS[0 if value >= 0 else 1] for value in values])
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8)
    axes.set_ylabel(f"gradient × input,\nfor {look.label}")
    paths = [folder / f"{stem}.{suffix}" for suffix in SUFFIXES]
    some = f"the first {MAX_BARS} of {len(look.tokens)} tokens" if len(look.tokens) > MAX_BARS else ""
    save_all(figure, paths, some)
    return paths


def _add_title(run: str, panels: Sequence[Panel | None], across: int) -> list[Panel | None]:
    """The panels with the run's name above the titles of the first row."""
    if not run:
        return list(panels)
    most = MAX_NAME if across == 1 else MAX_NAME // 2
    name = run if len(run) <= most else f"…{run[1 - most :]}"
    name = name.replace("$", r"\$")  # not parsed as math
    first = [panel and replace(panel, title=f"{name}\n{panel.title}") for panel in panels[:across]]
    return [*first, *panels[across:]]


def _grid(lines: Sequence[Sequence[Panel]]) -> tuple[list[Panel | None], int]:
    """One row of panels per layer, padded to equal length, and that length."""
    across = max(map(len, lines))
    return [line[index] if index < len(line) else None for line in lines for index in range(across)], across


def _head_panel(look: Look, name: str, head: int) -> Panel:
    return _panel(f"layer {layer_label(name)} head {head}", look.maps[name][head])


def _panel(title: str, weights: Tensor) -> Panel:
    # Masked weights are exactly zero; as NaN they are drawn in gray.
    low = -1.0 if bool((weights < 0).any()) else 0.0
    return Panel(title, torch.where(weights == 0, torch.nan, weights).float().numpy(), low, 1.0)

"""The pages of `anaphor look`, of texts and of images: one HTML file each, with all that it needs and no network.

The parts are in `static/`. The content security policy allows exactly this style and this script.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.draw.html import embed
from anaphor.inspect.image_maps import ImageLook
from anaphor.inspect.look import ClassLook, Look, TextLook, compare_losses, layer_label
from anaphor.inspect.maps import UnitMap

STATIC = Path(__file__).with_name("static")
SHARED = ("element.js", "packed.js", "colors.js")
"""Scripts that need no data of a page: other pages use them, too."""
SCRIPTS = (*SHARED, "data.js", "grid.js", "lines.js", "text.js", "maps.js", "page.js")
IMAGE_SCRIPTS = (*SHARED, "data.js", "heat.js", "images.js")
MAX_PIXELS = 384
"""Side of images in a page; larger ones are scaled down."""
MAX_CHARACTERS = 14_000_000
"""Of all maps in one page."""
STEPS = (255, 127, 63, 31, 15)
"""Quantization steps of the weights; the finest that fits is used."""


def build_page(looks: Mapping[str, Look], first: tuple[str, int | None] | None = None) -> tuple[str, tuple[str, ...]]:
    """The page of one or two runs (the keys), and a sentence for each thing that was left out.

    `first` is the map and the head to show first; None for the head means the average.
    """
    packed, left_out = _pack_maps(looks)
    names = list(looks)
    content: dict[str, Any] = {
        "runs": [_run(name, look, packed[name], left_out) for name, look in looks.items()],
        "differences": None,
        "first": _first(looks[names[0]], packed[names[0]], first),
    }
    scores = [look.scored for look in looks.values() if isinstance(look, TextLook)]
    if len(scores) == 2:
        content["differences"] = [None, *compare_losses(*scores)]
    return render_page(content, "page.html", SCRIPTS), left_out


def render_page(
    content: Mapping[str, Any], markup: str | Path, scripts: Sequence[str | Path],
    styles: Sequence[str | Path] = ("page.css",),
) -> str:  # fmt: skip
    """One HTML file from its parts and the data. Names are those of files in `static/`; others are given by path."""
    read = {name: (STATIC / name).read_text(encoding="utf-8") for name in (markup, *styles, *scripts)}
    return embed(read[markup], [read[name] for name in styles], [read[name] for name in scripts], content)


def _run(name: str, look: Look, layers: list[dict[str, Any]], left_out: Sequence[str]) -> dict[str, Any]:
    return {
        **plain_tokens(look),
        "name": name,
        "scores": getattr(look, "summary", ""),
        "notes": [*look.notes, *left_out],
        "layers": layers,
        "summary": [{**head.to_plain(), "place": layer_label(head.name)} for head in look.heads],
        "units": [pack_units(one) for one in look.units],
    }


def plain_tokens(look: Look) -> dict[str, Any]:
    """The model, and the tokens with a value for each."""
    text = look if isinstance(look, TextLook) else None
    count = len(look.tokens)
    return {
        "model": look.model,
        "tokens": look.tokens,
        "joined": getattr(look, "joined", True),
        "losses": [None] * count if text is None else [None, *text.scored.losses],
        "unknown": [False] * count if text is None else [False, *text.scored.unknown],
        "contributions": (look.contributions or None) if isinstance(look, ClassLook) else None,
        "label": look.label if isinstance(look, ClassLook) else None,
    }


def _first(look: Look, layers: list[dict[str, Any]], wanted: tuple[str, int | None] | None) -> dict[str, Any] | None:
    """The requested head, or the highest ranked one that is in the page."""
    names = {layer["name"] for layer in layers}
    ranking: list[tuple[str, int | None]] = [(head.name, head.head) for head in look.heads]
    for name, head in ([wanted] if wanted else []) + ranking:
        if name in names:
            return {"name": name, "head": head}
    return None


def _pack_maps(looks: Mapping[str, Look]) -> tuple[dict[str, list[dict[str, Any]]], tuple[str, ...]]:
    """The layers of every run with the finest steps that fit; layers that do not fit are left out."""
    for steps in STEPS[_estimate_steps(looks) :]:
        packed = {name: [_pack_layer(look, tap, steps) for tap in look.maps] for name, look in looks.items()}
        if sum(_length(layer) for layers in packed.values() for layer in layers) <= MAX_CHARACTERS:
            break
    notes = []
    if steps < STEPS[0]:
        notes.append(
            f"To keep this page small, weights are quantized to {steps} steps between 0 and the largest of a row."
        )
    used = 0
    kept: dict[str, list[dict[str, Any]]] = {name: [] for name in packed}
    for name, layers in packed.items():
        for layer in layers:
            if used + _length(layer) > MAX_CHARACTERS:
                notes.append(f"Layer {layer['place']} of {name} is left out: the page would be too large.")
                continue
            used += _length(layer)
            kept[name].append(layer)
    return kept, tuple(notes)


def _estimate_steps(looks: Mapping[str, Look]) -> int:
    """Index of the steps to start with, estimated from one head of each layer: packing all takes seconds."""
    index = 0
    for index, steps in enumerate(STEPS):  # noqa: B007
        characters = 0
        for look in looks.values():
            for maps in look.maps.values():
                characters += (len(maps) + 1) * len(pack_weights(maps[0], steps)["cells"])
        if characters <= MAX_CHARACTERS:
            break
    return max(index - 1, 0)  # heads differ: finer steps may fit


def _length(layer: dict[str, Any]) -> int:
    maps = [*layer["heads"], *([layer["rollout"]] if layer["rollout"] else [])]
    return sum(len(one["cells"]) + 8 * one["rows"] for one in maps)


def _pack_layer(look: Look, tap: str, steps: int) -> dict[str, Any]:
    maps = look.maps[tap]
    return {
        "name": tap,
        "place": layer_label(tap),
        "causal": not bool(maps.triu(1).any()),
        "heads": [pack_weights(weights, steps) for weights in maps],
        "rollout": pack_weights(look.rollouts[tap], steps) if tap in look.rollouts else None,
    }


def pack_weights(weights: Tensor, steps: int) -> dict[str, Any]:
    """One byte per weight: the square root of its ratio to the row's largest, so that small weights keep digits.

    With negative weights, 128 stands for zero.
    """
    peaks = weights.abs().float().amax(-1)
    share = (weights.float() / peaks.where(peaks > 0, 1)[:, None]).clamp(-1, 1)
    root = share.abs().sqrt() * share.sign()
    signed = bool((weights < 0).any())
    return {
        "rows": weights.shape[0],
        "columns": weights.shape[1],
        "steps": steps,
        "signed": signed,
        "peaks": [float(f"{peak:.4g}") for peak in peaks.tolist()],
        "cells": pack_bytes(128 + root * (steps // 2) if signed else root * steps),
    }


def pack_units(one: UnitMap) -> dict[str, Any]:
    """One byte per value: from 1 to 255 for values from -peak to peak."""
    peak = 1.0 if one.bounded else max(float(one.values.abs().max()), 1e-9)
    return {
        "layer": one.layer,
        "kind": one.kind,
        "part": one.part,
        "bounded": one.bounded,
        "units": one.units,
        "of": one.of,
        "rows": one.values.shape[0],
        "columns": one.values.shape[1],
        "peak": peak,
        "cells": pack_bytes(128 + 127 * one.values.float() / peak),
    }


def pack_bytes(values: Tensor) -> str:
    """Values from 0 to 255, compressed, as text."""
    raw = values.round().to(torch.uint8).contiguous().numpy().tobytes()
    return base64.b64encode(zlib.compress(raw)).decode()


def image_page(looks: Sequence[ImageLook], run: str, model: str) -> str:
    """The images of one run with their maps, and a slider for the layers."""
    content = {
        "run": run,
        "model": model,
        "notes": looks[0].maps.notes,
        "layers": [{"place": layer_label(name), "heads": len(maps)} for name, maps in looks[0].maps.attention.items()],
        "images": [_pack_image(look) for look in looks],
    }
    return render_page(content, "images.html", IMAGE_SCRIPTS, ("page.css", "images.css"))


def _pack_image(look: ImageLook) -> dict[str, Any]:
    maps = look.maps
    rows, columns = maps.saliency.shape
    return {
        "name": look.name,
        "label": look.label,
        "true": look.true,
        "box": box_shares(look),
        "ratios": look.box_ratios(),
        "probabilities": look.probabilities,
        "rows": rows,
        "columns": columns,
        "pixels": pack_pixels(look.pixels),
        "all": pack_views(look),
        "layers": {
            "attention": _pack_layers(maps.attention),
            "rollout": _pack_layers({name: heat[None] for name, heat in maps.rollouts.items()}),
            "gradient-weighted": _pack_layers(maps.weighted),
        },
    }


def box_shares(look: ImageLook) -> list[float] | None:
    """The box in shares of width and height; None where there is none."""
    if look.box is None:
        return None
    _, height, width = look.pixels.shape
    return [edge / side for edge, side in zip(look.box, (width, height) * 2, strict=True)]


def pack_views(look: ImageLook) -> dict[str, Any]:
    """The maps of all layers together."""
    return {name: _pack_heat([heat]) for name, heat in look.maps.views().items()}


def _pack_layers(maps: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """For each layer the mean over the heads and, where there are several, the heads. [H, rows, columns] each"""
    return [_pack_heat([heads.mean(0), *(heads if len(heads) > 1 else ())]) for heads in maps.values()]


def _pack_heat(maps: Sequence[Tensor]) -> dict[str, Any]:
    """A row for each map."""
    return pack_weights(torch.stack([heat.flatten() for heat in maps]), STEPS[0])


def pack_pixels(pixels: Tensor, side: int = MAX_PIXELS) -> dict[str, Any]:
    """Red, green and blue of each pixel in turn; larger images are scaled down to this side."""
    largest = max(pixels.shape[1:])
    if largest > side:
        height, width = (max(length * side // largest, 1) for length in pixels.shape[1:])
        pixels = F.interpolate(pixels[None].float(), (height, width), mode="area")[0]
    _, height, width = pixels.shape
    return {"width": width, "height": height, "cells": pack_bytes(pixels.expand(3, -1, -1).permute(1, 2, 0))}

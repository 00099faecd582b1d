"""The page of `anaphor look` for images: one HTML file with images and maps, and a slider for the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.inspect.image_maps import ImageLook
from anaphor.inspect.look import layer_label
from anaphor.inspect.page import SHARED, STEPS, pack_bytes, pack_weights, render_page

SCRIPTS = (*SHARED, "data.js", "heat.js", "images.js")
MAX_PIXELS = 384
"""Side of the images in the page; larger ones are scaled down."""


def image_page(looks: Sequence[ImageLook], run: str, model: str) -> str:
    """The images of one run."""
    content = {
        "run": run,
        "model": model,
        "notes": looks[0].maps.notes,
        "layers": [{"place": layer_label(name), "heads": len(maps)} for name, maps in looks[0].maps.attention.items()],
        "images": [_packed_look(look) for look in looks],
    }
    return render_page(content, "images.html", SCRIPTS, ("page.css", "images.css"))


def _packed_look(look: ImageLook) -> dict[str, Any]:
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
            "attention": _packed_layers(maps.attention),
            "rollout": _packed_layers({name: heat[None] for name, heat in maps.rollouts.items()}),
            "gradient-weighted": _packed_layers(maps.weighted),
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
    return {name: _packed_maps([heat]) for name, heat in look.maps.views().items()}


def _packed_layers(maps: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """For each layer the mean over the heads and, where there are several, the heads. [H, rows, columns] each"""
    return [_packed_maps([heads.mean(0), *(heads if len(heads) > 1 else ())]) for heads in maps.values()]


def _packed_maps(maps: Sequence[Tensor]) -> dict[str, Any]:
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

"""Where an image classifier looks: attention to the patches, its rollout, gradient-weighted attention, and saliency.

A map is [rows, columns], a value ≥ 0 for each patch. The queries are what the head reads: the class token, or with mean
pooling all patches, whose rows are averaged. Class token and registers are left out of the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anaphor.evaluation import eval_mode
from anaphor.inspect.look import check_memory, compute_rollout
from anaphor.inspect.maps import layer_of, select_maps
from anaphor.inspect.notebook import ShownAsPage
from anaphor.inspect.record import recorded
from anaphor.models import ImageClassifier
from anaphor.taps import taps_of


@dataclass(frozen=True)
class ImageMaps:
    """One image in one model. Layers without attention are missing; `notes` say what follows from that."""

    logits: Tensor
    """[classes]"""
    attention: dict[str, Tensor]
    """Attention to the patches, [heads, rows, columns] by the tap's name."""
    rollouts: dict[str, Tensor]
    """Attention rollout from the first layer to this one, [rows, columns]; empty where there is none."""
    weighted: dict[str, Tensor]
    """Attention × gradient of the class's logit, positive part: [heads, rows, columns]."""
    relevance: Tensor | None
    """Gradient-weighted attention through all layers, [rows, columns]; None without attention."""
    saliency: Tensor
    """|gradient × input|, summed over the pixels of a patch: [rows, columns]."""
    notes: tuple[str, ...]

    @property
    def average(self) -> Tensor | None:
        """Attention averaged over heads and layers, [rows, columns]; None without attention."""
        return torch.cat([*self.attention.values()]).mean(0) if self.attention else None

    @property
    def rollout(self) -> Tensor | None:
        """Rollout through all layers."""
        return [*self.rollouts.values()][-1] if self.rollouts else None

    def views(self) -> dict[str, Tensor]:
        """The maps of all layers together that there are, by the words figures and pages use."""
        found = {
            "attention": self.average,
            "rollout": self.rollout,
            "gradient-weighted": self.relevance,
            "saliency": self.saliency,
        }
        return {name: heat for name, heat in found.items() if heat is not None}

    def main_views(self) -> list[str]:
        """What a figure shows: saliency only where there is no attention."""
        views = [*self.views()]
        return views[:-1] or views

    def layers_to_plain(self) -> dict[str, Any]:
        """The maps of each layer, for JSON."""
        return {
            "attention": _as_lists(self.attention),
            "rollout": _as_lists(self.rollouts),
            "gradient-weighted": _as_lists(self.weighted),
        }


@dataclass(frozen=True)
class ImageLook(ShownAsPage):
    """An image, what it was taken for, and the maps."""

    name: str
    pixels: Tensor = field(repr=False)
    """uint8 [C, H, W]."""
    probabilities: dict[str, float]
    """By class name."""
    true: str | None
    """Its class, where known."""
    box: tuple[int, int, int, int] | None
    """Bounding box of the object, where known: x0, y0, x1, y1 in pixels."""
    maps: ImageMaps = field(repr=False)

    @property
    def label(self) -> str:
        """The predicted class."""
        return max(self.probabilities, key=self.probabilities.__getitem__)

    def box_ratios(self) -> dict[str, float]:
        """Share of each map inside the box divided by the box's share of the area; empty without a box."""
        if self.box is None:
            return {}
        height, width = self.pixels.shape[1:]
        area = box_area(self.box, height, width)
        return {name: share_in_box(heat, self.box, height, width) / area for name, heat in self.maps.views().items()}

    def to_plain(self) -> dict[str, Any]:
        """For JSON, without the maps of single layers."""
        return {
            "image": self.name,
            "label": self.label,
            "probabilities": self.probabilities,
            "true": self.true,
            "box": self.box,
            "box_ratios": self.box_ratios(),
            "maps": _as_lists(self.maps.views()),
        }


def mean_box_ratios(looks: Sequence[ImageLook]) -> dict[str, float]:
    """The mean of each box ratio over the images that have a box; empty where none has."""
    found = [ratios for look in looks if (ratios := look.box_ratios())]
    return {name: sum(ratios[name] for ratios in found) / len(found) for name in (found[0] if found else ())}


def image_maps(model: ImageClassifier, image: Tensor, label: int | None = None) -> ImageMaps:
    """Run a normalized image [C, H, W] through a model and collect the maps.

    Gradients are those of the logit of class `label`; None means the predicted class.
    """
    patch, extra = model.spec.patch, model.spec.extra_tokens
    rows, columns = image.shape[1] // patch, image.shape[2] // patch
    tokens = rows * columns + extra
    layers = range(len(model.blocks))
    check_memory(model, layers, tokens, "use larger patches or smaller images")
    pixels = image[None].to(model.device).detach().requires_grad_()
    with eval_mode(model), torch.enable_grad():
        logits, taps = _run(model, pixels)
        chosen = int(logits[0].argmax()) if label is None else label
        gradient, *others = torch.autograd.grad(logits[0, chosen], [pixels, *taps.values()])
    maps = select_maps(model, taps)
    products = {name: (taps[name] * by).detach() for name, by in zip(taps, others, strict=True)}
    weighted = {name: product.clamp(min=0) for name, product in select_maps(model, products).items()}

    def to_grid(by_token: Tensor) -> Tensor:  # [..., T] -> [..., rows, columns]
        patches = by_token[..., extra:]
        return patches.reshape(*patches.shape[:-1], rows, columns)

    read = pooling_weights(model, tokens)
    rollouts, notes = compute_rollout(model, maps, layers)
    missing = sorted({*layers} - {layer_of(name) for name in maps})
    if not maps:
        notes = ["No layer has attention: the map is saliency, |gradient × input| of the predicted class."]
    elif missing and not rollouts:
        notes = [*notes, f"Without attention: layer {', '.join(map(str, missing))}."]
    return ImageMaps(
        logits=logits[0].detach().cpu(),
        attention={name: to_grid(read @ weights) for name, weights in maps.items()},
        rollouts={name: to_grid(read @ weights) for name, weights in rollouts.items()},
        weighted={name: to_grid(read @ weights) for name, weights in weighted.items()},
        relevance=to_grid(read @ relevance(weighted)) if weighted else None,
        saliency=sum_patches((gradient * pixels)[0].detach().abs().sum(0).cpu(), patch),
        notes=tuple(notes),
    )


def _run(model: ImageClassifier, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the attention weights where there are any.

    All taps are recorded, so that every layer takes its explicit path: cuDNN's recurrent layers have no backward pass
    in evaluation mode.
    """
    if not taps_of(model):
        return model(pixels), {}
    with recorded(model) as taps:
        logits = model(pixels)
    return logits, {name: tensor for name, tensor in taps.items() if name.endswith(".weights")}


def pooling_weights(model: ImageClassifier, tokens: int) -> Tensor:
    """The weight of each token in what the head reads. [T]"""
    extra = model.spec.extra_tokens
    weights = torch.zeros(tokens, dtype=next(model.parameters()).dtype)
    if model.spec.pooled == "class":
        weights[0] = 1
    else:
        weights[extra:] = 1 / (tokens - extra)
    return weights


def relevance(weighted: Mapping[str, Tensor]) -> Tensor:
    """Gradient-weighted attention [H, T, T] of all layers in one matrix (Chefer et al., 2021): the product of all
    I + A, where A is the mean over the heads, minus I. [T, T]"""
    first, *others = (weights.mean(0) for weights in weighted.values())
    product = first
    for layer in others:
        product = product + layer + layer @ product
    return product


def sum_patches(pixels: Tensor, patch: int) -> Tensor:
    """[H, W] -> [rows, columns]"""
    return pixels.unfold(0, patch, patch).unfold(1, patch, patch).sum((-1, -2))


def share_in_box(heat: Tensor, box: Sequence[int], height: int, width: int) -> float:
    """Share of a map [rows, columns] inside a box (x0, y0, x1, y1 in pixels) of an image.

    A patch that is partly inside counts with that part of its area. A map of zeros has share zero.
    """
    x0, y0, x1, y1 = box
    down, across = _coverage(heat.shape[0], height, y0, y1), _coverage(heat.shape[1], width, x0, x1)
    heat = heat.double()
    inside, total = float((heat * down[:, None] * across).sum()), float(heat.sum())
    return inside / total if total else 0.0


def box_area(box: Sequence[int], height: int, width: int) -> float:
    """Share of the image's area."""
    x0, y0, x1, y1 = box
    return (x1 - x0) * (y1 - y0) / (height * width)


def _coverage(cells: int, size: int, low: int, high: int) -> Tensor:
    """Share of each of the cells along one side that lies between two pixels. [cells]"""
    edges = torch.arange(cells + 1, dtype=torch.float64) * size / cells
    return (edges[1:].clamp(max=high) - edges[:-1].clamp(min=low)).clamp(min=0) * cells / size


def _as_lists(maps: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: heat.tolist() for name, heat in maps.items()}

"""Images as sequences of patches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.course.reference import Case, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import random_values, same
from anaphor.course.weights import Weight


def read_patches(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """The weight as that of a convolution [E, C, p, p]; a matrix may have a patch in any order of axes."""
    channels, size, wide = sizes["in_chans"], sizes["patch_size"], sizes["embed_dim"]
    matrices = [one.value for one in given if one.value.numel() == wide * channels * size * size]
    biases = [one.value for one in given if tuple(one.value.shape) == (wide,)]
    if len(matrices) != 1 or len(matrices) + len(biases) != len(given):
        return
    bias = biases[0] if biases else matrices[0].new_zeros(wide)
    if matrices[0].ndim == 4:
        yield {"weight": matrices[0], "bias": bias}
        return
    matrix = matrices[0] if len(matrices[0]) == wide else matrices[0].T
    yield {"weight": matrix.reshape(wide, channels, size, size), "bias": bias}
    yield {"weight": matrix.reshape(wide, size, size, channels).permute(0, 3, 1, 2), "bias": bias}
    yield {"weight": matrix.reshape(wide, size, channels, size).permute(0, 2, 1, 3), "bias": bias}
    yield {"weight": matrix.reshape(wide, size, size, channels).permute(0, 3, 2, 1), "bias": bias}
    yield {"weight": matrix.reshape(wide, channels, size, size).transpose(2, 3), "bias": bias}


def by_patches(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, stride=weight.shape[-1])


def overlapping(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias)


def half_overlapping(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, stride=weight.shape[-1] // 2)


def padded(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, stride=weight.shape[-1], padding=weight.shape[-1] // 2)


def cut_by_reshape(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A mistake: stretches of the flat image, not patches."""
    rows, count = x.shape[-1] // weight.shape[-1], weight[0].numel()
    pieces = x.reshape(len(x), -1, count) @ weight.reshape(len(weight), -1).T + bias
    return pieces.mT.reshape(len(x), len(weight), rows, rows)


@dataclass(frozen=True)
class PatchRules:
    """Steps of embedding patches."""

    image: Callable[[Tensor], Tensor] = same
    embed: Callable[[Tensor, Tensor, Tensor], Tensor] = by_patches
    order: Callable[[Tensor], Tensor] = field(default=lambda grid: grid.flatten(2).mT)
    """From [B, E, rows, columns] to [B, N, E], row by row."""


def compute_patches(w: Weights, inputs: Mapping[str, Any], rules: PatchRules) -> Outputs:
    return {"out": rules.order(rules.embed(rules.image(inputs["x"]), w["weight"], w["bias"]))}


def patch_cases(sizes: Sizes) -> list[Case]:
    shape = (sizes["in_chans"], sizes["img_size"], sizes["img_size"])
    return [
        Case("of images", {"x": random_values(5, *shape)}, "of images"),
        Case("of one image", {"x": random_values(1, *shape, seed=1)}, "of one image"),
    ]


PATCH_EMBED = Reference(
    name="PatchEmbed",
    call="PatchEmbed(img_size, patch_size, in_chans, embed_dim), forward(x [B, C, H, W]) -> out [B, N, embed_dim]",
    outputs=("out",),
    arguments=("x",),
    sizes={"img_size": 12, "patch_size": 4, "in_chans": 3, "embed_dim": 10},
    constructors=(("img_size", "patch_size", "in_chans", "embed_dim"),),
    cases=patch_cases,
    read=read_patches,
    shapes=lambda sizes: {
        "weight": (sizes["embed_dim"], sizes["in_chans"], sizes["patch_size"], sizes["patch_size"]),
        "bias": (sizes["embed_dim"],),
    },
    compute=compute_patches,
    designs=(PatchRules(),),
    mistakes=(
        Mistake("patches-overlap", "the patches overlap: the stride of the convolution is the size of a patch",
                {"embed": overlapping}),
        Mistake("patches-overlap", "the patches overlap by half: the stride of the convolution is the size of a patch",
                {"embed": half_overlapping}),
        Mistake("padded", "the image is padded, which makes more patches; no padding is needed", {"embed": padded}),
        Mistake("image-cut-by-reshape", "the image is cut by reshape alone, into stretches of rows; a patch is "
                "a square",
                {"embed": cut_by_reshape}),
        Mistake("features-before-patches", "the output is [B, embed_dim, N]; transpose it to [B, N, embed_dim]",
                {"order": lambda grid: grid.flatten(2)}),
        Mistake("reshaped-without-transpose", "[B, embed_dim, N] is reshaped to [B, N, embed_dim], which mixes patches "
                "and features; transpose",
                {"order": lambda grid: grid.flatten(2).reshape(len(grid), -1, grid.shape[1])}),
        Mistake("column-by-column", "the patches come column by column; they come row by row",
                {"order": lambda grid: grid.mT.flatten(2).mT}),
        Mistake("patches-reversed", "the patches come in reversed order",
                {"order": lambda grid: grid.flatten(2).mT.flip(1)}),
        Mistake("grid-not-flattened", "the output is [B, embed_dim, rows, columns]; flatten it to [B, N, embed_dim]",
                {"order": same}),
        Mistake("patches-before-batch", "the output is [N, B, embed_dim]; return [B, N, embed_dim]",
                {"order": lambda grid: grid.flatten(2).permute(2, 0, 1)}),
        Mistake("image-transposed", "rows and columns of the image are swapped", {"image": lambda x: x.mT}),
        Mistake("channels-reversed", "the channels come in reversed order", {"image": lambda x: x.flip(1)}),
        Mistake("patches-averaged", "the patches are averaged; return all of them",
                {"order": lambda grid: grid.flatten(2).mean(-1)}),
        Mistake("image-detached", "no gradient flows back to the image", {"image": torch.detach}),
    ),
)  # fmt: skip

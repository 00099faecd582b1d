"""A vision transformer: patches, a class token, learned positions, blocks, and a head that reads the class token.

Positions may be added to the patches before the class token is put in front, or to all tokens afterwards: the number of
positions says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anaphor.course.reference import Case, DoesNotFit, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import random_values, same
from anaphor.course.references.images import PATCH_EMBED, PatchRules, compute_patches, read_patches
from anaphor.course.references.transformer import (
    BLOCK_SIZES,
    INSIDE_A_STACK,
    STACK_DESIGNS,
    StackRules,
    block_sizes,
    read_stack,
    stack,
    stack_shapes,
)
from anaphor.course.weights import Weight, as_matrix, stem_of

Place = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From patches [B, N, D], the class token [D] and positions to tokens [B, N + 1, D]."""


def in_front(cls: Tensor, x: Tensor) -> Tensor:
    return torch.cat((cls.expand(len(x), 1, -1), x), dim=1)


def behind(cls: Tensor, x: Tensor) -> Tensor:
    return torch.cat((x, cls.expand(len(x), 1, -1)), dim=1)


def has_all(x: Tensor, positions: Tensor) -> bool:
    """Whether there is a position for the class token, too."""
    return len(positions) == x.shape[1] + 1


def of_patches(x: Tensor, positions: Tensor) -> Tensor:
    return positions[1:] if has_all(x, positions) else positions


def class_in_front(x: Tensor, cls: Tensor, positions: Tensor) -> Tensor:
    if has_all(x, positions):
        return in_front(cls, x) + positions
    return in_front(cls, x + positions)


def class_behind(x: Tensor, cls: Tensor, positions: Tensor) -> Tensor:
    return behind(cls, x) + positions if has_all(x, positions) else behind(cls, x + positions)


def no_class(x: Tensor, cls: Tensor, positions: Tensor) -> Tensor:
    return x + positions[: x.shape[1]]


def no_class_and_later_positions(x: Tensor, cls: Tensor, positions: Tensor) -> Tensor:
    return x + positions[-x.shape[1] :]


def positions_of_patches_only(x: Tensor, cls: Tensor, positions: Tensor) -> Tensor:
    if not has_all(x, positions):
        raise DoesNotFit
    return in_front(cls, x + positions[1:])


def positions_from_the_class(x: Tensor, cls: Tensor, positions: Tensor) -> Tensor:
    """A mistake: positions are added before the class token is there, so that those of the patches begin at 0."""
    if not has_all(x, positions):
        raise DoesNotFit
    return in_front(cls, x + positions[:-1])


def positions_rolled(steps: int) -> Place:
    return lambda x, cls, positions: class_in_front(x, cls, positions.roll(steps, 0))


def image_sizes(sizes: Sizes) -> Sizes:
    """With three channels where the constructor takes no number of them."""
    return block_sizes({"in_chans": 3, **sizes})


def read_head(w: Weights, h: Tensor) -> Tensor:
    return h @ w["head"].T + w["head.bias"]


@dataclass(frozen=True)
class VisionRules:
    """Steps of a vision transformer."""

    stack: StackRules
    patches: PatchRules = field(default_factory=PatchRules)
    place: Place = class_in_front
    pick: Callable[[Tensor], Tensor] = field(default=lambda h: h[:, 0])
    """What the head reads."""
    logits: Callable[[Weights, Tensor], Tensor] = read_head
    finish: Callable[[Tensor], Tensor] = same
    blocks: Callable[[Tensor, Tensor], Tensor] = field(default=lambda x, h: h)


def compute_vision(w: Weights, inputs: Mapping[str, Any], rules: VisionRules) -> Outputs:
    patches: Tensor = compute_patches(w, inputs, rules.patches)["out"]
    x = rules.place(patches, w["class"], w["position"])
    h, A = stack(w, x, None, rules.stack)
    return {"logits": rules.finish(rules.logits(w, rules.pick(rules.blocks(x, h)))), "A": A}


VISION_MISTAKES = (
    Mistake("class-token-missing", "no class token is put in front of the patches, and the head reads the first patch",
            {"place": no_class}),
    Mistake("class-token-missing", "no class token is put in front of the patches, and the head reads the first patch",
            {"place": no_class_and_later_positions}),
    Mistake("class-token-missing", "no class token is put in front of the patches, and the head reads their mean",
            {"place": no_class, "pick": lambda h: h.mean(1)}),
    Mistake("class-token-last", "the class token comes after the patches; put it in front of them",
            {"place": class_behind, "pick": lambda h: h[:, -1]}),
    Mistake("class-token-last", "the class token comes after the patches, and the head reads the first patch",
            {"place": class_behind}),
    Mistake("class-token-of-zeros", "the class token that is put in front is zero; put the learned one there",
            {"place": lambda x, cls, positions: class_in_front(x, 0 * cls, positions)}),
    Mistake("class-token-added", "the class token is added to the patches; put it in front of them",
            {"place": lambda x, cls, positions: x + cls + of_patches(x, positions)}),
    Mistake("class-token-from-patches", "the mean of the patches stands in place of the class token, which is learned",
            {"place": lambda x, cls, positions: class_in_front(x, x.mean(1, keepdim=True), positions)}),
    Mistake("head-reads-the-last-patch", "the head reads the last token; it reads the class token, the first one",
            {"pick": lambda h: h[:, -1]}),
    Mistake("head-reads-the-first-patch", "the head reads the first patch; it reads the class token before it",
            {"pick": lambda h: h[:, 1]}),
    Mistake("head-reads-the-mean", "the head reads the mean of all tokens; it reads the class token, the first one",
            {"pick": lambda h: h.mean(1)}),
    Mistake("head-reads-the-mean", "the head reads the mean of the patches; it reads the class token, the first one",
            {"pick": lambda h: h[:, 1:].mean(1)}),
    Mistake("head-reads-the-maximum", "the head reads the maximum of all tokens; it reads the class token, the "
        "first one",
            {"pick": lambda h: h.amax(1)}),
    Mistake("logits-of-all-tokens", "there are logits for every token; return those of the class token, [B, classes]",
            {"pick": same}),
    Mistake("head-reads-the-first-image", "the head reads one image of the batch; take the first token, h[:, 0]",
            {"pick": lambda h: h[0]}),
    Mistake("blocks-left-out", "the head reads the tokens before the blocks", {"blocks": lambda x, h: x}),
    Mistake("positions-left-out", "the positions are not added",
            {"place": lambda x, cls, positions: in_front(cls, x)}),
    Mistake("positions-multiplied", "the positions are multiplied; add them",
            {"place": lambda x, cls, positions: in_front(cls, x) * positions if has_all(x, positions)
             else in_front(cls, x * positions)}),
    Mistake("class-token-without-position", "the class token has a position that is not added to it",
            {"place": positions_of_patches_only}),
    Mistake("positions-before-class-token", "the positions are added before the class token is there, so that patches "
            "have the position of the token before them; put it in front first",
            {"place": positions_from_the_class}),
    Mistake("positions-shifted-by-one", "each token has the position of the next one", {"place": positions_rolled(-1)}),
    Mistake("positions-shifted-by-one", "each token has the position of the one before",
            {"place": positions_rolled(1)}),
    Mistake("positions-reversed", "the positions are in reversed order",
            {"place": lambda x, cls, positions: class_in_front(x, cls, positions.flip(0))}),
    Mistake("position-of-first-for-all", "all tokens have the first position",
            {"place": lambda x, cls, positions: class_in_front(x, cls, positions[:1].expand_as(positions))}),
    Mistake("returns-probabilities", "the output has gone through a softmax; return logits, which the loss expects",
            {"finish": lambda logits: torch.softmax(logits, -1)}),
    Mistake("returns-log-probabilities", "the output has gone through a log-softmax; return logits",
            {"finish": lambda logits: torch.log_softmax(logits, -1)}),
    Mistake("head-left-out", "the output has the width of the model; apply the head, which makes logits of it",
            {"logits": lambda w, h: h}),
    Mistake("activation-of-logits", "the logits go through an activation; return them as they are",
            {"finish": torch.relu}),
)  # fmt: skip


def read_vision(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """Patches, positions, class token and head by their shapes; the rest is a stack."""
    dim, classes = sizes["dim"], sizes["num_classes"]
    numbers = sizes["in_chans"] * sizes["patch_size"] ** 2
    count = (sizes["img_size"] // sizes["patch_size"]) ** 2
    patches = [one for one in given if one.value.ndim > 1 and one.value.numel() == dim * numbers]
    heads = [one for one in given if one.value.ndim == 2 and {*one.value.shape} == {classes, dim}]
    places = [one for one in given if one.value.ndim > 1 and one.value.numel() in (count * dim, (count + 1) * dim)
              and one.value.shape[-1] == dim]  # fmt: skip
    tokens = [one for one in given if _is_class_token(one, dim)]
    if len(patches) != 1 or len(heads) != 1 or len(places) != 1 or len(tokens) > 1:
        return
    patch_bias = [one for one in given if one.value.ndim == 1 and _beside(one, patches[0])]
    head_bias = [one for one in given if tuple(one.value.shape) == (classes,)]
    inside = {id(one) for one in (*patches, *heads, *places, *tokens, *patch_bias, *head_bias)}
    rest = [one for one in given if id(one) not in inside]
    like = heads[0].value
    outer = {
        "class": tokens[0].value.reshape(dim) if tokens else like.new_zeros(dim),
        "position": places[0].value.reshape(-1, dim),
        "head": as_matrix(heads[0], classes, dim)[0],
        "head.bias": head_bias[0].value if head_bias else like.new_zeros(classes),
    }
    found = list(read_patches([*patches, *patch_bias], {**sizes, "embed_dim": dim}))
    for reading in read_stack(rest, sizes):
        for patch in found:
            yield reading | outer | patch


def _is_class_token(weight: Weight, dim: int) -> bool:
    """A vector of its own: by its name, because it has axes for the batch and the tokens, or because it is a parameter
    of the model itself."""
    if weight.value.numel() != dim or weight.is_linear or weight.is_norm:
        return False
    is_own = "." not in weight.name and not weight.is_bias
    return weight.value.ndim > 1 or is_own or bool(re.search(r"cls|class|token", weight.name.lower()))


def _beside(bias: Weight, weight: Weight) -> bool:
    """Whether a bias is that of a weight: they are in one module, or their names begin alike."""
    owner, _, _ = weight.name.rpartition(".")
    if owner:
        return bias.name.rpartition(".")[0] == owner
    word = re.split(r"[_\d]", stem_of(weight.name))[0]
    return bias.is_bias and "." not in bias.name and word in bias.name


def vision_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Those of the patches are as in a convolution."""
    dim, size = sizes["dim"], sizes["patch_size"]
    shapes: dict[str, tuple[int, ...]] = {"weight": (dim, sizes["in_chans"], size, size), "bias": (dim,)}
    shapes |= {"class": (dim,), "position": ((sizes["img_size"] // size) ** 2 + 1, dim)}
    return stack_shapes(sizes) | shapes | {"head": (sizes["num_classes"], dim), "head.bias": (sizes["num_classes"],)}


def vision_cases(sizes: Sizes) -> list[Case]:
    shape = (sizes["in_chans"], sizes["img_size"], sizes["img_size"])
    return [
        Case("of images", {"x": random_values(5, *shape)}, "of images"),
        Case("of one image", {"x": random_values(1, *shape, seed=1)}, "of one image"),
    ]


OF_BLOCKS = (
    ("dim", "attn_dim", "mlp_dim", "num_heads", "num_layers"),
    ("dim", "num_heads", "num_layers"),
    ("dim", "mlp_dim", "num_heads", "num_layers"),
)
# Without a mask nothing of the blocks can be wrong with it.
UNMASKED = tuple(one for one in INSIDE_A_STACK if "mask" not in one.name)
VIT = Reference(
    name="ViT",
    call="ViT(img_size, patch_size, in_chans, dim, attn_dim, mlp_dim, num_heads, num_layers, num_classes), "
    "forward(x [B, C, H, W]) -> logits [B, num_classes], A [B, layers, H, N + 1, N + 1]",
    outputs=("logits", "A"),
    arguments=("x",),
    sizes={"img_size": 15, "patch_size": 5, "in_chans": 3, **BLOCK_SIZES, "num_layers": 2, "num_classes": 11},
    constructors=tuple(
        (*image, *blocks, "num_classes")
        for blocks in OF_BLOCKS
        for image in (("img_size", "patch_size", "in_chans"), ("img_size", "patch_size"))
    ),
    derived=image_sizes,
    cases=vision_cases,
    read=read_vision,
    shapes=vision_shapes,
    compute=compute_vision,
    designs=tuple(VisionRules(rules) for rules in STACK_DESIGNS),
    mistakes=(
        *VISION_MISTAKES,
        *(one.inside("patches") for one in PATCH_EMBED.mistakes),
        *(one.inside("stack") for one in UNMASKED),
    ),
    pairs=200,
    tried=24,
)

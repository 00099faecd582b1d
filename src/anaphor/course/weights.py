"""The weights of a student's module, and how they are found there: by name, by shape, and by order.

Nothing is copied into the student's module. Its weights get random values, and are read as those of the reference:
transposed, split or put together as their shapes ask. So gradients of the reference reach the student's own weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Weight:
    """A parameter of a module."""

    name: str
    """With the path, dotted."""
    value: Tensor
    owner: type[nn.Module]
    """Type of the module that has it."""

    @property
    def is_linear(self) -> bool:
        """Whether it is the matrix [out, in] of a linear layer."""
        return issubclass(self.owner, nn.Linear) and self.value.ndim == 2

    @property
    def is_embedding(self) -> bool:
        return issubclass(self.owner, nn.Embedding)

    @property
    def is_norm(self) -> bool:
        if issubclass(self.owner, nn.LayerNorm):
            return True
        return bool(re.search(r"(norm|gamma|beta|(^|[._])ln)", self.name.lower())) and self.value.ndim == 1

    @property
    def is_bias(self) -> bool:
        """By its name: a bias may have any shape."""
        return bool(re.search(r"(bias|beta|(^|[._])b(_?\w|[._]?\d+)?)$", self.name.lower()))


def weights_of(module: nn.Module) -> list[Weight]:
    """All parameters in the order of their definition; one that is used twice, once."""
    found: dict[int, Weight] = {}
    for path, part in module.named_modules():
        for name, value in part.named_parameters(recurse=False):
            owner = nn.Module if isinstance(part, nn.ParameterList | nn.ParameterDict) else type(part)
            found.setdefault(id(value), Weight(f"{path}.{name}" if path else name, value, owner))
    return list(found.values())


def randomize(weights: Sequence[Weight], generator: torch.Generator) -> None:
    """Give every weight that is trained random values, so that no two computations agree by chance: zeros and ones
    would
    hide much. Others are constants, such as a table of sines."""
    with torch.no_grad():
        for weight in weights:
            if weight.value.is_floating_point() and weight.value.requires_grad:
                drawn = torch.randn(weight.value.shape, generator=generator, dtype=torch.float64)
                is_scale = weight.is_norm and not weight.is_bias
                weight.value.copy_(1 + 0.4 * drawn if is_scale else 0.5 * drawn)


ROLES = {
    "qkv": r"qkv|kqv|qvk|c_attn|in_proj",
    "kv": r"(^|[._]|to|w|lin|proj|fc)kv(s|_|$|proj)",
    "q": r"quer|(^|[._]|to|w|lin|proj|fc|b)_?q(s|_|$|proj|lin|\d)",
    "k": r"key|(^|[._]|to|w|lin|proj|fc|b)_?k(s|_|$|proj|lin|\d)",
    "v": r"val|(^|[._]|to|w|lin|proj|fc|b)_?v(s|_|$|proj|lin|\d)",
    "o": r"out|proj|combine|unify|merge|final|concat|(^|[._]|w|b|lin|fc)_?o(_|$|proj|lin)",
}
"""What the name of a weight says about its part in attention."""


def role_of(name: str) -> str | None:
    """The part that a weight has in attention, by the last word of its path that says one."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    name = re.sub(r"[._](weight|bias)$", "", name)
    for word in reversed(name.split(".")):
        for role, pattern in ROLES.items():
            if re.search(pattern, word):
                return role
    return None


def with_bias(weight: Weight, bias: Weight | None, dim: int) -> list[Tensor]:
    """Every way to read a matrix as one with inputs of size `dim`, which come last, and its bias as one input more."""
    value, found = weight.value, []
    axes = [1] if weight.is_linear else range(value.ndim)
    for axis in axes:
        if value.shape[axis] != dim:
            continue
        moved = value.movedim(axis, -1)
        outer = moved.shape[:-1]
        column = moved.new_zeros(outer) if bias is None else bias.value
        if column.numel() == math.prod(outer):
            found.append(torch.cat((moved, column.reshape(outer)[..., None]), dim=-1))
    return found


def as_heads(value: Tensor, parts: int, heads: int, size: int) -> list[Tensor]:
    """Every way to read a matrix of several projections, whose inputs come last, as [parts, heads, size, inputs]."""
    wide, found = value.shape[-1], []
    for order in permutations(range(value.ndim - 1)):
        turned = value.permute(*order, -1)
        shape = turned.shape[:-1]
        flat = (parts * heads * size,)
        if shape in (flat, (parts, heads, size), (parts, heads * size), (parts * heads, size)):
            found.append(turned.reshape(parts, heads, size, wide))
        if min(parts, heads) > 1 and shape in (flat, (heads, parts, size), (heads, parts * size)):
            found.append(turned.reshape(heads, parts, size, wide).transpose(0, 1))
    return found


def as_output(weight: Weight, dim: int, heads: int, size: int) -> list[Tensor]:
    """Every way to read the projection of the concatenated heads as [dim, heads · size]."""
    value = weight.value
    if weight.is_linear:
        return [value] if value.shape == (dim, heads * size) else []
    found = []
    if value.shape == (heads * size, dim):
        found.append(value.T)
    if value.shape == (dim, heads * size):
        found.append(value)
    for order in ((2, 0, 1), (0, 1, 2), (0, 2, 1)):
        if value.ndim == 3 and tuple(value.permute(order).shape) == (dim, heads, size):
            found.append(value.permute(order).reshape(dim, heads * size))
    return found


def as_matrix(weight: Weight, rows: int, columns: int) -> list[Tensor]:
    """Every way to read a weight as the matrix [rows, columns] of a linear layer."""
    value, found = weight.value, []
    if value.shape == (rows, columns):
        found.append(value)
    if value.shape == (columns, rows) and not weight.is_linear:
        found.append(value.T)
    return found


Projections = dict[str, Tensor]
"""q, k and v [H, K, D] with biases bq, bk and bv [H, K]; o [D, H·K] and bo [D] where there is an output projection."""


def read_attention(
    given: Sequence[Weight], heads: int, size: int, dim: int, has_output: bool = True
) -> Iterator[Projections]:
    """Every way to read weights as those of attention: by their names where these say it and fit the shapes, otherwise
    by shape and place alone."""
    is_read = False
    for named in (given, forget_names(given)):
        biases = [weight for weight in named if weight.is_bias]
        matrices = [weight for weight in named if not weight.is_bias]
        for roles in _assign(matrices, has_output, heads):
            for reading in _stack(roles, biases, heads, size, dim):
                is_read = True
                yield reading
        if is_read:
            return


def forget_names(given: Sequence[Weight]) -> list[Weight]:
    """The weights with names that say which bias belongs to which matrix, and no more: for those whose names mislead. A
    bias without a matrix of its name belongs to the one in its place, if there are as many."""
    biases = [weight for weight in given if weight.is_bias or weight.value.ndim == 1]
    inside = {id(weight) for weight in biases}
    matrices = [weight for weight in given if id(weight) not in inside]
    stems = [stem_of(weight.name) for weight in matrices]
    in_order = len(biases) == len(matrices) and not any(stem_of(weight.name) in stems for weight in biases)
    found = [replace(weight, name=f"{number}.weight") for number, weight in enumerate(matrices)]
    for place, bias in enumerate(biases):
        stem = stem_of(bias.name)
        number = place if in_order else stems.index(stem) if stem in stems else None
        found.append(bias if number is None else replace(bias, name=f"{number}.bias"))
    return found


Roles = dict[str, list[Weight]]


def _assign(matrices: list[Weight], has_output: bool, heads: int) -> Iterator[Roles]:
    """Which matrices are which: by name where the names say it, otherwise in every order that the shapes allow."""
    named: Roles = {}
    for weight in matrices:
        named.setdefault(role_of(weight.name) or "", []).append(weight)
    wanted = [{"qkv"}, {"q", "kv"}, {"q", "k", "v"}]
    unnamed = named.pop("", [])
    if not has_output and "o" in named and {"q", "k"} <= set(named) and "v" not in named:
        named["v"] = named.pop("o")
    for roles in wanted:
        missing = [role for role in (*sorted(roles), *(["o"] if has_output else [])) if role not in named]
        extra = set(named) - roles - {"o"}
        if extra or (len(missing) == len(roles) + has_output and len(missing) > len(unnamed)):
            continue
        if not missing and not unnamed:
            yield named
            return
        yield from _fill(named, missing, unnamed, heads)


def _fill(named: Roles, missing: list[str], unnamed: list[Weight], heads: int) -> Iterator[Roles]:
    """Missing roles from weights whose names say nothing: of all heads in one, or of one head each."""
    if not missing or len(missing) > len(unnamed):
        return
    if len(unnamed) == len(missing):
        for order in permutations(unnamed):
            yield named | {role: [weight] for role, weight in zip(missing, order, strict=True)}
    inner, has_output = [role for role in missing if role != "o"], "o" in missing
    if heads == 1 or not inner or len(unnamed) != heads * len(inner) + has_output:
        return
    for place in (-1, 0) if has_output else (None,):
        rest = unnamed if place is None else unnamed[:-1] if place else unnamed[1:]
        output: Roles = {} if place is None else {"o": [unnamed[place]]}
        for places in permutations(range(len(inner))):
            by_head = {role: rest[at :: len(inner)] for role, at in zip(inner, places, strict=True)}
            by_role = {role: rest[at * heads : (at + 1) * heads] for role, at in zip(inner, places, strict=True)}
            yield named | by_head | output
            if len(inner) > 1:
                yield named | by_role | output


def _stack(roles: Roles, biases: list[Weight], heads: int, size: int, dim: int) -> Iterator[Projections]:
    """The matrices of each role in one, with their biases. No bias may be left over."""
    options: list[list[Projections]] = []
    used = 0
    for role, weights in roles.items():
        own = _biases_of(role, weights, biases)
        used += sum(bias is not None for bias in own)
        if role == "o":
            options.append(_read_output(weights, own, heads, size, dim))
            continue
        names = {"qkv": ("q", "k", "v"), "kv": ("k", "v")}.get(role, (role,))
        choices = []
        for fused in _of_all_heads(weights, own, len(names), heads, size, dim):
            for order in permutations(range(len(names))):
                parts = {name: fused[at] for name, at in zip(names, order, strict=True)}
                matrix = {name: part[..., :-1] for name, part in parts.items()}
                choices.append(matrix | {f"b{name}": part[..., -1] for name, part in parts.items()})
        options.append(choices)
    if used != len(biases):
        return
    for choice in product(*options):
        merged: Projections = {}
        for part in choice:
            merged |= part
        yield merged


def _biases_of(role: str, weights: list[Weight], biases: list[Weight]) -> list[Weight | None]:
    """The bias beside each matrix: `query.bias` is that of `query.weight`, and `b_q` that of `W_q`."""
    by_stem = {stem_of(bias.name): bias for bias in biases}
    found = [by_stem.get(stem_of(weight.name)) for weight in weights]
    by_role = [bias for bias in biases if role_of(bias.name) == role]
    if not any(found) and len(by_role) == len(weights):
        return [*by_role]
    return found


def _of_all_heads(
    weights: list[Weight], biases: list[Weight | None], parts: int, heads: int, size: int, dim: int
) -> list[Tensor]:
    """Matrices of all heads in one, or of one head each, as [parts, heads, size, dim + 1]."""
    if len(weights) not in (1, heads):
        return []
    own = heads if len(weights) == 1 else 1
    each = [
        [one for value in with_bias(weight, bias, dim) for one in as_heads(value, parts, own, size)]
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return [torch.cat([one[at] for one in each], dim=1) for at in range(min(map(len, each)))]


def _read_output(
    weights: list[Weight], biases: list[Weight | None], heads: int, size: int, dim: int
) -> list[Projections]:
    if len(weights) != 1:
        return []
    bias = weights[0].value.new_zeros(dim) if biases[0] is None else biases[0].value.flatten()
    return [{"o": one, "bo": bias} for one in as_output(weights[0], dim, heads, size)] if len(bias) == dim else []


def stem_of(name: str) -> str:
    """The name without what makes it a weight or a bias."""
    return re.sub(r"[._]?(weight|bias|gamma|beta)$", "", name)


def split_layers(given: Sequence[Weight], layers: int) -> tuple[list[list[Weight]], list[Weight]] | None:
    """The weights of each layer and the rest, by the first number in their names that counts to `layers`."""
    for depth in range(4):
        groups: dict[str, dict[int, list[Weight]]] = {}
        for weight in given:
            numbers = [*re.finditer(r"\d+", weight.name)]
            if depth < len(numbers):
                number = numbers[depth]
                prefix = weight.name[: number.start()]
                groups.setdefault(prefix, {}).setdefault(int(number[0]), []).append(weight)
        for by_number in groups.values():
            lists = [by_number[number] for number in sorted(by_number)]
            shapes = [[tuple(weight.value.shape) for weight in one] for one in lists]
            if len(lists) == layers and all(one == shapes[0] for one in shapes) and _is_a_layer(lists[0]):
                inside = {id(weight) for one in lists for weight in one}
                return lists, [weight for weight in given if id(weight) not in inside]
    return None


def _is_a_layer(given: Sequence[Weight]) -> bool:
    return sum(weight.value.ndim > 1 for weight in given) > 2

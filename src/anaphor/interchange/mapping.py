"""Which tensors of another library are which parameters of ours, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anaphor.errors import DataError

Form = Literal["same", "batched", "transposed", "stacked", "by-head"]
"""same; batched: with an axis of size one before the others; transposed: a matrix the other way round; stacked: several
tensors one below the other; by-head: query, key and value of each head together, where ours has all queries first."""


@dataclass(frozen=True)
class Link:
    """One parameter of ours and the tensors that hold its values."""

    ours: str
    theirs: tuple[str, ...]
    form: Form = "same"
    heads: int = 1
    """Number of heads, for `by-head`."""

    def shapes(self, ours: Sequence[int]) -> list[tuple[int, ...]]:
        """Shapes of their tensors, given that of ours."""
        if self.form == "stacked":
            return [(ours[0] // len(self.theirs), *ours[1:])] * len(self.theirs)
        if self.form == "batched":
            return [(1, *ours)]
        return [tuple(reversed(ours)) if self.form == "transposed" else tuple(ours)]

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Their tensors as our parameter."""
        match self.form:
            case "stacked":
                return torch.cat(list(tensors))
            case "batched":
                return tensors[0][0]
            case "transposed":
                return tensors[0].t()
            case "by-head":
                by_head: Tensor = tensors[0].unflatten(0, (self.heads, 3, -1))
                return by_head.transpose(0, 1).flatten(0, 2)
        return tensors[0]

    def split(self, parameter: Tensor) -> list[Tensor]:
        """Our parameter as their tensors."""
        match self.form:
            case "stacked":
                return list(parameter.chunk(len(self.theirs)))
            case "batched":
                return [parameter[None]]
            case "transposed":
                return [parameter.t()]
            case "by-head":
                return [parameter.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2)]
        return [parameter]


def link(ours: str, *theirs: str, form: Form = "same", heads: int = 1, bias: bool = True) -> list[Link]:
    """Links of weight and bias of a linear map or a norm."""
    form = "stacked" if len(theirs) > 1 else form
    names = ("weight", "bias") if bias else ("weight",)
    return [
        Link(
            f"{ours}.{part}",
            tuple(f"{name}.{part}" for name in theirs),
            "same" if part == "bias" and form == "transposed" else form,
            heads,
        )
        for part in names
    ]


def collect(
    links: Iterable[Link],
    shapes: Mapping[str, Sequence[int]],
    shape_of: Callable[[str], tuple[int, ...] | None],
    read: Callable[[str], Tensor],
    where: str,
) -> dict[str, Tensor]:
    """Our parameters from their tensors. `shapes` are those of our parameters; `shape_of` gives None for a tensor that
    is not there. All shapes are checked before the first tensor is read."""
    links = list(links)
    problems = []
    for one in links:
        expected = one.shapes(shapes[one.ours])
        for name, shape in zip(one.theirs, expected, strict=True):
            found = shape_of(name)
            if found is None:
                problems.append(f"{name} is missing (expected {list(shape)})")
            elif found != shape:
                problems.append(f"{name} is {list(found)}, but the configuration implies {list(shape)}")
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise DataError(f"the tensors of {where} do not fit: {'; '.join(problems[:3])}{more}")
    return {one.ours: one.join([read(name) for name in one.theirs]).contiguous() for one in links}


def scatter(links: Iterable[Link], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors from our parameters."""
    tensors: dict[str, Tensor] = {}
    for one in links:
        tensors.update(zip(one.theirs, one.split(parameters[one.ours]), strict=True))
    return tensors

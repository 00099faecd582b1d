"""Kind of model: how a configuration becomes a spec of ours and back, and which tensors are which parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from anaphor.errors import DataError
from anaphor.interchange.folder import Config, Source
from anaphor.models.spec import PATTERNS, BackboneSpec

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
}
"""Our names of activations."""
_THEIRS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "silu": "silu"}
BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".masked_bias", ".inv_freq")
"""Ends of the names of tensors that are no weights."""
Form = Literal["same", "batched", "depthwise", "transposed", "stacked", "by-head"]
"""same; batched: with an axis of size one before the others; depthwise: with one behind the first; transposed: a matrix
the other way round; stacked: several tensors one below the other; by-head: query, key and value of each head together,
where ours has all queries first."""


@dataclass(frozen=True)
class Link:
    """One parameter of ours and the tensors that hold its values."""

    ours: str
    theirs: tuple[str, ...]
    form: Form = "same"
    heads: int = 1
    """Number of heads, for `by-head`."""
    sizes: tuple[int, ...] = ()
    """Number of rows of each tensor, for `stacked`; () where all have as many."""

    def shapes(self, ours: Sequence[int]) -> list[tuple[int, ...]]:
        """Shapes of their tensors, given that of ours."""
        if self.form == "stacked":
            count = len(self.theirs)
            return [(rows, *ours[1:]) for rows in self.sizes or (ours[0] // count,) * count]
        if self.form == "batched":
            return [(1, *ours)]
        if self.form == "depthwise":
            return [(ours[0], 1, *ours[1:])]
        return [tuple(reversed(ours)) if self.form == "transposed" else tuple(ours)]

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Their tensors as our parameter."""
        match self.form:
            case "stacked":
                return torch.cat(list(tensors))
            case "batched":
                return tensors[0][0]
            case "depthwise":
                return tensors[0][:, 0]
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
                return list(parameter.split(self.sizes or parameter.shape[0] // len(self.theirs)))
            case "batched":
                return [parameter[None]]
            case "depthwise":
                return [parameter[:, None]]
            case "transposed":
                return [parameter.t()]
            case "by-head":
                return [parameter.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2)]
        return [parameter]


class Kind(ABC):
    """One `model_type` of `transformers`."""

    model_type: ClassVar[str]
    prefix: ClassVar[str]
    """Before the names of the tensors in classes with a head."""
    probe: ClassVar[str]
    """A tensor that every model of this kind has, without the prefix."""

    @abstractmethod
    def spec(self, config: Config, source: Source) -> BackboneSpec:
        """Our spec of the model in a folder or file."""

    @abstractmethod
    def links(self, spec: Any, prefix: str) -> list[Link]:
        """The tensors of all parameters of the spec's model; `prefix` is before those of the model without its head."""

    @abstractmethod
    def misfit(self, model: nn.Module) -> str:
        """Why this kind has no class that computes what our model computes; empty where it has."""

    @abstractmethod
    def config(self, spec: Any, labels: Sequence[str] | None) -> dict[str, Any]:
        """`config.json` for a spec that fits."""

    def resembles(self, model: nn.Module) -> bool | None:
        """Whether our model has the marks of this kind, so that its misfit is told; None for a kind without marks."""
        return None

    def prefix_in(self, source: Source) -> str:
        """The prefix that the names of its tensors have."""
        return self.prefix if f"{self.prefix}{self.probe}" in source else ""

    def is_ignored(self, name: str) -> bool:
        """Whether a tensor may be left out silently."""
        return name.endswith(BUFFERS)


def their_activation(name: str) -> str:
    return _THEIRS[name]


def label_config(labels: Sequence[str] | None) -> dict[str, Any]:
    """The part of a configuration that names the classes."""
    if labels is None:
        return {}
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def stack_misfit(spec: BackboneSpec, *, norm: str, mask: str, free: Collection[str] = ()) -> str:
    """Why a stack of layers is not one of plain attention as other libraries have it; empty where it is. Of the options
    in `free` their class has other values as well."""
    reason = layers_misfit(spec, "attention")
    if reason:
        return reason
    block = spec.blocks()[0]
    mixer: Any = block.mixer
    wanted: Mapping[str, tuple[Any, Any]] = {
        "norm": (spec.norm, norm),
        "norm_kind": (spec.norm_kind, "layernorm"),
        "feedforward_bias": (spec.feedforward_bias, True),
        "parallel_residual": (spec.parallel_residual, "none"),
        "qk_norm": (mixer.qk_norm or "none", "none"),
        "residual": (spec.residual, True),
        "score": (mixer.score, "scaled-dot"),
        "softcap": (mixer.softcap, None),
        "normalize": (mixer.normalize, "softmax"),
        "merge": (mixer.merge, "concatenate"),
        "combine": (mixer.combine, "context"),
        "mask": (mixer.mask, mask),
        "window": (mixer.window, None),
        "memory": (mixer.memory, None),
        "bias": (mixer.bias, True),
        "out_bias": (mixer.out_bias in (None, True), True),
        "rope_theta": (mixer.rope_theta or 10000.0, 10000.0),
        "rope_scaling": (mixer.rope_scaling, None),
        "partial_rotary_factor": (mixer.partial_rotary_factor or 1.0, 1.0),
        "kv_heads": (mixer.kv_heads or mixer.heads, mixer.heads),
        "short_conv": (block.short_conv, 0),
        "head_width": (mixer.sizes.head_width, spec.width // mixer.sizes.heads),
        "embedding": (spec.width_in, spec.width),
    }
    reason = first_difference({name: pair for name, pair in wanted.items() if name not in free})
    if not reason and block.feedforward and "activation" not in free and spec.activation not in _THEIRS:
        return f"the activation of its feed-forward networks is {spec.activation!r}, and the stock class has no gate"
    return reason or ("" if block.feedforward else "it has no feed-forward networks")


def layers_misfit(spec: BackboneSpec, mixer: str) -> str:
    """Why a stack does not consist of equal layers with this mixer."""
    others = sorted(set(spec.mixers_by_layer) - {mixer})
    if others:
        return f"it has {', '.join(others)} layers; only a stack of {mixer} layers has a stock class"
    for name in ("layer_widths", "layer_norms", "layer_residuals", "layer_dropouts", "layer_short_convs", *PATTERNS):
        values = getattr(spec, name)
        if len(set(values)) > 1 or (values and name != "layer_dropouts"):
            return f"its layers differ: {name}={values}"
    return ""


def first_difference(wanted: Mapping[str, tuple[Any, Any]]) -> str:
    """The first option whose value is another one than the second of the pair, the one of the stock class."""
    for name, (value, needed) in wanted.items():
        if value != needed:
            return f"its {name} is {value!r}, and the stock class has {needed!r}"
    return ""


def block_shape(spec: BackboneSpec) -> tuple[int, int, int]:
    """Number of layers and heads, and hidden width, of a stack that fits."""
    block: Any = spec.blocks()[0]
    return len(spec.mixers_by_layer), block.mixer.heads, block.feedforward


def link(
    ours: str, *theirs: str, form: Form = "same", heads: int = 1, sizes: tuple[int, ...] = (), bias: bool = True
) -> list[Link]:
    """Links of weight and bias of a linear map or a norm."""
    form = "stacked" if len(theirs) > 1 else form
    names = ("weight", "bias") if bias else ("weight",)
    return [
        Link(
            f"{ours}.{part}",
            tuple(f"{name}.{part}" for name in theirs),
            "same" if part == "bias" and form in ("transposed", "depthwise") else form,
            heads,
            sizes,
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

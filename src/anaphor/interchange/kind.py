"""Kind of model: how a configuration becomes a spec of ours and back, and which tensors are which parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from anaphor.interchange.folder import Config, PretrainedFolder
from anaphor.interchange.mapping import Link
from anaphor.models.spec import BackboneSpec

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
"""Our names of activations."""
_THEIRS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu"}
BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".masked_bias", ".inv_freq")
"""Ends of the names of tensors that are no weights."""


class Kind(ABC):
    """One `model_type` of `transformers`."""

    model_type: ClassVar[str]
    prefix: ClassVar[str]
    """Before the names of the tensors in classes with a head."""
    probe: ClassVar[str]
    """A tensor that every model of this kind has, without the prefix."""

    @abstractmethod
    def spec(self, config: Config, folder: PretrainedFolder) -> BackboneSpec:
        """Our spec of the model in a folder."""

    @abstractmethod
    def links(self, spec: Any, prefix: str) -> list[Link]:
        """The tensors of all parameters of the spec's model; `prefix` is before those of the model without its head."""

    @abstractmethod
    def misfit(self, model: nn.Module) -> str:
        """Why this kind has no class that computes what our model computes; empty where it has."""

    @abstractmethod
    def config(self, spec: Any, labels: Sequence[str] | None) -> dict[str, Any]:
        """`config.json` for a spec that fits."""

    def prefix_in(self, folder: PretrainedFolder) -> str:
        """The prefix that the names of tensors in a folder have."""
        return self.prefix if f"{self.prefix}{self.probe}" in folder.files else ""

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


def stack_misfit(spec: BackboneSpec, *, norm: str, mask: str) -> str:
    """Why a stack of layers is not one of plain attention as other libraries have it; empty where it is."""
    mixers = sorted(set(spec.mixers_by_layer) - {"attention"})
    if mixers:
        return f"it has {', '.join(mixers)} layers; only a stack of attention layers has a stock class"
    for name in ("layer_widths", "layer_norms", "layer_residuals", "layer_dropouts"):
        values = getattr(spec, name)
        if len(set(values)) > 1 or (values and name != "layer_dropouts"):
            return f"its layers differ: {name}={values}"
    block = spec.blocks()[0]
    mixer: Any = block.mixer
    wanted: Mapping[str, tuple[Any, Any]] = {
        "norm": (spec.norm, norm),
        "residual": (spec.residual, True),
        "score": (mixer.score, "scaled-dot"),
        "normalize": (mixer.normalize, "softmax"),
        "merge": (mixer.merge, "concatenate"),
        "combine": (mixer.combine, "context"),
        "mask": (mixer.mask, mask),
        "window": (mixer.window, None),
        "memory": (mixer.memory, None),
        "bias": (mixer.bias, True),
        "head_width": (mixer.sizes.head_width, spec.width // mixer.sizes.heads),
        "embedding": (spec.width_in, spec.width),
    }
    for name, (value, needed) in wanted.items():
        if value != needed:
            return f"its {name} is {value!r}, and the stock class has {needed!r}"
    return "" if block.feedforward else "it has no feed-forward networks"


def block_shape(spec: BackboneSpec) -> tuple[int, int, int]:
    """Number of layers and heads, and hidden width, of a stack that fits."""
    block: Any = spec.blocks()[0]
    return len(spec.mixers_by_layer), block.mixer.heads, block.feedforward

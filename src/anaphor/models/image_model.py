"""Image classifier: patches, backbone, head. With attention layers it is a vision transformer (Dosovitskiy et al.,
2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anaphor.models.backbone import Backbone, Block
from anaphor.models.embedder import PatchEmbedder
from anaphor.models.head import Head, widen
from anaphor.models.image_spec import ImageModelSpec
from anaphor.models.initialize import INIT_SCHEMES


class ClassHead(Head):
    """Pooled features, layer norm and logits of classes. [B, T, D] -> [B, C]"""

    def __init__(self, width: int, classes: int, pooling: str, extra_tokens: int, norm_eps: float | None) -> None:
        """The first `extra_tokens` are no patches; with pooling "class" the first of all is read. No `norm_eps`: no
        norm."""
        super().__init__(width, classes, bias=True, tied_to=None)
        self.pooling, self.extra_tokens = pooling, extra_tokens
        self.norm = None if norm_eps is None else nn.LayerNorm(width, eps=norm_eps)

    def pool(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, D]"""
        return x[:, 0] if self.pooling == "class" else x[:, self.extra_tokens :].mean(1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(x)
        return super().forward(pooled if self.norm is None else self.norm(pooled))


class ImageClassifier(nn.Module):
    """Images in, logits of classes out: `model(images)`, [B, C, H, W] -> [B, classes].

    Images of other sizes than those of training are accepted where the patches tile them; positions are interpolated.
    """

    def __init__(self, spec: ImageModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedder = PatchEmbedder(spec)
        # The norm after the last layer is in the head: there it is computed of the pooled features alone.
        self.layers = Backbone(spec.blocks(), spec.width_in)
        norm_eps = spec.norm_eps if spec.norm == "before" else None
        self.head = ClassHead(self.layers.width_out, spec.classes, spec.pooled, spec.extra_tokens, norm_eps)
        INIT_SCHEMES[spec.init_scheme](self)

    @property
    def blocks(self) -> list[Block]:
        """The layers, from the first to the last."""
        return self.layers.blocks

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return self.embedder.patches.weight.device

    def count_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def features(self, images: Tensor) -> Tensor:
        """Features of the last layer: class token, registers, then the patches row by row. [B, C, H, W] -> [B, T, D]"""
        x: Tensor = self.layers(self.embedder(images))[0]
        return x

    def forward(self, images: Tensor) -> Tensor:
        if self.spec.pooled == "class":  # the others are not read
            x = self.layers.forward_first(self.embedder(images), 1)
        else:
            x = self.features(images)
        logits: Tensor = self.head(x)
        return logits


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the losses of all rows against probabilities of the classes. [B, C], [B, C] -> []"""
    log_p = widen(logits).log_softmax(-1)
    return -(targets.to(log_p.dtype) * log_p).sum()

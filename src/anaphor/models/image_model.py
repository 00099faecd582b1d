"""Image classifier: patches, backbone, head. With attention layers it is a vision transformer (Dosovitskiy et al.,
2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anaphor.mixers.layers import NORM_KINDS
from anaphor.models.backbone import Backbone, Block
from anaphor.models.embedder import PatchEmbedder
from anaphor.models.head import ClassHead
from anaphor.models.image_spec import ImageModelSpec
from anaphor.models.initialize import INIT_SCHEMES


class ImageClassifier(nn.Module):
    """Images in, logits of classes out: `model(images)`, [B, C, H, W] -> [B, classes].

    Images of other sizes than those of training are accepted where the patches tile them; positions are interpolated.
    """

    def __init__(self, spec: ImageModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedder = PatchEmbedder(spec)
        # The norm after the last layer is in the head: there it is computed of the pooled hidden states alone.
        self.layers = Backbone(spec.blocks(), spec.width_in)
        width, norm = self.layers.width_out, None
        if spec.norm == "before":
            # Of one vector for each image: torch's own layer norm, without the kernels for long texts.
            kind = nn.LayerNorm if spec.norm_kind == "layernorm" else NORM_KINDS[spec.norm_kind]
            norm = kind(width, eps=spec.norm_eps)
        self.head = ClassHead(width, spec.classes, spec.pooled, spec.extra_tokens, norm)
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

    def compute_hidden_states(self, images: Tensor) -> Tensor:
        """Hidden states of the last layer: class token, registers, then the patches row by row.
        [B, C, H, W] -> [B, T, D]"""
        x: Tensor = self.layers(self.embedder(images))[0]
        return x

    def forward(self, images: Tensor) -> Tensor:
        if self.spec.pooled == "class":  # the others are not read
            x = self.layers.forward_first(self.embedder(images), 1)
        else:
            x = self.compute_hidden_states(images)
        logits: Tensor = self.head(x)
        return logits

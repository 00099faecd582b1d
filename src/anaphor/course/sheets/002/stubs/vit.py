"""Sheet 002, problem 3: a vision transformer, from `images.py` and `transformer.py`."""

import torch
from images import PatchEmbed
from torch import Tensor, nn
from transformer import Transformer


class ViT(nn.Module):
    """002.3e: patches, a class token before them, learned positions of all of these, a transformer, and a linear head.

    Returns logits [B, num_classes], from the class token, and the weights [B, num_layers, num_heads, N + 1, N + 1].
    """

    def __init__(
        self,
        img_size: int,
        patch_size: int,
        in_chans: int,
        dim: int,
        attn_dim: int,
        mlp_dim: int,
        num_heads: int,
        num_layers: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, in_chans, dim)
        self.cls_token = ...  # 002.3e: your code, an nn.Parameter
        self.pos_embed = ...
        self.transformer = ...
        self.head = ...

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, in_chans, img_size, img_size]"""
        logits = ...  # 002.3e: your code
        A = ...
        return logits, A

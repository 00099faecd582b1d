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
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (img_size // patch_size) ** 2 + 1, dim))
        self.transformer = Transformer(dim, attn_dim, mlp_dim, num_heads, num_layers)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, in_chans, img_size, img_size]"""
        patches = self.patch_embed(x)
        tokens = torch.cat((self.cls_token.expand(len(x), -1, -1), patches), dim=1)
        out, A = self.transformer(tokens + self.pos_embed)
        return self.head(out[:, 0]), A

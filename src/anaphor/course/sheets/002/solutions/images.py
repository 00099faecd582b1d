"""Sheet 002, problem 3: from images to sequences of vectors."""

import torch
from torch import Tensor, nn


class PatchEmbed(nn.Module):
    """002.3a: cuts images into square patches, and maps each patch to a vector by the same linear map.

    [B, in_chans, img_size, img_size] -> [B, number of patches, embed_dim], patches row by row.
    """

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        self.num_patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)

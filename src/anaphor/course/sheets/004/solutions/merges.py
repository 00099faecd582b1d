"""Sheet 004, 2.2.3: other ways to put the outputs of the heads together. [B, H, T, K] -> [B, T, H · K]"""

import torch
from torch import Tensor


def concatenate(heads: Tensor) -> Tensor:
    """The heads side by side, in their order."""
    return heads.transpose(1, 2).flatten(2)


def shuffle(heads: Tensor) -> Tensor:
    """004.2.2d: the heads side by side, in an order that is drawn anew at each call."""
    return concatenate(heads[:, torch.randperm(heads.shape[1], device=heads.device)])


def shift(heads: Tensor) -> Tensor:
    """004.2.2d: the heads side by side, in the order 2, 3, …, H, 1."""
    return concatenate(heads.roll(-1, dims=1))


def reweight(heads: Tensor) -> Tensor:
    """004.2.2d: the heads side by side in their order, each times its norm over the mean norm of all heads."""
    norms = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
    return concatenate(heads * norms / norms.mean(dim=1, keepdim=True))

"""Sheet 004, 2.2.3: other ways to put the outputs of the heads together. [B, H, T, K] -> [B, T, H · K]"""

import torch
from torch import Tensor


def shuffle(heads: Tensor) -> Tensor:
    """004.2.2d: the heads side by side, in an order that is drawn anew at each call."""
    return ...  # 004.2.2d: your code


def shift(heads: Tensor) -> Tensor:
    """004.2.2d: the heads side by side, in the order 2, 3, …, H, 1."""
    return ...  # 004.2.2d: your code


def reweight(heads: Tensor) -> Tensor:
    """004.2.2d: the heads side by side in their order, each times its norm over the mean norm of all heads."""
    return ...  # 004.2.2d: your code

"""Sheet 000: batches of a text in parallel columns."""

import torch
from torch import Tensor


def batchify(data: Tensor, bsz: int) -> Tensor:
    """000.2.0a: the tokens of a text [N] in `bsz` columns, each a stretch of it; the rest is left out. [T, bsz]"""
    return ...  # 000.2.0a: your code


def get_batch(source: Tensor, i: int, bptt: int) -> tuple[Tensor, Tensor]:
    """000.2.0b: the segment that begins at time step i, and its targets.

    source [T, B] comes from `batchify`. The segment has `bptt` time steps, or fewer at the end of the text. Its targets
    are the tokens that follow, [t, B] or flat.
    """
    data = ...  # 000.2.0b: your code
    targets = ...
    return data, targets

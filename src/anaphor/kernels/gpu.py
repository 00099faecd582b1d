"""What the Triton kernels ask of a GPU."""

from __future__ import annotations

from functools import cache

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of the numbers that kernels read; they compute in single precision."""
MIN_CAPABILITY = 8
"""Major version of the compute capability: from Ampere on there are bfloat16 and asynchronous copies."""


@cache
def compute_capability(device: torch.device) -> int:
    """The major version of a GPU's compute capability."""
    return torch.cuda.get_device_capability(device)[0]


def is_supported(device: torch.device) -> bool:
    """Whether kernels that need nothing but Triton run on a GPU."""
    return compute_capability(device) >= MIN_CAPABILITY


@cache
def count_programs(device: torch.device) -> int:
    """Number of programs that share the rows of a matrix."""
    return 8 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4

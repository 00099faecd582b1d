"""Packages of peers, which Anaphor does not need: imported where they are installed."""

from __future__ import annotations

from importlib import import_module

import torch

from anaphor.errors import ConfigError


def require(part: str, *names: str) -> None:
    """Import packages of a peer, or raise an error of one line that says what to install."""
    declare_torchvision_operators()
    try:
        for name in names:
            import_module(name)
    except ImportError as missing:
        raise ConfigError(f"the part {part} needs {missing.name}: pip install {' '.join(names)}") from missing


def declare_torchvision_operators() -> None:
    """Make torchvision, which timm and transformers import, importable beside a torch for CPUs.

    It is built for CUDA on PyPI, so that its operators are missing; it asks for two of them, which are never called.
    """
    if torch.version.cuda is None and not _DECLARED and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)


_DECLARED: list[torch.library.Library] = []
"""Declarations last as long as their library."""

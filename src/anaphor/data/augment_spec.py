"""Settings of the random transformations of images. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from anaphor.config import check_below_one
from anaphor.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AugmentationSpec:
    """Strength of each random transformation of training images; 0 turns one off."""

    section: ClassVar[str] = "training"

    crop_padding: int = 0
    """Random crop after padding with this many pixels on each side (0: off)."""
    flip: bool = False
    """Horizontal flip of every other image, at random."""
    color_jitter: float = 0.0
    """Color jitter: brightness, contrast and saturation times 1 - x to 1 + x (0: off)."""
    rotation: float = 0.0
    """Rotation by up to this many degrees to either side (0: off)."""
    translation: float = 0.0
    """Translation by up to this share of the image's side (0: off)."""
    zoom: float = 0.0
    """Zoom by a factor from 1 - x to 1 + x (0: off)."""
    shear: float = 0.0
    """Shear along both axes by up to this share (0: off)."""
    random_ops: int = 0
    """RandAugment: number of random operations per image; 1 is TrivialAugment (0: off)."""
    magnitude: float = 0.5
    """RandAugment: largest magnitude of the random operations, from 0 to 1."""
    cutout: int = 0
    """Cutout: side of a square that is erased, in pixels (0: off)."""
    mixup: float = 0.0
    """Mixup: alpha of the beta distribution of the mixing weight (0: off)."""
    cutmix: float = 0.0
    """Cutmix: alpha of the beta distribution of the pasted area (0: off). With mixup, each image gets one of them."""
    mix_prob: float = 1.0
    """Share of the images that mixup or cutmix is applied to."""

    def __post_init__(self) -> None:
        for name in ("crop_padding", "rotation", "shear", "random_ops", "cutout", "mixup", "cutmix"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name}={value}: it must be at least 0 and finite")
        for name in ("color_jitter", "translation", "magnitude", "mix_prob"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ConfigError(f"{name}={value}: it must be from 0 to 1")
        check_below_one(zoom=self.zoom)

    @property
    def moves(self) -> bool:
        """Whether pixels are moved."""
        moves = self.crop_padding, self.flip, self.rotation, self.translation, self.zoom, self.shear, self.random_ops
        return any(moves)

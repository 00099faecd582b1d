"""Random transformations of images, in batches on the device.

All draws of an image come from a hash of (seed, epoch, index of the image), whatever else is in its batch; only the
partner of mixup and cutmix is its neighbor in the batch. There is no random state and nothing is read on the host, so
that a CUDA graph can hold all of it. All changes of geometry are one affine map and one interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor

from anaphor.data.augment_spec import AugmentationSpec

# Draws of an image, by number: turning one option on does not change the draws of another.
_number = count()
CROP_X, CROP_Y, FLIP, BRIGHTNESS, CONTRAST, SATURATION = (next(_number) for _ in range(6))
ROTATE, TRANSLATE_X, TRANSLATE_Y, SCALE, SHEAR_X, SHEAR_Y = (next(_number) for _ in range(6))
CUTOUT_X, CUTOUT_Y, MIX, MIX_KIND, MIX_LAMBDA, MIX_X, MIX_Y = (next(_number) for _ in range(7))
RANDOM_OPS = next(_number)
"""From here on two draws for each random operation: which one, and its magnitude."""

OPERATIONS = (
    *("identity", "brightness", "contrast", "saturation", "sharpness", "posterize", "solarize", "autocontrast"),
    *("rotate", "translate-x", "translate-y", "shear-x", "shear-y"),
)
"""Those of RandAugment and TrivialAugment, but equalize."""
LIMITS = {
    "brightness": 0.9, "contrast": 0.9, "saturation": 0.9, "sharpness": 0.9, "posterize": 4.0, "solarize": 1.0,
    "autocontrast": 1.0, "rotate": 30.0, "translate-x": 0.45, "translate-y": 0.45, "shear-x": 0.3, "shear-y": 0.3,
}  # fmt: skip
"""Values at magnitude 1, those of RandAugment: factors minus 1, bits, degrees, shares of the side."""

GRAY = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow
QUANTILES = 1024


class Augmentation:
    """Training images as the model gets them: transformed at random and normalized, with targets."""

    def __init__(
        self,
        spec: AugmentationSpec,
        mean: Sequence[float],
        std: Sequence[float],
        classes: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """`mean` and `std` of each channel are those of the training images, of values from 0 to 1."""
        self.spec, self.classes = spec, classes
        # In float32 whatever torch's default is.
        self.mean, self.std, self.gray = (
            torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)
            for values in (mean, std, GRAY if len(mean) == 3 else (1 / len(mean),) * len(mean))
        )
        self.seed = torch.tensor(seed, device=device)
        self.streams = torch.arange(RANDOM_OPS + 2 * spec.random_ops, device=device)
        self.numbers = torch.arange(max(classes, len(OPERATIONS)), device=device)
        self.mixup, self.cutmix = (
            beta_quantiles(alpha).to(device) if alpha else None for alpha in (spec.mixup, spec.cutmix)
        )

    def normalize(self, images: Tensor) -> Tensor:
        """Images uint8 [B, C, H, W] as the model gets them, not transformed: float32, each channel by mean and std."""
        return (images.float() / 255 - self.mean) / self.std

    def __call__(self, images: Tensor, labels: Tensor, index: Tensor, epoch: Tensor) -> tuple[Tensor, Tensor]:
        """Images uint8 [B, C, H, W] and labels [B] -> normalized float32 images and target probabilities [B, classes].

        `index` int64 [B]: number of each image in its split. `epoch`: int64 [].
        """
        draws = uniforms(self.seed, epoch, index, self.streams)
        values = self._operations(draws)
        x = images.float() / 255
        if self.spec.moves:
            matrix, shift = self._geometry(draws, values, images.shape[-1], images.shape[-2])
            # What comes in from outside has the mean color.
            x = transform(x - self.mean, matrix, shift) + self.mean
        x = (self._recolor(x, draws, values) - self.mean) / self.std
        if self.spec.cutout:
            x = x.masked_fill(self._cutout(draws, x.shape[-1], x.shape[-2]), 0)
        targets = (labels[:, None] == self.numbers[: self.classes]).float()
        if self.mixup is None and self.cutmix is None:
            return x, targets
        keep = self._mixing(draws, x.shape[-1], x.shape[-2])
        share = keep.mean(dim=(1, 2, 3))[:, None]
        return torch.lerp(x.roll(1, 0), x, keep), torch.lerp(targets.roll(1, 0), targets, share)

    def _operations(self, draws: Tensor) -> dict[str, Tensor]:
        """Value [B] of each random operation, 0 where an image does not get it."""
        if not self.spec.random_ops:
            return {}
        chosen, magnitude = draws[:, RANDOM_OPS::2], draws[:, RANDOM_OPS + 1 :: 2]
        kind = (chosen * len(OPERATIONS)).floor()
        magnitude = (2 * magnitude - 1) * self.spec.magnitude
        kinds = self.numbers[: len(OPERATIONS), None, None]
        values = (magnitude * (kind == kinds)).sum(dim=2)  # [operation, B]; an operation drawn twice adds up
        return {name: values[number] * LIMITS[name] for number, name in enumerate(OPERATIONS) if name in LIMITS}

    def _geometry(self, draws: Tensor, values: dict[str, Tensor], width: int, height: int) -> tuple[Tensor, Tensor]:
        """Matrix [B, 2, 2] and shift [B, 2] in pixels: source = matrix @ target + shift, measured from the center."""
        spec, signed = self.spec, 2 * draws - 1
        zero = draws[:, 0] * 0
        angle = signed[:, ROTATE] * math.radians(spec.rotation) + values.get("rotate", zero) * (math.pi / 180)
        shear_x = signed[:, SHEAR_X] * spec.shear + values.get("shear-x", zero)
        shear_y = signed[:, SHEAR_Y] * spec.shear + values.get("shear-y", zero)
        zoom = 1 / (1 + signed[:, SCALE] * spec.zoom)
        flip = 1 - 2 * (draws[:, FLIP] < 0.5).float() if spec.flip else zero + 1
        cos, sin = angle.cos() * zoom, angle.sin() * zoom
        # Rotation times [[1, shear_x], [shear_y, 1]], then the flip of the target's x.
        matrix = torch.stack(
            [
                torch.stack([(cos - sin * shear_y) * flip, cos * shear_x - sin], dim=1),
                torch.stack([(sin + cos * shear_y) * flip, sin * shear_x + cos], dim=1),
            ],
            dim=1,
        )
        crops = (draws[:, CROP_X : CROP_Y + 1] * (2 * spec.crop_padding + 1)).floor() - spec.crop_padding
        share_x = signed[:, TRANSLATE_X] * spec.translation + values.get("translate-x", zero)
        share_y = signed[:, TRANSLATE_Y] * spec.translation + values.get("translate-y", zero)
        return matrix, crops + torch.stack([share_x * width, share_y * height], dim=1)

    def _recolor(self, x: Tensor, draws: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Sharpness, brightness, contrast, saturation, then autocontrast, solarize and posterize."""
        if not self.spec.color_jitter and not values:
            return x
        if values:
            sharp = values["sharpness"][:, None, None, None]
            x = x + sharp * (x - blur(x))
        jitter = 1 + (2 * draws[:, BRIGHTNESS : SATURATION + 1] - 1) * self.spec.color_jitter
        if values:
            jitter = jitter * (1 + torch.stack([values[name] for name in OPERATIONS[1:4]], dim=1))
        brightness, contrast, saturation = jitter[:, :, None, None, None].unbind(1)
        gray = (x * self.gray).sum(1, keepdim=True)
        # All three are linear in the pixel and in its gray value, so they are one step.
        rest = (1 - saturation) * contrast * gray + (1 - contrast) * gray.mean((2, 3), keepdim=True)
        x = (brightness * (saturation * contrast * x + rest)).clamp(0, 1)
        if not values:
            return x
        low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        stretch = (values["autocontrast"][:, None, None, None] != 0) & (high > low)
        x = torch.where(stretch, (x - low) / (high - low).clamp(min=1e-6), x)
        threshold = 1 - values["solarize"].abs()[:, None, None, None]
        x = torch.where(x > threshold, 1 - x, x)
        step = torch.exp2(values["posterize"].abs().round().clamp(max=7))[:, None, None, None] / 255
        return torch.where(step > 1.5 / 255, (x / step + 1e-4).floor() * step, x)

    def _cutout(self, draws: Tensor, width: int, height: int) -> Tensor:
        """Where [B, 1, H, W] pixels are erased."""
        side = self.spec.cutout
        left = (draws[:, CUTOUT_X] * width).floor() - side // 2
        top = (draws[:, CUTOUT_Y] * height).floor() - side // 2
        return inside(left, top, left + side, top + side, width, height)

    def _mixing(self, draws: Tensor, width: int, height: int) -> Tensor:
        """Weight [B, 1, H, W] of each image against its partner."""
        place = (draws[:, MIX_LAMBDA] * QUANTILES).long()
        keep = draws.new_ones(len(draws), 1, height, width)
        if self.mixup is not None:
            keep = keep * self.mixup[place][:, None, None, None]
        if self.cutmix is not None:
            share = (1 - self.cutmix[place]).sqrt()
            half_width, half_height = (share * (width / 2)).floor(), (share * (height / 2)).floor()
            x, y = (draws[:, MIX_X] * width).floor(), (draws[:, MIX_Y] * height).floor()
            pasted = inside(x - half_width, y - half_height, x + half_width, y + half_height, width, height)
            is_mixup = (draws[:, MIX_KIND] < 0.5)[:, None, None, None] & (self.mixup is not None)
            keep = torch.where(is_mixup, keep, (~pasted).float())
        is_whole = (draws[:, MIX] >= self.spec.mix_prob)[:, None, None, None]
        return keep.masked_fill(is_whole, 1)


def uniforms(seed: Tensor, epoch: Tensor, index: Tensor, streams: Tensor) -> Tensor:
    """Numbers [B, S] in [0, 1), a function of (seed, epoch, index, stream) alone; all arguments are int64."""
    image = hash32(index + hash32(epoch + hash32(seed)))
    return (hash32(image[:, None] + streams * 0x9E3779B9) >> 8).float() * 2.0**-24


def hash32(x: Tensor) -> Tensor:
    """A permutation of the numbers below 2^32 that mixes all bits (the constants are Wellons' lowbias32)."""
    # The low 32 bits of a product are right even where it overflows.
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def transform(x: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """Pixels [B, C, H, W] at matrix @ target + shift, bilinear; 0 outside the image."""
    height, width = x.shape[-2:]
    column = torch.arange(width, dtype=x.dtype, device=x.device) - (width - 1) / 2
    row = (torch.arange(height, dtype=x.dtype, device=x.device) - (height - 1) / 2)[:, None]
    # Not affine_grid: its matrix product may be in TF32, which moves pixels.
    entry = matrix[..., None, None]
    source_x = entry[:, 0, 0] * column + entry[:, 0, 1] * row + shift[:, 0, None, None]
    source_y = entry[:, 1, 0] * column + entry[:, 1, 1] * row + shift[:, 1, None, None]
    grid = torch.stack([source_x * (2 / width), source_y * (2 / height)], dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def blur(x: Tensor) -> Tensor:
    """Pillow's SMOOTH filter; at the border the mean is over the pixels there are."""
    return (9 * F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False) + 4 * x) / 13


def inside(left: Tensor, top: Tensor, right: Tensor, bottom: Tensor, width: int, height: int) -> Tensor:
    """Mask [B, 1, H, W] of rectangles given by their edges [B] in pixels, right and bottom exclusive."""
    column = torch.arange(width, device=left.device)
    row = torch.arange(height, device=left.device)[:, None]
    left, top, right, bottom = (edge[:, None, None, None] for edge in (left, top, right, bottom))
    return (column >= left) & (column < right) & (row >= top) & (row < bottom)


def beta_quantiles(alpha: float) -> Tensor:
    """Quantiles of Beta(alpha, alpha), evenly spaced: one of them at random is a draw."""
    import numpy as np
    from scipy.special import betaincinv

    return torch.from_numpy(betaincinv(alpha, alpha, (np.arange(QUANTILES) + 0.5) / QUANTILES)).float()

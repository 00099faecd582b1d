"""Random transformations of images, in batches on the device.

All draws of an image come from a hash of (seed, epoch, index of the image), whatever else is in its batch; only the
partner of mixup and cutmix is its neighbor in the batch. There is no random state and nothing is read on the host, so
that a CUDA graph can hold all of it. All changes of geometry are one affine map and one interpolation, and values of
all options are computed together, because on a GPU a step of small operations takes as long as there are of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anaphor.data.augment_spec import AugmentationSpec

# Draws of an image, by number: turning one option on does not change the draws of another.
CROP_X, CROP_Y, FLIP = range(3)
ZOOM, BRIGHTNESS, CONTRAST, SATURATION, ROTATE, TRANSLATE_X, TRANSLATE_Y, SHEAR_X, SHEAR_Y = range(3, 12)
CUTOUT_X, CUTOUT_Y, MIX, MIX_KIND, MIX_LAMBDA, MIX_X, MIX_Y = range(12, 19)
RANDOM_OPS = 19
"""From here on two draws for each random operation: which one, and its magnitude."""
AMOUNTS = slice(ZOOM, SHEAR_Y + 1)
"""Draws of what is done by more or less, to either side."""

LIMITS = {
    "identity": 0.0, "brightness": 0.9, "contrast": 0.9, "saturation": 0.9, "rotate": 30.0, "translate-x": 0.45,
    "translate-y": 0.45, "shear-x": 0.3, "shear-y": 0.3,
    "sharpness": 0.9, "posterize": 4.0, "solarize": 1.0, "autocontrast": 1.0,
}  # fmt: skip
"""Random operations, those of RandAugment and TrivialAugment but equalize, with RandAugment's values at magnitude 1:
factors minus 1, degrees, shares of the side, bits. The first ones add to the draws in AMOUNTS, in this order."""
OPERATIONS = tuple(LIMITS)

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
        self.spec, self.device = spec, torch.device(device)
        gray = GRAY if len(mean) == 3 else (1 / len(mean),) * len(mean)
        self.mean, self.std, self.gray = (self._floats(values).view(1, -1, 1, 1) for values in (mean, std, gray))
        self.scale, self.bias = 1 / (255 * self.std), -self.mean / self.std
        jitter, turn = spec.color_jitter, math.radians(spec.rotation)
        move, shear = spec.translation, spec.shear
        self.amounts = self._floats([spec.zoom, jitter, jitter, jitter, turn, move, move, shear, shear])
        limits = [math.radians(value) if name == "rotate" else value for name, value in LIMITS.items()]
        self.limits = self._floats(limits) * spec.magnitude
        self.operations = torch.arange(len(OPERATIONS), device=device)
        self.classes = torch.arange(classes, device=device)
        self.seed = hash32(hash32(torch.tensor(seed >> 32)) + (seed & 0xFFFFFFFF)).to(device)  # of all 64 bits
        self.streams = torch.arange(RANDOM_OPS + 2 * spec.random_ops, device=device) * 0x9E3779B9
        self.mixup, self.cutmix = (
            beta_quantiles(alpha).to(device) if alpha else None for alpha in (spec.mixup, spec.cutmix)
        )
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @property
    def mixes(self) -> bool:
        """Whether an image is mixed with the one before it in the batch."""
        return self.mixup is not None or self.cutmix is not None

    def _floats(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def normalize(self, images: Tensor) -> Tensor:
        """Images uint8 [B, C, H, W] as the model gets them, not transformed: float32, each channel by mean and std."""
        return torch.addcmul(self.bias, images.float(), self.scale)

    def __call__(self, images: Tensor, labels: Tensor, index: Tensor, epoch: Tensor) -> tuple[Tensor, Tensor]:
        """Images uint8 [B, C, H, W] and labels [B] -> normalized float32 images and target probabilities [B, classes].

        `index` int64 [B]: number of each image in its split. `epoch`: int64 [].
        """
        spec, size = self.spec, (images.shape[-2], images.shape[-1])
        draws = uniforms(self.seed, epoch, index, self.streams)
        amounts = torch.addcmul(-self.amounts, draws[:, AMOUNTS], 2 * self.amounts)
        operations = self._draw_operations(draws) if spec.random_ops else None
        if operations is not None:
            amounts = amounts + operations[:, : len(self.amounts)]
        x = self.normalize(images)
        if spec.moves:
            x = self._move(x, draws, amounts)
        if spec.color_jitter or operations is not None:
            x = self._recolor(torch.addcmul(self.mean, x, self.std), amounts, operations)
            x = torch.addcmul(self.bias, x, 1 / self.std)
        if spec.cutout:
            x = x.masked_fill(self._cutout(draws, size), 0)
        targets = (labels[:, None] == self.classes).float()
        if not self.mixes:
            return x, targets
        keep = self._mixing(draws, size)
        share = keep.mean(dim=(1, 2, 3))[:, None]
        return torch.lerp(x.roll(1, 0), x, keep), torch.lerp(targets.roll(1, 0), targets, share)

    def _draw_operations(self, draws: Tensor) -> Tensor:
        """Value [B, operations] of each random operation, 0 where an image does not get it."""
        kind = (draws[:, RANDOM_OPS::2] * len(OPERATIONS)).long()
        magnitude = 2 * draws[:, RANDOM_OPS + 1 :: 2] - 1
        chosen = kind[:, :, None] == self.operations
        return (chosen * magnitude[:, :, None]).sum(1) * self.limits  # an operation drawn twice adds up

    def _move(self, x: Tensor, draws: Tensor, amounts: Tensor) -> Tensor:
        """Crop, flip, rotate, shear, zoom and translate; 0, the mean color, comes in from outside."""
        spec, (height, width) = self.spec, x.shape[-2:]
        by_name = dict(zip(OPERATIONS, amounts.unbind(1), strict=False))
        shift_x, shift_y = by_name["translate-x"] * width, by_name["translate-y"] * height
        if spec.crop_padding:
            crops = (draws[:, : CROP_Y + 1] * (2 * spec.crop_padding + 1)).floor() - spec.crop_padding
            shift_x, shift_y = shift_x + crops[:, CROP_X], shift_y + crops[:, CROP_Y]
        zoom = 1 / (1 + by_name["identity"])  # the place of zoom, which no random operation changes
        turn, shear_x, shear_y = by_name["rotate"], by_name["shear-x"], by_name["shear-y"]
        cos, sin = turn.cos() * zoom, turn.sin() * zoom
        flip = 1 - 2 * (draws[:, FLIP] < 0.5).float() if spec.flip else 1.0
        # Rotation times [[1, shear_x], [shear_y, 1]], then the flip of the target's x.
        to_x = torch.stack([(cos - sin * shear_y) * flip, cos * shear_x - sin, shift_x], dim=1)
        to_y = torch.stack([(sin + cos * shear_y) * flip, sin * shear_x + cos, shift_y], dim=1)
        matrix = torch.stack([to_x, to_y], dim=1)
        return transform(x, matrix, *self._center_pixels((height, width)))

    def _recolor(self, x: Tensor, amounts: Tensor, operations: Tensor | None) -> Tensor:
        """Sharpness, brightness, contrast, saturation, then autocontrast, solarize and posterize."""
        if operations is not None:
            sharp, posterize, solarize, autocontrast = operations[:, -4:, None, None, None].unbind(1)
            x = torch.addcmul(x, sharp, x - blur(x))
        brightness, contrast, saturation = (1 + amounts[:, 1:4, None, None, None]).unbind(1)
        gray = (x * self.gray).sum(1, keepdim=True)
        # All three are linear in the pixel and in its gray value, so they are one step.
        bright = brightness * contrast
        rest = (brightness - bright) * gray.mean((2, 3), keepdim=True)
        x = torch.addcmul(torch.addcmul(rest, bright * (1 - saturation), gray), bright * saturation, x).clamp(0, 1)
        if operations is None:
            return x
        low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        stretch = (autocontrast != 0) & (high > low)
        x = torch.where(stretch, (x - low) / (high - low).clamp(min=1e-6), x)
        x = torch.where(x > 1 - solarize.abs(), 1 - x, x)
        step = torch.exp2(posterize.abs().round().clamp(max=7)) / 255
        return torch.where(step > 1.5 / 255, (x / step + 1e-4).floor() * step, x)

    def _cutout(self, draws: Tensor, size: tuple[int, int]) -> Tensor:
        """Where [B, 1, H, W] pixels are erased."""
        side = self.spec.cutout
        corner = draws[:, CUTOUT_X : CUTOUT_Y + 1, None, None, None]
        left, top = (corner[:, 0] * size[1]).floor() - side // 2, (corner[:, 1] * size[0]).floor() - side // 2
        return self._inside(left, top, left + side, top + side, size)

    def _mixing(self, draws: Tensor, size: tuple[int, int]) -> Tensor:
        """Weight [B, 1, H, W] of each image against its partner."""
        place = (draws[:, MIX_LAMBDA] * QUANTILES).long()
        keep = draws.new_ones(len(draws), 1, *size)
        if self.mixup is not None:
            keep = keep * self.mixup[place][:, None, None, None]
        if self.cutmix is not None:
            height, width = size
            share = (1 - self.cutmix[place]).sqrt()[:, None, None, None]
            center = draws[:, MIX_X : MIX_Y + 1, None, None, None]
            x, y = (center[:, 0] * width).floor(), (center[:, 1] * height).floor()
            across, down = (share * (width / 2)).floor(), (share * (height / 2)).floor()
            pasted = self._inside(x - across, y - down, x + across, y + down, size)
            is_mixup = (draws[:, MIX_KIND] < 0.5)[:, None, None, None]
            keep = (~pasted).float() if self.mixup is None else torch.where(is_mixup, keep, (~pasted).float())
        is_whole = (draws[:, MIX] >= self.spec.mix_prob)[:, None, None, None]
        return keep.masked_fill(is_whole, 1)

    def _inside(self, left: Tensor, top: Tensor, right: Tensor, bottom: Tensor, size: tuple[int, int]) -> Tensor:
        """Mask [B, 1, H, W] of rectangles given by their edges [B, 1, 1, 1] in pixels, right and bottom exclusive."""
        column, row = (
            place + (count - 1) / 2 for place, count in zip(self._center_pixels(size), size[::-1], strict=True)
        )
        return ((column >= left) & (column < right)) & ((row >= top) & (row < bottom))

    def _center_pixels(self, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Columns [W] and rows [H, 1] of the pixels, from the center."""
        if size not in self._places:
            height, width = size
            column = torch.arange(width, dtype=torch.float32, device=self.device) - (width - 1) / 2
            row = torch.arange(height, dtype=torch.float32, device=self.device)[:, None] - (height - 1) / 2
            self._places[size] = column, row
        return self._places[size]


def uniforms(seed: Tensor, epoch: Tensor, index: Tensor, streams: Tensor) -> Tensor:
    """Numbers [B, S] in [0, 1), a function of the arguments alone, all int64; seed and streams are spread before."""
    image = hash32(index + epoch * 0x9E3779B1 + seed)
    return (hash32(image[:, None] + streams) >> 8).float() * 2.0**-24


def hash32(x: Tensor) -> Tensor:
    """A permutation of the numbers below 2^32 that mixes all bits (the constants are Wellons' lowbias32)."""
    # The low 32 bits of a product are right even where it overflows.
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def transform(x: Tensor, matrix: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """Pixels [B, C, H, W] at matrix [B, 2, 3] times (column, row, 1), from the center; bilinear, 0 outside."""
    height, width = x.shape[-2:]
    # Not affine_grid: its matrix product may be in TF32, which moves pixels.
    entry = matrix[..., None, None]
    source = torch.addcmul(torch.addcmul(entry[:, :, 2], entry[:, :, 0], column), entry[:, :, 1], row)  # [B, 2, H, W]
    grid = torch.stack([source[:, 0] * (2 / width), source[:, 1] * (2 / height)], dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def blur(x: Tensor) -> Tensor:
    """Pillow's SMOOTH filter; at the border the mean is over the pixels there are."""
    return torch.lerp(x, F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False), 9 / 13)


def beta_quantiles(alpha: float) -> Tensor:
    """Quantiles of Beta(alpha, alpha), evenly spaced: one of them at random is a draw."""
    import numpy as np
    from scipy.special import betaincinv

    return torch.from_numpy(betaincinv(alpha, alpha, (np.arange(QUANTILES) + 0.5) / QUANTILES)).float()

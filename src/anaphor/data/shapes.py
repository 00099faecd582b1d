"""The data set `shapes`: one shape on a cluttered background. The label is the shape.

Color, position, size and clutter are drawn independently of the label, and every shape fills a square box. Only
additions, products, quotients and square roots are used, which are the same on every platform.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from anaphor.config import check_at_least
from anaphor.data.dataset import SPLITS
from anaphor.data.images import Arrays, ImageDataset, check_bytes
from anaphor.errors import ConfigError

Floats = NDArray[np.float32]

DEFAULT_SIZE = 32
MIN_SIZE = 16
MIN_SHARE, MAX_SHARE = 0.25, 0.375  # of the image's side; a box is at most 14.1 % of the area
LINES = 4
LINE_WIDTH = 0.8  # pixels of an image of the default size
DARK, BRIGHT = 0.4, 0.6  # every channel of the background is at most the first, of the shape at least the second
NOISE = 0.12
CHUNK, CHUNK_PIXELS = 256, 1 << 20  # images that are drawn at once, and their pixels


# Signed distances to the outline in a box from -1 to 1, negative inside, y downwards.
OUTLINES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "circle": lambda x, y: np.sqrt(x * x + y * y) - 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - 1,
    "triangle": lambda x, y: np.maximum(y - 1, (2 * np.abs(x) - y - 1) / np.sqrt(np.float32(5))),
    "diamond": lambda x, y: (np.abs(x) + np.abs(y) - 1) / np.sqrt(np.float32(2)),
    "cross": lambda x, y: np.minimum(
        np.maximum(np.abs(x) - 1, np.abs(y) - np.float32(1 / 3)),
        np.maximum(np.abs(x) - np.float32(1 / 3), np.abs(y) - 1),
    ),
    "ring": lambda x, y: np.abs(np.sqrt(x * x + y * y) - np.float32(0.7)) - np.float32(0.3),
}


class Shapes(ImageDataset):
    """One shape on a cluttered background; the label is the shape. Bounding boxes are known."""

    name = "shapes"
    classes = tuple(OUTLINES)

    def __init__(self, images: int = 4000, seed: int = 0) -> None:
        """`images` for train, and an eighth as many for valid and for test."""
        check_at_least(1, images=images)
        self.seed = seed
        self.sizes = dict(zip(SPLITS, (images, images // 8 or 1, images // 8 or 1), strict=True))

    def read_arrays(self, split: str) -> Arrays:
        size = self.image_size or DEFAULT_SIZE
        if size < MIN_SIZE:
            raise ConfigError(f"image_size={size}: shapes cannot be told apart below {MIN_SIZE} pixels")
        count, chunk = self.sizes[split], min(CHUNK, max(1, CHUNK_PIXELS // size**2))
        check_bytes(count, 3, size, size)
        # The raw stream of PCG64 is the same in every version of NumPy.
        stream = np.random.PCG64([self.seed, SPLITS.index(split)])
        images = np.empty((count, 3, size, size), np.uint8)
        labels, boxes = np.empty(count, np.int64), np.empty((count, 4), np.int64)
        for start in range(0, count, chunk):
            part = slice(start, min(start + chunk, count))
            images[part], labels[part], boxes[part] = draw(stream, part.stop - start, size)
        return Arrays(images, labels, boxes)


def draw(
    stream: np.random.PCG64, count: int, size: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Images [N, 3, H, W], labels [N] and boxes [N, 4]."""

    def uniform(*shape: int) -> Floats:
        raw = stream.random_raw(int(np.prod((count, *shape)))) >> np.uint64(40)  # 24 bits: exact in float32
        return (raw.astype(np.float32) / np.float32(1 << 24)).reshape(count, *shape)

    def integers(low: int | Floats, high: int | Floats) -> Floats:
        """From low to high, both included."""
        return np.floor(low + uniform() * (high + 1 - low))

    pixels = np.arange(size, dtype=np.float32) + np.float32(0.5)
    column, row = pixels[None, None, :], pixels[None, :, None]
    labels = integers(0, len(OUTLINES) - 1).astype(np.int64)
    side = integers(int(np.ceil(MIN_SHARE * size)), int(MAX_SHARE * size))
    left, top = integers(0, size - side), integers(0, size - side)
    # Any colors, but the shape is the brighter one: a small model learns that in a minute, and either order in many.
    background, color = uniform(3) * np.float32(DARK), BRIGHT + uniform(3) * np.float32(1 - BRIGHT)
    # A gradient in a random direction, the same for all channels.
    slope = (uniform(2) - np.float32(0.5)) * np.float32(0.3 / size)
    light = slope[:, :1, None] * (column - size / 2) + slope[:, 1:, None] * (row - size / 2)
    images = background[:, :, None, None] + light[:, None]
    for _ in range(LINES):
        ends, shade = uniform(4) * size, uniform(3)
        cover = _line(column, row, ends, LINE_WIDTH * size / DEFAULT_SIZE)
        images += cover[:, None] * (shade[:, :, None, None] - images)
    half = side / 2
    x = (column - (left + half)[:, None, None]) / half[:, None, None]
    y = (row - (top + half)[:, None, None]) / half[:, None, None]
    cover = np.empty((count, size, size), np.float32)
    for label, outline in enumerate(OUTLINES.values()):
        chosen = labels == label
        cover[chosen] = cover_pixels(outline, x[chosen], y[chosen], half[chosen][:, None, None])
    images += cover[:, None] * (color[:, :, None, None] - images)
    images += (uniform(3, size, size) - np.float32(0.5)) * np.float32(NOISE)
    boxes = np.stack([left, top, left + side, top + side], axis=1).astype(np.int64)
    return np.floor(np.clip(images, 0, 1) * 255 + np.float32(0.5)).astype(np.uint8), labels, boxes


def cover_pixels(outline: Callable[[Floats, Floats], Floats], x: Floats, y: Floats, half: Floats) -> Floats:
    """Share of each pixel that a shape covers, none outside its box; `half` is half the side of the box in pixels."""
    box = np.maximum(np.abs(x), np.abs(y)) - 1
    cover: Floats = np.clip(np.float32(0.5) - np.maximum(outline(x, y), box) * half, 0, 1)
    return cover


def _line(column: Floats, row: Floats, ends: Floats, width: float) -> Floats:
    """Share of each pixel [N, H, W] that is covered by a line: the first third of the way between two points."""
    x, y = ends[:, 0, None, None], ends[:, 1, None, None]
    across, down = (ends[:, 2, None, None] - x) / 3, (ends[:, 3, None, None] - y) / 3
    along = ((column - x) * across + (row - y) * down) / (across * across + down * down + np.float32(1e-6))
    along = np.clip(along, 0, 1)
    from_x, from_y = column - x - along * across, row - y - along * down
    return np.clip(np.float32(0.5 + width / 2) - np.sqrt(from_x * from_x + from_y * from_y), 0, 1)

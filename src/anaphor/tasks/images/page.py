"""What the live page shows of image classification: where the model looks, and the images of a split with their
losses."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError, DataError
from anaphor.inspect.page import box_shares, pack_pixels, pack_views
from anaphor.inspect.parts import ATTENTION, LookParts, describe_map
from anaphor.tasks.class_losses import ClassLosses, class_losses
from anaphor.tasks.images.experiment import ImageExperiment
from anaphor.tasks.images.look import describe_layers, look_at_image

HEADERS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")
"""Of PNG, JPEG, GIF, WebP and BMP; other formats are for files that the user names, not for a page."""
SIDE = 96
"""Of images in a list, in pixels; larger ones are scaled down."""


def look(
    experiment: ImageExperiment,
    *,
    text: str | None = None,
    example: int | None = None,
    length: int = 0,
    image: str | None = None,
) -> LookParts:
    """Where the model looks in an image, a file as base64; `example` is the index of an image of validation."""
    if text is not None:
        raise ConfigError("an image classifier reads no text: give an image, or an example of validation")
    if image is not None:
        found = look_at_image(experiment, "image", _decode(experiment, image))
    else:
        split = experiment.split("valid")
        assert example is not None, "one of them was given"
        if example >= len(split):
            raise ConfigError(f"example={example}: validation has the images 0 to {len(split) - 1:,}")
        box = None if split.boxes is None else split.boxes[example].tolist()
        label = int(split.labels[example])
        found = look_at_image(experiment, f"valid {example}", split.images[example], label, box)
    maps = found.maps
    rows, columns = maps.saliency.shape
    plain = {
        "kind": "image",
        "model": describe_layers(experiment.model),
        "name": found.name,
        "label": found.label,
        "true": found.true,
        "box": box_shares(found),
        "probabilities": found.probabilities,
        "pixels": pack_pixels(found.pixels),
        "rows": rows,
        "columns": columns,
        "views": pack_views(found),
        "layers": [{**describe_map(tap, heat, maps.rollouts), "causal": False} for tap, heat in maps.attention.items()],
        "heads": [],
        "units": [],
        "notes": list(maps.notes),
    }
    kinds = {ATTENTION: maps.attention, "gradient-weighted": maps.weighted}
    return LookParts(plain, kinds, maps.rollouts, is_image=True)


def _decode(experiment: ImageExperiment, image: str) -> Any:
    """The pixels of a file as base64."""
    try:
        content = base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("the image is not base64") from None
    if not content.startswith(HEADERS):
        raise DataError("the image is not a PNG, JPEG, GIF, WebP or BMP file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(content)
        try:
            return experiment.read_images([path])[0]
        except DataError as error:
            raise DataError(str(error).replace(str(path), "the image")) from None


def image_losses(experiment: ImageExperiment, split: str) -> ClassLosses:
    """The images of a split, by label."""
    loaded = experiment.split(split)
    return class_losses(
        experiment.compute_logits(loaded.images),
        loaded.labels,
        experiment.facts.classes,
        facts=experiment.signature_facts(split),
        digest=loaded.digest,
        describe=lambda index: {"pixels": pack_pixels(loaded.images[index].cpu(), SIDE)},
        groups={},
    )

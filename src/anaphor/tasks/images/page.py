"""What the live page shows of image classification: where the model looks, and the images of a split with their
losses."""

from __future__ import annotations

import torch

from anaphor.data.image_files import read_base64_image
from anaphor.errors import ConfigError
from anaphor.inspect.page import box_shares, pack_pixels, pack_views
from anaphor.inspect.parts import ATTENTION, LookParts, describe_map
from anaphor.tasks.class_losses import ClassLosses, class_losses
from anaphor.tasks.images.experiment import ImageExperiment
from anaphor.tasks.images.look import describe_layers, look_at_image

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
        pixels = read_base64_image(image, experiment.metadata.channels, experiment.metadata.image_size)
        found = look_at_image(experiment, "image", torch.from_numpy(pixels))
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


def image_losses(experiment: ImageExperiment, split: str) -> ClassLosses:
    """The images of a split, by label."""
    loaded = experiment.split(split)
    return class_losses(
        experiment.compute_logits(loaded.images),
        loaded.labels,
        experiment.metadata.classes,
        metadata=experiment.signature_metadata(split),
        digest=loaded.digest,
        describe=lambda index: {"pixels": pack_pixels(loaded.images[index].cpu(), SIDE)},
        groups={},
    )

"""`anaphor look` for images: heat maps of what a classifier attends to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anaphor.errors import ConfigError, count_noun
from anaphor.files import replace_file
from anaphor.inspect.image_figures import draw_heads, draw_layers, draw_views
from anaphor.inspect.image_maps import ImageLook, image_maps, mean_box_ratios
from anaphor.inspect.page import image_page
from anaphor.models import ImageClassifier
from anaphor.progress_listener import track_progress
from anaphor.tasks.images.verbs import LookOptions
from anaphor.tasks.tables import align_columns, join_layers
from anaphor.training.run_folder import NO_DATA
from anaphor.user_paths import writing_to

if TYPE_CHECKING:
    from anaphor.tasks.images.experiment import ImageExperiment

EXAMPLES = 10
MAX_VALUES = 4_000_000  # in JSON


def look(
    experiment: ImageExperiment, options: LookOptions, run: Path, out: Path, warn: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """Write the page and the figures. Returns all values as JSON, and lines for people."""
    looks = look_at(experiment, options.image, options.examples, warn)
    written = write_looks(looks, str(run), experiment.model, out)
    return _plain(looks, run, experiment.model, written), _describe(looks, run, experiment.model, written)


def look_at(
    experiment: ImageExperiment,
    paths: Sequence[Path],
    examples: int | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[ImageLook]:
    """The maps of image files, or of the first images of validation."""
    if paths:
        images = experiment.read_images(paths, *([] if warn is None else [warn]))
        names, labels, boxes = [str(path) for path in paths], None, None
    elif experiment.spec.data == NO_DATA:
        raise ConfigError("the run was converted and has no data of its own: give images with --image")
    else:
        split = experiment.split("valid").first(EXAMPLES if examples is None else examples)
        images, labels, boxes = split.images[:], split.labels.tolist(), split.boxes
        names = [f"valid {number}" for number in range(len(split))]
    return [
        look_at_image(
            experiment,
            names[number],
            images[number],
            None if labels is None else labels[number],
            None if boxes is None else boxes[number].tolist(),
        )
        for number in track_progress("looking", range(len(names)))
    ]


def look_at_image(
    experiment: ImageExperiment, name: str, pixels: Tensor, label: int | None = None, box: Sequence[int] | None = None
) -> ImageLook:
    """The maps of one image, uint8 [C, H, W]. `label` and `box` are given where they are known."""
    maps = image_maps(experiment.model, experiment.augment.normalize(pixels[None].to(experiment.device))[0])
    x0, y0, x1, y1 = box or (0, 0, 0, 0)
    return ImageLook(
        name=name,
        pixels=pixels.cpu(),
        probabilities=experiment.describe_logits(maps.logits)["probabilities"],
        true=None if label is None else experiment.metadata.classes[label],
        box=None if box is None else (x0, y0, x1, y1),
        maps=maps,
    )


def write_looks(looks: Sequence[ImageLook], run: str, model: ImageClassifier, out: Path) -> list[Path]:
    """Write the page and the figures. Returns their paths."""
    page = out / "attention.html"
    with writing_to(out):
        replace_file(page, image_page(looks, run, describe_layers(model)).encode())
        figures: tuple[Callable[[], list[Path]], ...] = (
            lambda: draw_views(looks, out),
            lambda: draw_layers(looks, out),
            lambda: draw_heads(looks[0], out),
        )
        return [page, *(path for draw in track_progress("drawing", figures) for path in draw())]


def describe_layers(model: ImageClassifier) -> str:
    """One line about a model: layers, patches, what the head reads, size."""
    spec = model.spec
    pooled = "class token" if spec.pooled == "class" else "mean of the patches"
    return (
        f"{join_layers(spec.mixers_by_layer)}; {spec.grid} × {spec.grid} patches; {pooled}; "
        f"{model.count_parameters():,} parameters"
    )


def _plain(looks: Sequence[ImageLook], run: Path, model: ImageClassifier, written: Sequence[Path]) -> dict[str, Any]:
    """All values as JSON, as far as they are not too many: then maps of single layers and heads are left out."""
    count = sum(maps.numel() for look in looks for maps in look.maps.attention.values())
    has_layers = 2 * count <= MAX_VALUES
    images = [{**look.to_plain(), "layers": look.maps.layers_to_plain() if has_layers else None} for look in looks]
    return {
        "run": str(run),
        "model": describe_layers(model),
        "images": images,
        "box_ratios": mean_box_ratios(looks),
        "notes": list(looks[0].maps.notes),
        "written": [str(path) for path in written],
    }


def _describe(looks: Sequence[ImageLook], run: Path, model: ImageClassifier, written: Sequence[Path]) -> list[str]:
    rows = [["image", "predicted", "probability", *(["true"] if looks[0].true is not None else [])]]
    for look in looks:
        true = [] if look.true is None else [look.true]
        rows.append([look.name, look.label, f"{look.probabilities[look.label]:.3f}", *true])
    lines = [f"{run}: {describe_layers(model)}", *align_columns(rows), *looks[0].maps.notes]
    if ratios := mean_box_ratios(looks):
        found = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        images = count_noun(len(looks), "image")
        lines.append(f"share inside the true box divided by its share of the area, mean of {images}: {found}")
    return [*lines, *map(str, written)]

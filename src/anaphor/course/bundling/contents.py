"""What a bundle has beside wheels: pages, examples, small data sets, and the small encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anaphor.course.bundling.own_wheel import files_below
from anaphor.data.datasets import find_dataset
from anaphor.data.download import NamedFile
from anaphor.errors import ConfigError
from anaphor.registry import DATASETS
from anaphor.shipped_files import EXAMPLES, find_docs
from anaphor.user_paths import user_path

SMALL = "small"
"""In place of names: the data sets on this disk that have less than `SMALL_BYTES`."""
NONE = "none"
SMALL_BYTES = 10_000_000
ENCODER_RECIPE = "small-encoder"
ENCODER_SEED = 0


@dataclass(frozen=True)
class BundledData:
    """A named data set of a bundle."""

    name: str
    license: str
    files: Mapping[str, Path]
    """By the path below the folder `data`, where `ANAPHOR_DATA` finds them."""


def collect_data(names: Sequence[str]) -> list[BundledData]:
    """The data sets of these names, downloaded where they are missing."""
    if NONE in names:
        return []
    chosen = [name for name in names if name != SMALL]
    for name in chosen:
        if not find_dataset(name).files:
            raise ConfigError(f"data={name} is built in and needs no files")
    small = [name for name in DATASETS if SMALL in names and _is_small_and_here(find_dataset(name).files)]
    return [_bundle(name) for name in dict.fromkeys([*chosen, *small])]


def _is_small_and_here(files: Sequence[NamedFile]) -> bool:
    paths = [file.find() for file in files]
    found = [path for path in paths if path is not None]
    return bool(files) and len(found) == len(files) and sum(path.stat().st_size for path in found) < SMALL_BYTES


def _bundle(name: str) -> BundledData:
    dataset = find_dataset(name)
    paths = {file: file.find_or_download() for file in dataset.files}
    for file in paths:
        file.digest()  # a changed file is refused here, not in the classroom
    return BundledData(name, dataset.license, {f"{file.data}/{path.name}": path for file, path in paths.items()})


def collect_pages(given: Path | None) -> dict[str, Path]:
    """The documentation: a folder of the user's, such as the built site; else the pages that come with Anaphor."""
    folder = find_docs() if given is None else user_path(given)
    if folder is None:
        return {}
    if not folder.is_dir():
        raise ConfigError(f"docs={folder} is not a folder")
    return dict(files_below(folder))


def collect_examples() -> dict[str, Path]:
    return dict(files_below(EXAMPLES))


def train_encoder(folder: Path) -> None:
    """Train the small encoder of the course, which is fine-tuned in sheet 004."""
    import anaphor

    anaphor.train(
        "classify", recipe=ENCODER_RECIPE, seed=ENCODER_SEED, device="cpu", out=folder, overwrite=True, progress=False
    )

"""Labels of files that are larger than memory: read once, and kept in the cache as the numbers of their names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.data.labels import collect_labels
from anaphor.data.shards import Manifest, ShardedArray, locked_folder, shards_folder


def load_labels(files: Sequence[Path], about: str, labels: Iterable[str]) -> tuple[list[str], NDArray[np.int32]]:
    """What `collect_labels` gives for the labels of some files, which are read where they were not read before, or have
    another size or date. `about` says how they are read."""
    found = [[str(file.absolute()), stat.st_size, stat.st_mtime_ns] for file in files for stat in [file.stat()]]
    key = {"labels": hashlib.sha256(json.dumps([about, *found]).encode()).hexdigest()}
    folder = shards_folder(key)

    def read() -> list[Manifest]:
        return [Manifest(folder / name, kind, key) for name, kind in (("names", "<u1"), ("numbers", "<u4"))]

    manifests = read()
    if not all(manifest.is_complete for manifest in manifests):
        with locked_folder(folder):
            manifests = read()  # another process may have made them
            if not all(manifest.is_complete for manifest in manifests):
                _write(manifests, *collect_labels(labels))
    names, numbers = (np.asarray(ShardedArray(manifest)) for manifest in manifests)
    return json.loads(names.tobytes()), numbers.view(np.int32)


def _write(manifests: Sequence[Manifest], names: Sequence[str], numbers: NDArray[np.int32]) -> None:
    arrays: list[NDArray[Any]] = [np.frombuffer(json.dumps(names).encode(), np.uint8), numbers]
    for manifest, values in zip(manifests, arrays, strict=True):
        manifest.keep(0)
        manifest.add(values, len(values), {})
        manifest.complete()

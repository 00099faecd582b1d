"""Labels of texts: their names in order, and the number of each. Imports no torch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from anaphor.errors import DataError

MAX_RARE = 100
"""Most labels that may be as many as half of the texts: a few examples may have a class each."""


def order_classes(names: Iterable[str]) -> tuple[str, ...]:
    """The different labels in order: as numbers where all are whole numbers."""
    found = set(names)
    are_numbers = all(name.removeprefix("-").isdecimal() for name in found)
    # 1 and 01 are two labels: by their text, too, or their order would be another one in every process.
    return tuple(sorted(found, key=lambda name: (int(name), name)) if are_numbers else sorted(found))


def number_labels(labels: Sequence[str], rows: Sequence[int], classes: Sequence[str], where: str) -> list[int]:
    """Class indices, or an error that names the row with a label that training did not have."""
    index = {name: number for number, name in enumerate(classes)}
    for label, row in zip(labels, rows, strict=True):
        if label not in index:
            listed = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
            raise DataError(f"row {row} of {where} has the label {label!r}, which is not in train ({listed})")
    return [index[label] for label in labels]


def collect_labels(labels: Iterable[str]) -> tuple[list[str], NDArray[np.int32]]:
    """The different labels, sorted as text, and the number of each label among them. [N]"""
    found: dict[str, int] = {}
    numbers = array("i", (found.setdefault(label, len(found)) for label in labels))
    names = sorted(found)
    places = {name: place for place, name in enumerate(names)}
    order = np.array([places[name] for name in found], np.int32)
    return names, order[np.frombuffer(numbers, np.int32)] if numbers else order


def reject_ids(labels: int, texts: int, where: str) -> None:
    """Raise for labels of which most texts have one of their own: a table of pairs of classes would fill the memory."""
    if labels > MAX_RARE and labels > texts / 2:
        raise DataError(
            f"{where} has {labels:,} different labels for {texts:,} texts: the column looks like an id; "
            f"name that of the classes with --label-column"
        )

"""The power of n by which something grows, read off a line through logarithms, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t


@dataclass(frozen=True)
class Power:
    """y grows as n to this exponent; the interval holds it with 95 % if deviations from the line are chance."""

    exponent: float
    low: float
    high: float


def fitted(n: Sequence[float], y: Sequence[float]) -> Power:
    """Least squares through log n and log y, and Student's t for the slope."""
    across, up = np.log(np.asarray(n, dtype=float)), np.log(np.asarray(y, dtype=float))
    centred = across - across.mean()
    slope = float(centred @ (up - up.mean()) / (centred @ centred))
    off = up - up.mean() - slope * centred
    free = len(across) - 2
    error = float(np.sqrt(off @ off / free / (centred @ centred))) if free > 0 else float("nan")
    half = float(t.ppf(0.975, free)) * error if free > 0 else float("nan")
    return Power(slope, slope - half, slope + half)

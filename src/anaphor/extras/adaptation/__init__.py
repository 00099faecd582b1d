"""Models that adapt to the text they are scored on: a neural cache, dynamic evaluation, and both together.

Their scores are reported beside the plain score, never in its place, and their signatures name the adaptation. Its
hyperparameters are chosen on validation text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anaphor.errors import ConfigError
from anaphor.registry import register_evaluation


@dataclass(frozen=True, kw_only=True)
class AdaptationSettings:
    """Rows of `evaluate` with adaptation, beside the plain score."""

    section: ClassVar[str] = "adaptation"

    cache: tuple[int, ...] = ()
    """Also with a neural cache of this many past tokens."""
    cache_weight: tuple[float, ...] = ()
    """Probability share of the cache (0.1 if not given)."""
    cache_flatness: tuple[float, ...] = ()
    """Factor of the similarity in the cache (0.3 if not given)."""
    dynamic: tuple[float, ...] = ()
    """Also with dynamic evaluation at this learning rate, in one row."""
    dynamic_decay: tuple[float, ...] = ()
    """Decay towards the trained weights in each step of dynamic evaluation (0 if not given)."""
    dynamic_rule: str = "sgd"
    """Update rule of dynamic evaluation: sgd or rms (scaled by the gradients of training)."""
    both: bool = False
    """Also with each cache together with each dynamic evaluation."""
    cuda_graph: bool | None = None
    """Capture cache and dynamic evaluation as a CUDA graph (as in training if not given)."""

    def __post_init__(self) -> None:
        for name, owner, given in (
            ("cache_weight", "cache", bool(self.cache_weight)),
            ("cache_flatness", "cache", bool(self.cache_flatness)),
            ("dynamic_decay", "dynamic", bool(self.dynamic_decay)),
            ("dynamic_rule", "dynamic", self.dynamic_rule != "sgd"),
        ):
            if given and not getattr(self, owner):
                raise ConfigError(f"{name}={getattr(self, name)} has no effect without --{owner}")
        if self.both and not (self.cache and self.dynamic):
            raise ConfigError("--both needs --cache and --dynamic")
        if self.cuda_graph is not None and not (self.cache or self.dynamic):
            raise ConfigError(f"cuda_graph={self.cuda_graph} has no effect without --cache or --dynamic")


def register() -> None:
    register_evaluation("adaptation", "anaphor.extras.adaptation.evaluation:Adaptation", AdaptationSettings)

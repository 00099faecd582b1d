"""Progress: where training is, in numbers that a checkpoint keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from anaphor.config import check_types
from anaphor.errors import ConfigError


@dataclass
class Progress:
    """Where training is. Plain numbers, so that a checkpoint can hold them."""

    step: int = 0
    """Updates made."""
    epoch: int = 0
    """Times the data was read to its end."""
    batch: int = 0
    """Batches of this epoch that were read."""
    tokens: int = 0
    """Targets learnt from."""
    seconds: float = 0.0
    """Time spent learning, evaluation not counted."""
    best_cost: float | None = None
    """The best validation so far: its loss, or whatever else is chosen by, less being better."""
    best_step: int | None = None
    """When that was."""
    fruitless: int = 0
    """Validations since then."""
    recent_loss: float = 0.0
    """Nats lost in training since the last validation."""
    recent_tokens: int = 0
    """Targets learnt from since then."""
    recent_seconds: float = 0.0
    """Time spent learning since then."""

    def check(self) -> None:
        """Refuse numbers that are none, and counts below zero: they may come from a file."""
        check_types(self)
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value):
                raise ConfigError(f"{name}={value}: it must be finite")
            if value < 0 and name != "best_cost":  # which may be a BLEU, of which more is better
                raise ConfigError(f"{name}={value}: it must be 0 or more")

    def forget_best(self) -> None:
        """As if nothing had been validated: the next one is the best."""
        self.best_cost = self.best_step = None

    def lost(self, loss: float, tokens: int) -> None:
        """Count a step's mean loss and its targets."""
        self.recent_loss += loss * tokens
        self.recent_tokens += tokens

    def took(self, seconds: float) -> None:
        """Count a step's time."""
        self.seconds += seconds
        self.recent_seconds += seconds

    def take_recent(self) -> dict[str, float | None]:
        """What training was like since the last validation; counting begins anew."""
        tokens, seconds = self.recent_tokens, self.recent_seconds
        found = {
            "train_loss": self.recent_loss / tokens if tokens else None,
            "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
        }
        self.recent_loss, self.recent_tokens, self.recent_seconds = 0.0, 0, 0.0
        return found

"""Random offset: rows and segments of a text are cut elsewhere in every epoch, so that every transition is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anaphor.data.stream_order import StreamOrder
from anaphor.registry import register_stream_order

if TYPE_CHECKING:
    from anaphor.tasks.lm import LanguageRunSpec


@dataclass(frozen=True, kw_only=True)
class RandomOffsetSettings:
    """Whether rows are shifted."""

    section: ClassVar[str] = "random_offset"

    random_offset: bool = False
    """Shift rows and segments in every epoch, so that every transition is trained on."""


class RandomOffset(StreamOrder):
    """All rows begin one token later in each epoch of a cycle, and in the first one at the beginning of the text.

    Over one cycle every transition of a text is learned, also those at the cuts and at the end.
    """

    def __init__(self, rows: int, bptt: int) -> None:
        # After `rows` offsets the end of the text has been reached; with two rows the cut between them moves back and
        # forth once, so one offset more.
        self.max_offset = max(bptt - 1, rows)

    def offset(self, epoch: int) -> int:
        return epoch % (self.max_offset + 1)


def make_order(settings: RandomOffsetSettings, spec: LanguageRunSpec) -> RandomOffset | None:
    """The order of a run with these settings."""
    return RandomOffset(spec.batch_size, spec.bptt) if settings.random_offset else None


def register() -> None:
    register_stream_order("random-offset", make_order, RandomOffsetSettings)

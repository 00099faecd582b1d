"""R-Drop (Liang et al., 2021): two forward passes with different dropout must predict alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anaphor.errors import ConfigError
from anaphor.registry import register_loss_term

if TYPE_CHECKING:
    from anaphor.models.seq2seq_spec import Seq2SeqSpec


@dataclass(frozen=True, kw_only=True)
class RDropSettings:
    """Weight of the divergence."""

    section: ClassVar[str] = "rdrop"

    rdrop: float = 0.0
    """R-Drop: weight of the divergence of two forward passes with different dropout."""

    def __post_init__(self) -> None:
        if not 0 <= self.rdrop < math.inf:
            raise ConfigError(f"rdrop={self.rdrop}: it must be at least 0, and finite")

    def check_model(self, model: Seq2SeqSpec) -> None:
        """Raise where the two passes would be equal: word dropout and weight drop are drawn per batch, not per row."""
        if self.rdrop and not (model.dropout or model.input_dropout or model.output_dropout):
            raise ConfigError(
                f"rdrop={self.rdrop} compares two passes that would be equal without dropout: "
                f"set --dropout, --input-dropout or --output-dropout"
            )


def register() -> None:
    register_loss_term("rdrop", f"{__name__}.loss:make_term", RDropSettings, tasks=("translate",))

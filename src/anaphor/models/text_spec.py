"""Spec of text encoders and classifiers: every option, declared once. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anaphor.config import check_at_least, look_up
from anaphor.errors import ConfigError
from anaphor.models.spec import TokenModelSpec

if TYPE_CHECKING:
    from anaphor.models.text_encoder import TextEncoder

POOLINGS = {"cls": "the first token", "mean": "mean of all tokens", "last": "the last token"}
POOLERS = {"none": "no layer", "tanh": "as BERT", "relu": "as DistilBERT"}


@dataclass(frozen=True, kw_only=True)
class TextEncoderSpec(TokenModelSpec):
    """A text encoder: embeddings, a stack of layers, pooling, and a head where there are classes."""

    classes: int | None = None
    """Number of classes; None means no head: the model returns the pooled hidden states."""
    token_types: int = 0
    """Number of token types (segments); 0 means none."""
    embedding_norm: bool = False
    """Norm of the embeddings."""
    absolute_positions: bool = False
    """Learned positions of the embeddings, in addition to a position encoding inside attention (as MPNet)."""
    position_offset: int = 0
    """Row of the table of learned positions that the first token has."""
    pooling: str = "mean"
    """What the head reads: cls (the first token), mean (of all tokens) or last (the last token)."""
    pooler: str = "none"
    """Dense layer between pooling and head, by its activation: none, tanh (as BERT) or relu (as DistilBERT)."""
    head_bias: bool = True
    """Bias of the head (output layer)."""
    causal: bool = False
    """Refuse layers that see later tokens."""

    def _check_input(self) -> None:
        super()._check_input()
        check_at_least(1, classes=self.classes)
        check_at_least(0, token_types=self.token_types, position_offset=self.position_offset)
        look_up(POOLINGS, self.pooling, "pooling")
        look_up(POOLERS, self.pooler, "pooler")
        if self.absolute_positions and self.adds_position:
            raise ConfigError(
                f"absolute_positions need a position encoding inside attention, not position={self.position!r}; "
                "for learned positions alone use position='learned'"
            )
        if self.pooling == "cls" and not self.is_noncausal:
            raise ConfigError(
                "pooling='cls' needs a layer that sees later tokens: the first token attends to no other; use "
                "pooling='mean' or 'last', a layer such as bidirectional-lstm, or attention with mask='everything'"
            )

    @property
    def embedder_position(self) -> str:
        """Position encoding that is added to the embeddings."""
        return "learned" if self.absolute_positions else self.position if self.adds_position else "none"

    @property
    def is_noncausal(self) -> bool:
        """Whether the first token sees the others in at least one layer."""
        return any(block.mixer.noncausal_reason is not None for block in self.blocks())

    def unused_options(self, names: Iterable[str]) -> dict[str, str]:
        names = list(names)
        unused = super().unused_options(names)
        if self.embedder_position == "learned":
            unused.pop("max_positions", None)
        elif "position_offset" in names:
            unused["position_offset"] = f"applies to --position learned only, not to position={self.position!r}"
        if self.classes is None and "head_bias" in names:
            unused["head_bias"] = "applies to the head only, and the model has none: set classes"
        return unused

    def build(self) -> TextEncoder:  # type: ignore[override]
        from anaphor.models.initialize import build_checked
        from anaphor.models.text_encoder import TextEncoder

        return build_checked(TextEncoder, self)

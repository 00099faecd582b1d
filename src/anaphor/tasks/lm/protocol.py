"""Protocol: how a text is cut into segments and scored, and whether state is carried from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from anaphor.data.batches import Batch, EvaluationStream, Stream
from anaphor.data.stored_tokens import StoredTokens
from anaphor.data.tokenizer import Ids
from anaphor.errors import ConfigError
from anaphor.models.language_model import LanguageModel


@dataclass(frozen=True)
class Split:
    """One split on the device, and the size of its text."""

    tokens: Tensor | StoredTokens
    """[N]"""
    bytes: int
    unknowns: int

    def first(self, count: int) -> Tensor:
        """The first tokens of the text, in memory."""
        if isinstance(self.tokens, StoredTokens):
            return self.tokens.tensor(count)
        return self.tokens[:count]

    def ids(self) -> Ids:
        """All tokens in memory."""
        return self.first(len(self.tokens)).cpu().numpy().astype(np.int32)


@dataclass(frozen=True)
class Protocol:
    """How a split is scored."""

    rows: int
    """Rows of the text that are scored in parallel."""
    bptt: int
    """Tokens of a segment."""
    carry: bool
    """Whether the state is carried from one segment to the next; else each segment starts without a state."""
    complete: bool = True
    """Whether every token is scored once; else as in PyTorch's word_language_model example, which drops the remainder
    of the text and the first token of every row."""

    def batches(self, tokens: Tensor | StoredTokens, boundary: int) -> Sequence[Batch]:
        if self.complete:
            return EvaluationStream(tokens, boundary, self.rows, self.bptt)
        return Stream(tokens, self.rows, self.bptt)

    def metadata(self, tokens: int) -> dict[str, Any]:
        """Part of the signature of so many tokens, of which each row has at least one."""
        return {
            "bptt": self.bptt,
            "state": "carried" if self.carry else "restarted",
            "batch": min(self.rows, tokens),
            "protocol": "complete" if self.complete else "example",
        }


def choose_carry(model: LanguageModel, carry: bool | None, bptt: int) -> bool:
    """Whether state is carried across segments; None means wherever the model can. Impossible choices are refused."""
    if carry is None:
        carry = model.spec.carries_by_default
    if carry and not model.causal:
        raise ConfigError("a layer that sees later tokens reads whole segments and carries no state: use --no-carry")
    if carry and model.max_positions is not None:
        raise ConfigError(
            f"a carried state has no end, but the model has {model.max_positions:,} learned positions: use --no-carry, "
            f"or another --position (sinusoidal, rotary, alibi, relative)"
        )
    if carry and model.state_grows:
        raise ConfigError("a carried state of attention would grow without bound: set --memory, or use --no-carry")
    if not carry and model.max_positions is not None and bptt > model.max_positions:
        raise ConfigError(f"bptt={bptt} is longer than the {model.max_positions:,} learned positions of the model")
    return carry

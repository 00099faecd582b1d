"""What a model says of itself before it has learned anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anaphor.models.language_model import LanguageModelSpec


@dataclass(frozen=True)
class Summary:
    """The size of a model and of what it remembers."""

    layers: tuple[str, ...]
    """The mixer of every layer."""
    width: int
    """Size of a token vector where the stack ends."""
    parameters: int
    """Numbers that are learned."""
    state_bytes: int
    """Bytes that one row's state holds after `tokens` tokens."""
    tokens: int
    """After how many tokens the state was measured."""
    state_grows: bool
    """Whether the state gets larger with every token, without end."""
    limit: int | None
    """How many positions the model knows; None means no end."""


def summarise(spec: LanguageModelSpec, tokens: int = 1024) -> Summary:
    """Build the model without any memory for its weights, and ask it."""
    with torch.device("meta"):
        model = spec.build()
    return Summary(
        layers=spec.mixers_by_layer,
        width=spec.widths_by_layer[-1],
        parameters=model.count_parameters(),
        state_bytes=model.state_bytes(tokens),
        tokens=tokens,
        state_grows=model.state_grows,
        limit=model.limit,
    )

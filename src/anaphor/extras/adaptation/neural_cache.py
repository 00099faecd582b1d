"""The neural cache: past tokens of the text that is scored vote for the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anaphor.errors import ConfigError
from anaphor.models.cross_entropy import IGNORE_INDEX

SIMILARITIES_PER_CHUNK = 8_000_000


@dataclass(frozen=True)
class Cache:
    """The continuous cache of Grave et al. (2016). It keeps the hidden states of past tokens, each with the token that
    followed. A new hidden state weights them by exp(flatness · similarity), and a part of the probability goes to the
    tokens that followed. Nothing is trained, and the model does not change."""

    window: int
    """Number of past tokens of a row that are kept."""
    weight: float = 0.1
    """Share of the probability that goes to the cache."""
    flatness: float = 0.3
    """Factor of the similarity; with 0 all tokens of the window count alike."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"a cache of {self.window} tokens: it must have at least 1")
        if not 0 <= self.weight < 1:
            raise ConfigError(f"cache weight {self.weight} is not a share: it must be at least 0 and below 1")
        if not 0 <= self.flatness < math.inf:
            raise ConfigError(f"cache flatness {self.flatness}: it must be a number of at least 0")

    def __str__(self) -> str:
        return f"cache({self.window},{self.weight},{self.flatness})"


class Memory(NamedTuple):
    """Contents of the cache of each row, oldest first. The number of slots is fixed; the first ones may be empty."""

    hidden_states: Tensor
    """[B, N, D]"""
    next_tokens: Tensor
    """[B, N]: the token that followed; IGNORE_INDEX in an empty slot."""

    @classmethod
    def empty(cls, hidden_states: Tensor, window: int) -> Memory:
        """Empty slots for hidden states of this kind [B, T, D]."""
        rows, _, width = hidden_states.shape
        next_tokens = torch.full((rows, window), IGNORE_INDEX, device=hidden_states.device)
        return cls(hidden_states.new_zeros(rows, window, width), next_tokens)

    def extend(self, hidden_states: Tensor, next_tokens: Tensor) -> Memory:
        """With newer tokens appended, and nothing removed yet."""
        return Memory(torch.cat((self.hidden_states, hidden_states), 1), torch.cat((self.next_tokens, next_tokens), 1))

    def newest(self, count: int) -> Memory:
        return Memory(self.hidden_states[:, -count:], self.next_tokens[:, -count:])


def mix_losses(
    memory: Memory,
    x: Tensor,
    targets: Tensor,
    losses: Tensor,
    caches: Sequence[Cache],
    chunk: int = SIMILARITIES_PER_CHUNK,
) -> tuple[Memory, Tensor]:
    """The memory after a segment, and the segment's losses under each cache [caches, B, T].

    `memory` has as many slots as the largest cache. A token of the segment is in the caches of those after it.
    """
    rows, window = memory.next_tokens.shape
    both = memory.extend(x, targets)
    # A chunk of C tokens is compared with C + window slots; this size keeps within `chunk` similarities.
    size = max(1, int((math.sqrt(window**2 + 4 * chunk / max(1, rows)) - window) / 2))
    mixed = []
    for start in range(0, x.shape[1], size):
        end = min(start + size, x.shape[1])
        before = Memory(*(part[:, start : end - 1 + window] for part in both))
        mixed.append(_mix_chunk(before, x[:, start:end], targets[:, start:end], losses[:, start:end], caches))
    return both.newest(window), torch.cat(mixed, -1)


def _mix_chunk(before: Memory, x: Tensor, targets: Tensor, losses: Tensor, caches: Sequence[Cache]) -> Tensor:
    """`before` holds the whole window of the first token of the chunk, and what lies between for the others."""
    slots, steps = before.next_tokens.shape[1], x.shape[1]
    window = slots - steps + 1
    positions = torch.arange(slots, device=x.device)
    ages = window + torch.arange(steps, device=x.device)[:, None] - positions  # [C, S]; 1 is the token just before
    past = (ages >= 1) & (before.next_tokens != IGNORE_INDEX)[:, None]  # [B, C, S]
    same = before.next_tokens[:, None] == targets[:, :, None]  # [B, C, S]
    similarity = (x @ before.hidden_states.mT).to(losses.dtype)  # [B, C, S]
    log_shares: dict[tuple[int, float], Tensor] = {}  # caches that differ only in their weight share them
    mixed = []
    for cache in caches:
        key = (cache.window, cache.flatness)
        if key not in log_shares:
            visible = past & (ages <= cache.window)
            scores = (cache.flatness * similarity).masked_fill_(~visible, -math.inf)
            peak = scores.amax(-1, keepdim=True)
            votes = scores.sub_(peak).exp_()  # one exponential for both sums
            share = ((votes * same).sum(-1) / votes.sum(-1)).log()
            # With an empty cache the model's own probability counts.
            log_shares[key] = torch.where(peak.squeeze(-1) > -math.inf, share, -losses)
        model_part, cache_part = math.log1p(-cache.weight), math.log(cache.weight) if cache.weight else -math.inf
        mixed.append(-torch.logaddexp(model_part - losses, cache_part + log_shares[key]))
    return torch.stack(mixed).masked_fill(targets == IGNORE_INDEX, 0.0)

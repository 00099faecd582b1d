"""The continuous cache (Grave et al. 2016): what came lately comes again, above all where the past looks alike.

The model's features of the last tokens are kept, each with the token that followed. A new feature asks them all, and
each votes for its own follower with weight exp(flatness * likeness). A share of the model's probability goes to the
votes. Nothing is learnt, and the model is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anaphor.data.batches import Batch
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.models import LanguageModel
from anaphor.models.head import IGNORE_INDEX, token_losses

LIKENESSES_AT_ONCE = 8_000_000


@dataclass(frozen=True)
class Cache:
    """How much is remembered, and how much it is believed."""

    window: int
    """How many past tokens of a row are kept."""
    weight: float = 0.1
    """Share of the probability that goes to the cache."""
    flatness: float = 0.3
    """How much more those count that look alike: 0 counts how often a token came, whatever stood before it."""

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
    """What a cache holds of each row, oldest first: always as many slots, of which the first may be empty."""

    features: Tensor
    """[B, N, D]"""
    followers: Tensor
    """[B, N]: the token that came after; IGNORE_INDEX in an empty slot."""

    @classmethod
    def empty(cls, features: Tensor, window: int) -> Memory:
        """Room for features of this kind [B, T, D]."""
        rows, _, width = features.shape
        followers = torch.full((rows, window), IGNORE_INDEX, device=features.device)
        return cls(features.new_zeros(rows, window, width), followers)

    def extended(self, features: Tensor, followers: Tensor) -> Memory:
        """With newer tokens behind, and nothing forgotten yet."""
        return Memory(torch.cat((self.features, features), 1), torch.cat((self.followers, followers), 1))

    def newest(self, count: int) -> Memory:
        return Memory(self.features[:, -count:], self.followers[:, -count:])


def cached_losses(
    model: LanguageModel,
    batches: Sequence[Batch],
    carry: bool,
    caches: Sequence[Cache],
    tick: Callable[[], None] = lambda: None,
) -> list[tuple[Batch, Tensor]]:
    """Each batch with the losses of its targets under every cache [caches, B, T], zero where there is no target.

    The model runs once for all caches. A row's cache goes on from segment to segment even where the state does not.
    """
    if not caches:
        raise ConfigError("there is no cache to score with: give at least one")
    window = max(cache.window for cache in caches)
    found, state, memory = [], None, None
    with eval_mode(model), torch.inference_mode():
        for batch in batches:
            goes_on = carry and not batch.restarts
            x, state = model.features(batch.input_ids, state if goes_on else None, batch.lengths)
            if memory is None or batch.restarts:
                memory = Memory.empty(x, window)
            losses = token_losses(x, model.head, batch.targets)
            memory, mixed = mixed_losses(memory, x, batch.targets, losses, caches)
            found.append((batch, mixed))
            tick()
    return found


def mixed_losses(
    memory: Memory,
    x: Tensor,
    targets: Tensor,
    losses: Tensor,
    caches: Sequence[Cache],
    at_once: int = LIKENESSES_AT_ONCE,
) -> tuple[Memory, Tensor]:
    """The memory after a segment, and the segment's losses under each cache [caches, B, T].

    `memory` has as many slots as the largest cache. Tokens of the segment itself are in the caches of those after them.
    """
    rows, window = memory.followers.shape
    both = memory.extended(x, targets)
    # A piece of C tokens looks at C + window slots, so this many keep within what may be held at once.
    size = max(1, int((math.sqrt(window**2 + 4 * at_once / max(1, rows)) - window) / 2))
    pieces = []
    for start in range(0, x.shape[1], size):
        end = min(start + size, x.shape[1])
        before = Memory(*(part[:, start : end - 1 + window] for part in both))
        pieces.append(_mixed_piece(before, x[:, start:end], targets[:, start:end], losses[:, start:end], caches))
    return both.newest(window), torch.cat(pieces, -1)


def _mixed_piece(before: Memory, x: Tensor, targets: Tensor, losses: Tensor, caches: Sequence[Cache]) -> Tensor:
    """`before` holds, for the first token of the piece, its whole window, and for the others what lies between."""
    slots, steps = before.followers.shape[1], x.shape[1]
    window = slots - steps + 1
    places = torch.arange(slots, device=x.device)
    ages = window + torch.arange(steps, device=x.device)[:, None] - places  # [C, S]; 1 is the token right before
    past = (ages >= 1) & (before.followers != IGNORE_INDEX)[:, None]  # [B, C, S]
    same = before.followers[:, None] == targets[:, :, None]  # [B, C, S]
    likeness = (x @ before.features.mT).to(losses.dtype)  # [B, C, S]
    votes: dict[tuple[int, float], Tensor] = {}  # those that differ in their weight alone share them
    found = []
    for cache in caches:
        key = (cache.window, cache.flatness)
        if key not in votes:
            visible = past & (ages <= cache.window)
            scores = (cache.flatness * likeness).masked_fill(~visible, -math.inf)
            share = scores.masked_fill(~same, -math.inf).logsumexp(-1) - scores.logsumexp(-1)
            # An empty cache has nothing to say against the model.
            votes[key] = torch.where(visible.any(-1), share, -losses)
        model_part, cache_part = math.log1p(-cache.weight), math.log(cache.weight) if cache.weight else -math.inf
        found.append(-torch.logaddexp(model_part - losses, cache_part + votes[key]))
    return torch.stack(found).masked_fill(targets == IGNORE_INDEX, 0.0)

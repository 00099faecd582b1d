"""What each head does, in a few numbers, so that a person knows which of many to open."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anaphor.errors import ConfigError
from anaphor.inspect.attention import shares, sums_to_one

STRONG = 0.5
"""A share that makes a head remarkable: more than on everything else together."""
FAINT = 0.1
"""Below this, how strong an induction is does not rank a head."""
EVEN = 0.95


@dataclass(frozen=True)
class HeadSummary:
    """One head on one text. Numbers are means over the tokens they are defined for; None where there is none.

    All are of shares: where rows do not sum to one (`total`), they are divided by their sum first.
    """

    name: str
    """The tap: `layers.1.mixer.weights`."""
    layer: int | None
    head: int
    entropy: float | None
    """Of the shares of a row, in nats; None where weights are below zero."""
    evenness: float | None
    """Entropy over that of equal shares on all that has any: 1 means that the head does not choose."""
    distance: float | None
    """How many tokens away it looks."""
    on_self: float | None
    on_previous: float | None
    """Of tokens that have one before them."""
    on_first: float | None
    """Of tokens other than the first."""
    induction: float | None
    """On the token after the previous occurrence of the present one. A token that is repeated at once does not count,
    for then that is the present token itself."""
    induction_tokens: int
    """How many tokens that is the mean of."""
    total: float | None
    """What a row sums to."""
    normalised: bool
    """Whether every row sums to one."""

    @property
    def remarkable(self) -> str:
        """What a person would say of it; empty where nothing stands out."""
        found = [
            word
            for word, share in (
                ("induction", self.induction),
                ("previous", self.on_previous),
                ("itself", self.on_self),
                ("first", self.on_first),
            )
            if share is not None and share >= STRONG
        ]
        if not found and _alike(self):
            found.append("all alike")
        return ", ".join(found)


def summarise(maps: Mapping[str, Tensor], tokens: Sequence[Hashable]) -> list[HeadSummary]:
    """Every head of every map, in order. `tokens` are those that look, or all those that are looked at."""
    return [summary for name, weights in maps.items() for summary in _of_layer(name, weights, tokens)]


def ranked(heads: Iterable[HeadSummary]) -> list[HeadSummary]:
    """Those that continue what came before first, then those that look at one place, then the rest by entropy.

    A head that looks at everything alike comes last, whatever falls on any place by that.
    """

    def key(head: HeadSummary) -> tuple[bool, float, float, float]:
        single = max(
            (share for share in (head.on_self, head.on_previous, head.on_first) if share is not None), default=0
        )
        induction = 0 if head.induction is None or head.induction < FAINT else head.induction
        return (_alike(head), -induction, -single, torch.inf if head.entropy is None else head.entropy)

    return sorted(heads, key=key)


def _alike(head: HeadSummary) -> bool:
    return head.evenness is not None and head.evenness >= EVEN


def _of_layer(name: str, weights: Tensor, tokens: Sequence[Hashable]) -> list[HeadSummary]:
    heads, rows, columns = weights.shape
    if len(tokens) not in (rows, columns):
        raise ConfigError(f"{name} has {rows} tokens that look at {columns}, but {len(tokens)} tokens are given")
    weights = weights.double()
    part = shares(weights)
    looks = weights.ne(0).any(-1)  # [H, T]
    past = columns - rows
    here = torch.arange(past, columns)
    apart = (here[:, None] - torch.arange(columns)[None]).abs()

    has_previous = here >= 1
    behind = part.gather(-1, (here - 1).clamp(min=0)[None, :, None].expand(heads, -1, 1)).squeeze(-1)
    itself = part[:, torch.arange(rows), here]
    followers = _followers(tokens, columns)[-rows:]
    repeats = followers >= 0
    after = part.gather(-1, followers.clamp(min=0)[None, :, None].expand(heads, -1, 1)).squeeze(-1)

    signed = bool((weights < 0).any())
    entropy = torch.special.entr(part.clamp(min=0)).sum(-1)
    even = weights.ne(0).sum(-1).clamp(min=1).log()
    layer = re.match(r"layers\.(\d+)\.", name)
    return [
        HeadSummary(
            name=name,
            layer=int(layer[1]) if layer else None,
            head=head,
            entropy=None if signed else _mean(entropy[head], looks[head]),
            evenness=None if signed else _ratio(entropy[head], even[head], looks[head]),
            distance=_mean((part[head] * apart).sum(-1), looks[head]),
            on_self=_mean(itself[head], looks[head]),
            on_previous=_mean(behind[head], looks[head] & has_previous),
            on_first=_mean(part[head, :, 0], looks[head] & has_previous),
            induction=_mean(after[head], looks[head] & repeats),
            induction_tokens=int((looks[head] & repeats).sum()),
            total=_mean(weights[head].sum(-1), looks[head]),
            normalised=sums_to_one(weights[head]),
        )
        for head in range(heads)
    ]


def _followers(tokens: Sequence[Hashable], columns: int) -> Tensor:
    """For each place, the place after the previous occurrence of its token; -1 where there is none. [S]"""
    start = columns - len(tokens)
    last: dict[Hashable, int] = {}
    found = [-1] * columns
    for place, token in enumerate(tokens, start):
        before = last.get(token)
        if before is not None and before + 1 < place:
            found[place] = before + 1
        last[token] = place
    return torch.tensor(found)


def _mean(values: Tensor, counted: Tensor) -> float | None:
    return float(values[counted].mean()) if bool(counted.any()) else None


def _ratio(entropy: Tensor, even: Tensor, counted: Tensor) -> float | None:
    """Of means, because a row with one choice has none of either."""
    most = float(even[counted].sum())
    return float(entropy[counted].sum()) / most if most > 0 else None

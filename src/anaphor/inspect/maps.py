"""Attention maps, their rollout, a summary of each head, and gates and states of recurrent layers.

An attention map is [H, T, S]: the weights of T queries on S keys. The last T keys are at the positions of the queries;
a carried state adds older keys before them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.config import check_at_least
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.inspect.record import recorded
from anaphor.mixers.noncausal import LowRank
from anaphor.models.backbone import SOURCE_MIXERS
from anaphor.taps import taps_of

ROUNDING = 1e-3
"""Tolerance for rows that sum to one: half precision has three digits."""
DOMINANT = 0.5
"""Least share of the weight that makes a pattern: more than on everything else together."""
MIN_INDUCTION = 0.1
"""A smaller induction score does not affect the rank of a head."""
UNIFORM = 0.95
"""Least evenness of a head that counts as uniform."""
MAX_UNITS = 64
KINDS = {"decay": "gates"}
"""What the units of a tap are shown as, where that is not its name."""
UNIT_TAPS = ("states", "gates", "decay")
"""Names of the taps with units over time; a decay is shown as a gate."""


# ---- attention maps


def attention_maps(model: nn.Module, *inputs: Any) -> dict[str, Tensor]:
    """Run `model(*inputs)` on one sequence and return its attention maps: `{"layers.1.mixer.weights": …}`.

    A language model takes tokens, `[T]` or `[1, T]`, and optionally a state; a stack takes `x, state, span`.
    """
    if not any(_is_map(model, name) for name in taps_of(model)):
        return {}
    with eval_mode(model), torch.no_grad(), recorded(model, "*weights") as taps:
        model(*as_batch(inputs))
    return select_maps(model, taps)


def select_maps(model: nn.Module, taps: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The attention maps among recorded taps, in the order of the layers, with keys that are tokens."""
    names = [name for name in taps if _is_map(model, name) and has_weights(taps[name])]
    return {name: _over_tokens(model, name, taps[name]) for name in names}


def has_weights(tensor: Tensor) -> bool:
    """Whether a tap of weights has the shape [B, H, T, S], [B, T, S] for a single head, or [B, S] for all queries."""
    return tensor.ndim in (2, 3, 4) and tensor.is_floating_point() and tensor.numel() > 0


def _is_map(model: nn.Module, name: str) -> bool:
    path, _, tap = name.rpartition(".")
    return tap == "weights" and not isinstance(model.get_submodule(path), SOURCE_MIXERS)  # they attend to a source


def _over_tokens(model: nn.Module, name: str, weights: Tensor) -> Tensor:  # -> [H, T, S]
    path, _, _ = name.rpartition(".")
    layer = model.get_submodule(path)
    _check_single_row(name, weights)
    if weights.ndim == 2:  # one average for all tokens: every query has the same weights
        weights = weights[:, None, None, :].expand(-1, -1, weights.shape[-1], -1)
    if weights.ndim == 3:
        weights = weights[:, None]
    if isinstance(layer, LowRank):  # weight of a token = weights of the projected keys times its share in them
        weights = weights @ layer.time_projection[:, : weights.shape[-2]]
    if "backward_layer" in path.split("."):  # reads from the end: restore the order of both axes
        weights = weights.flip(-1, -2)
    return weights[0].detach().cpu()


def _check_single_row(name: str, tensor: Tensor) -> None:
    if len(tensor) != 1:
        raise ConfigError(f"a map shows one sequence, but {name} has a batch of {len(tensor)}: pass a single row")


def as_batch(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add a batch dimension to a single sequence of tokens. [T] -> [1, T]"""
    first, *others = inputs
    return (first[None] if isinstance(first, Tensor) and first.ndim == 1 else first, *others)


def head_average(weights: Tensor) -> Tensor:
    """[H, T, S] -> [T, S]"""
    return weights.mean(0)


def normalize_rows(weights: Tensor) -> Tensor:
    """Rows divided by their sum; rows of zeros stay zero. Same shape."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total.where(total > 0, 1), 0)


def rows_sum_to_one(weights: Tensor) -> bool:
    """Whether all rows that are not zero sum to one."""
    total = weights.sum(-1)
    return bool(((total - 1).abs() < ROUNDING)[weights.ne(0).any(-1)].all())


def rollout(maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Attention rollout (Abnar & Zuidema, 2020) up to each layer: [T, T] by the name of the layer's map.

    A layer is the mean of its normalized heads and the identity, for the residual connection; layers are multiplied
    from first to last. Layers without a map, such as recurrent ones, count as the identity.
    """
    product: Tensor | None = None
    rollouts: dict[str, Tensor] = {}
    for name, weights in maps.items():
        _, rows, columns = weights.shape
        if rows != columns:
            raise ConfigError(f"a rollout needs the whole sequence, but {name} has {rows} queries and {columns} keys")
        if bool((weights < 0).any()):
            raise ConfigError(f"a rollout needs weights ≥ 0, but {name} has negative ones")
        # A row of zeros becomes the identity.
        layer = normalize_rows(head_average(normalize_rows(weights)) + torch.eye(rows, dtype=weights.dtype))
        product = layer if product is None else layer @ product
        rollouts[name] = product
    return rollouts


# ---- heads


@dataclass(frozen=True)
class HeadSummary:
    """Statistics of one head on one sequence: means over the tokens they are defined for, None if there is none.

    Rows that do not sum to one (`total`) are normalized first.
    """

    name: str
    """The tap: `layers.1.mixer.weights`."""
    layer: int | None
    head: int
    entropy: float | None
    """Of a row, in nats; None if there are negative weights."""
    evenness: float | None
    """Entropy divided by that of equal weights on the same keys: 1 means uniform attention."""
    distance: float | None
    """Mean distance in tokens."""
    on_self: float | None
    on_previous: float | None
    """Over tokens that have a previous one."""
    on_first: float | None
    """Over tokens other than the first."""
    induction: float | None
    """Weight on the token after the previous occurrence of the current one; immediate repetitions do not count, as that
    would be the current token itself."""
    induction_tokens: int
    """Number of tokens with such an occurrence."""
    total: float | None
    """Sum of a row."""
    normalized: bool
    """Whether every row sums to one."""

    @property
    def pattern(self) -> str:
        """The dominant patterns of the head: induction, previous, itself, first, uniform; empty if there is none."""
        scores = {"induction": self.induction, "previous": self.on_previous, "itself": self.on_self,
                  "first": self.on_first}  # fmt: skip
        patterns = [name for name, share in scores.items() if share is not None and share >= DOMINANT]
        return ", ".join(patterns or (["uniform"] if self.is_uniform else []))

    @property
    def is_uniform(self) -> bool:
        return self.evenness is not None and self.evenness >= UNIFORM

    def to_plain(self) -> dict[str, Any]:
        """For JSON. `normalised` and `remarkable` are former names that scripts rely on."""
        plain = dataclasses.asdict(self)
        plain["normalised"] = plain.pop("normalized")
        return {**plain, "pattern": self.pattern, "remarkable": self.pattern}


def summarize_heads(maps: Mapping[str, Tensor], tokens: Sequence[Hashable]) -> list[HeadSummary]:
    """Statistics of every head of every map. `tokens` are those of the queries, or of all keys."""
    return [summary for name, weights in maps.items() for summary in _summarize_layer(name, weights, tokens)]


def rank_heads(heads: Iterable[HeadSummary]) -> list[HeadSummary]:
    """Induction heads first, then heads that attend to one position, then by entropy; uniform heads last."""

    def key(head: HeadSummary) -> tuple[bool, float, float, float]:
        shares = (share for share in (head.on_self, head.on_previous, head.on_first) if share is not None)
        induction = 0 if head.induction is None or head.induction < MIN_INDUCTION else head.induction
        entropy = torch.inf if head.entropy is None else head.entropy
        return head.is_uniform, -induction, -max(shares, default=0), entropy

    return sorted(heads, key=key)


def _summarize_layer(name: str, weights: Tensor, tokens: Sequence[Hashable]) -> list[HeadSummary]:
    heads, rows, columns = weights.shape
    if len(tokens) not in (rows, columns):
        raise ConfigError(f"{name} has {rows} queries and {columns} keys, but {len(tokens)} tokens were given")
    weights = weights.double()
    shares = normalize_rows(weights)
    attends = weights.ne(0).any(-1)  # [H, T]
    positions = torch.arange(columns - rows, columns)
    distance = (positions[:, None] - torch.arange(columns)[None]).abs()
    has_previous = positions >= 1
    targets = _induction_targets(tokens, columns)[-rows:]
    has_target = targets >= 0

    def weight_at(keys: Tensor) -> Tensor:  # [T] -> [H, T]
        return shares.gather(-1, keys.clamp(min=0)[None, :, None].expand(heads, -1, 1)).squeeze(-1)

    on_previous, on_self, on_target = weight_at(positions - 1), weight_at(positions), weight_at(targets)
    signed = bool((weights < 0).any())
    entropy = torch.special.entr(shares.clamp(min=0)).sum(-1)
    max_entropy = weights.ne(0).sum(-1).clamp(min=1).log()
    return [
        HeadSummary(
            name=name,
            layer=layer_of(name),
            head=head,
            entropy=None if signed else _mean(entropy[head], attends[head]),
            evenness=None if signed else _ratio(entropy[head], max_entropy[head], attends[head]),
            distance=_mean((shares[head] * distance).sum(-1), attends[head]),
            on_self=_mean(on_self[head], attends[head]),
            on_previous=_mean(on_previous[head], attends[head] & has_previous),
            on_first=_mean(shares[head, :, 0], attends[head] & has_previous),
            induction=_mean(on_target[head], attends[head] & has_target),
            induction_tokens=int((attends[head] & has_target).sum()),
            total=_mean(weights[head].sum(-1), attends[head]),
            normalized=rows_sum_to_one(weights[head]),
        )
        for head in range(heads)
    ]


def layer_of(name: str) -> int | None:
    """Index of the layer that a tap belongs to, from `…layers.N.…`."""
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return int(match[1]) if match else None


def _induction_targets(tokens: Sequence[Hashable], columns: int) -> Tensor:
    """For each position, the one after the previous occurrence of its token; -1 if there is none. [S]"""
    last: dict[Hashable, int] = {}
    targets = [-1] * columns
    for position, token in enumerate(tokens, columns - len(tokens)):
        before = last.get(token)
        if before is not None and before + 1 < position:
            targets[position] = before + 1
        last[token] = position
    return torch.tensor(targets)


def _mean(values: Tensor, mask: Tensor) -> float | None:
    return float(values[mask].mean()) if bool(mask.any()) else None


def _ratio(entropy: Tensor, max_entropy: Tensor, mask: Tensor) -> float | None:
    """Ratio of sums: a row with a single key has neither."""
    total = float(max_entropy[mask].sum())
    return float(entropy[mask].sum()) / total if total > 0 else None


# ---- recurrent layers


@dataclass(frozen=True)
class UnitMap:
    """One gate, or one tensor of the state, of one recurrent layer over time."""

    layer: str
    """Path of the layer: `layers.0.mixer`."""
    kind: str
    """gates or states."""
    part: str
    """Name of the gate or of the state's tensor: forget, hidden, …"""
    values: Tensor
    """[units, T]"""
    units: tuple[int, ...]
    """Indices of the units: those whose hidden state varies most. The same for all parts of a layer."""
    of: int
    """Number of units of the layer."""

    @property
    def bounded(self) -> bool:
        """Whether it is a gate whose values are between zero and one."""
        return self.kind == "gates" and bool(((self.values >= 0) & (self.values <= 1)).all())


def unit_maps(model: nn.Module, *inputs: Any, most: int = MAX_UNITS) -> list[UnitMap]:
    """Run `model(*inputs)` on one sequence and return gates and states of its layers, where these have such taps."""
    names = [name for name in taps_of(model) if name.rpartition(".")[2] in UNIT_TAPS]
    if not names:
        return []
    with eval_mode(model), torch.no_grad(), ExitStack() as stack:
        recordings = [stack.enter_context(recorded(model, name)) for name in names]
        model(*as_batch(inputs))
    return select_units(model, {name: tensor for taps in recordings for name, tensor in taps.items()}, most)


def select_units(model: nn.Module, taps: Mapping[str, Tensor], most: int = MAX_UNITS) -> list[UnitMap]:
    """The same from recorded taps: states first, then gates, layer by layer. Taps of other shapes are left out."""
    check_at_least(1, most=most)
    maps = []
    for path, layer in model.named_modules():
        prefix = f"{path}." if path else ""
        found = {
            kind: _single_row(name, taps[name], path)
            for kind in UNIT_TAPS
            if (name := f"{prefix}{kind}") in taps and has_units(taps[name])
        }
        units = {values.shape[-1]: _most_varied(values[:, 0], most) for values in reversed(found.values())}
        maps += [
            UnitMap(
                path,
                KINDS.get(kind, kind),
                name,
                part.T[torch.tensor(units[len(part.T)])],
                units[len(part.T)],
                of=len(part.T),
            )
            for kind, values in found.items()
            for name, part in zip(_part_names(layer, kind, values.shape[1]), values.unbind(1), strict=True)
            if (kind, name) != ("gates", "hidden")  # an RNN has none: it is the state
        ]
    return maps


def has_units(tensor: Tensor) -> bool:
    """Whether a tap of gates or states has the shape [B, T, parts, D], or [B, T, D] for a single part."""
    return tensor.ndim in (3, 4) and tensor.is_floating_point() and tensor.numel() > 0


def _most_varied(values: Tensor, most: int) -> tuple[int, ...]:  # [T, D]
    spread = values.double().std(0, correction=0)
    return tuple(sorted(spread.argsort(descending=True, stable=True)[:most].tolist()))


def _part_names(layer: nn.Module, kind: str, count: int) -> tuple[str, ...]:
    """Names of the parts of a tap: the layer's `gate_names` or `state_names`, or the fields of its state, where there
    are as many; else numbers."""
    fields = getattr(getattr(layer, "state_type", None), "_fields", ()) if kind == "states" else ()
    for names in (getattr(layer, f"{kind.removesuffix('s')}_names", ()), fields):
        if len(names) == count:
            return tuple(names)
    single = kind.removesuffix("s")
    return (single,) if count == 1 else tuple(f"{single} {number}" for number in range(count))


def _single_row(name: str, tensor: Tensor, path: str) -> Tensor:  # [1, T, parts, D] or [1, T, D] -> [T, parts, D]
    _check_single_row(name, tensor)
    tensor = tensor[:, :, None] if tensor.ndim == 3 else tensor
    return (tensor.flip(1) if "backward_layer" in path.split(".") else tensor)[0].detach().cpu()

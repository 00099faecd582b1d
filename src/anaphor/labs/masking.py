"""Masks in attention: a hidden token, the future, padding. What may not be seen has no influence, to the last bit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.draw import Panel, heat_maps
from anaphor.inspect import recorded
from anaphor.labs.lab import CURVES, Check, Outcome, at_least, at_most, equal
from anaphor.labs.specs import MaskingSpec
from anaphor.labs.table import LABS
from anaphor.mixers import Attention, AttentionSpec, Span

ROUNDING = 1e-12
DIGITS = 12  # of a difference; behind them is rounding
LEAK = 1e-4  # what a wrong way lets through, at least


def masks(spec: MaskingSpec) -> dict[str, str]:
    """The three masks as a spec spells them. Padding is no mask but a length: it belongs to the batch."""
    return {"hidden token": f"hidden({spec.hidden})", "causal": "causal", "padding": "everything"}


def layer_of(spec: MaskingSpec, mask: str) -> Attention:
    torch.manual_seed(spec.seed)  # the same weights for every mask
    return AttentionSpec(width=spec.width, heads=spec.heads, mask=mask).build().double()


def span_of(spec: MaskingSpec, name: str, x: Tensor) -> Span:
    return Span.whole(x, torch.tensor([spec.tokens - spec.padding]) if name == "padding" else None)


def allowed(spec: MaskingSpec, name: str) -> Tensor:
    """Which keys each query may see. [T, T]"""
    positions = torch.arange(spec.tokens)
    queries, keys = positions[:, None], positions[None, :]
    if name == "hidden token":
        return (keys != spec.hidden).expand(spec.tokens, -1)
    if name == "causal":
        return keys <= queries
    real = spec.tokens - spec.padding
    return (keys < real) & (queries < real)


def attend(layer: Attention, x: Tensor, span: Span) -> Tensor:
    y: Tensor = layer(x, layer.initial_state(x), span)[0]
    return y


def influence(layer: Attention, x: Tensor, span: Span, watched: bool) -> Tensor:
    """How strongly each output depends on each token: the size of ∂y_t/∂x_u. [T, T]"""

    def outputs(tokens: Tensor) -> Tensor:
        return attend(layer, tokens[None], span)[0]

    # Watched, a layer takes the explicit path, which makes the matrix of weights.
    with recorded(layer, "weights") if watched else nullcontext():
        slopes: Tensor = torch.autograd.functional.jacobian(outputs, x[0])
    sizes: Tensor = slopes.permute(0, 2, 1, 3).flatten(2).norm(dim=-1)
    return sizes


def by_projection(layer: Attention, x: Tensor, span: Span) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of all outputs together by each token's query, key and value. Three times [T, D]"""
    projected: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        projected.append(output)

    handle = layer.project.register_forward_hook(keep)
    y = attend(layer, x, span)
    handle.remove()
    (y * torch.randn_like(y)).sum().backward()
    gradient = projected[0].grad
    assert gradient is not None, "it was asked to keep it"
    query, key, value = gradient[0].chunk(3, dim=-1)
    return query, key, value


@torch.no_grad()
def weights_of(layer: Attention, x: Tensor, span: Span) -> Tensor:
    """[H, T, T]"""
    with recorded(layer, "weights") as seen:
        attend(layer, x, span)
    return seen["weights"][0]


def left_out(open_layer: Attention, x: Tensor, seen: Tensor) -> Tensor:
    """The second way: the keys that may not be seen are not there at all. A query sees the others, one call each."""
    tokens = len(seen)
    weights = torch.zeros(open_layer.heads, tokens, tokens, dtype=x.dtype)
    for query in range(tokens):
        keys = seen[query].nonzero().squeeze(-1)
        if not len(keys):
            continue
        rest = torch.cat((keys, torch.tensor([query])))  # the query comes last; as a key it is dropped again
        found = weights_of(open_layer, x[:, rest], Span.whole(x[:, rest]))[:, -1, :-1]
        weights[:, query, keys] = found / found.sum(-1, keepdim=True)
    return weights


def renormalised(open_layer: Attention, x: Tensor, seen: Tensor) -> Tensor:
    """The third way: weigh everything, set to zero what may not be seen, and divide by what is left."""
    weights = weights_of(open_layer, x, Span.whole(x)) * seen
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def run(spec: MaskingSpec) -> Outcome:
    open_layer = layer_of(spec, "everything")
    x = torch.randn(1, spec.tokens, spec.width, dtype=torch.float64)
    checks: list[Check] = []
    rows: dict[str, dict[str, float]] = {}
    maps: dict[str, Any] = {}
    for name, mask in masks(spec).items():
        layer, span, seen = layer_of(spec, mask), span_of(spec, name, x), allowed(spec, name)
        # A token that may not be seen still asks: its own output depends on it through the query.
        own = torch.eye(spec.tokens, dtype=torch.bool) if name == "hidden token" else torch.zeros_like(seen)
        watched, fused = (influence(layer, x, span, way) for way in (True, False))
        weights = weights_of(layer, x, span)
        ways = [left_out(open_layer, x, seen), renormalised(open_layer, x, seen)]
        rows[name] = {
            "pairs masked": int((~seen).sum()),
            "largest weight there": float(weights[:, ~seen].abs().max()),
            "gradient there": float(torch.maximum(watched, fused)[~seen & ~own].max()),
            "least gradient elsewhere": float(torch.minimum(watched, fused)[seen].min()),
            "ways differ by": round(max(float((weights - other).abs().max()) for other in ways), DIGITS),
        }
        maps[name] = watched.tolist()
        checks += [
            equal(f"{name}: weights where nothing may be seen", rows[name]["largest weight there"], 0.0),
            equal(f"{name}: gradients there, explicit and fused", rows[name]["gradient there"], 0.0),
            at_least(f"{name}: least gradient elsewhere", rows[name]["least gradient elsewhere"], 1e-6),
            at_most(f"{name}: −∞, left out and renormalised differ by", rows[name]["ways differ by"], ROUNDING),
        ]
    query, key, value = by_projection(layer_of(spec, masks(spec)["hidden token"]), x, Span.whole(x))
    wrong = wrong_ways(spec, x)
    checks += [
        equal(f"gradient of key {spec.hidden}", float(key[spec.hidden].abs().max()), 0.0),
        equal(f"gradient of value {spec.hidden}", float(value[spec.hidden].abs().max()), 0.0),
        at_least(f"gradient of query {spec.hidden}, which still asks", float(query[spec.hidden].abs().max()), 1e-6),
        *(at_least(f"wrong way: {name}", got, LEAK) for name, got in wrong.items()),
    ]
    numbers = {"masks": rows, "wrong ways": wrong, CURVES: maps}
    return Outcome("masking", LABS["masking"].claim, tuple(checks), numbers)


def wrong_ways(spec: MaskingSpec, x: Tensor) -> dict[str, float]:
    """Two tempting ways to hide a token that do not: what still comes through."""
    layer = layer_of(spec, "everything")
    blank = x.clone()
    blank[:, spec.hidden] = 0
    taken = weights_of(layer, blank, Span.whole(blank))[:, :, spec.hidden].max()

    def unshared(tokens: Tensor) -> Tensor:
        """Weights set to zero behind the softmax, whose denominator still counts the hidden key."""
        q, k, v = (layer.split(part) for part in layer.project(tokens[None]).chunk(3, dim=-1))
        weights = torch.softmax(layer.score(q, k), dim=-1) * allowed(spec, "hidden token")
        return layer.join(weights @ v, q, Span.whole(tokens[None]))[0]

    slopes = torch.autograd.functional.jacobian(unshared, x[0])[:, :, spec.hidden]
    others = [token for token in range(spec.tokens) if token != spec.hidden]
    return {
        "a zero vector still gets weight": float(taken),
        "zeroed behind the softmax, gradient": float(slopes[others].flatten(1).norm(dim=1).max()),
    }


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Who influences whom under each mask; grey where the gradient is exactly zero."""
    maps = {name: np.array(values) for name, values in outcome.numbers[CURVES].items()}
    high = max(float(values.max()) for values in maps.values())
    tokens = [str(position) for position in range(len(next(iter(maps.values()))))]
    path = folder / "masking.png"
    heat_maps(
        [Panel(name, np.where(values == 0, np.nan, values), 0.0, high) for name, values in maps.items()],
        [path],
        across=len(maps),
        rows=tokens,
        columns=tokens,
        x_label="token x_u; grey: exactly zero",
        y_label="output y_t",
        label="‖∂y_t/∂x_u‖",
        curved=True,
    )
    return [path]

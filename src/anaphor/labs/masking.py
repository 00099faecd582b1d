"""Attention masks: a hidden token, causality, padding. A masked token has exactly no influence."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.draw import Panel, figure_paths, heat_maps
from anaphor.inspect import recorded
from anaphor.labs.lab import CURVES, Check, Outcome, at_least, at_most, equal
from anaphor.labs.specs import MaskingSpec
from anaphor.mixers import Attention, AttentionSpec, Span

ROUNDING = 1e-12
DIGITS = 12  # of a difference; the rest is rounding
LEAK = 1e-4  # least influence left by a wrong mask


def masks(spec: MaskingSpec) -> dict[str, str]:
    """The three masks of an attention spec. Padding is given by the lengths of the batch instead."""
    return {"hidden token": f"hidden({spec.hidden})", "causal": "causal", "padding": "everything"}


def build_layer(spec: MaskingSpec, mask: str) -> Attention:
    torch.manual_seed(spec.seed)  # the same weights for every mask
    return AttentionSpec(width=spec.width, heads=spec.heads, mask=mask).build().double()


def build_span(spec: MaskingSpec, name: str, x: Tensor) -> Span:
    return Span.whole(x, torch.tensor([spec.tokens - spec.padding]) if name == "padding" else None)


def allowed_keys(spec: MaskingSpec, name: str) -> Tensor:
    """Which keys each query may attend to. [T, T]"""
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


def gradient_norms(layer: Attention, x: Tensor, span: Span, explicit: bool) -> Tensor:
    """‖∂y_t/∂x_u‖ for every output and token. [T, T]"""

    def outputs(tokens: Tensor) -> Tensor:
        return attend(layer, tokens[None], span)[0]

    # While its weights are recorded, a layer runs the explicit path.
    with recorded(layer, "weights") if explicit else nullcontext():
        jacobian: Tensor = torch.autograd.functional.jacobian(outputs, x[0])
    norms: Tensor = jacobian.permute(0, 2, 1, 3).flatten(2).norm(dim=-1)
    return norms


def projection_gradients(layer: Attention, x: Tensor, span: Span) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a random combination of all outputs by each token's query, key and value. 3 × [T, D]"""
    projected: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        projected.append(output)

    handle = layer.project.register_forward_hook(keep)
    y = attend(layer, x, span)
    handle.remove()
    (y * torch.randn_like(y)).sum().backward()
    gradient = projected[0].grad
    assert gradient is not None, "retain_grad was called"
    query, key, value = gradient[0].chunk(3, dim=-1)
    return query, key, value


@torch.no_grad()
def attention_weights(layer: Attention, x: Tensor, span: Span) -> Tensor:
    """[H, T, T]"""
    with recorded(layer, "weights") as recording:
        attend(layer, x, span)
    return recording["weights"][0]


def remove_masked_keys(open_layer: Attention, x: Tensor, allowed: Tensor) -> Tensor:
    """Second method: masked keys are removed from the input. One call for each query."""
    tokens = len(allowed)
    weights = torch.zeros(open_layer.heads, tokens, tokens, dtype=x.dtype)
    for query in range(tokens):
        keys = allowed[query].nonzero().squeeze(-1)
        if not len(keys):
            continue
        rest = torch.cat((keys, torch.tensor([query])))  # the query is last; its key is dropped
        row = attention_weights(open_layer, x[:, rest], Span.whole(x[:, rest]))[:, -1, :-1]
        weights[:, query, keys] = row / row.sum(-1, keepdim=True)
    return weights


def renormalize_weights(open_layer: Attention, x: Tensor, allowed: Tensor) -> Tensor:
    """Third method: unmasked softmax, masked weights set to zero, rows divided by their sum."""
    weights = attention_weights(open_layer, x, Span.whole(x)) * allowed
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def run(spec: MaskingSpec) -> Outcome:
    open_layer = build_layer(spec, "everything")
    x = torch.randn(1, spec.tokens, spec.width, dtype=torch.float64)
    checks: list[Check] = []
    rows: dict[str, dict[str, float]] = {}
    maps: dict[str, Any] = {}
    for name, mask in masks(spec).items():
        layer, span, allowed = build_layer(spec, mask), build_span(spec, name, x), allowed_keys(spec, name)
        # The hidden token still has a query: its own output depends on it.
        own = torch.eye(spec.tokens, dtype=torch.bool) if name == "hidden token" else torch.zeros_like(allowed)
        explicit, fused = (gradient_norms(layer, x, span, flag) for flag in (True, False))
        weights = attention_weights(layer, x, span)
        ways = [remove_masked_keys(open_layer, x, allowed), renormalize_weights(open_layer, x, allowed)]
        rows[name] = {
            "pairs masked": int((~allowed).sum()),
            "largest weight there": float(weights[:, ~allowed].abs().max()),
            "gradient there": float(torch.maximum(explicit, fused)[~allowed & ~own].max()),
            "least gradient elsewhere": float(torch.minimum(explicit, fused)[allowed].min()),
            "ways differ by": round(max(float((weights - other).abs().max()) for other in ways), DIGITS),
        }
        maps[name] = explicit.tolist()
        checks += [
            equal(f"{name}: masked weights", rows[name]["largest weight there"], 0.0),
            equal(f"{name}: masked gradients, explicit and fused", rows[name]["gradient there"], 0.0),
            at_least(f"{name}: least unmasked gradient", rows[name]["least gradient elsewhere"], 1e-6),
            at_most(f"{name}: difference of −∞, removed, renormalized", rows[name]["ways differ by"], ROUNDING),
        ]
    query, key, value = projection_gradients(build_layer(spec, masks(spec)["hidden token"]), x, Span.whole(x))
    wrong = wrong_ways(spec, x)
    checks += [
        equal(f"gradient of key {spec.hidden}", float(key[spec.hidden].abs().max()), 0.0),
        equal(f"gradient of value {spec.hidden}", float(value[spec.hidden].abs().max()), 0.0),
        at_least(f"gradient of query {spec.hidden}, not masked", float(query[spec.hidden].abs().max()), 1e-6),
        *(at_least(f"wrong mask: {name}", value, LEAK) for name, value in wrong.items()),
    ]
    numbers = {"masks": rows, "wrong ways": wrong, CURVES: maps}
    return Outcome("masking", spec.claim, tuple(checks), numbers)


def wrong_ways(spec: MaskingSpec, x: Tensor) -> dict[str, float]:
    """Two wrong ways to mask a token: how much influence is left."""
    layer = build_layer(spec, "everything")
    blank = x.clone()
    blank[:, spec.hidden] = 0
    weight = attention_weights(layer, blank, Span.whole(blank))[:, :, spec.hidden].max()

    def mask_after_softmax(tokens: Tensor) -> Tensor:
        """Weights set to zero after the softmax: its denominator still contains the hidden key."""
        q, k, v = (layer.split_heads(part) for part in layer.project(tokens[None]).chunk(3, dim=-1))
        weights = torch.softmax(layer.score(q, k), dim=-1) * allowed_keys(spec, "hidden token")
        return layer.project_out(weights @ v, q, Span.whole(tokens[None]))[0]

    jacobian = torch.autograd.functional.jacobian(mask_after_softmax, x[0])[:, :, spec.hidden]
    others = [token for token in range(spec.tokens) if token != spec.hidden]
    return {
        "a zero vector still gets weight": float(weight),
        "zeroed behind the softmax, gradient": float(jacobian[others].flatten(1).norm(dim=1).max()),
    }


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Gradient norms under each mask; gray where the gradient is exactly zero."""
    maps = {name: np.array(values) for name, values in outcome.numbers[CURVES].items()}
    high = max(float(values.max()) for values in maps.values())
    tokens = [str(position) for position in range(len(next(iter(maps.values()))))]
    paths = figure_paths(folder / "masking")
    panels = [
        Panel(name, np.where(values == 0, np.nan, values), 0.0, high, scale="sqrt") for name, values in maps.items()
    ]
    labels = {"x_label": "token x_u (gray: exactly zero)", "y_label": "output y_t", "label": "‖∂y_t/∂x_u‖"}
    heat_maps(panels, paths, across=len(maps), rows=tokens, columns=tokens, **labels)
    return paths

"""Backpropagation through time, formula by formula, each against autograd.

The network: z_t = W_hh h_{t-1} + W_hx x_t, h_t = z_t, o_t = W_yh h_t, ŷ_t = softmax(o_t), and the loss is
J = Σ_t J_t with J_t = −Σ_i y_ti log ŷ_ti.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.draw import Written, written_maps
from anaphor.inspect import Graph, trace
from anaphor.labs.lab import CURVES, Outcome, at_most
from anaphor.labs.specs import BpttSpec
from anaphor.labs.table import LABS

ROUNDING = 1e-12
SIGNS = {f"h_{t}": "ψ" for t in (1, 2, 3)} | {f"J_{t}": "−Σ y log ŷ" for t in (1, 2, 3)}  # as a sheet has them


@dataclass(frozen=True)
class Network:
    """Weights, inputs and targets. Targets are shares: each row sums to one."""

    W_hx: Tensor
    W_hh: Tensor
    W_yh: Tensor
    x: Tensor  # [T, D]
    y: Tensor  # [T, C]
    h_0: Tensor


@dataclass(frozen=True)
class Passed:
    """What one forward pass leaves behind, step by step. `h` begins with h_0, so that h[t] is h_t."""

    h: list[Tensor]
    o: list[Tensor]
    shares: list[Tensor]
    losses: list[Tensor]


def drawn(spec: BpttSpec) -> Network:
    torch.manual_seed(spec.seed)
    return Network(
        W_hx=_random(spec.hidden, spec.inputs),
        W_hh=(_random(spec.hidden, spec.hidden) / spec.hidden**0.5).requires_grad_(),
        W_yh=_random(spec.outputs, spec.hidden),
        x=_random(spec.steps, spec.inputs),
        y=torch.softmax(_random(spec.steps, spec.outputs), dim=-1),
        h_0=_random(spec.hidden),
    )


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def forward(net: Network) -> Passed:
    """The five equations, from the last to the first."""
    h, o, shares, losses = [net.h_0], [], [], []
    for x, y in zip(net.x, net.y, strict=True):
        h.append(net.W_hh @ h[-1] + net.W_hx @ x)
        o.append(net.W_yh @ h[-1])
        shares.append(torch.softmax(o[-1], dim=-1))
        losses.append(-(y * torch.log_softmax(o[-1], dim=-1)).sum())  # the logarithm of ŷ, where ŷ rounds to zero, too
    return Passed(h, o, shares, losses)


def by_output(net: Network, passed: Passed, t: int) -> Tensor:
    """∂J_t/∂o_t = ŷ_t − y_t"""
    return passed.shares[t - 1] - net.y[t - 1]


def by_state(net: Network, g_o: Tensor, t: int, i: int) -> Tensor:
    """∂J_t/∂h_i = (W_hhᵀ)^(t-i) W_yhᵀ g_o, and zero for a state that comes after t."""
    if i > t:
        return torch.zeros_like(net.h_0)
    back: Tensor = torch.linalg.matrix_power(net.W_hh.T, t - i)
    return back @ net.W_yh.T @ g_o


def by_matrix(passed: Passed, g_h: dict[int, Tensor]) -> Tensor:
    """∂J_t/∂W_hh = Σ_i g_{h_i} h_{i-1}ᵀ, over the states that J_t depends on."""
    return torch.stack([torch.outer(gradient, passed.h[i - 1]) for i, gradient in g_h.items()]).sum(0)


def three_steps(
    W_hx: Tensor, W_hh: Tensor, W_yh: Tensor, h_0: Tensor,
    x_1: Tensor, x_2: Tensor, x_3: Tensor, y_1: Tensor, y_2: Tensor, y_3: Tensor,
) -> Tensor:  # fmt: skip
    """The same three steps, spelled out so that a drawn graph has every name."""
    z_1 = W_hh @ h_0 + W_hx @ x_1
    h_1 = z_1**1  # ψ is the identity; as a power it has a node of its own
    z_2 = W_hh @ h_1 + W_hx @ x_2
    h_2 = z_2**1
    z_3 = W_hh @ h_2 + W_hx @ x_3
    h_3 = z_3**1
    o_1, o_2, o_3 = W_yh @ h_1, W_yh @ h_2, W_yh @ h_3
    ŷ_1, ŷ_2, ŷ_3 = o_1.softmax(-1), o_2.softmax(-1), o_3.softmax(-1)
    J_1 = -(y_1 * _logarithm(ŷ_1, o_1)).sum()
    J_2 = -(y_2 * _logarithm(ŷ_2, o_2)).sum()
    J_3 = -(y_3 * _logarithm(ŷ_3, o_3)).sum()
    J = J_1 + J_2 + J_3
    return J  # noqa: RET504  # a name for the graph


def _logarithm(ŷ: Tensor, o: Tensor) -> Tensor:
    """Of ŷ; where a share rounds to zero, from what it was made of."""
    return ŷ.log() if bool(ŷ.detach().all()) else o.log_softmax(-1)


def graph_of(network: dict[str, Any]) -> Graph:
    """The graph of three steps, from the numbers as an outcome keeps them."""
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in network.items()}
    x, y = tensors.pop("x"), tensors.pop("y")
    steps = {f"{name}_{t}": one for name, every in (("x", x), ("y", y)) for t, one in enumerate(every, 1)}
    graph = trace(three_steps, level="names")(**tensors, **steps)
    return replace(graph, nodes=tuple(replace(node, label=SIGNS.get(node.name, node.label)) for node in graph.nodes))


def run(spec: BpttSpec) -> Outcome:
    net = drawn(spec)
    passed = forward(net)
    steps = range(1, spec.steps + 1)
    reach = spec.steps if spec.reach is None else spec.reach
    off: dict[str, dict[str, float]] = {}
    sizes = np.zeros((spec.steps, spec.steps))
    told: dict[str, list[float]] = {}
    sums = {f"h_{i}": torch.zeros_like(net.h_0) for i in steps}
    total = torch.zeros_like(net.W_hh)
    for t in steps:
        loss = passed.losses[t - 1]
        g_o = by_output(net, passed, t).detach()
        told[f"∂J_{t}/∂o_{t}"] = g_o.tolist()
        g_h = {i: by_state(net, g_o, t, i).detach() for i in steps if i > t - reach}
        apart = []
        for i in steps:
            ours = g_h.get(i, torch.zeros_like(net.h_0))
            sizes[t - 1, i - 1] = float(ours.norm())
            sums[f"h_{i}"] = sums[f"h_{i}"] + ours
            apart.append(_off(ours, _autograd(loss, passed.h[i])))
        g_w = by_matrix(passed, {i: gradient for i, gradient in g_h.items() if i <= t}).detach()
        total = total + g_w
        off[f"J_{t}"] = {
            "by o_t": _off(g_o, _autograd(loss, passed.o[t - 1])),
            "by every h_i": max(apart),
            "by W_hh": _off(g_w, _autograd(loss, net.W_hh)),
        }
    whole = _autograd(torch.stack(passed.losses).sum(), net.W_hh)
    worst = {name: max(row[name] for row in off.values()) for name in off["J_1"]}
    network = {name: getattr(net, name).tolist() for name in ("W_hx", "W_hh", "W_yh", "h_0", "x", "y")}
    checks = [
        at_most("∂J_t/∂o_t = ŷ_t − y_t, off autograd", worst["by o_t"], ROUNDING),
        at_most("∂J_t/∂h_i = (W_hhᵀ)^(t−i) W_yhᵀ g_o, off", worst["by every h_i"], ROUNDING),
        at_most("∂J_t/∂W_hh = Σ_i g_h_i h_(i−1)ᵀ, off", worst["by W_hh"], ROUNDING),
        at_most("∂J/∂W_hh = Σ_t ∂J_t/∂W_hh, off", _off(total, whole), ROUNDING),
    ]
    if spec.steps == 3:
        traced = graph_of(network)
        apart = [_off(sums[f"h_{i}"], traced[f"h_{i}"].gradient) for i in steps]
        checks.append(at_most("gradients in the drawn graph, off Σ_t of these", max(apart), ROUNDING))
    numbers = {
        "losses": torch.stack(passed.losses).tolist(),
        **(told if spec.steps <= 5 else {}),
        "∂J/∂W_hh, first line": total[0].tolist(),
        "∂J/∂W_hh, share that the formulae find": float((total * whole).sum() / whole.square().sum()),
        CURVES: {
            "sizes": sizes.tolist(),
            "off autograd, step by step": off,
            "network": network if spec.steps == 3 else None,
        },
    }
    return Outcome("bptt", LABS["bptt"].claim, tuple(checks), numbers)


def _autograd(loss: Tensor, by: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, by, retain_graph=True, allow_unused=True)
    return torch.zeros_like(by) if found is None else found


def _off(ours: Tensor, theirs: Tensor | None) -> float:
    assert theirs is not None, "it has a gradient"
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """How strongly each state is asked to change by the loss of each step."""
    sizes = np.array(outcome.numbers[CURVES]["sizes"])
    steps = range(1, len(sizes) + 1)
    path = folder / "bptt-gradients.png"
    shown = np.where(np.tri(len(sizes), dtype=bool), sizes, np.nan)
    texts = [[f"{value:.2f}" if i <= t else "0" for i, value in enumerate(row)] for t, row in enumerate(sizes)]
    written_maps(
        [Written("‖∂J_t/∂h_i‖", shown, 0.0, float(sizes.max()), texts)],
        [path],
        rows=[f"J_{t}" for t in steps],
        columns=[f"h_{i}" for i in steps],
        x_label="state",
        y_label="loss of step",
        label="size of the gradient",
        remark="Grey: a loss does not depend on later states.",
    )
    network = outcome.numbers[CURVES]["network"]
    return [path] if network is None else [path, *graph_of(network).draw(folder / "bptt.png")]

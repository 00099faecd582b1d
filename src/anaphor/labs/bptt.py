"""Backpropagation through time: each formula is compared with autograd.

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

from anaphor.draw import figure_paths
from anaphor.draw.cells import Annotated, annotated_heat_maps
from anaphor.labs.lab import CURVES, Outcome, at_most
from anaphor.labs.specs import BpttSpec
from anaphor.trace import Graph, trace

ROUNDING = 1e-12
SIGNS = {f"h_{t}": "ψ" for t in (1, 2, 3)} | {f"J_{t}": "−Σ y log ŷ" for t in (1, 2, 3)}  # as in the exercise


@dataclass(frozen=True)
class Network:
    """Weights, inputs and targets. Targets are distributions: each row sums to one."""

    W_hx: Tensor
    W_hh: Tensor
    W_yh: Tensor
    x: Tensor  # [T, D]
    y: Tensor  # [T, C]
    h_0: Tensor


@dataclass(frozen=True)
class Activations:
    """Result of a forward pass, by step. `h` starts with h_0, so that h[t] is h_t."""

    h: list[Tensor]
    o: list[Tensor]
    probabilities: list[Tensor]
    losses: list[Tensor]


def random_network(spec: BpttSpec) -> Network:
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


def forward(net: Network) -> Activations:
    """The equations of the network."""
    h, o, probabilities, losses = [net.h_0], [], [], []
    for x, y in zip(net.x, net.y, strict=True):
        h.append(net.W_hh @ h[-1] + net.W_hx @ x)
        o.append(net.W_yh @ h[-1])
        probabilities.append(torch.softmax(o[-1], dim=-1))
        losses.append(-(y * torch.log_softmax(o[-1], dim=-1)).sum())  # finite even where ŷ rounds to zero
    return Activations(h, o, probabilities, losses)


def grad_output(net: Network, activations: Activations, t: int) -> Tensor:
    """∂J_t/∂o_t = ŷ_t − y_t"""
    return activations.probabilities[t - 1] - net.y[t - 1]


def grad_state(net: Network, g_o: Tensor, t: int, i: int) -> Tensor:
    """∂J_t/∂h_i = (W_hhᵀ)^(t-i) W_yhᵀ g_o; zero for i > t."""
    if i > t:
        return torch.zeros_like(net.h_0)
    power: Tensor = torch.linalg.matrix_power(net.W_hh.T, t - i)
    return power @ net.W_yh.T @ g_o


def grad_matrix(activations: Activations, g_h: dict[int, Tensor]) -> Tensor:
    """∂J_t/∂W_hh = Σ_{i ≤ t} g_{h_i} h_{i-1}ᵀ"""
    return torch.stack([torch.outer(gradient, activations.h[i - 1]) for i, gradient in g_h.items()]).sum(0)


def three_steps(  # noqa: PLR0913 (each is a node of the graph)
    W_hx: Tensor, W_hh: Tensor, W_yh: Tensor, h_0: Tensor,
    x_1: Tensor, x_2: Tensor, x_3: Tensor, y_1: Tensor, y_2: Tensor, y_3: Tensor,
) -> Tensor:  # fmt: skip
    """Three steps written out, so that every node of the graph has a name."""
    z_1 = W_hh @ h_0 + W_hx @ x_1
    h_1 = z_1**1  # ψ is the identity; the power gives it a node
    z_2 = W_hh @ h_1 + W_hx @ x_2
    h_2 = z_2**1
    z_3 = W_hh @ h_2 + W_hx @ x_3
    h_3 = z_3**1
    o_1, o_2, o_3 = W_yh @ h_1, W_yh @ h_2, W_yh @ h_3
    ŷ_1, ŷ_2, ŷ_3 = o_1.softmax(-1), o_2.softmax(-1), o_3.softmax(-1)
    J_1 = -(y_1 * _log(ŷ_1, o_1)).sum()
    J_2 = -(y_2 * _log(ŷ_2, o_2)).sum()
    J_3 = -(y_3 * _log(ŷ_3, o_3)).sum()
    J = J_1 + J_2 + J_3
    return J  # noqa: RET504  # names the node


def _log(ŷ: Tensor, o: Tensor) -> Tensor:
    """log ŷ, from the logits where ŷ rounds to zero."""
    return ŷ.log() if bool(ŷ.detach().all()) else o.log_softmax(-1)


def trace_steps(network: dict[str, Any]) -> Graph:
    """The graph of three steps, from the numbers stored in an outcome."""
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in network.items()}
    x, y = tensors.pop("x"), tensors.pop("y")
    steps = {f"{name}_{t}": one for name, every in (("x", x), ("y", y)) for t, one in enumerate(every, 1)}
    graph = trace(three_steps, level="names")(**tensors, **steps)
    return replace(graph, nodes=tuple(replace(node, label=SIGNS.get(node.name, node.label)) for node in graph.nodes))


def run(spec: BpttSpec) -> Outcome:
    net = random_network(spec)
    activations = forward(net)
    steps = range(1, spec.steps + 1)
    reach = spec.steps if spec.reach is None else spec.reach
    errors: dict[str, dict[str, float]] = {}
    norms = np.zeros((spec.steps, spec.steps))
    output_gradients: dict[str, list[float]] = {}
    sums = {f"h_{i}": torch.zeros_like(net.h_0) for i in steps}
    total = torch.zeros_like(net.W_hh)
    for t in steps:
        loss = activations.losses[t - 1]
        g_o = grad_output(net, activations, t).detach()
        output_gradients[f"∂J_{t}/∂o_{t}"] = g_o.tolist()
        g_h = {i: grad_state(net, g_o, t, i).detach() for i in steps if i > t - reach}
        state_errors = []
        for i in steps:
            ours = g_h.get(i, torch.zeros_like(net.h_0))
            norms[t - 1, i - 1] = float(ours.norm())
            sums[f"h_{i}"] = sums[f"h_{i}"] + ours
            state_errors.append(_error(ours, _autograd(loss, activations.h[i])))
        g_w = grad_matrix(activations, {i: gradient for i, gradient in g_h.items() if i <= t}).detach()
        total = total + g_w
        errors[f"J_{t}"] = {
            "by o_t": _error(g_o, _autograd(loss, activations.o[t - 1])),
            "by every h_i": max(state_errors),
            "by W_hh": _error(g_w, _autograd(loss, net.W_hh)),
        }
    whole = _autograd(torch.stack(activations.losses).sum(), net.W_hh)
    worst = {name: max(row[name] for row in errors.values()) for name in errors["J_1"]}
    network = {name: getattr(net, name).tolist() for name in ("W_hx", "W_hh", "W_yh", "h_0", "x", "y")}
    checks = [
        at_most("∂J_t/∂o_t = ŷ_t − y_t, error against autograd", worst["by o_t"], ROUNDING),
        at_most("∂J_t/∂h_i = (W_hhᵀ)^(t−i) W_yhᵀ g_o, error", worst["by every h_i"], ROUNDING),
        at_most("∂J_t/∂W_hh = Σ_i g_h_i h_(i−1)ᵀ, error", worst["by W_hh"], ROUNDING),
        at_most("∂J/∂W_hh = Σ_t ∂J_t/∂W_hh, error", _error(total, whole), ROUNDING),
    ]
    if spec.steps == 3:
        traced = trace_steps(network)
        state_errors = [_error(sums[f"h_{i}"], traced[f"h_{i}"].gradient) for i in steps]
        checks.append(at_most("gradients in the traced graph, error against Σ_t", max(state_errors), ROUNDING))
    numbers = {
        "losses": torch.stack(activations.losses).tolist(),
        **(output_gradients if spec.steps <= 5 else {}),
        "∂J/∂W_hh, first line": total[0].tolist(),
        "∂J/∂W_hh, share that the formulas find": float((total * whole).sum() / whole.square().sum()),
        CURVES: {
            "sizes": norms.tolist(),
            "off autograd, step by step": errors,
            "network": network if spec.steps == 3 else None,
        },
    }
    return Outcome("bptt", spec.claim, tuple(checks), numbers)


def _autograd(loss: Tensor, by: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, by, retain_graph=True, allow_unused=True)
    return torch.zeros_like(by) if gradient is None else gradient


def _error(ours: Tensor, theirs: Tensor | None) -> float:
    assert theirs is not None, "every state has a gradient"
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Norm of the gradient of each step's loss by each state, and the graph of three steps."""
    norms = np.array(outcome.numbers[CURVES]["sizes"])
    rows, columns = ([f"{name}_{t + 1}" for t in range(len(norms))] for name in "Jh")
    shown = np.where(np.tri(len(norms), dtype=bool), norms, np.nan)
    texts = [[f"{value:.2f}" if i <= t else "0" for i, value in enumerate(row)] for t, row in enumerate(norms)]
    panel = Annotated("‖∂J_t/∂h_i‖", shown, 0.0, float(norms.max()), texts)
    labels = {"x_label": "state", "y_label": "loss", "label": "gradient norm"}
    paths, remark = figure_paths(folder / "bptt-gradients"), "Gray: a loss does not depend on later states."
    annotated_heat_maps([panel], paths, rows=rows, columns=columns, remark=remark, **labels)
    network = outcome.numbers[CURVES]["network"]
    if network is None:
        return paths
    # With two digits the graph is readable at the width of a page.
    return [*paths, *trace_steps(network).draw(*figure_paths(folder / "bptt"), digits=2)]

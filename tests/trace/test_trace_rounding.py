"""What is zero up to rounding is shown as 0; what is small but computed with correct digits is shown."""

# ruff: noqa: RET504 (names are those of the nodes)

import re

import pytest
import torch

from anaphor.trace import trace
from anaphor.trace.drawing import compute_layout


def shifted(x, b, v):
    """A softmax does not change if the same number is added to all scores, so the gradient by b is 0."""
    s = torch.softmax(x + b, dim=-1)
    out = (s * v).sum()
    return out


def graph_of(seed: int, dtype: torch.dtype = torch.float64):
    x, v = torch.randn(2, 5, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return trace(shifted)(x=x, b=torch.tensor(0.77, dtype=dtype), v=v)


def row(text: str, name: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return line


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_gradient_that_is_zero_up_to_rounding_is_shown_as_zero(dtype):
    raw = [float(graph_of(seed, dtype)["b"].gradient) for seed in range(8)]
    assert any(raw)  # else this would show nothing
    for seed in range(8):
        graph = graph_of(seed, dtype)
        assert row(graph.text(), "b").endswith(" 0")
        box = compute_layout(graph).boxes[graph["b"].id]
        assert box.gradient == ("0",)
        assert not re.search(r"\de−(0[89]|1\d)", graph.page())
        assert graph["b"].plain()["gradient"] == raw[seed]  # JSON has what was computed


def test_what_follows_a_cancelled_value_is_zero_too():
    def cancelled(a, b):
        z = torch.exp(a) * torch.exp(b) - torch.exp(a + b)
        y = 3 * z
        return y

    values = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graphs = [trace(cancelled)(a=a, b=b) for a, b in values]
    assert any(float(graph["z"].value) for graph in graphs)
    for graph in graphs:
        assert re.search(r" 0 +3$", row(graph.text(), "z"))
        assert re.search(r" 0 +1$", row(graph.text(), "y"))


def test_small_numbers_with_correct_digits_are_shown():
    def small(x, w):
        y = w * x
        z = torch.exp(-y * y)
        return z

    text = trace(small)(x=torch.tensor(6.1, dtype=torch.float64), w=torch.tensor(1.01, dtype=torch.float64)).text()
    assert "3.274e−17" in row(text, "z")
    assert re.search(r"−4.034e−16", row(text, "y"))

    def product(x, w):
        return (x * w).sum()

    shown = trace(product)(x=torch.tensor([1e-18, 1.0, 2.7], dtype=torch.float64), w=[3.0, 1e-20, 2.0]).text()
    assert "1e−18" in row(shown, "x")
    assert "1e−20" in shown


def test_a_difference_of_neighbors_with_a_few_correct_digits_is_shown():
    def difference(a, b):
        z = a - b
        return z

    a = torch.tensor(1.0000001234, dtype=torch.float64)
    assert "1.234e−07" in row(trace(difference)(a=a, b=torch.tensor(1.0000000000001, dtype=torch.float64)).text(), "z")

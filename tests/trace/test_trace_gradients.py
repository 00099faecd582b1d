"""Traced gradients are autograd's at every node: on random expressions, an LSTM step, attention and a small GPT."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode

from anaphor.inspect import recorded
from anaphor.mixers import Span, mixer_spec
from anaphor.models import build
from anaphor.trace import trace

UNARY = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "negative": lambda x: -x,
    "square": lambda x: x**2,
    "less": lambda x: 1 - x / 3,
    "transposed": lambda x: x.T,
    "turned": lambda x: x.flip(0).contiguous(),
    "first row": lambda x: x[0].expand(2, 2),
    "column sums": lambda x: x.sum(0, keepdim=True).expand(2, 2),
    "mean": lambda x: x - x.mean(),
    "halves": lambda x: torch.cat(x.chunk(2)[::-1]),
    "stacked": lambda x: torch.stack([x[:, 1], x[:, 0] * 2], dim=1),
    "stopped": lambda x: x + x.detach(),
}
BINARY = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "@": lambda x, y: x @ y,
    "/": lambda x, y: x / (1 + y * y),
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y * 2),
}


class Keeping(TorchFunctionMode):
    """Keeps the gradient of every result, and nothing else: what the tracer is compared with."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {id(tensor) for tensor in self.made} | {id(argument) for argument in args}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None and id(tensor) not in known:
                tensor.retain_grad()
                self.made.append(tensor)
        return result


def same_at_every_node(function, *inputs):
    """Run it plainly and traced, and compare all values and gradients, in the order in which they are made."""
    own = [one.detach().clone().requires_grad_() if one.is_floating_point() else one for one in inputs]
    keeping = Keeping()
    with keeping:
        result = function(*own)
    scalar = result if result.ndim == 0 else result.sum()
    scalar.backward()
    graph = trace(function, level="everything")(*inputs)
    traced = {node.number: node for node in graph.nodes}
    program = graph.source.program
    made = [number for call in program.calls for number in call.results if program.tensors[number].differentiable]
    assert len(made) == len(keeping.made)
    compared = 0
    for number, tensor in zip(made, keeping.made, strict=True):
        if number not in traced:
            assert tensor.grad is None, "what does not matter is not drawn"
            continue
        torch.testing.assert_close(traced[number].value, tensor.detach(), rtol=0, atol=0)
        expected = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        torch.testing.assert_close(traced[number].gradient, expected, rtol=1e-12, atol=1e-14)
        compared += 1
    for node in graph.nodes:
        if node.op == "input" and node.gradient is not None:
            expected = own[node.id].grad
            torch.testing.assert_close(node.gradient, torch.zeros_like(node.value) if expected is None else expected)
    for node in graph.at("operations").nodes:
        torch.testing.assert_close(node.gradient, graph.source.gradients.get(node.number), rtol=0, atol=0)
    return compared


@st.composite
def expressions(draw):
    """Steps, each on results of earlier ones."""
    steps = []
    for place in range(3, 3 + draw(st.integers(1, 8))):
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(sorted(UNARY))), draw(st.integers(0, place - 1))))
        else:
            pair = draw(st.integers(0, place - 1)), draw(st.integers(0, place - 1))
            steps.append((draw(st.sampled_from(sorted(BINARY))), *pair))
    return steps


@settings(max_examples=200)
@given(expressions(), st.integers(0, 2**31))
def test_random_expressions(steps, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2), (2,), (2, 2))
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    def expression(a, b, c):
        values = [a, b.expand(2, 2), c]
        for name, *places in steps:
            values.append({**UNARY, **BINARY}[name](*(values[place] for place in places)))
        return (values[-1] * values[-2]).sum()

    assert same_at_every_node(expression, *inputs) >= 3


RATIONAL = ("+", "-", "*", "@", "/", "maximum", "relu", "negative", "square", "less", "transposed", "turned",
            "first row", "column sums", "mean", "halves", "stacked")  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(RATIONAL), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5),
    st.lists(st.fractions(-3, 3, max_denominator=9), min_size=8, max_size=8),
)
def test_exact_numbers_are_those_of_floating_point(steps, numbers):
    def expression(a, b):
        values = [a, b]
        for name, first, second in steps:
            operands = [values[first % len(values)], values[second % len(values)]]
            values.append(UNARY[name](operands[0]) if name in UNARY else BINARY[name](*operands))
        return values[-1].sum()

    graph = trace(expression)(a=[numbers[0:2], numbers[2:4]], b=[numbers[4:6], numbers[6:8]])
    for node in graph.nodes:
        assert node.exact_value is not None, node.op
        assert node.exact_gradient is not None, node.op
        found = torch.tensor(node.exact_gradient.astype(float))
        torch.testing.assert_close(found, node.gradient, rtol=1e-9, atol=1e-9)
    assert graph["a"].exact_value.tolist() == [numbers[0:2], numbers[2:4]]
    assert isinstance(graph.output.exact_value.item(), Fraction)


def test_one_lstm_step_written_out():
    weights = [torch.randn(4 * 3, 2), torch.randn(4 * 3, 3), torch.randn(4 * 3)]

    def step(x, h, c, W, U, b):
        i, f, g, o = (W @ x + U @ h + b).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])

    inputs = [torch.randn(2), torch.randn(3), torch.randn(3), *weights]
    assert same_at_every_node(step, *inputs) >= 15
    cell = nn.LSTMCell(2, 3)
    with torch.no_grad():
        for parameter, weight in zip(cell.parameters(), (*weights, torch.zeros(12)), strict=True):
            parameter.copy_(weight)
    ours = trace(step)(*inputs)
    theirs = trace(cell)(inputs[0], (inputs[1], inputs[2]))
    torch.testing.assert_close(theirs["weight_hh"].gradient, ours["U"].gradient)
    torch.testing.assert_close(theirs["hx[1]"].gradient, ours["c"].gradient)
    assert same_at_every_node(lambda x: torch.cat(cell(x)), inputs[0]) >= 5


@pytest.mark.parametrize("watched", [False, True])
def test_one_attention_layer(watched):
    layer = mixer_spec("attention", width=8, heads=2, position="relative").build()

    def attend(x):
        return layer(x, layer.initial_state(x), Span.after(torch.zeros(2, dtype=torch.long), 5))[0]

    x = torch.randn(2, 5, 8)
    with recorded(layer, "weights") if watched else torch.enable_grad():
        assert same_at_every_node(attend, x) >= 10
        graph = trace(attend)(x)
        assert ("softmax" in {node.op for node in graph.nodes}) == watched
        assert graph.check().agrees


@pytest.mark.parametrize("layers", [2, 3])
def test_gpt_nano(layers):
    """As the preset has it, with three layers, and with two."""
    model = build("gpt-nano", vocabulary=65, layers=layers)
    tokens = torch.randint(65, (1, 32))
    # Two embeddings with their sum, the last norm and the head; in a layer attention splits its projection once.
    assert same_at_every_node(lambda tokens: model(tokens)[0], tokens) == 5 + 17 * layers
    model.zero_grad()
    model(tokens)[0].sum().backward()
    graph = trace(model)(tokens)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(graph[name].gradient, parameter.grad, rtol=1e-10, atol=1e-12)
    assert graph.check().agrees


def test_local_derivatives_add_up_to_the_gradient():
    """What comes back through all that read a node is its gradient, at every level."""
    from anaphor.trace.gradients import local_derivative

    layer = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    whole = trace(lambda x: (layer(x) * x[:2]).sum())(torch.randn(3))
    for graph in (whole, whole.at("everything"), whole.at("modules"), whole.collapsed("layer")):
        received = {}
        for node in graph.nodes:
            for source in dict.fromkeys(node.inputs):
                inputs = tuple(graph[one].number for one in node.inputs)
                found = local_derivative(graph.source, node.number, graph[source].number, node.calls, inputs, most=64)
                received[source] = received.get(source, 0) + found.share
                back = node.gradient.flatten() @ found.jacobian
                torch.testing.assert_close(back.view_as(found.share), found.share)
        assert graph["x"].id in received
        for source, total in received.items():
            torch.testing.assert_close(total, graph[source].gradient)

"""Computation graphs as one would draw them: names, exact numbers, levels, and refusals that name the line."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anaphor
from anaphor.errors import ConfigError
from anaphor.models import build
from anaphor.trace import trace

THIRD, QUARTER, TWELFTH = Fraction(1, 3), Fraction(1, 4), Fraction(1, 12)


def network(x=1, w1=1 / 4, b1=0, w2=1 / 3, b2=0):
    """Seed 001, problem 1."""
    z1 = w1 * x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    z4 = w2 * z3
    z5 = z4 + b2
    return z5  # noqa: RET504 # a name is what it is about


def skipping(x=1, w1=1 / 4, b1=0, w2=1 / 3, b2=0):
    z6 = network(x, w1, b1, w2, b2) + x
    return z6  # noqa: RET504


def vectors(x=(1, 1), W=((-1, -1), (1, 1)), b1=(0, 0), u=(1, 1), b2=0):
    z1 = W @ x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    z4 = u @ z3
    z5 = z4 + b2
    return z5  # noqa: RET504 # a name is what it is about


def attention(
    X=((1, 2), (-1, 3)),
    WQ1=((1, 0),), WK1=((1, 0),), WV1=((1, 0),),
    WQ2=((0, 1),), WK2=((0, 1),), WV2=((0, 1),),
    W=((1, 0), (0, 1)),
):  # fmt: skip
    """Seed 001, problem 2.1: two heads, two tokens."""
    heads = []
    for WQ, WK, WV in ((WQ1, WK1, WV1), (WQ2, WK2, WV2)):
        q, k, v = X @ WQ.T, X @ WK.T, X @ WV.T
        alpha = q @ k.T
        beta = torch.softmax(alpha, dim=-1)
        a = beta @ v
        h = a + q
        heads.append(h)
    z = torch.cat(heads, dim=-1) @ W.T
    return z  # noqa: RET504


def exact(graph, what="gradient"):
    """Fractions by name, in nested lists."""
    return {node.name: getattr(node, f"exact_{what}").tolist() for node in graph.nodes}


# ---- numbers of the course


def test_the_network_of_the_course_has_ten_nodes_and_exact_gradients():
    graph = trace(network)()
    assert [node.name for node in graph.nodes] == ["x", "w1", "b1", "w2", "b2", "z1", "z2", "z3", "z4", "z5"]
    assert [node.label for node in graph.nodes[5:]] == ["×", "+", "ReLU", "×", "+"]
    assert graph.output.name == "z5"
    assert exact(graph, "value")["z5"] == TWELFTH
    found = exact(graph)
    assert [found[name] for name in ("b2", "w2", "b1", "w1", "x")] == [1, QUARTER, THIRD, THIRD, TWELFTH]


def test_a_skip_connection_adds_one_node_and_one_to_the_gradient():
    graph = trace(skipping)()
    assert len(graph) == 11
    assert exact(graph, "value")["z6"] == Fraction(13, 12)
    assert exact(graph)["x"] == Fraction(13, 12)
    assert exact(graph)["w1"] == THIRD


def test_the_vector_network_of_the_course():
    graph = trace(vectors)()
    assert len(graph) == 10
    assert graph["z4"].label == "·"
    assert exact(graph, "value")["z5"] == 2
    found = exact(graph)
    assert found["b2"] == 1
    assert found["u"] == [0, 2]
    assert found["b1"] == [0, 1]
    assert found["W"] == [[0, 0], [1, 1]]
    assert found["x"] == [1, 1]


def test_attention_with_two_heads_is_drawn_with_fewer_than_thirty_nodes():
    graph = trace(attention)()
    assert len(graph) == 24
    assert {node.op for node in graph.nodes} == {"input", "matmul", "softmax", "add", "cat"}
    assert {edge.label for edge in graph.edges} == {"", "ᵀ"}, "a transpose is told on the edge"
    assert [node.name for node in graph.nodes if node.op == "softmax"] == ["beta_1", "beta_2"]
    expected = attention(**{name: torch.tensor(value, dtype=torch.float64) for name, value in
                            zip(attention.__code__.co_varnames, attention.__defaults__, strict=False)})  # fmt: skip
    torch.testing.assert_close(graph["z"].value, expected)


def test_a_matrix_used_twice_gets_both_gradients():
    """The footnote of Lemma 1: with W = UV and A = UB, the gradient of U is W̄Vᵀ + ĀBᵀ."""
    U, V, B = ([[1, 2], [3, 4]], [[1, 0], [2, 1]], [[0, 1], [1, 3]])

    def used_twice(U=U, V=V, B=B):
        W = U @ V
        A = U @ B
        return (W * W).sum() + A.sum()

    graph = trace(used_twice)()
    V, B = np.array(V, dtype=object), np.array(B, dtype=object)
    by_W, by_A = graph["W"].exact_gradient, graph["A"].exact_gradient
    assert (graph["U"].exact_gradient == by_W @ V.T + by_A @ B.T).all()
    assert [edge.target for edge in graph.edges].count(graph["mul"].id) == 2, "W × W reads W twice"


# ---- exactness


def test_floats_that_are_no_simple_fractions_stay_decimal():
    def line(x=0.123456789, w=Fraction(1, 7)):
        y = w * x
        z = w * w
        return y + z

    graph = trace(line)()
    assert graph["x"].exact_value is None
    assert graph["y"].exact_value is None
    assert graph["z"].exact_value == Fraction(1, 49)
    assert graph["z"].exact_gradient is None, "the output is not exact, so nothing that is derived from it is claimed"
    assert graph.plain()["nodes"][0]["value"] == 0.123456789


def test_what_has_no_exact_rule_ends_exactness():
    graph = trace(lambda x: torch.exp(x / 2) * 2)(x=Fraction(1, 3))
    assert graph["div"].exact_value == Fraction(1, 6)
    assert graph["exp"].exact_value is None
    assert float(graph["exp"].value) == pytest.approx(np.exp(1 / 6))


def test_json_holds_fractions_as_text_and_large_tensors_by_their_norm():
    graph = trace(lambda x, y: (x / 12).sum() + y.sum())(x=[1, 12], y=torch.ones(5, 13))
    nodes = {node["name"]: node for node in graph.plain()["nodes"]}
    assert nodes["div"]["value"] == ["1/12", 1]
    assert nodes["x"]["gradient"] == ["1/12", "1/12"]
    assert nodes["y"]["value"] == {"shape": [5, 13], "norm": pytest.approx(65**0.5)}
    assert graph.plain()["output"] == graph.output.id
    assert nodes["div"]["inputs"] == [nodes["x"]["id"]]


# ---- names


def test_variables_that_are_assigned_again_are_numbered():
    def recurrence(x=(1.0, 2.0, 3.0), h=0.0, w=0.5, u=0.3):
        for t in range(3):
            h = torch.tanh(w * x[t] + u * h)
        return h

    graph = trace(recurrence)()
    assert [node.name for node in graph.nodes if node.op == "tanh"] == ["h_1", "h_2", "h_3"]
    assert [edge.label for edge in graph.edges if edge.source == graph["x"].id] == ["[0]", "[1]", "[2]"]
    named = graph.at("names")
    assert [node.name for node in named.nodes] == ["x", "h", "w", "u", "h_1", "h_2", "h_3"]


def test_names_come_from_the_traced_function_before_those_it_calls():
    def cell(x, h):
        inner = torch.tanh(x + h)
        return inner  # noqa: RET504

    def steps(x=0.25, h=0.0):
        h1 = cell(x, h)
        states = [cell(x, h1)]
        first, second = torch.stack([h1, states[0]])
        return {"total": first * second}

    graph = trace(steps)()
    assert [node.name for node in graph.nodes if node.op == "tanh"] == ["h1", "states[0]"]
    assert {"first", "second", "total"} <= {node.name for node in graph.nodes}


def test_names_are_found_where_there_is_no_source():
    space = {}
    exec(compile("def nowhere(x=2):\n    square = x * x\n    return square + 1\n", "<nowhere>", "exec"), space)
    graph = trace(space["nowhere"])()
    assert [node.name for node in graph.nodes] == ["x", "square", "nowhere"]


def test_plain_numbers_are_part_of_the_sign():
    def numbers(x=3.0):
        a = 2 * x
        b = 1 - a
        c = 1 / b
        return c**2

    assert [node.label for node in trace(numbers)().nodes[1:]] == ["× 2", "1 −", "1 ÷", "^ 2"]
    assert "c        1 ÷ b" in trace(numbers)().text()


# ---- what is not drawn, and other levels


def test_shapes_types_and_idle_dropout_are_not_drawn():
    def quiet(x, w):
        heads = x.view(2, 3, 2).transpose(1, 2).contiguous().reshape(2, 6).float().double()
        y = F.dropout(heads * 1.0, 0.5, training=False) @ w
        return y.unsqueeze(0).squeeze().sum()

    graph = trace(quiet)(torch.ones(2, 6), torch.ones(6, 3))
    assert [node.op for node in graph.nodes] == ["input", "input", "matmul", "sum"]
    assert len(graph.at("everything")) > 10


def test_masks_and_sizes_are_not_drawn_unless_they_have_a_name():
    def masked(x):
        hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
        return x.masked_fill(hidden, 0.0).masked_fill(torch.eye(3) > 0, float(len(x))).sum()

    graph = trace(masked)(torch.ones(3, 3))
    assert Counter(node.op for node in graph.nodes) == {"input": 1, "constant": 2, "masked_fill": 2, "sum": 1}
    assert graph["hidden"].gradient is None


def test_modules_are_nodes_by_level_and_by_name():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1)))

    def loss(x):
        return model(x).sum()

    graph = trace(loss)(torch.ones(2, 3))
    assert "model.0.weight" in {node.name for node in graph.nodes}
    modules = graph.at("modules")
    assert [node.name for node in modules.nodes] == ["x", "model.0", "model.1.0", "model.1.1", "loss"]
    assert [node.op for node in modules.nodes] == ["input", "Linear", "LayerNorm", "Linear", "sum"]
    collapsed = graph.collapsed("model.1")
    assert {"model.1", "model.0.weight"} <= {node.name for node in collapsed.nodes}
    assert collapsed["model.1"].op == "Sequential"
    for node in collapsed.nodes:
        if node.name in {other.name for other in graph.nodes}:
            torch.testing.assert_close(node.gradient, graph[node.name].gradient)
    with pytest.raises(ConfigError, match=r"no module is called 'modle.1'; did you mean 'model.1'\?"):
        graph.collapsed("modle.1")


def test_a_module_that_is_called_three_times_is_three_nodes():
    cell = nn.RNNCell(2, 2)

    def unrolled(x):
        h = torch.zeros(2)
        for t in range(3):
            h = cell(x[t], h)
        return h.sum()

    modules = trace(unrolled)(torch.ones(3, 2)).at("modules")
    assert [node.op for node in modules.nodes] == ["input", "RNNCell", "RNNCell", "RNNCell", "sum"]
    assert [node.name for node in modules.nodes[1:4]] == ["h_1", "h_2", "h_3"]


def test_gpt_nano_collapses_to_its_layers():
    model = build("gpt-nano", vocabulary=11)
    graph = trace(model)(tokens=torch.randint(11, (1, 8)))
    found = graph.collapsed("layers.*")
    chain = [node for node in found.nodes if node.op == "Block"]
    assert [node.name for node in chain] == ["layers.0", "layers.1", "layers.2"]
    assert [found[one].name for node in chain[1:] for one in node.inputs] == ["layers.0", "layers.1"]


# ---- outputs


def test_gradients_are_of_the_sum_of_scalars_or_of_the_output_that_is_chosen():
    def several(x=2.0):
        square = x * x
        cube = square * x
        return square, cube

    assert trace(several)()["x"].exact_gradient == 4 + 12
    assert trace(several)().differentiated == "square + cube"
    assert trace(several, output="cube")()["x"].exact_gradient == 12
    assert trace(several, output="square")()["cube"].exact_gradient == 0
    with pytest.raises(ConfigError, match=r"unknown output 'cub'; did you mean 'cube'\?"):
        trace(several, output="cub")()


def test_without_a_scalar_gradients_are_of_all_numbers():
    graph = trace(lambda x: x * x)(x=[1, 2])
    assert graph.differentiated == "the sum of all numbers in <lambda>"
    assert graph["x"].exact_gradient.tolist() == [2, 4]


def test_an_input_that_does_not_matter_has_gradient_zero():
    graph = trace(lambda x, y, flag: x * 2 if flag else y)(x=1, y=[1, 2], flag=True)
    assert graph["y"].exact_gradient.tolist() == [0, 0]


# ---- refusals and remarks


def in_place_add(x=1.0):
    x += 1
    return x


def write_into(x=1.0):
    row = torch.zeros(2)
    row[0] = x
    return row.sum()


def relu_in_place(x=(1.0, 2.0)):
    y = x * 2
    return F.relu(y, inplace=True).sum()


def own_backward(x=1.0):
    (x * x).backward()
    return x


@pytest.mark.parametrize(
    ("function", "line", "what"),
    [
        (in_place_add, 1, "add_ changes the traced tensor 'x' in place"),
        (write_into, 2, "setitem copies the traced tensor 'x' into another one"),
        (relu_in_place, 2, "relu changes the traced tensor 'y' in place"),
        (own_backward, 1, r"backward\(\) was called; return the loss instead"),
    ],
)
def test_what_a_graph_cannot_show_is_refused_with_its_line(function, line, what):
    number = function.__code__.co_firstlineno + line
    with pytest.raises(ConfigError, match=rf"test_trace.py:{number}: {what}"):
        trace(function)()


def test_constants_may_be_filled_in_place_and_modules_may_be_made():
    def filled(x=(1.0, 2.0)):
        mask = torch.zeros(2)
        mask[1] = 5.0
        layer = nn.Linear(2, 2)
        return (layer(x) + x * mask).sum()

    graph = trace(filled)()
    assert graph["mask"].exact_value.tolist() == [0, 5]


def test_numbers_that_leave_the_graph_are_told():
    def branching(x=2.0, y=3.0):
        larger = max(x, y)
        w = x * y
        return larger * float(x) + float(w)

    notes = trace(branching)().notes
    lines = branching.__code__.co_firstlineno
    assert notes == (
        f"test_trace.py:{lines + 1}: y and x decide a branch; no gradient passes there",
        f"test_trace.py:{lines + 3}: x is read as a plain number; no gradient passes there",
        f"test_trace.py:{lines + 3}: w is read as a plain number; no gradient passes there",
    )


def test_a_result_without_tensors_is_refused():
    with pytest.raises(ConfigError, match="returns a value of type int: it must return a tensor"):
        trace(lambda x: 3)(x=1)
    with pytest.raises(ConfigError, match="cannot be called with these arguments: missing a required argument: 'x'"):
        trace(lambda x: x)()
    with pytest.raises(ConfigError, match="trace needs a function, not a Tensor"):
        trace(torch.ones(2))
    with pytest.raises(ConfigError, match=r"unknown level 'module'; did you mean 'modules'\?"):
        trace(network, level="module")()


def test_the_callers_tensors_are_left_alone():
    x = torch.ones(2)
    weight = nn.Parameter(torch.ones(2))
    graph = trace(lambda x: (x * weight).sum())(x=x)
    assert not x.requires_grad
    assert weight.grad is None
    assert graph["weight"].op == "parameter"
    assert graph["weight"].gradient.tolist() == [1, 1]


# ---- finite differences


def test_finite_differences_agree_at_every_node():
    check = trace(attention)().check()
    assert check.agrees
    assert check.worst < 1e-8
    assert check.nodes == 24
    assert check.numbers == sum(node.value.numel() for node in trace(attention)().nodes)


def test_finite_differences_tell_a_wrong_backward_and_a_kink():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    graph = trace(lambda x: Wrong.apply(x * 2) + x)(x=1.0)
    assert graph["Wrong"].inputs == (graph["mul"].id,)
    assert float(graph["x"].gradient) == 5
    assert graph.check().left_out == ("x", "mul"), "what happens inside cannot be run again"
    kink = trace(lambda x: torch.relu(x) + x)(x=0.0).check()
    assert kink.agrees
    assert kink.kinks == ("x",)
    stopped = trace(lambda x: x.detach() * x)(x=3.0).check()
    assert not stopped.agrees
    assert "DO NOT agree" in str(stopped)


def test_dropout_is_checked_with_the_same_gaps():
    graph = trace(lambda x: (F.dropout(x, 0.5) * x).sum())(x=torch.arange(1.0, 9.0))
    assert 0 < int((graph["dropout"].value == 0).sum()) < 8
    assert graph.check().agrees


def test_the_package_is_the_function():
    assert str(anaphor.trace(network)()) == str(trace(network)())
    assert anaphor.trace(network, level="names")().level == "names"
    assert anaphor.trace.Graph is type(anaphor.trace(network)())

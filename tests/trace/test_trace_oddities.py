"""What a graph makes of unusual functions: those that end the program, differentiate inside, map, or have no end."""

import json
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.trace import trace

FILE = """import functools
import math
import sys
import torch


class Twice:
    def __init__(self):
        self.factor = 2

    def __call__(self, x=3):
        return self.factor * x

    def once(self, x=3):
        return x / self.factor


twice = Twice()
once = twice.once
thrice = functools.partial(torch.mul, 3)
quarter = functools.partial(lambda x, y: x / y, x=1, y=4)


def leaving(x=1):
    sys.exit(4)


def read(x=2):
    return math.sin(x)


def lost(x=float("nan")):
    return 2 * x


async def waiting(x=1):
    return x
"""


@pytest.mark.parametrize(
    ("function", "value"),
    [(lambda x=10.0: x**400, math.inf), (lambda x=1e300: x * x, math.inf), (lambda x=10.0: x**400 / x**400, math.nan)],
    ids=["power", "product", "undone"],
)
def test_numbers_beyond_every_float_are_told_as_they_were_computed(function, value):
    assert trace(function)().output.value.item() == pytest.approx(value, nan_ok=True)


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "folder.py").mkdir()

    def told(*words):
        code = main(["trace", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return told


@pytest.mark.parametrize(
    ("target", "value"), [("twice", 6), ("once", "3/2"), ("quarter", "1/4")], ids=lambda value: str(value)
)
def test_whatever_can_be_called_is_traced(told, target, value):
    code, out, _ = told(f"odd.py::{target}", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["nodes"][found["output"]]["value"] == value


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("odd.py::leaving", "leaving fails on line 25: SystemExit: 4"),
        (
            "odd.py::read",
            "read returns a value of type float: it must return a tensor computed from its inputs; odd.py:29: x",
        ),
        ("odd.py::waiting", "waiting is a coroutine or generator"),
        ("folder.py::f", "folder.py is a folder, not a file"),
        ("odd.py::twic", "did you mean 'twice'?"),
    ],
)
def test_one_line_tells_what_is_wrong(told, target, line):
    code, out, err = told(target)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err


def test_json_of_a_plain_graph_is_nodes_and_output_and_more_only_where_there_is_more(told):
    assert list(json.loads(told("odd.py::twice", "--json")[1])) == ["nodes", "output"]
    code, out, _ = told("odd.py::lost", "--json", "--check", "--out", "drawn")
    found = json.loads(out)
    assert code == 1
    assert list(found) == ["nodes", "output", "check", "written"]
    assert (found["nodes"][0]["value"], found["check"]["worst"], found["check"]["agrees"]) == ("nan", "nan", False)
    both = trace(lambda x: (x * 2, x * x, bool(x > 1)))(3).plain()
    assert list(both) == ["nodes", "output", "outputs", "gradients_of", "notes"]
    assert both["gradients_of"] == "output_1 + output_2"


def test_a_derivative_inside_is_one_node_that_is_left_out_of_the_check():
    def slope(x):
        (found,) = torch.autograd.grad(x**3, x, create_graph=True)
        return found

    graph = trace(slope)(2.0)
    assert graph.output.value == 12
    assert graph["x"].gradient == 12
    check = graph.check()
    assert check.agrees
    assert "x" in check.left_out


def test_mapped_functions_are_one_node():
    graph = trace(lambda x: torch.vmap(lambda one: one.sin() * one)(x).sum())([1.0, 2.0])
    expected = torch.tensor([math.sin(x) + x * math.cos(x) for x in (1.0, 2.0)], dtype=torch.float64)
    torch.testing.assert_close(graph["x"].gradient, expected)
    assert [node.op for node in graph.nodes] == ["input", "Mul", "sum"]
    graph = trace(lambda x: torch.func.grad(lambda one: one**3)(x))(2.0)
    torch.testing.assert_close(graph["x"].gradient, torch.tensor(12.0, dtype=torch.float64))


def test_sums_that_begin_with_zero_show_no_zero():
    graph = trace(lambda x: sum(one * one for one in x))([1, 2])
    assert [node.formula for node in graph.nodes][-1] == "mul_1 + mul_2"
    assert graph["x"].exact_gradient.tolist() == [2, 4]
    assert trace(lambda x: 0 - x)(1).output.formula == "0 − x"


def test_a_factor_near_one_is_not_written_as_one():
    assert trace(lambda x: x * 1.00001)(1).output.formula == "x × 1.00001"
    assert trace(lambda x: x * (1 / 3))(1).output.formula == "x × 0.3333"


def test_checking_a_long_graph_takes_seconds_and_says_what_it_covers():
    def long(x):
        for _ in range(1500):
            x = x * 1.0001
        return x

    graph = trace(long)(1.0)
    check = graph.check()
    assert check.agrees
    assert 10 <= check.nodes < len(graph) == check.of
    assert f"at {check.nodes} of {check.of:,} nodes" in str(check)


EINSUMS = (
    "ij,jk->ik",
    "ij,jk",
    "ij,kj->ki",
    "ij,ij->",
    "ij,ij->i",
    "ij,jk->",
    "ij,kl->jk",
    "ij,k->j",
    "i,j->ij",
    "ij->j",
)


@settings(max_examples=40)
@given(st.sampled_from(EINSUMS), st.lists(st.fractions(-3, 3, max_denominator=7), min_size=8, max_size=8))
def test_products_in_index_notation_are_exact(equation, numbers):
    shapes = [(2,) * len(part) for part in equation.split("->")[0].split(",")]
    operands, start = [], 0
    for shape in shapes:
        row = numbers[start : start + 2 ** len(shape)]
        operands.append(row if len(shape) == 1 else [row[:2], row[2:]])
        start += len(row)
    graph = trace(lambda *parts: torch.einsum(equation, *parts).square().sum())(*operands)
    for node in graph.nodes:
        assert node.exact_gradient is not None, node.op
        expected = torch.tensor(node.exact_gradient.astype(float).tolist(), dtype=torch.float64)
        torch.testing.assert_close(node.gradient, expected, rtol=1e-9, atol=1e-9)


def test_masked_scores_are_checked_where_they_are_finite():
    hidden = torch.tensor([[False, True], [False, False]])
    graph = trace(lambda x: x.masked_fill(hidden, -math.inf).softmax(-1)[:, 0].sum())([[1, 2], [3, 4]])
    wide = torch.ones(50, 50).tril().log()
    assert trace(lambda x: (x + wide).softmax(-1).square().sum())(torch.randn(50, 50)).check().agrees
    check = graph.check()
    assert check.agrees
    assert check.numbers == sum(node.value.numel() for node in graph.nodes if node.gradient is not None) - 1


def test_a_difference_that_is_no_number_is_not_forgotten():
    check = trace(torch.sqrt)(0.0).check()  # no root to the left of zero
    assert not check.agrees
    assert math.isnan(check.worst)


def test_picked_numbers_stay_exact():
    rows, mask = torch.tensor([1, 0, 1]), torch.tensor([[True, False], [False, True]])

    def picked(x, y):
        chosen = torch.where(mask, x, y)
        found = torch.nn.functional.embedding(rows, x)[:, 0].sum() + y.gather(1, rows[:2, None]).sum()
        return found + torch.outer(chosen[0], x[rows, 1][:2]).sum() + x[0, 1].reciprocal()

    graph = trace(picked)([[1, 1 / 3], [2, 3 / 7]], [[1 / 5, 4], [1 / 2, 6]])
    for node in graph.nodes:
        if node.gradient is not None:
            assert node.exact_value is not None, node.op
            assert node.exact_gradient is not None, node.op
    assert trace(lambda x: torch.where(x > 1, x, 0.5).sum())([1, 2]).output.value == 2.5


def test_fields_of_what_is_returned_are_outputs():
    @dataclass
    class Both:
        loss: object
        count: int = 2

    graph = trace(lambda x: Both(x * x))(3)
    assert (graph.output.name, graph["x"].exact_gradient) == ("loss", 6)


def test_nothing_is_minus_zero():
    assert trace(lambda x: -x.tanh())(0.0).text().count("−0") == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x=2.0: torch.complex(x, x * 2).abs(),
        lambda x=(1, 2): x[:0],
        lambda x=2.0: torch.autograd.grad(x**3, x, create_graph=True)[0],
        lambda x=0.0: 1 / x,
    ],
    ids=["complex", "empty", "derivative", "infinite"],
)
def test_pages_and_figures_are_made_of_anything(function, tmp_path):
    written = trace(function)().draw(tmp_path / "graph.svg", tmp_path / "graph.html")
    assert all(path.stat().st_size > 1000 for path in written)


def test_the_sum_of_a_single_number_is_that_number():
    graph = trace(lambda x: x.sum() + x.mean())(1)
    assert (graph.output.exact_value, graph["x"].exact_gradient) == (2, 2)


def test_numbers_that_cannot_be_gradients_are_said_so():
    assert (
        trace(lambda x: x.detach() * 2)(1.0).differentiated
        == "nothing: the output does not depend on an input by differentiable operations"
    )
    with pytest.raises(ConfigError, match="has no gradient"):
        trace(lambda x: x.detach() * 2, output="detach")(1.0)

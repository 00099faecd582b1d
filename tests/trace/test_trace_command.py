"""`anaphor trace FILE::FUNCTION`: one JSON value, lines for people, files, and one line for whatever is wrong."""

import json

import pytest

from anaphor.cli.main import main
from faults.paths import IMPOSSIBLE, assert_refused

FILE = """from fractions import Fraction
import torch
from torch import nn
from beside import THREE

layer = nn.Linear(2, 1, bias=False).double()
torch.nn.init.ones_(layer.weight)


def network(x=1, w1=1 / 4, b1=0, w2=Fraction(1, 3), b2=0):
    z1 = w1 * x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    z4 = w2 * z3
    z5 = z4 + b2
    return z5


def counting(x=2.0, times: int = 3):
    for _ in range(times):
        x = x * THREE
    return x


def with_module(x=[1, 2], model=layer):
    return model(x).sum()


def miscounting(x=2.0, times=3):
    return [x for _ in range(times)]


def several(x=[1, 2]):
    print('a remark')
    low, high = x
    return {"sum": low + high, "product": low * high}


def without(x):
    return x


def failing(x=[1, 2], y=[1, 2, 3]):
    return x @ y


def in_place(x=1):
    y = x * 2
    y += 1
    return y


def stopped(x=3):
    return x.detach() * x


def empty(x=1):
    return "nothing"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graphs.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "beside.py").write_text("THREE = 3\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n", encoding="utf-8")
    (tmp_path / "raising.py").write_text("x = 1\nraise ValueError('no data\\nat all')\n", encoding="utf-8")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    return tmp_path


def answer(capsys, *words):
    assert main(["trace", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_json_value_holds_nodes_with_exact_numbers(capsys):
    found = answer(capsys, "graphs.py::network")
    nodes = {node["name"]: node for node in found["nodes"]}
    assert len(nodes) == 10
    assert set(nodes["z5"]) == {"id", "name", "op", "inputs", "value", "gradient"}
    assert nodes["z5"]["value"] == "1/12"
    assert [nodes[name]["gradient"] for name in ("b2", "w2", "b1", "w1", "x")] == [1, "1/4", "1/3", "1/3", "1/12"]
    assert found["output"] == nodes["z5"]["id"]
    assert nodes["z4"]["inputs"] == [nodes["w2"]["id"], nodes["z3"]["id"]]
    assert nodes["x"]["op"] == "input"
    assert nodes["z3"]["op"] == "relu"


def test_people_get_a_table_and_the_paths_of_what_was_written(capsys, folder):
    assert main(["trace", "graphs.py::network", "--check", "--out", "drawn"]) == 0
    out = capsys.readouterr().out
    assert "z3    ReLU(z2)     1/4    1/3\n" in out
    assert "gradients of z5\n" in out
    assert "finite differences agree: 10 numbers at 10 nodes" in out
    for ending in ("svg", "png", "html"):
        assert f"drawn/graph.{ending}\n" in out
        assert (folder / "drawn" / f"graph.{ending}").stat().st_size > 1000


def test_levels_modules_and_outputs_can_be_chosen(capsys):
    found = answer(capsys, "graphs.py::with_module", "--collapse", "model")
    assert [(node["name"], node["op"]) for node in found["nodes"]][1:] == [("model", "Linear"), ("with_module", "sum")]
    found = answer(capsys, "graphs.py::several", "--output", "product")
    assert found["nodes"][0]["gradient"] == [2, 1]
    assert found["gradients_of"] == "product"
    found = answer(capsys, "graphs.py::several")
    assert found["nodes"][0]["gradient"] == [3, 2]
    assert found["gradients_of"] == "sum + product"
    assert answer(capsys, "graphs.py::counting")["nodes"][0]["gradient"] == 27


def test_a_check_that_fails_is_told_by_the_exit_code(capsys):
    assert main(["trace", "graphs.py::stopped", "--check"]) == 1
    assert "finite differences DO NOT agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["graphs.py"], "'graphs.py' is not of the form FILE::FUNCTION, for example model.py::loss"),
        (["graph.py::network"], "no file at graph.py; did you mean 'graphs.py'?"),
        (["broken.py::f"], "broken.py:2 is not valid Python: "),
        (["raising.py::f"], "raising.py cannot be run on line 2: ValueError: no data"),
        (["leaving.py::f"], "leaving.py cannot be run on line 1: SystemExit: 3"),
        (["graphs.py::netwrk"], "no function 'netwrk' in graphs.py; did you mean 'network'? (functions there: "),
        (["graphs.py::Fraction"], "Fraction in graphs.py is a class, not a function"),
        (["graphs.py::without"], "without in graphs.py has no default for 'x': the defaults are the inputs"),
        (["graphs.py::failing"], "failing fails on line 44: RuntimeError: "),
        (["graphs.py::miscounting"], "annotate a parameter that must stay an integer: `n: int = 3`"),
        (["graphs.py::in_place"], "graphs.py:49: add_ changes the traced tensor 'y' in place, which cannot be traced"),
        (["graphs.py::empty"], "empty returns a value of type str: it must return a tensor computed from its inputs"),
        (["graphs.py::network", "--level", "module"], "unknown level 'module' (known: operations, names, modules"),
        (["graphs.py::network", "--output", "zz5"], "unknown output 'zz5'; did you mean 'z5'?"),
        (["graphs.py::with_module", "--collapse", "modle"], "no module is called 'modle'; did you mean 'model'?"),
        (["graphs.py::network", "--out", "graphs.py"], "out=graphs.py cannot be written to: "),
    ],
)
def test_what_is_wrong_is_told_in_one_line(error_of, words, line):
    assert line in error_of(["trace", *words])


def test_a_missing_function_is_said(error_of):
    assert error_of(["trace"]) == "`anaphor trace` needs FILE::FUNCTION: function to trace; the file is run"


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_path_that_no_file_can_have_is_one_line(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert_refused("trace PATH:f", name, tmp_path, capsys)


def test_it_takes_threads(capsys):
    assert main(["trace", "--help"]) == 0
    assert "--threads" in capsys.readouterr().out

"""Labs that trace a function: backpropagation by hand and through time, checked against the gradients of the graph."""

from fractions import Fraction

import pytest
import torch

pytest.importorskip("anaphor.trace")

from anaphor.labs import backprop, bptt, specs
from anaphor.labs.lab import CURVES
from anaphor.trace.drawing import PAGE_WIDTH, compute_layout


def test_backprop_repeats_the_numbers_of_the_exercise():
    """Seed 001, problem 1."""
    numbers = backprop.run(specs.BackpropSpec()).numbers
    assert numbers["values"]["z5"] == "1/12"
    assert list(numbers["gradients of z5"].values()) == ["1", "1/4", "1/3", "1/3", "1/12"]  # b2, w2, b1, w1, x
    assert numbers["values"]["z6"] == "13/12"
    assert list(numbers["gradients of z6"].values()) == ["1", "1/4", "1/3", "1/3", "13/12"]
    assert numbers["with vectors, z5"] == 2
    vectors = {"b2": 1, "u": [0, 2], "b1": [0, 1], "W": [[0, 0], [1, 1]], "x": [1, 1]}
    assert numbers["with vectors, gradients"] == vectors


def test_backprop_holds_for_other_fractions_and_a_dead_unit():
    outcome = backprop.run(specs.BackpropSpec(x="0.3", w1="3", b1="-7/5", w2="-2", b2="1/7", vector_x=(2, -5)))
    assert outcome.holds
    assert outcome.numbers["values"]["z5"] == "1/7"
    assert outcome.numbers["gradients of z6"]["x"] == "1"


@pytest.mark.parametrize("given", [{"x": "3.14159265"}, {"w1": "123457/1000003"}, {"x": "1e9", "w1": "999999999/7"}])
def test_backprop_holds_for_numbers_that_nobody_would_write_as_fractions(given):
    large = {"vector_x": (1e6, 1e-3), "vector_w": (1e5, 7.7, 0.1, 0.3)}
    assert [check.what for check in backprop.run(specs.BackpropSpec(**given, **large)).checks if not check.kept] == []


def test_a_lab_ends_in_a_verdict_where_numbers_grow_large():
    swelling = bptt.run(specs.BpttSpec(steps=12, hidden=256, inputs=256))
    assert max(swelling.numbers["losses"]) > 745  # where a share rounds to zero
    assert [check.what for check in swelling.checks if not check.kept] == []


def test_a_wrong_gradient_would_be_seen(monkeypatch):
    right = backprop.backward
    monkeypatch.setattr(backprop, "backward", lambda *given: right(*given) | {"w1": Fraction(1, 4)})
    assert not backprop.run(specs.BackpropSpec()).holds


def test_truncated_backpropagation_is_seen_to_be_off():
    outcome = bptt.run(specs.BpttSpec(reach=1))
    assert [check.kept for check in outcome.checks] == [True, False, False, False, False]
    assert 0 < outcome.numbers["∂J/∂W_hh, share that the formulas find"] < 1


def test_backpropagation_through_time_holds_at_other_sizes():
    assert bptt.run(specs.BpttSpec(steps=12, inputs=2, hidden=7, outputs=5, seed=3)).holds
    assert bptt.run(specs.BpttSpec(steps=1)).holds


def test_the_drawn_graph_has_every_name_of_the_sheet():
    graph = bptt.trace_steps(bptt.run(specs.BpttSpec()).numbers["curves"]["network"])
    names = [node.name for node in graph.nodes if node.op != "input"]
    assert sorted(names) == sorted(["J", *(f"{name}_{t}" for name in "zhoŷJ" for t in (1, 2, 3))])
    for t in (1, 2, 3):
        torch.testing.assert_close(graph[f"o_{t}"].gradient, graph[f"ŷ_{t}"].value - graph[f"y_{t}"].value)
        assert torch.equal(graph[f"h_{t}"].value, graph[f"z_{t}"].value)


def test_the_graph_is_right_where_a_share_rounds_to_zero():
    assert bptt.run(specs.BpttSpec(hidden=256, inputs=256, outputs=256)).holds


def test_a_graph_wider_than_a_page_is_drawn_from_top_to_bottom():
    graph = bptt.trace_steps(bptt.run(specs.BpttSpec()).numbers[CURVES]["network"])
    layout = compute_layout(graph)
    places = {node.name: box for node, box in zip(graph.nodes, layout.boxes, strict=True)}
    assert layout.wide < 1.2 * PAGE_WIDTH  # from left to right it has 2,200 points
    assert places["z_1"].y < places["z_2"].y < places["z_3"].y < places["J"].y
    assert places["o_1"].x < places["o_2"].x < places["o_3"].x


def test_with_two_digits_the_graph_of_three_steps_is_readable_at_the_width_of_a_page():
    graph = bptt.trace_steps(bptt.run(specs.BpttSpec()).numbers[CURVES]["network"])
    layout = compute_layout(graph, digits=2)
    assert layout.wide < 750, "points, at a font of 10"
    places = {node.name: box for node, box in zip(graph.nodes, layout.boxes, strict=True)}
    assert (places["J"].value, places["J_2"].value) == (("3.4",), ("0.31",))

"""Layout of graphs: the order of the code, labels that say something."""

import torch

from anaphor.trace import trace
from anaphor.trace.drawing import compute_layout


def heads(X, Q1, K1, V1, Q2, K2, V2):
    found = []
    for Q, K, V in ((Q1, K1, V1), (Q2, K2, V2)):
        q, k, v = X @ Q.T, X @ K.T, X @ V.T
        h = torch.softmax(q @ k.T, dim=-1) @ v + q
        found.append(h)
    return torch.cat(found, dim=-1)


def test_queries_keys_and_values_of_every_head_are_drawn_in_the_order_of_the_code():
    parts = {name: [[1, 0]] if name.endswith("1") else [[0, 1]] for name in ("Q1", "K1", "V1", "Q2", "K2", "V2")}
    graph = trace(heads, level="names")(X=[[1, 2], [-1, 3]], **parts)
    y = {node.name: box.y for node, box in zip(graph.nodes, compute_layout(graph).boxes, strict=True)}
    names = ["q_1", "k_1", "v_1", "q_2", "k_2", "v_2"]
    assert sorted(names, key=y.__getitem__) == names


def test_a_group_of_many_operations_is_labeled_by_its_first_and_last():
    def many(x):
        y = torch.tanh(torch.exp(x) * 2 + 1).sum() / 3
        return y * y

    (label,) = (node.label for node in trace(many, level="names")(x=[1.0, 2.0]).nodes if node.name == "y")
    assert label == "exp … ÷ 3"

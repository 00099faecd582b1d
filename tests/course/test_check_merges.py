"""Merges of heads: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant

RIGHT = {
    "shift": """
def shift(heads):
    heads = heads.roll(-1, dims=1)
    return heads.transpose(1, 2).flatten(2)
""",
    "shuffle": """
def shuffle(heads):
    heads = heads[:, torch.randperm(heads.shape[1])]
    return heads.transpose(1, 2).flatten(2)
""",
    "reweight": """
def reweight(heads):
    norm = heads.norm(dim=-1, keepdim=True)
    weight = norm / norm.mean(1, keepdim=True)
    heads = heads * weight
    return heads.transpose(1, 2).flatten(2)
""",
}
STYLES = [
    ("shift", "def shift(x):\n    return torch.cat([x[:, h] for h in [*range(1, x.shape[1]), 0]], dim=-1)\n"),
    ("shift", "class shift(nn.Module):\n    def forward(self, heads):\n        K = heads.shape[-1]\n"
     "        return heads.permute(0, 2, 1, 3).reshape(len(heads), heads.shape[2], -1).roll(-K, -1)\n"),
    ("shift", "def shift(outputs):\n    B, H, T, K = outputs.shape\n    out = torch.zeros(B, T, H * K).to(outputs)\n"
     "    for h in range(H):\n        at = (h - 1) % H\n        out[..., at * K:(at + 1) * K] = outputs[:, h]\n    "
     "return out\n"),
    ("shuffle", "import random\n\ndef shuffle(heads):\n    order = list(range(heads.size(1)))\n    "
        "random.shuffle(order)\n"
     "    return torch.cat([heads[:, h] for h in order], dim=2)\n"),
    ("shuffle", "class shuffle(nn.Module):\n    def forward(self, heads):\n        order = "
        "torch.rand(heads.shape[1]).argsort()\n"
     "        return torch.einsum('bhtk,gh->btgk', heads, torch.eye(len(order)).to(heads)[order]).flatten(2)\n"),
    ("shuffle", "import numpy\n\ndef shuffle(x):\n    order = numpy.random.permutation(x.shape[1])\n"
     "    return x[:, order].permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)\n"),
    ("reweight", "def reweight(heads):\n    heads = heads * torch.linalg.matrix_norm(heads)[:, :, None, None]\n"
     "    return torch.cat(list(heads.unbind(1)), dim=-1)\n"),
    ("reweight", "def reweight(heads):\n    share = torch.softmax(heads.flatten(2).norm(dim=2), dim=1)\n"
     "    return torch.einsum('bhtk,bh->bthk', heads, share).flatten(2)\n"),
    ("reweight", "class reweight:\n    def __call__(self, x):\n        n = [torch.linalg.matrix_norm(one, 2) for "
        "one in x.unbind(1)]\n"
     "        return torch.cat([one * (k / sum(n))[:, None, None] for one, k in zip(x.unbind(1), n)], -1)\n"),
]  # fmt: skip
MERGED = "heads.transpose(1, 2).flatten(2)"
ORDER = "heads[:, torch.randperm(heads.shape[1])]"
MISTAKES = [
    ("shift", "roll(-1", "roll(1", "shifted-the-other-way"),
    ("shift", "roll(-1", "roll(0", "not-shifted"),
    ("shift", "roll(-1, dims=1)", "flip(1)", "heads-reversed"),
    ("shift", "dims=1", "dims=2", "tokens-shifted"),
    ("shift", "dims=1", "dims=0", "rows-shifted"),
    ("shift", "dims=1", "dims=-1", "features-shifted"),
    ("shift", "dims=1", "dims=4", "raises"),
    ("shift", "heads.roll(-1, dims=1)", "heads[:, 1:]", "head-dropped"),
    ("shift", MERGED, "heads.reshape(len(heads), heads.shape[2], -1)", "heads-merged-without-transpose"),
    ("shift", MERGED, "heads.permute(0, 2, 3, 1).flatten(2)", "heads-interleaved"),
    ("shift", MERGED, "heads", "not-merged"),
    ("shift", MERGED, "heads.mean(1)", "heads-averaged"),
    ("shift", MERGED, "heads.detach().transpose(1, 2).flatten(2)", "no-gradient"),
    ("shift", "heads.roll(-1, dims=1)", "2 * heads", "unknown"),
    ("shuffle", ORDER, "heads", "not-shuffled"),
    ("shuffle", ORDER, "heads[:, torch.randperm(heads.shape[1], generator=torch.Generator().manual_seed(1))]",
     "order-drawn-once"),
    ("shuffle", "torch.randperm(heads.shape[1])", "torch.randint(heads.shape[1], heads.shape[1:2])",
     "heads-drawn-with-replacement"),
    ("shuffle", ORDER, "torch.stack([one[torch.randperm(len(one))] for one in heads])", "order-of-each-row"),
    ("shuffle", ORDER, "torch.stack([heads[:, torch.randperm(heads.shape[1]), t] for t in range(heads.shape[2])], 2)",
     "order-of-each-token"),
    ("shuffle", ORDER, "heads[:, :, torch.randperm(heads.shape[2])]", "tokens-shuffled"),
    ("shuffle", ORDER, "heads[torch.randperm(len(heads))]", "rows-shuffled"),
    ("shuffle", MERGED, "heads.transpose(1, 2).flatten(2)[..., torch.randperm(heads.shape[1] * heads.shape[3])]",
     "features-shuffled"),
    ("shuffle", MERGED, "heads.reshape(len(heads), heads.shape[2], -1)", "heads-merged-without-transpose"),
    ("shuffle", MERGED, "heads.permute(0, 2, 3, 1).flatten(2)", "heads-interleaved"),
    ("shuffle", MERGED, "heads", "not-merged"),
    ("shuffle", MERGED, "heads.sum(1)", "heads-summed"),
    ("shuffle", MERGED, "heads.transpose(1, 2).flatten(2).detach()", "no-gradient"),
    ("shuffle", MERGED, "heads.transpose(1, 2).flatten(2).relu()", "unknown"),
    ("reweight", "heads * weight", "heads", "not-weighted"),
    ("reweight", "heads * weight", "heads / weight", "divided-by-norm"),
    ("reweight", "keepdim=True)\n    weight", "keepdim=True) ** 2\n    weight", "norm-squared"),
    ("reweight", "norm(dim=-1", "norm(p=1, dim=-1", "norm-of-order-one"),
    ("reweight", "norm(dim=-1", "mean(dim=-1", "mean-instead-of-norm"),
    ("reweight", "heads.norm(dim=-1", "torch.linalg.vector_norm(heads, dim=(0, 2, 3)", "norm-over-the-batch"),
    ("reweight", "norm(dim=-1", "norm(dim=2", "norm-over-tokens"),
    ("reweight", "norm.mean(1, keepdim=True)", "norm.sum()", "share-of-the-batch"),
    ("reweight", "heads * weight", "heads + weight", "factor-added"),
    ("reweight", "heads * weight", "heads * weight + heads", "heads-added"),
    ("reweight", "heads * weight", "heads * weight.detach()", "weights-detached"),
    ("reweight", MERGED, "heads.reshape(len(heads), heads.shape[2], -1)", "heads-merged-without-transpose"),
    ("reweight", MERGED, "heads.mean(1)", "heads-averaged"),
    ("reweight", "heads * weight", "heads * weight.sqrt()", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [*RIGHT.items(), *STYLES])
def test_a_right_merge_passes(name, source, tmp_path):
    report = check_source(tmp_path, source, name)
    assert report.passed, report.mistakes
    assert "gradient of heads" in report.checked


@pytest.mark.parametrize(("name", "old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_a_merge_is_named(name, old, new, mistake, tmp_path):
    assert names_of(check_source(tmp_path, plant(RIGHT[name], old, new), name)) == {mistake}


SHIFTED = ["heads.roll(-1, 1)", "torch.cat((heads[:, 1:], heads[:, :1]), 1)", "heads[:, (torch.arange(H) + 1) % H]",
           "torch.stack([heads[:, (h + 1) % H] for h in range(H)], 1)"]  # fmt: skip
ORDERS = [
    "torch.randperm(H)",
    "torch.rand(H).argsort()",
    "random.sample(range(H), H)",
    "torch.randn(H).topk(H).indices",
]
NORMS = ["heads.norm(dim=-1, keepdim=True)", "heads.pow(2).sum(-1, keepdim=True).sqrt()",
         "torch.linalg.matrix_norm(heads, keepdim=True)", "torch.stack([one.flatten(1).norm(dim=1) for one in "
         "heads.unbind(1)], 1)[..., None, None]", "torch.linalg.svdvals(heads)[..., :1, None]"]  # fmt: skip
FACTORS = ["n", "n / n.sum(1, keepdim=True)", "n / n.mean(1, keepdim=True)", "F.softmax(n, 1)", "n / n.amax(1, True)"]
JOINS = ["heads.transpose(1, 2).flatten(2)", "torch.cat(list(heads.unbind(1)), dim=-1)",
         "heads.permute(0, 2, 1, 3).reshape(B, T, H * K)", "torch.einsum('bhtk->bthk', heads).flatten(-2)"]  # fmt: skip
KINDS = ["function", "module", "object"]


@pytest.mark.slow
@given(*map(st.sampled_from, (SHIFTED, ORDERS, NORMS, FACTORS, JOINS, KINDS)))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_merge_is_refused(tmp_path, shifted, order, norm, factor, joined, kind):
    steps = {
        "shift": f"heads = {shifted}",
        "shuffle": f"heads = heads[:, {order}]",
        "reweight": f"n = {norm}\n    heads = heads * ({factor})",
    }
    for name, code in steps.items():
        source = f"""
import random

def merged(heads):
    B, H, T, K = heads.shape
    {code}
    return {joined}
"""
        if kind == "function":
            source += f"{name} = merged\n"
        else:
            base, method = ("nn.Module", "forward") if kind == "module" else ("object", "__call__")
            source += f"class {name}({base}):\n    def {method}(self, heads):\n        return merged(heads)\n"
        report = check_source(tmp_path, source, name)
        assert report.passed, (source, report.mistakes)

"""Heads of attention: right ones pass in every style, planted mistakes are caught, and known ones named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant

HEAD = """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.W_Q = nn.Linear(dim, n_hidden)
        self.W_K = nn.Linear(dim, n_hidden)
        self.W_V = nn.Linear(dim, n_hidden)
        self.n_hidden = n_hidden

    def forward(self, x, attn_mask):
        q, k, v = self.W_Q(x), self.W_K(x), self.W_V(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.n_hidden)
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, float("-inf"))
        A = torch.softmax(scores, dim=-1)
        return A @ v, A
"""

HEAD_STYLES = {
    "linear": HEAD,
    "without bias": HEAD.replace("(dim, n_hidden)\n        self.W", "(dim, n_hidden, bias=False)\n        self.W"),
    "names of another course": """
class AttentionHead(nn.Module):
    def __init__(self, d_model, d_k, dropout=0.1):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(d_model, d_k, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs, mask=None):
        k, q, v = self.key(inputs), self.query(inputs), self.value(inputs)
        weights = torch.bmm(q, k.mT) * k.shape[-1] ** -0.5
        if mask is not None:
            weights = weights + (1 - mask) * -1e9
        weights = self.dropout(F.softmax(weights, dim=-1))
        return torch.bmm(weights, v), weights
""",
    "one fused matrix": """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * n_hidden)

    def forward(self, x, attn_mask=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if attn_mask is None else attn_mask.bool())
""",
    "einsum with transposed weights": """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.wq = nn.Parameter(torch.randn(dim, n_hidden))
        self.wk = nn.Parameter(torch.randn(dim, n_hidden))
        self.wv = nn.Parameter(torch.randn(dim, n_hidden))

    def forward(self, x, attn_mask=None):
        q, k, v = (torch.einsum("btd,dk->btk", x, w) for w in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bik,bjk->bij", q, k) / q.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = torch.where(attn_mask.bool(), scores, -torch.inf)
        A = scores.softmax(-1)
        return torch.einsum("bij,bjk->bik", A, v), A
""",
    "loops": """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.a = nn.Linear(dim, n_hidden)
        self.b = nn.Linear(dim, n_hidden)
        self.c = nn.Linear(dim, n_hidden)

    def forward(self, x, attn_mask=None):
        rows, maps = [], []
        for row in x:
            outs, weights = [], []
            for i in range(len(row)):
                scores = torch.stack([self.a(row[i]) @ self.b(row[j]) for j in range(len(row))])
                powers = torch.exp(scores / math.sqrt(self.a.out_features))
                if attn_mask is not None:
                    powers = powers * attn_mask[i]
                weight = powers / powers.sum()
                weights.append(weight)
                outs.append(sum(w * self.c(one) for w, one in zip(weight, row)))
            rows.append(torch.stack(outs))
            maps.append(torch.stack(weights))
        return torch.stack(rows), torch.stack(maps)
""",
    "time first": """
class AttentionHead(nn.Module):
    batch_first = False

    def __init__(self, dim, n_hidden):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, n_hidden) for _ in range(3))

    def forward(self, x, attn_mask=None):
        x = x.transpose(0, 1)
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask.bool(), -torch.inf)
        A = scores.softmax(-1)
        return (A @ v).transpose(0, 1), A
""",
    "float64": """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, n_hidden, dtype=torch.float64) for _ in range(3))

    def forward(self, x, attn_mask=None):
        x = x.double()
        scores = self.query(x) @ self.key(x).mT / math.sqrt(self.key.out_features)
        if attn_mask is not None:
            scores = scores + attn_mask.double().log()
        A = scores.softmax(-1)
        return A @ self.value(x), A
""",
    "a hook": """
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        self.everything = nn.Parameter(torch.zeros(3 * n_hidden * (dim + 1)))
        self.shape = (3, n_hidden, dim + 1)

    def load_reference(self, weights):
        rows = [torch.cat((weights[name][0], weights["b" + name][0][:, None]), 1) for name in ("v", "k", "q")]
        with torch.no_grad():
            self.everything.copy_(torch.stack(rows).flatten())

    def forward(self, x, attn_mask=None):
        v, k, q = (x @ w[:, :-1].T + w[:, -1] for w in self.everything.view(self.shape))
        scores = q @ k.mT / math.sqrt(self.shape[1])
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -torch.inf)
        A = scores.softmax(-1)
        return A @ v, A
""",
}

SCALE, MASK, SOFTMAX = "/ math.sqrt(self.n_hidden)", "masked_fill(attn_mask == 0, ", "torch.softmax(scores, dim=-1)"
HEAD_MISTAKES = [
    (SCALE, "/ math.sqrt(x.shape[-1])", {"scaled-by-model-width"}),
    (SCALE, "", {"not-scaled"}),
    (SCALE, "/ self.n_hidden", {"scaled-without-root"}),
    (SCALE, "* math.sqrt(self.n_hidden)", {"multiplied-by-root"}),
    (SCALE, "/ math.sqrt(x.shape[1])", {"scaled-by-length"}),
    (SOFTMAX, "torch.softmax(scores, dim=1)", {"softmax-over-queries"}),
    (SOFTMAX, "torch.softmax(scores, dim=0)", {"softmax-over-batch"}),
    (SOFTMAX, "scores", {"no-softmax"}),
    (SOFTMAX, "torch.sigmoid(scores)", {"sigmoid-for-softmax"}),
    (MASK, "masked_fill(attn_mask == 1, ", {"mask-inverted"}),
    (MASK, "masked_fill(attn_mask.T == 0, ", {"mask-transposed"}),
    ('float("-inf"))', "0.0)", {"masked-with-zero"}),
    ('float("-inf"))', "1e9)", {"masked-with-large-value"}),
    ("scores = scores.masked_fill", "scores.masked_fill", {"mask-ignored"}),
    ('scores.masked_fill(attn_mask == 0, float("-inf"))', "scores + attn_mask", {"mask-added"}),
    ("q @ k.transpose(-1, -2)", "k @ q.transpose(-1, -2)", {"queries-and-keys-swapped"}),
    ("A @ v, A", "A.transpose(-1, -2) @ v, A", {"weights-transposed"}),
    ("A @ v, A", "A @ x, A", {"values-not-projected"}),
    ("A @ v, A", "A @ k, A", {"keys-used-as-values"}),
    ("A @ v, A", "A @ v, scores", {"returns-scores"}),
    ("A @ v, A", "A.detach() @ v, A.detach()", {"weights-detached"}),
    ("A @ v, A", "A @ v.detach(), A", {"values-detached"}),
    ("A @ v, A", "F.dropout(A, 0.5) @ v, A", {"differs-between-calls"}),
    ("q, k, v =", "x.mul_(0.5)\n        q, k, v =", {"changes-its-input"}),
    ("A @ v, A", "A @ v + self.W_V.bias, A", {"unknown"}),
    ("A @ v, A", "A @ v * 1.01, A", {"unknown"}),
    ("A @ v, A", "A, A @ v", {"unknown"}),
    (SCALE, "/ math.sqrt(self.no_such_name)", {"raises"}),
    ("A @ v, A", "(A @ v).float(), A", {"other-dtype"}),
]

MULTI_HEAD = """
class MultiHeadAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dim, dim) for _ in range(3))
        self.out_proj = nn.Linear(dim, dim)
        self.H, self.K = num_heads, dim // num_heads

    def forward(self, x, attn_mask=None):
        B, T, D = x.shape
        q, k, v = (f(x).view(B, T, self.H, self.K).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.K)
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, float("-inf"))
        A = scores.softmax(-1)
        out = (A @ v).transpose(1, 2).reshape(B, T, D)
        return self.out_proj(out), A
"""

MULTI_HEAD_STYLES = {
    "linear": MULTI_HEAD,
    "heads in a list": HEAD
    + """
class MultiHeadAttention(nn.Module):
    def __init__(self, dim, n_hidden, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([AttentionHead(dim, n_hidden) for _ in range(num_heads)])
        self.linear = nn.Linear(num_heads * n_hidden, dim)

    def forward(self, x, attn_mask):
        outs, maps = zip(*[head(x, attn_mask) for head in self.heads])
        return self.linear(torch.cat(outs, dim=-1)), torch.stack(maps, dim=1)
""",
    "fused, of the output alone": """
class MultiHeadAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.drop = nn.Dropout(config.attn_pdrop)

    def forward(self, x, mask=None):
        B, T, C = x.size()
        q, k, v = (one.view(B, T, self.n_head, -1).transpose(1, 2) for one in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
""",
    "fused by head": """
class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.1))

    def forward(self, x, mask=None):
        B, T, D = x.shape
        q, k, v = self.to_qkv(x).view(B, T, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * (D // self.heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask.logical_not(), torch.finfo(scores.dtype).min)
        A = scores.softmax(dim=-1)
        return self.to_out(torch.einsum("bhij,bhjd->bihd", A, v).flatten(2)), A
""",
    "einsum": """
class MultiHeadAttention(nn.Module):
    def __init__(self, dim, n_hidden, num_heads):
        super().__init__()
        self.wq = nn.Parameter(torch.randn(num_heads, dim, n_hidden))
        self.wk = nn.Parameter(torch.randn(num_heads, dim, n_hidden))
        self.wv = nn.Parameter(torch.randn(num_heads, dim, n_hidden))
        self.bq = nn.Parameter(torch.zeros(num_heads, 1, n_hidden))
        self.wo = nn.Parameter(torch.randn(num_heads, n_hidden, dim))

    def forward(self, x, attn_mask=None):
        q = torch.einsum("btd,hdk->bhtk", x, self.wq) + self.bq
        k = torch.einsum("btd,hdk->bhtk", x, self.wk)
        v = torch.einsum("btd,hdk->bhtk", x, self.wv)
        scores = torch.einsum("bhik,bhjk->bhij", q, k) / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -1e9)
        A = scores.softmax(-1)
        return torch.einsum("bhij,bhjk,hkd->bid", A, v, self.wo), A
""",
    "torch's own": """
class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, attn_mask=None):
        hidden = None if attn_mask is None else attn_mask == 0
        return self.attention(x, x, x, attn_mask=hidden, average_attn_weights=False)
""",
    "names that say nothing": """
class MultiHeadAttention(nn.Module):
    def __init__(self, size, h):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList([nn.Linear(size, size) for _ in range(4)])

    def forward(self, x, mask=None):
        B, T, D = x.shape
        q, k, v = [f(x).view(B, T, self.h, -1).transpose(1, 2) for f in self.linears[:3]]
        scores = q @ k.mT / math.sqrt(D // self.h)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        A = scores.softmax(-1)
        return self.linears[-1]((A @ v).transpose(1, 2).reshape(B, T, D)), A
""",
}

RETURNED = "return self.out_proj(out), A"
SPLIT, MERGED = "view(B, T, self.H, self.K).transpose(1, 2) for", "(A @ v).transpose(1, 2).reshape(B, T, D)"
MULTI_HEAD_MISTAKES = [
    ("/ math.sqrt(self.K)", "/ math.sqrt(D)", {"scaled-by-model-width"}),
    ("/ math.sqrt(self.K)", "", {"not-scaled"}),
    ("scores.softmax(-1)", "scores.softmax(-2)", {"softmax-over-queries"}),
    ("scores.softmax(-1)", "scores.softmax(0)", {"softmax-over-batch"}),
    ('"-inf"', '"0"', {"masked-with-zero"}),
    ("attn_mask == 0", "attn_mask != 0", {"mask-inverted"}),
    (RETURNED, "return out, A", {"no-output-projection"}),
    (RETURNED, "return self.out_proj(out), A.mean(1)", {"maps-averaged"}),
    (RETURNED, "return self.out_proj(out), A.transpose(0, 1)", {"heads-before-batch"}),
    (RETURNED, "return self.out_proj(out) + x, A", {"input-added"}),
    (RETURNED, "return self.out_proj(out.detach()), A", {"heads-detached"}),
    (MERGED, "(A @ v).reshape(B, T, D)", {"heads-merged-without-transpose"}),
    (SPLIT, "view(B, self.H, T, self.K) for", {"heads-split-without-transpose"}),
    (SPLIT, "view(B, T, self.K, self.H).permute(0, 3, 1, 2) for", {"heads-interleaved"}),
    (MERGED, "(A @ v).permute(0, 2, 3, 1).reshape(B, T, D)", {"heads-interleaved"}),
    ("A = scores.softmax(-1)", "A = scores.softmax(-1)[:, :1].expand(-1, self.H, -1, -1)", {"unknown"}),
    (RETURNED, "return torch.relu(self.out_proj(out)), A", {"unknown"}),
    ("self.out_proj = nn.Linear(dim, dim)", "self.out_proj = nn.Linear(dim, 2 * dim)", {"weights-not-read"}),
    ("q, k, v = (f(x)", "q, k, v = (f(x.mean(0))", {"raises"}),
]


@pytest.mark.parametrize("style", HEAD_STYLES)
def test_a_right_head_passes(style, tmp_path):
    report = check_source(tmp_path, HEAD_STYLES[style], "AttentionHead")
    assert report.passed, report.mistakes
    assert "out with a mask" in report.checked
    assert "gradient of x" in report.checked


@pytest.mark.parametrize(("old", "new", "names"), HEAD_MISTAKES)
def test_a_mistake_in_a_head_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(HEAD, old, new), "AttentionHead")) == names


@pytest.mark.parametrize("style", MULTI_HEAD_STYLES)
def test_right_heads_pass(style, tmp_path):
    report = check_source(tmp_path, MULTI_HEAD_STYLES[style], "MultiHeadAttention")
    assert report.passed, report.mistakes
    assert "gradients of all weights" in report.checked


@pytest.mark.parametrize(("old", "new", "names"), MULTI_HEAD_MISTAKES)
def test_a_mistake_in_several_heads_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(MULTI_HEAD, old, new), "MultiHeadAttention")) == names


def test_a_mistake_inside_of_fused_heads_is_named(tmp_path):
    """The weights can be read in several ways, and only one of them makes the mistake."""
    source = plant(MULTI_HEAD_STYLES["fused by head"], "* (D // self.heads) ** -0.5", "* D ** -0.5")
    assert names_of(check_source(tmp_path, source, "MultiHeadAttention")) == {"scaled-by-model-width"}


def test_swapped_axes_are_named_although_a_mask_raises(tmp_path):
    source = plant(HEAD, "q, k, v =", "x = x.transpose(0, 1)\n        q, k, v =")
    source = plant(source, "A @ v, A", "(A @ v).transpose(0, 1), A")
    report = check_source(tmp_path, source, "AttentionHead")
    assert [mistake.name for mistake in report.mistakes] == ["batch-and-time-swapped", "raises"]
    assert report.mistakes[1].where.endswith(".py:20")


def test_two_mistakes_are_both_named(tmp_path):
    source = plant(plant(HEAD, SCALE, ""), MASK, "masked_fill(attn_mask == 1, ")
    assert names_of(check_source(tmp_path, source, "AttentionHead")) == {"not-scaled", "mask-inverted"}


def test_heads_in_a_plain_list_are_found_and_named(tmp_path):
    source = plant(MULTI_HEAD_STYLES["heads in a list"], "nn.ModuleList(", "list(")
    assert names_of(check_source(tmp_path, source, "MultiHeadAttention")) == {"modules-in-a-plain-list"}


def test_tensors_on_the_cpu_are_noticed_without_a_gpu(tmp_path):
    source = plant(HEAD, "A @ v, A", "A @ v + torch.zeros(v.shape[-1], dtype=v.dtype), A")
    assert names_of(check_source(tmp_path, source, "AttentionHead")) == {"makes-cpu-tensors"}


def test_tensors_of_single_precision_are_noticed(tmp_path):
    source = plant(HEAD, "A @ v, A", "A @ (v @ torch.eye(v.shape[-1])), A")
    assert "makes-float32" in names_of(check_source(tmp_path, source, "AttentionHead"))


def test_an_unknown_mistake_is_described_by_place_and_amount(tmp_path):
    source = plant(HEAD, "A @ v, A", "A @ v + self.W_V.bias, A")
    (mistake,) = check_source(tmp_path, source, "AttentionHead").mistakes
    assert mistake.where == "out without a mask"
    assert "expected" in mistake.text
    assert "of 105 values differ" in mistake.text
    assert "right: A without a mask" in mistake.text


def head_of(choices):
    """A right head in one of many styles."""
    bias, (q, k, v) = choices["bias"], choices["names"]
    layers, made = {
        "linear": (
            [f"self.{name} = nn.Linear(dim, n_hidden, bias={bias})" for name in (q, k, v)],
            f"q, k, v = self.{q}(x), self.{k}(x), self.{v}(x)",
        ),
        "raw": (
            [f"self.{name} = nn.Parameter(torch.randn(dim, n_hidden))" for name in (q, k, v)],
            f"q, k, v = x @ self.{q}, x @ self.{k}, x @ self.{v}",
        ),
        "turned": (
            [f"self.{name} = nn.Parameter(torch.zeros(n_hidden, dim))" for name in (q, k, v)],
            f"q, k, v = x @ self.{q}.T, x @ self.{k}.mT, F.linear(x, self.{v})",
        ),
        "fused": ([f"self.qkv = nn.Linear(dim, 3 * n_hidden, bias={bias})"], choices["cut"]),
    }[choices["weights"]]
    lines = "\n        ".join(layers if choices["in_order"] else layers[::-1])
    return f"""
class AttentionHead(nn.Module):
    def __init__(self, dim, n_hidden):
        super().__init__()
        {lines}
        self.drop = nn.Dropout(0.3)

    def forward(self, x, attn_mask=None):
        {made}
        s = {choices["scores"]}
        if attn_mask is not None:
            s = {choices["mask"]}
        A = self.drop({choices["softmax"]})
        return {choices["returned"]}
"""


CHOICES = {
    "weights": ["linear", "raw", "turned", "fused"],
    "bias": [True, False],
    "names": [("query", "key", "value"), ("W_Q", "W_K", "W_V"), ("to_q", "to_k", "to_v"), ("wq", "wk", "wv"),
              ("q_proj", "k_proj", "v_proj"), ("lin1", "lin2", "lin3"), ("queries", "keys", "values"),
              ("q_linear", "k_linear", "v_linear"), ("fc_q", "fc_k", "fc_v"), ("q", "k", "v")],
    "in_order": [True, False],
    "cut": ["q, k, v = self.qkv(x).chunk(3, -1)", "k, q, v = self.qkv(x).chunk(3, -1)",
            "v, k, q = self.qkv(x).unflatten(-1, (3, -1)).unbind(-2)"],
    "scores": ["q @ k.mT / math.sqrt(k.shape[-1])",
               "(q / k.size(-1) ** 0.25) @ (k / k.size(-1) ** 0.25).transpose(1, 2)",
               "torch.einsum('bik,bjk->bij', q, k).div(k.shape[-1] ** 0.5)",
               "torch.bmm(q, k.mT).mul(k.shape[2] ** -0.5)"],
    "mask": ["s.masked_fill(attn_mask == 0, -torch.inf)", "s.masked_fill(~attn_mask, -1e9)",
             "s + (1.0 - attn_mask) * -1e9", "torch.where(attn_mask.bool(), s, torch.finfo(s.dtype).min)",
             "s + torch.log(attn_mask)", "s.masked_fill(attn_mask[None].logical_not(), -1e30)"],
    "softmax": ["s.softmax(-1)", "F.softmax(s, dim=2)", "torch.exp(s - s.amax(-1, keepdim=True)) / "
                "torch.exp(s - s.amax(-1, keepdim=True)).sum(-1, keepdim=True)", "torch.exp(F.log_softmax(s, dim=-1))"],
    "returned": ["A @ v, A", "torch.bmm(A, v), A", "torch.einsum('bij,bjk->bik', A, v)",
                 "(A[..., None] * v[:, None]).sum(2), A",
                 "[A @ v, A][0]", "(A.double() @ v.double()).to(x.dtype), A"],
}  # fmt: skip


@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()}))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_head_is_refused(tmp_path, choices):
    source = head_of(choices)
    report = check_source(tmp_path, source, "AttentionHead")
    assert report.passed, (source, report.mistakes)

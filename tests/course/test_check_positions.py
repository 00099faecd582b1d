"""Position encodings: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant

RIGHT = {
    "PositionalEncoding": """
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        x = x + self.pe[:, :x.size(1)]
        return self.dropout(x)
""",
    "LearnedPositionalEncoding": """
class LearnedPositionalEncoding(nn.Module):
    def __init__(self, max_len, dim):
        super().__init__()
        self.table = nn.Embedding(max_len, dim)

    def forward(self, x):
        steps = torch.arange(x.shape[1], device=x.device)
        return x + self.table(steps)
""",
    "apply_rotary": """
def apply_rotary(x):
    T, K = x.shape[-2:]
    inverse = 10000 ** (-torch.arange(0, K, 2, dtype=x.dtype) / K)
    angles = torch.arange(T, dtype=x.dtype)[:, None] * inverse
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., : K // 2], x[..., K // 2 :]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
""",
    "alibi_bias": """
def alibi_bias(num_heads, length):
    slopes = 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    distance = (i - j).abs()
    return -slopes[:, None, None] * distance
""",
}
STYLES = [
    ("PositionalEncoding", """
class PositionalEncoding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = x.clone()
        for k in range(x.shape[1]):
            for i in range(self.dim):
                angle = k / 10000 ** (i / self.dim)
                out[:, k, i] += math.sin(angle) if i % 2 == 0 else math.cos(angle)
        return out
"""),
    ("PositionalEncoding", """
class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_len):
        super().__init__()
        self.batch_first = False
        i = torch.arange(dim)
        angles = torch.arange(max_len)[:, None] / 10000 ** ((i - i % 2) / dim)
        self.pe = nn.Parameter(torch.where(i % 2 == 0, angles.sin(), angles.cos())[:, None], requires_grad=False)

    def forward(self, x):
        return x + self.pe[: len(x)].to(x)
"""),
    ("LearnedPositionalEncoding", """
class LearnedPositionalEncoding(nn.Module):
    def __init__(self, block_size, n_embd):
        super().__init__()
        self.wpe = nn.Parameter(torch.zeros(1, block_size, n_embd).double())

    def forward(self, x):
        return x + self.wpe[:, :x.size(1)]
"""),
    ("LearnedPositionalEncoding", """
class LearnedPositionalEncoding(nn.Module):
    def __init__(self, max_len, dim):
        super().__init__()
        self.layer = nn.Linear(max_len, dim, bias=False)

    def forward(self, x):
        one_hot = torch.eye(self.layer.in_features, dtype=x.dtype, device=x.device)[:x.shape[1]]
        return x + torch.einsum("tn,dn->td", one_hot, self.layer.weight)
"""),
    ("LearnedPositionalEncoding", """
class LearnedPositionalEncoding(nn.Module):
    def __init__(self, max_len, dim):
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.zeros(dim)) for _ in range(max_len)])

    def load_reference(self, weights):
        with torch.no_grad():
            for own, one in zip(self.rows, weights["table"]):
                own.copy_(one)

    def forward(self, x):
        return torch.stack([x[:, t] + self.rows[t] for t in range(x.shape[1])], dim=1)
"""),
    ("apply_rotary", """
def apply_rotary(x):
    T, K = x.shape[-2:]
    angles = torch.outer(torch.arange(T), 10000 ** (-torch.arange(0, K, 2) / K))
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)
"""),
    ("apply_rotary", """
def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)

def apply_rotary(q):
    K = q.shape[-1]
    angles = torch.einsum("t,k->tk", torch.arange(q.shape[2]), 10000 ** (-torch.arange(K // 2) * 2 / K))
    angles = torch.cat((angles, angles), dim=-1)
    return q * angles.cos() + rotate_half(q) * angles.sin()
"""),
    ("apply_rotary", """
class apply_rotary:
    def __call__(self, x):
        out = torch.empty_like(x)
        for t in range(x.shape[2]):
            for m in range(x.shape[3] // 2):
                angle = t * 10000 ** (-2 * m / x.shape[3])
                a, b = x[:, :, t, 2 * m], x[:, :, t, 2 * m + 1]
                out[:, :, t, 2 * m] = a * math.cos(angle) - b * math.sin(angle)
                out[:, :, t, 2 * m + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out
"""),
    ("alibi_bias", """
def slopes_of(n):
    if math.log2(n).is_integer():
        return [2 ** (-8 * (h + 1) / n) for h in range(n)]
    near = 2 ** math.floor(math.log2(n))
    return slopes_of(near) + slopes_of(2 * near)[0::2][: n - near]

def alibi_bias(n_heads, seq_len):
    steps = torch.arange(seq_len)
    bias = torch.tensor(slopes_of(n_heads))[:, None, None] * (steps[None, :] - steps[:, None])
    return bias.masked_fill(steps[None, :] > steps[:, None], -torch.inf)
"""),
    ("alibi_bias", """
def alibi_bias(h, n):
    slopes = torch.tensor([2 ** (-8 / h)]) ** torch.arange(1, h + 1)
    return (slopes[:, None, None] * torch.arange(n)[None, None])[None]
"""),
    ("alibi_bias", """
def alibi_bias(num_heads, T):
    return torch.tensor([[[-(2 ** (-8 * h / num_heads)) * max(i - j, 0) for j in range(T)] for i in range(T)]
                         for h in range(1, num_heads + 1)])
"""),
]  # fmt: skip
ADDED = "x + self.pe[:, :x.size(1)]"
FOUND = "return x + self.table(steps)"
TURNED = "torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)"
MISTAKES = [
    ("PositionalEncoding", "torch.arange(0, max_len)", "torch.arange(1, max_len + 1)", "positions-from-one"),
    ("PositionalEncoding", ADDED, "self.pe[:, :x.size(1)]", "positions-alone"),
    ("PositionalEncoding", ADDED, "x * self.pe[:, :x.size(1)]", "positions-multiplied"),
    ("PositionalEncoding", ADDED, "x * math.sqrt(x.shape[-1]) + self.pe[:, :x.size(1)]", "input-scaled"),
    ("PositionalEncoding", ADDED, "x + self.pe[:, :x.size(0)].transpose(0, 1)", "batch-and-time-swapped"),
    ("PositionalEncoding", "-(math.log", "(math.log", "frequencies-rise"),
    ("PositionalEncoding", "10000.0", "1000.0", "another-base"),
    ("PositionalEncoding", "d_model, 2) * -", "d_model, 2) * -2 * ", "exponent-doubled"),
    ("PositionalEncoding", "torch.sin(position", "torch.cos(position", "cosine-only"),
    ("PositionalEncoding", "pe[:, 0::2] = torch.sin(position * div_term)\n        pe[:, 1::2]",
     "pe[:, 1::2] = torch.sin(position * div_term)\n        pe[:, 0::2]", "sine-and-cosine-swapped"),
    ("PositionalEncoding", "pe[:, 0::2] = torch.sin(position * div_term)\n        pe[:, 1::2]",
     "pe[:, : d_model // 2] = torch.sin(position * div_term)\n        pe[:, d_model // 2 :]",
     "sine-and-cosine-in-halves"),
    ("PositionalEncoding", ADDED, "x + 2 * self.pe[:, :x.size(1)]", "unknown"),
    ("PositionalEncoding", "x = x + ", "x += ", "changes-its-input"),
    ("PositionalEncoding", ADDED, "x.detach() + self.pe[:, :x.size(1)]", "no-gradient"),
    ("PositionalEncoding", ADDED, "x + self.pe[:, x.size(1)]", "unknown"),
    ("PositionalEncoding", ADDED, "x + self.pe[:, :7]", "raises"),
    ("PositionalEncoding", 'self.register_buffer("pe", pe.unsqueeze(0))', "self.pe = nn.Parameter(pe[None])",
     "positions-are-trained"),
    ("LearnedPositionalEncoding", "torch.arange(x.shape[1]", "torch.arange(1, x.shape[1] + 1", "positions-from-one"),
    ("LearnedPositionalEncoding", "torch.arange(x.shape[1]", "torch.arange(x.shape[1] - 1, -1, -1",
     "positions-reversed"),
    ("LearnedPositionalEncoding", "torch.arange(x.shape[1]", "torch.full((1,), x.shape[1]",
     "position-of-length-for-all"),
    ("LearnedPositionalEncoding", "self.table(steps)", "self.table(0 * steps)", "position-of-first-for-all"),
    ("LearnedPositionalEncoding", "self.table(steps)", "self.table(20 - len(steps) + steps)",
     "positions-from-the-end-of-the-table"),
    ("LearnedPositionalEncoding", FOUND, "return self.table(steps)", "positions-alone"),
    ("LearnedPositionalEncoding", FOUND, "return x", "positions-left-out"),
    ("LearnedPositionalEncoding", FOUND, "return x * self.table(steps)", "positions-multiplied"),
    ("LearnedPositionalEncoding", FOUND, "return torch.cat((x, self.table(steps).expand_as(x)), -1)",
     "positions-appended"),
    ("LearnedPositionalEncoding", "x.shape[1], device=x.device)", "x.shape[0])[:, None]", "batch-and-time-swapped"),
    ("LearnedPositionalEncoding", FOUND, "return x + self.table(steps).detach()", "positions-detached"),
    ("LearnedPositionalEncoding", FOUND, "return x + self.table(steps).abs()", "unknown"),
    ("LearnedPositionalEncoding", ", device=x.device)", ") + torch.zeros(1)", "raises"),
    ("apply_rotary", "torch.arange(T,", "torch.arange(1, T + 1,", "positions-from-one"),
    ("apply_rotary", TURNED, "x", "not-rotated"),
    ("apply_rotary", TURNED, "torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)", "rotated-the-other-way"),
    ("apply_rotary", TURNED, "torch.cat((a * cos + b * sin, a * sin + b * cos), dim=-1)", "mirrored"),
    ("apply_rotary", TURNED, "torch.cat((a * sin - b * cos, a * cos + b * sin), dim=-1)", "sine-and-cosine-swapped"),
    ("apply_rotary", TURNED, "torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)", "not-put-back"),
    ("apply_rotary", TURNED, "x * torch.cat((cos, cos), -1)", "cosine-only"),
    ("apply_rotary", TURNED, "x * cos.repeat_interleave(2, -1) + torch.cat((-b, a), -1) * sin.repeat_interleave(2, -1)",
     "pairs-and-angles-differ"),
    ("apply_rotary", TURNED, "x * torch.cat((cos, cos), -1) + torch.stack((-x[..., 1::2], x[..., 0::2]), "
        "-1).flatten(-2)"
     " * torch.cat((sin, sin), -1)", "pairs-and-angles-differ"),
    ("apply_rotary", "10000", "100", "another-base"),
    ("apply_rotary", "(-torch", "(torch", "frequencies-rise"),
    ("apply_rotary", "T, K = x.shape[-2:]", "T, K = x.shape[0], x.shape[-1]", "raises"),
    ("apply_rotary", TURNED, "2 * " + TURNED, "unknown"),
    ("apply_rotary", TURNED, TURNED + ".float()", "other-dtype"),
    ("alibi_bias", "return -slopes", "return slopes", "sign-inverted"),
    ("alibi_bias", "torch.arange(1, num_heads + 1)", "torch.arange(num_heads)", "slopes-from-one"),
    ("alibi_bias", "(-8 * torch.arange(1, num_heads + 1) / num_heads)", "-torch.arange(1, num_heads + 1)",
     "slopes-for-eight-heads"),
    ("alibi_bias", "(-8 *", "(8 *", "slopes-inverted"),
    ("alibi_bias", "2.0 ** (-8", "math.e ** (-8", "slopes-of-e"),
    ("alibi_bias", "-slopes[", "-slopes.flip(0)[", "slopes-reversed"),
    ("alibi_bias", "(i - j).abs()", "(i - j) ** 2", "distance-squared"),
    ("alibi_bias", "(i - j).abs()", "(i - j).abs() + 1", "distance-from-one"),
    ("alibi_bias", "-slopes[:, None, None] * distance", "-slopes * distance[:, :, None]", "heads-last"),
    ("alibi_bias", "(i - j).abs()", "(i - j).abs().masked_fill(j < i, 9999)", "unknown"),
    ("alibi_bias", "-slopes[:, None, None] * distance", "-(slopes[:, None, None] * distance).sum(0)",
     "summed-over-heads"),
    ("alibi_bias", "(i - j).abs()", "(j - i)", "sign-inverted"),
    ("alibi_bias", "2.0 **", "2 ** 0.5 **", "unknown"),
    ("alibi_bias", "return", "assert num_heads != 6\n    return", "raises"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [*RIGHT.items(), *STYLES])
def test_right_positions_pass(name, source, tmp_path):
    report = check_source(tmp_path, source, name)
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("name", "old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_positions_is_named(name, old, new, mistake, tmp_path):
    assert names_of(check_source(tmp_path, plant(RIGHT[name], old, new), name)) == {mistake}


def test_a_buffer_on_the_cpu_is_named(tmp_path):
    source = plant(RIGHT["PositionalEncoding"], 'self.register_buffer("pe", pe.unsqueeze(0))', "self.pe = pe[None]")
    assert names_of(check_source(tmp_path, source, "PositionalEncoding")) == {"makes-cpu-tensors"}


CONSTRUCTORS = ["dim, max_seq_len", "d_model, max_len=64, dropout=0.0", "n_embd, block_size", "embed_dim"]
EXPONENTS = ["(i - i % 2) / dim", "2 * (i // 2) / dim", "i / dim", "torch.arange(0, dim, 2).repeat_interleave(2) / dim"]
WAVES = ["torch.where(i % 2 == 0, a.sin(), a.cos())", "torch.sin(a + math.pi / 2 * (i % 2))",
         "torch.stack((a[:, 0::2].sin(), a[:, 1::2].cos()), -1).flatten(1)"]  # fmt: skip
SUMS = ["x + pe", "x.add(pe[None])", "torch.stack([one + pe for one in x])", "x + torch.einsum('td->td', pe).to(x)"]
TABLES = ["nn.Embedding(most, dim)", "nn.Parameter(torch.zeros(most, dim))", "nn.Parameter(torch.zeros(1, most, dim))",
          "nn.Parameter(torch.zeros(dim, most))"]  # fmt: skip
ROWS = ["t[:x.shape[1]]", "F.embedding(torch.arange(x.shape[1], device=x.device), t)",
        "t.split(x.shape[1])[0]", "torch.stack([t[k] for k in range(x.size(1))])"]  # fmt: skip


@pytest.mark.slow
@given(*map(st.sampled_from, (CONSTRUCTORS, EXPONENTS, WAVES, SUMS)), st.sampled_from(["float64", "float32"]))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_sinusoids_are_refused(tmp_path, constructor, exponents, waves, total, dtype):
    source = f"""
class PositionalEncoding(nn.Module):
    def __init__(self, {constructor}):
        super().__init__()
        self.dim = {constructor.partition(",")[0]}

    def forward(self, x):
        dim, i = self.dim, torch.arange(self.dim, device=x.device)
        a = torch.arange(x.shape[1], device=x.device, dtype=torch.{dtype})[:, None] / 10000 ** ({exponents})
        pe = ({waves}).to(x.dtype)
        return {total}
"""
    report = check_source(tmp_path, source, "PositionalEncoding")
    assert report.passed or ("repeat_interleave" in exponents and report.mistakes[0].name == "makes-cpu-tensors"), (
        source,
        report.mistakes,
    )


@pytest.mark.slow
@given(*map(st.sampled_from, (TABLES, ROWS, SUMS)), st.booleans(), st.booleans())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_embeddings_of_positions_are_refused(tmp_path, table, rows, total, is_double, is_time_first):
    source = f"""
class LearnedPositionalEncoding(nn.Module):
    def __init__(self, most, dim):
        super().__init__()
        self.{"batch_first" if is_time_first else "other"} = False
        self.table = {table}{".double()" if is_double and "Embedding" in table else ""}

    def forward(self, x):
        x = x.transpose(0, 1) if {is_time_first} else x
        t = {"self.table.weight" if "Embedding" in table else "self.table[0]" if "1, most" in table else "self.table"}
        t = t.T if {"dim, most" in table} else t
        pe = {rows}
        out = {total}
        return out.transpose(0, 1) if {is_time_first} else out
"""
    report = check_source(tmp_path, source, "LearnedPositionalEncoding")
    assert report.passed, (source, report.mistakes)


FREQUENCIES = ["10000 ** (-torch.arange(0, K, 2, dtype=torch.float64) / K)", "torch.exp(-math.log(1e4) * 2 * m / K)",
               "1 / torch.pow(torch.tensor(10000.0), 2 * m / K)"]  # fmt: skip
ANGLES = ["torch.outer(t, w)", "t[:, None] * w", "torch.einsum('t,k->tk', t, w)", "torch.stack([k * w for k in t])"]
TURNS = [
    "torch.cat((a * c - b * s, a * s + b * c), -1)",
    "x * torch.cat((c, c), -1) + torch.cat((-b, a), -1) * torch.cat((s, s), -1)",
    "torch.stack((e * c - o * s, e * s + o * c), -1).flatten(-2)",
    "x * c.repeat_interleave(2, -1) + torch.stack((-o, e), -1).flatten(-2) * s.repeat_interleave(2, -1)",
]
SLOPES = [
    "2.0 ** (-8 * h / n)",
    "(2 ** (-8 / n)) ** h",
    "torch.exp2(-8 * h / n)",
    "torch.exp(-8 * math.log(2) * h / n)",
]
BIASES = [
    "-s * (i - j).abs()",
    "(s * (j - i)).masked_fill(j > i, -math.inf)",
    "s * (j - i).clamp(max=0)",
    "s * (j - i)",
    "(s * j).expand(n, length, length)",
    "s * j",
    "torch.where(j > i, -math.inf, s * j)",
]
RESULTS = ["bias", "bias[None]", "bias.double()", "bias.contiguous()"]


@pytest.mark.slow
@given(*map(st.sampled_from, (FREQUENCIES, ANGLES, TURNS, SLOPES, BIASES, RESULTS)))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_rotation_and_no_right_bias_is_refused(tmp_path, frequencies, angles, turned, slopes, bias, result):
    source = f"""
def apply_rotary(x):
    T, K = x.shape[-2:]
    m, t = torch.arange(K // 2), torch.arange(T).double()
    w = ({frequencies}).double()
    c, s = ({angles}).cos().to(x.dtype), ({angles}).sin().to(x.dtype)
    (a, b), e, o = x.chunk(2, -1), x[..., 0::2], x[..., 1::2]
    return {turned}

def alibi_bias(n, length):
    h = torch.arange(1, n + 1).double()
    s = ({slopes})[:, None, None]
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    bias = {bias}
    return {result}
"""
    assert check_source(tmp_path, source, "apply_rotary").passed, source
    report = check_source(tmp_path, source, "alibi_bias")
    assert report.passed, (source, report.mistakes)

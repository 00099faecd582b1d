"""A hybrid with a carried state: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course.students import check_source, names_of, plant
from course.test_check_recurrent import FUSED, LSTM

HYBRID = """
class Hybrid(nn.Module):
    def __init__(self, input_size, hidden_size, num_heads):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, batch_first=True)
        self.attention = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)

    def forward(self, x, state=None):
        h, state = self.lstm(x, state)
        T = x.shape[1]
        later = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        context, _ = self.attention(h, h, h, attn_mask=later)
        state = tuple(one.detach() for one in state)
        return h + context, state
"""
LOOPS = """
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (one.view(B, T, self.h, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, D))

class Hybrid(nn.Module):
    def __init__(self, input_size, hidden_size, heads):
        super().__init__()
        self.n = hidden_size
        self.cell = LSTMCell(input_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.attend = Attention(hidden_size, heads)

    def forward(self, x, state):
        if state is None:
            state = x.new_zeros(2, len(x), self.n)
        h, c = state[0].detach(), state[1].detach()
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            outputs.append(h)
        y = torch.stack(outputs, 1)
        return y + self.attend(self.norm(y)), torch.stack((h, c))
"""
STYLES = {
    "torch's": HYBRID,
    "loops, with a norm": LSTM + LOOPS,
    "fused cell": FUSED + plant(LOOPS, "x[:, t], (h, c))", "x[:, t], h, c)"),
    "one width": plant(plant(HYBRID, "input_size, hidden_size, num_heads", "d_model, n_heads"),
                       "(input_size, hidden_size, batch_first=True)", "(d_model, d_model, batch_first=True)").replace(
                       "hidden_size, num_heads", "d_model, n_heads"),
    "float64": plant(HYBRID, "num_heads, batch_first=True)", "num_heads, batch_first=True)\n        self.double()"),
    "without bias": plant(HYBRID, "batch_first=True)", "bias=False, batch_first=True)"),
    "time first": plant(plant(plant(HYBRID, ", batch_first=True", ""), "super().__init__()",
                              "super().__init__()\n        self.batch_first = False"), "x.shape[1]", "x.shape[0]"),
    "the state in a dict": plant(plant(HYBRID, "self.lstm(x, state)", "self.lstm(x, state and (state['h'], "
    "state['c']))"),
                                 "state = tuple(one.detach() for one in state)",
                                 "state = {'h': state[0].detach(), 'c': state[1].detach()}"),
}  # fmt: skip
CARRIED = "state = tuple(one.detach() for one in state)"
MISTAKES = [
    ("self.lstm(x, state)", "self.lstm(x)", {"state-not-carried"}),
    (CARRIED, "pass", {"state-not-detached"}),
    (CARRIED, "state = (state[0].detach(), state[1])", {"state-not-detached"}),
    (CARRIED, "state = (state[0].detach(), torch.zeros_like(state[1]))", {"cell-state-not-carried"}),
    (CARRIED, "state = (0 * state[0].detach(), state[1].detach())", {"hidden-state-not-carried"}),
    (CARRIED, "state = (state[1].detach(), state[0].detach())", {"hidden-and-cell-swapped"}),
    ("hidden_size, batch_first=True)", "hidden_size)", {"batch-and-time-swapped", "raises"}),
    (", attn_mask=later", "", {"no-causal-mask"}),
    (".triu(1)", ".tril(-1)", {"mask-for-the-wrong-side"}),
    (".triu(1)", ".triu(2)", {"mask-one-too-far"}),
    ("return h + context", "return context", {"no-residual"}),
    ("return h + context", "return h", {"attention-left-out"}),
    ("return h + context", "return h * context", {"multiplied"}),
    ("return h + context", "return h.detach() + context", {"residual-detached"}),
    ("self.attention(h, h, h", "self.attention(h, h, x", {"raises"}),
    ("return h + context", "return h + 2 * context", {"unknown"}),
    ("num_heads, batch_first=True)", "num_heads)", {"raises"}),
]  # fmt: skip
CELL_MISTAKES = [
    ("h = o * torch.tanh(c)", "h = o * c", {"no-tanh-on-the-cell"}),
    ("f * c + i * g", "i * c + f * g", {"input-and-forget-gates-swapped"}),
    ("self.cell(x[:, t], (h, c))", "self.cell(x[:, t], (h.detach(), c.detach()))", {"state-detached-between-tokens"}),
    ("self.cell(x[:, t], (h, c))", "self.cell(x[:, t], (state[0].detach(), state[1].detach()))",
     {"every-token-restarts"}),
    ("transpose(1, 2).reshape(B, T, D)", "reshape(B, T, D)", {"heads-merged-without-transpose"}),
    ("is_causal=True", "is_causal=True, scale=1.0", {"not-scaled"}),
    ("self.norm(y)", "y", {"norm-left-out"}),
]  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_right_hybrid_passes(style, tmp_path):
    report = check_source(tmp_path, STYLES[style], "Hybrid")
    assert report.passed, report.mistakes
    assert "gradient of x2" in report.checked


@pytest.mark.parametrize(("old", "new", "names"), MISTAKES)
def test_a_mistake_in_a_hybrid_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(HYBRID, old, new), "Hybrid")) == names


@pytest.mark.parametrize(("old", "new", "names"), CELL_MISTAKES)
def test_a_mistake_in_a_part_of_a_hybrid_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(LSTM + LOOPS, old, new), "Hybrid")) == names


ATTENTIONS = {
    "nn.MultiheadAttention(H, heads, bias={bias}, batch_first=True)":
        "self.att({h}, {h}, {h}, attn_mask=torch.full((T, T), -torch.inf).triu(1).to(x), need_weights=False)[0]",
    "nn.MultiheadAttention(H, heads, bias={bias})": "self.att({h}.transpose(0, 1), {h}.transpose(0, 1), "
        "{h}.transpose(0, 1), attn_mask=later)[0].transpose(0, 1)",
    "Attention(H, heads)": "self.att({h})",
}  # fmt: skip
FORMS = ["D, H, heads", "input_size, hidden_size, num_heads", "n_in, n, n_heads", "d_model, nhead"]
DETACHED = [
    "state = [one.detach() for one in state]",
    "state = (state[0].data, state[1].data)",
    "state = torch.stack(state).detach().unbind()",
    "state = (state[0].clone().detach(), state[1].detach())",
]
SUMS = ["h + y", "torch.add(y, h)", "torch.stack((h, y)).sum(0)"]


@pytest.mark.slow
@given(*map(st.sampled_from, ([*ATTENTIONS], FORMS, DETACHED, SUMS)), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_hybrid_is_refused(tmp_path, attention, form, detached, total, bias, has_norm, is_double):
    *wide, heads = form.split(", ")
    source = f"""{LOOPS}
class Hybrid(nn.Module):
    def __init__(self, {form}):
        super().__init__()
        D, H, heads = {wide[0]}, {wide[-1]}, {heads}
        self.rnn = nn.LSTM(D, H, bias={bias}, batch_first=True)
        self.att = {attention.format(bias=bias)}
        self.norm = nn.LayerNorm(H) if {has_norm} else nn.Identity()
        {"self.double()" if is_double else ""}

    def forward(self, x, state=None):
        T = x.shape[1]
        later = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        h, state = self.rnn(x, state if state is None else tuple(state))
        y = {ATTENTIONS[attention].format(h="self.norm(h)")}
        {detached}
        return {total}, state
"""
    report = check_source(tmp_path, source, "Hybrid")
    assert report.passed, (source, report.mistakes)

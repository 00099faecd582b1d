"""Recurrent cells: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from course.students import check_source, names_of, plant

RNN = """
class RNNCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.W_x = nn.Linear(input_size, hidden_size)
        self.W_h = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x, h):
        return torch.tanh(self.W_x(x) + self.W_h(h))
"""
RNN_STYLES = {
    "two matrices": RNN,
    "torch's own": "class RNNCell(nn.RNNCell):\n    pass\n",
    "torch's with ReLU": """
class RNNCell(nn.RNNCell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size, nonlinearity="relu")
""",
    "one matrix": """
class RNNCell(nn.Module):
    def __init__(self, d_in, d_hidden):
        super().__init__()
        self.layer = nn.Linear(d_hidden + d_in, d_hidden)

    def forward(self, h, x):
        return self.layer(torch.cat((h, x), dim=1)).tanh()
""",
    "parameters": """
class RNNCell(nn.Module):
    def __init__(self, n_in, n):
        super().__init__()
        self.Wx, self.Wh = nn.Parameter(torch.randn(n_in, n)), nn.Parameter(torch.randn(n, n))
        self.b = nn.Parameter(torch.zeros(1, n))

    def forward(self, inp, hidden=None):
        new = torch.tanh(inp @ self.Wx + hidden @ self.Wh + self.b)
        return new, new
""",
    "einsum, float64": """
class RNNCell(nn.Module):
    def __init__(self, input_size, hidden_size, bias=True):
        super().__init__()
        self.U = nn.Parameter(torch.randn(hidden_size, hidden_size).double())
        self.W = nn.Parameter(torch.randn(hidden_size, input_size).double())

    def forward(self, x, h):
        return torch.tanh(torch.einsum("bd,hd->bh", x, self.W) + torch.einsum("bk,hk->bh", h, self.U))
""",
    "loops": """
class RNNCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.x2h, self.h2h = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, x, h):
        return torch.stack([torch.tanh(self.x2h(x[b]) + self.h2h(h[b])) for b in range(len(x))])
""",
    "load_reference": """
class RNNCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.both = nn.Parameter(torch.zeros(hidden_size, 2 * (input_size + hidden_size + 1)))

    def load_reference(self, w):
        with torch.no_grad():
            self.both.copy_(torch.cat((w["b"][:, None], w["W"], w["U"]), 1).repeat(1, 2))

    def forward(self, x, h):
        return torch.tanh(torch.cat((torch.ones_like(x[:, :1]), x, h), 1).repeat(1, 2) @ self.both.T / 2)
""",
}
RNN_MISTAKES = [
    ("torch.tanh(self.W_x(x) + self.W_h(h))", "self.W_x(x) + self.W_h(h)", {"no-activation"}),
    ("torch.tanh", "torch.sigmoid", {"sigmoid-for-tanh"}),
    ("torch.tanh(self.W_x(x) + self.W_h(h))", "torch.tanh(self.W_x(x)) + torch.tanh(self.W_h(h))",
     {"activation-before-the-sum"}),
    (" + self.W_h(h)", "", {"state-ignored"}),
    ("self.W_x(x) + ", "", {"input-ignored"}),
    ("self.W_x(x) + self.W_h(h)", "self.W_x(x) * self.W_h(h)", {"multiplied"}),
    ("return torch", "return h + torch", {"old-state-added"}),
    ("self.W_h(h)", "h @ self.W_h.weight", {"recurrent-matrix-transposed"}),
    ("self.W_h(h)", "self.W_h(h.detach())", {"state-detached"}),
    ("self.W_x(x)", "self.W_x(x.detach())", {"input-detached"}),
    ("self.W_x(x)", "F.linear(x, self.W_x.weight)", {"bias-left-out"}),
    ("torch.tanh(self.W_x(x) + self.W_h(h))", "h", {"returns-old-state"}),
    ("return torch", "return 2 * torch", {"unknown"}),
    ("self.W_h(h)", "self.W_h(x)", {"raises"}),
    ("        return torch.tanh(self.W_x(x) + self.W_h(h))",
     "        self.h = torch.tanh(self.W_x(x) + self.W_h(getattr(self, 'h', h)[:1]))\n        return self.h",
     {"differs-between-calls"}),
    ("torch.tanh(self.W_x(x) + self.W_h(h))", "torch.tanh(self.W_x(x) + self.W_h(h) + torch.ones(1))",
     {"unknown"}),
    ("torch.tanh(self.W_x(x) + self.W_h(h))", "torch.tanh(self.W_x(x) + self.W_h(h) * torch.ones(len(x), 1))",
     {"makes-cpu-tensors"}),
    ("        return", "        h.mul_(1)\n        h += 1\n        return", {"changes-its-input"}),
]  # fmt: skip

LSTM = """
class LSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        n = input_size + hidden_size
        self.W_i, self.W_f = nn.Linear(n, hidden_size), nn.Linear(n, hidden_size)
        self.W_g, self.W_o = nn.Linear(n, hidden_size), nn.Linear(n, hidden_size)

    def forward(self, x, state):
        h, c = state
        xh = torch.cat((x, h), dim=1)
        i, f = torch.sigmoid(self.W_i(xh)), torch.sigmoid(self.W_f(xh))
        g, o = torch.tanh(self.W_g(xh)), torch.sigmoid(self.W_o(xh))
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, c
"""
FUSED = """
class LSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.randn(4 * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.zeros(4 * hidden_size))
        self.bias_hh = nn.Parameter(torch.zeros(4 * hidden_size))

    def forward(self, x, h, c):
        gates = x @ self.weight_ih.T + self.bias_ih + h @ self.weight_hh.T + self.bias_hh
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
"""
LSTM_STYLES = {
    "four matrices": LSTM,
    "fused, as torch's": FUSED,
    "torch's own": "class LSTMCell(nn.LSTMCell):\n    pass\n",
    "without bias": plant(LSTM, "nn.Linear(n, hidden_size)", "nn.Linear(n, hidden_size, bias=False)"),
    "fused in an order of its own": """
class LSTMCell(nn.Module):
    def __init__(self, input_dim, hidden_dim):
        super().__init__()
        self.x2h, self.h2h = nn.Linear(input_dim, 4 * hidden_dim), nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)

    def forward(self, x, hidden):
        h, c = hidden
        f, o, i, g = (self.x2h(x) + self.h2h(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)
""",
    "eight matrices": """
class LSTMCell(nn.Module):
    def __init__(self, n_in, n):
        super().__init__()
        for gate in "fioc":
            setattr(self, f"W_x{gate}", nn.Parameter(torch.randn(n_in, n)))
            setattr(self, f"W_h{gate}", nn.Parameter(torch.randn(n, n)))
            setattr(self, f"b_{gate}", nn.Parameter(torch.zeros(n)))

    def forward(self, x, h, c):
        f = torch.sigmoid(x @ self.W_xf + h @ self.W_hf + self.b_f)
        i = torch.sigmoid(x @ self.W_xi + h @ self.W_hi + self.b_i)
        o = torch.sigmoid(x @ self.W_xo + h @ self.W_ho + self.b_o)
        c = f * c + i * torch.tanh(x @ self.W_xc + h @ self.W_hc + self.b_c)
        return o * torch.tanh(c), c
""",
    "einsum, float64": """
class LSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, input_size + hidden_size, hidden_size).double())
        self.bias = nn.Parameter(torch.zeros(4, 1, hidden_size).double())

    def forward(self, x, hc):
        both = torch.einsum("bd,gdh->gbh", torch.cat((hc[0], x), 1), self.w) + self.bias
        i, f, o = torch.sigmoid(both[:3])
        c = f * hc[1] + i * torch.tanh(both[3])
        return o * torch.tanh(c), c
""",
}
LSTM_MISTAKES = [
    (LSTM, "h = o * torch.tanh(c)", "h = o * c", {"no-tanh-on-the-cell"}),
    (LSTM, "h = o * torch.tanh(c)", "h = torch.tanh(c)", {"no-output-gate"}),
    (LSTM, "h = o * torch.tanh(c)", "h = o * torch.sigmoid(c)", {"sigmoid-on-the-cell"}),
    (LSTM, "torch.tanh(self.W_g(xh))", "self.W_g(xh)", {"candidate-without-tanh"}),
    (LSTM, "torch.tanh(self.W_g(xh))", "torch.sigmoid(self.W_g(xh))", {"sigmoid-for-candidate"}),
    (LSTM, "f * c + i * g", "i * c + f * g", {"input-and-forget-gates-swapped"}),
    (LSTM, "f * c + i * g", "o * c + i * g", {"unknown"}),
    (LSTM, "f * c + i * g", "c + i * g", {"no-forget-gate"}),
    (LSTM, "f * c + i * g", "f * c + g", {"no-input-gate"}),
    (LSTM, "f * c + i * g", "f * c + (1 - f) * g", {"input-gate-from-forget-gate"}),
    (LSTM, "c = f * c + i * g\n        h = o * torch.tanh(c)", "h = o * torch.tanh(c)\n        c = f * c + i * g",
     {"old-cell-shown"}),
    (LSTM, "return h, c", "return c, h", {"cell-returned-first"}),
    (LSTM, "return h, c", "return h, h", {"returns-hidden-twice"}),
    (LSTM, "return h, c", "return h.detach(), c.detach()", {"no-gradient"}),
    (LSTM, "h, c = state", "h, c = state[0].detach(), state[1].detach()", {"state-detached"}),
    (LSTM, "f * c", "f * c.detach()", {"cell-detached"}),
    (LSTM, "h, c = state", "h, c = torch.zeros_like(state[0]), state[1]", {"state-ignored"}),
    (LSTM, "c = f * c + i * g", "c = torch.tanh(f * c + i * g)", {"tanh-kept-in-the-cell"}),
    (LSTM, "torch.sigmoid(self.W_f(xh))", "torch.sigmoid(self.W_f(xh) + 1)", {"one-added-to-forget-gate"}),
    (FUSED, "i, f, g, o =", "i, f, o, g =", {"gates-in-another-order"}),
    (FUSED, "i, f, g, o =", "f, i, g, o =", {"input-and-forget-gates-swapped"}),
    (FUSED, "i, f, g, o =", "i, g, f, o =", {"gates-in-another-order"}),
    (FUSED, " + self.bias_ih + h", " + h", {"unknown"}),
    (FUSED, "chunk(4, dim=1)", "view(len(x), 5, 4).unbind(2)", {"unknown"}),
    (FUSED, "x @", "x.T @", {"raises"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [
    *(("RNNCell", source) for source in RNN_STYLES.values()), *(("LSTMCell", source) for source in LSTM_STYLES.values())
], ids=[*RNN_STYLES, *LSTM_STYLES])  # fmt: skip
def test_a_right_cell_passes(name, source, tmp_path):
    report = check_source(tmp_path, source, name)
    assert report.passed, report.mistakes
    assert "gradient of x" in report.checked


@pytest.mark.parametrize(("old", "new", "names"), RNN_MISTAKES)
def test_a_mistake_in_a_simple_cell_is_named(old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(RNN, old, new), "RNNCell")) == names


@pytest.mark.parametrize(("source", "old", "new", "names"), LSTM_MISTAKES)
def test_a_mistake_in_the_cell_of_an_lstm_is_named(source, old, new, names, tmp_path):
    assert names_of(check_source(tmp_path, plant(source, old, new), "LSTMCell")) == names


def test_the_text_says_in_which_order_the_gates_are(tmp_path):
    report = check_source(tmp_path, plant(FUSED, "i, f, g, o =", "i, f, o, g ="), "LSTMCell")
    assert "i, f, g, o are used as i, f, o, g" in report.mistakes[0].text


ONE_INPUT = plant(
    RNN, "x, h):\n        return torch.tanh(self.W_x(x) + self.W_h(h))", "x):\n        return self.W_x(x)"
)


def test_a_cell_without_a_state_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^forward\(x\) has other arguments than expected: RNNCell\(input_size"):
        check_source(tmp_path, ONE_INPUT, "RNNCell")


def test_what_a_cell_returned_is_told_by_its_shape(tmp_path):
    report = check_source(tmp_path, plant(LSTM, "return h, c", "return h"), "LSTMCell")
    assert report.mistakes[0].text.startswith("TypeError: it returned a tensor [6, 5]; expected: LSTMCell(")


NAMES = ["self, input_size, hidden_size", "self, n_in, n", "self, input_dim, hidden_dim, bias=True", "self, D, H"]
LINES = {
    "separate": "self.W_i, self.W_f, self.W_g, self.W_o = (nn.Linear(D + H, H, bias={bias}) for _ in range(4))",
    "names that say nothing": "self.a, self.b2, self.d, self.e = (nn.Linear(D + H, H, bias={bias}) for _ in range(4))",
    "fused": "self.all = nn.Linear(D + H, 4 * H, bias={bias})",
    "two fused": "self.x2h, self.h2h = nn.Linear(D, 4 * H, bias={bias}), nn.Linear(H, 4 * H)",
    "parameters": "self.A, self.B = nn.Parameter(torch.zeros(D, 4 * H)), nn.Parameter(torch.zeros(H, 4 * H))",
    "stacked": "self.A, self.B = nn.Parameter(torch.zeros(4, D, H)), nn.Parameter(torch.zeros(4, H, H))",
}
PRODUCTS = {
    "separate": "i, f, g, o = (layer(xh) for layer in (self.W_i, self.W_f, self.W_g, self.W_o))",
    "names that say nothing": "i, o, f, g = (layer(xh) for layer in (self.a, self.b2, self.d, self.e))",
    "fused": "o, f, i, g = self.all(xh).chunk(4, -1)",
    "two fused": "i, g, f, o = (self.x2h(x) + self.h2h(h)).split(h.shape[1], 1)",
    "parameters": "i, f, g, o = (x @ self.A + h @ self.B).unflatten(1, (4, -1)).unbind(1)",
    "stacked": "f, i, g, o = torch.einsum('bd,gdh->gbh', x, self.A) + torch.einsum('bk,gkh->gbh', h, self.B)",
}
CALLS = {"x, h, c": "", "x, state": "h, c = state", "inp, hx=None": "x, (h, c) = inp, hx"}
RETURNS = ["h, c", "(h, c)", "h, (h, c)", "[h, c]"]
CELLS = ["torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)", "torch.addcmul(f.sigmoid() * c, i.sigmoid(), "
    "g.tanh())",
         "c - c * torch.sigmoid(-f) + F.sigmoid(i) * (2 * torch.sigmoid(2 * g) - 1)"]  # fmt: skip


@pytest.mark.slow
@given(*map(st.sampled_from, (NAMES, [*LINES], [*CALLS], RETURNS, CELLS)), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_cell_is_refused(tmp_path, names, line, call, returned, cell, bias, is_double, is_state_first):
    inputs, hidden = (name.strip().partition("=")[0] for name in names.split(",")[1:3])
    source = f"""
class LSTMCell(nn.Module):
    def __init__({names}):
        super().__init__()
        D, H = {inputs}, {hidden}
        {LINES[line].format(bias=bias)}
        {"self.double()" if is_double else ""}

    def forward(self, {call}):
        {CALLS[call]}
        xh = torch.cat(({"h, x" if is_state_first else "x, h"}), dim=1)
        {PRODUCTS[line]}
        c = {cell}
        h = torch.sigmoid(o) * torch.tanh(c)
        return {returned}
"""
    report = check_source(tmp_path, source, "LSTMCell")
    assert report.passed, (source, report.mistakes)


SIMPLE = {
    "nn.Linear(D + H, H, bias={bias})": "self.W(torch.cat((x, h), 1))",
    "nn.Linear(H + D, H)": "self.W(torch.cat((h, x), -1))",
    "nn.ModuleList([nn.Linear(D, H, bias={bias}), nn.Linear(H, H)])": "self.W[0](x) + self.W[1](h)",
    "nn.ModuleDict({{'hh': nn.Linear(H, H), 'xh': nn.Linear(D, H)}})": "self.W['xh'](x) + self.W['hh'](h)",
    "nn.Parameter(torch.zeros(D + H, H))": "torch.einsum('bn,nh->bh', torch.cat((x, h), 1), self.W)",
    "nn.ParameterList([torch.zeros(D, H), torch.zeros(H, H), torch.zeros(H)])": "x @ self.W[0] + h @ self.W[1] + "
    "self.W[2]",
}
ACTIVATIONS = [
    "torch.tanh(z)",
    "z.tanh()",
    "nn.Tanh()(z)",
    "F.relu(z)",
    "2 * torch.sigmoid(2 * z) - 1",
    "z.clamp(min=0)",
]


@pytest.mark.slow
@given(*map(st.sampled_from, (NAMES, [*SIMPLE], ACTIVATIONS, ["h", "h, h", "(h,)"])), st.booleans(), st.booleans())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_simple_cell_is_refused(tmp_path, names, layer, activation, returned, bias, is_double):
    inputs, hidden = (name.strip().partition("=")[0] for name in names.split(",")[1:3])
    source = f"""
class RNNCell(nn.Module):
    def __init__({names}):
        super().__init__()
        D, H = {inputs}, {hidden}
        self.W = {layer.format(bias=bias)}
        {"self.double()" if is_double else ""}

    def forward(self, x, h):
        z = {SIMPLE[layer]}
        h = {activation}
        return {returned}
"""
    report = check_source(tmp_path, source, "RNNCell")
    assert report.passed, (source, report.mistakes)

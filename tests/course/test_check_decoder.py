"""The decoder with input feeding: a right one passes in every style, planted mistakes are caught and named."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anaphor.course.catalog import find_reference
from anaphor.mixers.base import Span
from anaphor.mixers.input_feeding import InputFeedingSpec
from course.students import check_source, names_of, plant

RIGHT = """
class InputFeedingDecoder(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.cell = nn.LSTMCell(input_size + hidden_size, hidden_size)
        self.linear_in = nn.Linear(hidden_size, hidden_size, bias=False)
        self.linear_out = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def forward(self, x, source, source_mask=None, state=None):
        if state is None:
            zero = x.new_zeros(len(x), self.hidden_size)
            state = (zero, zero, zero)
        h, c, feed = state
        outputs, maps = [], []
        for t in range(x.shape[1]):
            new = self.cell(torch.cat([x[:, t], feed], dim=-1), (h, c))
            before, (h, c) = h, new
            query = h
            scores = torch.bmm(source, self.linear_in(query)[:, :, None])[:, :, 0]
            if source_mask is not None:
                scores = scores.masked_fill(source_mask == 0, -torch.inf)
            weights = torch.softmax(scores, dim=-1)
            context = torch.bmm(weights[:, None], source)[:, 0]
            out = torch.tanh(self.linear_out(torch.cat([context, h], dim=-1)))
            feed = out
            outputs.append(out)
            maps.append(weights)
        return torch.stack(outputs, dim=1), torch.stack(maps, dim=1), (h, c, feed)
"""
STYLES = [
    plant(RIGHT, "self.cell = nn.LSTMCell(input_size + hidden_size, hidden_size)",
          "self.rnn = nn.LSTM(input_size + hidden_size, hidden_size, batch_first=True)").replace(
        "new = self.cell(torch.cat([x[:, t], feed], dim=-1), (h, c))",
        "_, new = self.rnn(torch.cat([x[:, t], feed], dim=-1)[:, None], (h[None], c[None]))\n"
        "            new = new[0][0], new[1][0]"),
    plant(plant(RIGHT, "[x[:, t], feed]", "[feed, x[:, t]]"), "[context, h]", "[h, context]"),
    plant(RIGHT, "hidden_size, bias=False)", "hidden_size)")
    .replace("self.linear_in = nn.Linear(hidden_size, hidden_size)", "self.W = nn.Parameter(torch.eye(hidden_size))")
    .replace("self.linear_in(query)", "(query @ self.W)"),
    plant(RIGHT, "torch.bmm(source, self.linear_in(query)[:, :, None])[:, :, 0]",
          "torch.einsum('bd,bsd->bs', query, self.linear_in(source))"),
    plant(RIGHT, "self.linear_in(query)", "query").replace(
        "        self.linear_in = nn.Linear(hidden_size, hidden_size, bias=False)\n", ""),
    plant(RIGHT, "forward(self, x, source, source_mask=None, state=None):",
          "forward(self, embedded, encoder_outputs):\n"
          "        x, source, source_mask, state = embedded, encoder_outputs, None, None")
    .replace(", torch.stack(maps, dim=1), (h, c, feed)", ""),
    plant(RIGHT, "source_mask=None, state=None", "lengths=None, state=None").replace(
        "        if state is None", "        source_mask = None if lengths is None else"
        " torch.arange(source.shape[1]) < lengths[:, None]\n        if state is None"),
    plant(RIGHT, "torch.stack(maps, dim=1), (h, c, feed)", "(h, c, feed)"),
    """
class InputFeedingDecoder(nn.Module):
    batch_first = False
    def __init__(self, d_in, hid):
        super().__init__()
        self.gates = nn.Linear(d_in + 2 * hid, 4 * hid)
        self.attn = nn.Linear(hid, hid, bias=False)
        self.out = nn.Linear(2 * hid, hid)
        self.hid = hid
    def forward(self, x, src):
        h = c = feed = torch.zeros(x.shape[1], self.hid).to(x)
        outs = []
        for token in x:
            i, f, g, o = self.gates(torch.cat([token, feed, h], -1)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            a = (self.attn(h) * src).sum(-1).softmax(0)
            feed = torch.tanh(self.out(torch.cat([(a[..., None] * src).sum(0), h], -1)))
            outs.append(feed)
        return torch.stack(outs)
""",
    """
class InputFeedingDecoder(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.a = nn.LSTMCell(input_size + hidden_size, hidden_size)
        self.b = nn.Linear(2 * hidden_size, hidden_size)
        self.s = nn.Parameter(torch.zeros(hidden_size, hidden_size))
    def load_reference(self, weights):
        with torch.no_grad():
            self.a.weight_ih.copy_(torch.cat([weights[f"W_{k}"] for k in "ifgo"]))
            self.a.weight_hh.copy_(torch.cat([weights[f"U_{k}"] for k in "ifgo"]))
            self.a.bias_ih.copy_(torch.cat([weights[f"b_{k}"] for k in "ifgo"]))
            self.a.bias_hh.zero_()
            self.b.weight.copy_(weights["out"])
            self.b.bias.zero_()
            self.s.copy_(weights["score"])
    def forward(self, x, source):
        h = c = feed = x.new_zeros(len(x), source.shape[-1])
        outs = []
        for t in range(x.shape[1]):
            h, c = self.a(torch.cat([x[:, t], feed], -1), (h, c))
            A = torch.einsum("bd,ed,bse->bs", h, self.s, source).softmax(-1)
            feed = torch.tanh(self.b(torch.cat([torch.einsum("bs,bsd->bd", A, source), h], -1)))
            outs.append(feed)
        return torch.stack(outs, 1)
""",
]  # fmt: skip
MISTAKES = [
    ("feed = out", "feed = feed", "input-feeding-missing"),
    ("feed = out", "feed = h", "feeds-hidden"),
    ("feed = out", "feed = context", "feeds-context"),
    ("feed = out", "feed = out.detach()", "feed-detached"),
    ("before, (h, c) = h, new", "before, (h, c) = h, (h, new[1])", {"unknown"}),
    ("feed], dim=-1), (h, c))", "feed], dim=-1))", "state-not-carried"),
    ("feed], dim=-1), (h, c))", "feed], dim=-1), (h, 0 * c))", "cell-not-carried"),
    ("feed], dim=-1), (h, c))", "feed], dim=-1), (h.detach(), c.detach()))", "state-detached"),
    ("query = h\n", "query = before\n", "query-of-the-step-before"),
    ("[:, :, None])[:, :, 0]\n", "[:, :, None])[:, :, 0] / math.sqrt(self.hidden_size)\n", "scores-scaled"),
    ("softmax(scores, dim=-1)", "softmax(scores, dim=0)", "softmax-over-the-batch"),
    ("torch.softmax(scores, dim=-1)", "torch.sigmoid(scores)", "sigmoid"),
    ("scores = scores.masked_fill(source_mask == 0, -torch.inf)", "pass", "mask-missing"),
    ("source_mask == 0", "source_mask == 1", "mask-inverted"),
    ("-torch.inf", "0", "mask-as-zero"),
    ("torch.bmm(weights[:, None], source)", "torch.bmm(weights[:, None], self.linear_in(source))", "context-of-keys"),
    ("torch.tanh(self.linear_out", "(self.linear_out", "tanh-missing"),
    ("outputs.append(out)", "outputs.append(h)", "returns-hidden"),
    ("outputs.append(out)", "outputs.append(context)", "returns-context"),
    ("(h, c, feed)\n", "(h, c, torch.zeros_like(feed))\n", "feed-not-in-the-state"),
    ("if state is None", "if True", "state-ignored"),
    ("feed = out", "feed = h = out", "hidden-replaced"),
    ("torch.tanh(self.linear_out", "torch.relu(self.linear_out", "relu-for-tanh"),
    ("feed = out", "feed = 2 * out", "unknown"),
    ("torch.bmm(weights[:, None], source)[:, 0]", "source.mean(1)", "context-unweighted"),
    ("            outputs.append(out)", "            x[:, t] = 0\n            outputs.append(out)", "raises"),
]  # fmt: skip
UNFED = (
    plant(RIGHT, "nn.LSTMCell(input_size + hidden_size", "nn.LSTMCell(input_size")
    .replace("torch.cat([x[:, t], feed], dim=-1)", "x[:, t]")
)  # fmt: skip


@pytest.mark.parametrize("source", [RIGHT, *STYLES])
def test_a_right_decoder_passes(source, tmp_path):
    report = check_source(tmp_path, source, "InputFeedingDecoder")
    assert report.passed, report.mistakes


def test_padding_carried_state_and_gradients_are_checked(tmp_path):
    checked = check_source(tmp_path, RIGHT, "InputFeedingDecoder").checked
    wanted = {"out with padding in the source", "out in two parts, with the state carried", "gradients of all weights"}
    assert wanted < {*checked}


@pytest.mark.parametrize(("old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_a_decoder_is_named(old, new, mistake, tmp_path):
    expected = mistake if isinstance(mistake, set) else {mistake}
    assert names_of(check_source(tmp_path, plant(RIGHT, old, new), "InputFeedingDecoder")) == expected


def test_a_decoder_that_has_no_input_for_what_is_fed(tmp_path):
    assert names_of(check_source(tmp_path, UNFED, "InputFeedingDecoder")) == {"input-feeding-missing"}


def test_the_reference_is_our_mixer():
    reference, sizes = find_reference("InputFeedingDecoder"), {"input_size": 5, "hidden_size": 7}
    mixer = InputFeedingSpec(width=5, width_out=7, source_width=7).build().double()
    cell = mixer.cells[0]
    weights = {
        "W": cell.weight_ih.view(4, 7, 12),
        "U": cell.weight_hh.view(4, 7, 7),
        "b": (cell.bias_ih + cell.bias_hh).view(4, 7),
        "score": mixer.score.weight,
        "out": mixer.out.weight,
    }
    rules = next(one for one in reference.designs if not one.is_query_multiplied)
    for case in reference.cases(sizes)[:2]:
        mask = case.inputs["source_mask"]
        lengths = None if mask is None else mask.sum(1).long()
        y, _ = mixer(
            case.inputs["x"], mixer.initial_state(case.inputs["source"], lengths), Span.whole(case.inputs["x"])
        )
        torch.testing.assert_close(reference.compute(weights, case.inputs, rules)["out"], y)


CELLS = {
    "cell": ("nn.LSTMCell(I + H, H)", "h, c = self.cell({read}, (h, c))"),
    "lstm": ("nn.LSTM(I + H, H)", "_, (h, c) = self.cell({read}[None], (h[None], c[None])); h, c = h[0], c[0]"),
    "own": ("nn.Linear(I + 2 * H, 4 * H)",
            "i, f, g, o = self.cell(torch.cat(({read}, h), -1)).chunk(4, -1); "
            "c = f.sigmoid() * c + i.sigmoid() * g.tanh(); h = o.sigmoid() * c.tanh()"),
}  # fmt: skip
READS = ["torch.cat((x[:, t], feed), -1)", "torch.cat((feed, x[:, t]), -1)", "torch.hstack((x[:, t], feed))"]
SCORES = {
    "nn.Linear(H, H, bias=False)": ["(self.score(h)[:, None] * src).sum(-1)",
                                    "torch.einsum('bd,bsd->bs', h, self.score(src))",
                                    "torch.bmm(src, self.score(h).unsqueeze(2)).squeeze(2)"],
    "nn.Parameter(torch.zeros(H, H))": ["torch.einsum('bd,de,bse->bs', h, self.score, src)",
                                        "(src @ self.score @ h[..., None])[..., 0]"],
}  # fmt: skip
HIDES = ["s.masked_fill(m == 0, -torch.inf)", "torch.where(m.bool(), s, -1e9)", "s + m.log()"]
CONTEXTS = ["(a[..., None] * src).sum(1)", "torch.bmm(a[:, None], src)[:, 0]", "torch.einsum('bs,bsd->bd', a, src)"]
PAIRS = ["torch.cat((k, h), -1)", "torch.cat((h, k), -1)"]


def write_decoder(draw):
    cell, step = draw(st.sampled_from([*CELLS.values()]))
    score = draw(st.sampled_from([*SCORES]))
    return f"""
class InputFeedingDecoder(nn.Module):
    def __init__(self, I, H):
        super().__init__()
        self.cell = {cell}
        self.score = {score}
        self.out = nn.Linear(2 * H, H, bias={draw(st.booleans())})

    def forward(self, x, src, src_mask=None, state=None):
        m = src_mask
        h, c, feed = state or 3 * [src.new_zeros(len(src), src.shape[-1])]
        hs, A = [], []
        for t in range(x.size(1)):
            {step.format(read=draw(st.sampled_from(READS)))}
            s = {draw(st.sampled_from(SCORES[score]))}
            s = s if m is None else {draw(st.sampled_from(HIDES))}
            a = s.softmax(1)
            k = {draw(st.sampled_from(CONTEXTS))}
            feed = self.out({draw(st.sampled_from(PAIRS))}).tanh()
            hs.append(feed)
            A.append(a)
        return torch.stack(hs, 1), torch.stack(A, 1), (h, c, feed)
"""


@pytest.mark.slow
@given(st.composite(write_decoder)())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_decoder_is_refused(tmp_path, source):
    report = check_source(tmp_path, source, "InputFeedingDecoder")
    assert report.passed, (source, report.mistakes)

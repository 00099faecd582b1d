"""xLSTM, RG-LRU, minGRU and minLSTM against transformers with the same weights, and against the formulas of their
papers. transformers computes parts of them in single precision; here it is made to use double precision throughout."""

import pytest
import torch
from torch.nn import functional as F

from anaphor.mixers import Span, mixer_spec

TIGHT = {"rtol": 1e-8, "atol": 1e-9}
HEADS, WIDTH, TOKENS = 2, 8, 19


@pytest.fixture
def double(monkeypatch):
    """What asks for single precision gets double."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)


@pytest.fixture
def x():
    return torch.randn(3, TOKENS, WIDTH, requires_grad=True)


def draw(name, **options):
    heads = {} if name.startswith("min") else {"heads": HEADS}
    mixer = mixer_spec(name, width=WIDTH, **heads, **options).build().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def run(mixer, x):
    return mixer(x, mixer.initial_state(x), Span.whole(x))[0]


def copy(pairs):
    with torch.no_grad():
        for ours, theirs in pairs:
            theirs.copy_(ours.reshape_as(theirs))


def assert_same(x, ours, theirs, pairs):
    """Outputs, gradient of the input, and gradients of weights, each of ours with the parts of it that they have."""
    torch.testing.assert_close(ours, theirs, **TIGHT)
    probe = torch.randn_like(ours)
    own = torch.autograd.grad((ours * probe).sum(), [x, *(weight for weight, _ in pairs)])
    other = torch.autograd.grad((theirs * probe).sum(), [x, *(part for _, parts in pairs for part in parts)])
    torch.testing.assert_close(own[0], other[0], **TIGHT)
    rest = iter(other[1:])
    for gradient, (_, parts) in zip(own[1:], pairs, strict=True):
        expected = torch.cat([next(rest).flatten() for _ in parts])
        torch.testing.assert_close(gradient.flatten(), expected, **TIGHT)


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_mlstm_is_that_of_transformers(double, x, mode):
    from transformers.models.xlstm.configuration_xlstm import xLSTMConfig
    from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

    config = xLSTMConfig(hidden_size=WIDTH, num_heads=HEADS, num_hidden_layers=1, chunk_size=TOKENS, mode=mode)
    theirs = xLSTMLayer(config).double().eval()
    mixer = draw("mlstm", qk_dim_factor=0.5, expand_v=2.0, chunk=8)
    gates = mixer.gate_weight.weight.split(HEADS), mixer.gate_bias.split(HEADS)
    qkv = mixer.project.weight.split(mixer.sizes)
    copy([*zip(qkv, (theirs.q.weight, theirs.k.weight, theirs.v.weight), strict=True),
          *zip(gates[0], (theirs.igate_preact.weight, theirs.fgate_preact.weight), strict=True),
          *zip(gates[1], (theirs.igate_preact.bias, theirs.fgate_preact.bias), strict=True)])  # fmt: skip
    pairs = [
        (mixer.output_gate.weight, [theirs.ogate_preact.weight]),
        (mixer.norm.weight, [theirs.multihead_norm.weight]),
        (mixer.out.weight, [theirs.out_proj.weight]),
    ]
    copy([(ours, parts[0]) for ours, parts in pairs])
    pairs += [
        (mixer.project.weight, [theirs.q.weight, theirs.k.weight, theirs.v.weight]),
        (mixer.gate_weight.weight, [theirs.igate_preact.weight, theirs.fgate_preact.weight]),
        (mixer.gate_bias, [theirs.igate_preact.bias, theirs.fgate_preact.bias]),
    ]
    assert_same(x, run(mixer, x), theirs(x)[0], pairs)


def test_rg_lru_is_the_recurrent_block_of_recurrent_gemma(double, x, monkeypatch):
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma as gemma

    # The default of its scan is the type that `torch.float32` was when it was defined.
    plain = gemma.RecurrentGemmaRglru._rnn_scan
    monkeypatch.setattr(
        gemma.RecurrentGemmaRglru, "_rnn_scan", lambda *given, **named: plain(*given, **named, acc_dtype=torch.float64)
    )
    config = gemma.RecurrentGemmaConfig(
        hidden_size=WIDTH, lru_width=12, num_attention_heads=HEADS, conv1d_width=4, num_hidden_layers=1
    )
    theirs = gemma.RecurrentGemmaRecurrentBlock(config, 0).double().eval()
    mixer, lru = draw("rg-lru", lru_width=12, short_conv=4, chunk=4), theirs.rg_lru
    gates = [part.split(6, dim=-1) for part in (mixer.gate_weight, mixer.gate_bias)]
    copy([*zip(gates[0], (lru.recurrent_gate_weight, lru.input_gate_weight), strict=True),
          *zip(gates[1], (lru.recurrent_gate_bias, lru.input_gate_bias), strict=True)])  # fmt: skip
    pairs = [
        (mixer.linear_x.weight, [theirs.linear_x.weight]),
        (mixer.linear_y.bias, [theirs.linear_y.bias]),
        (mixer.linear_x.bias, [theirs.linear_x.bias]),
        (mixer.linear_y.weight, [theirs.linear_y.weight]),
        (mixer.convolution.weight, [theirs.conv_1d.weight]),
        (mixer.convolution.bias, [theirs.conv_1d.bias]),
        (mixer.recurrent_param, [lru.recurrent_param]),
        (mixer.out.weight, [theirs.linear_out.weight]),
        (mixer.out.bias, [theirs.linear_out.bias]),
    ]
    copy([(ours, parts[0]) for ours, parts in pairs])
    positions = torch.arange(TOKENS).expand(3, -1)
    assert_same(x, run(mixer, x), theirs(x, positions, None, use_cache=False)[0], pairs)


def test_mlstm_without_its_stabilizer_is_the_formula_of_its_paper(x):
    mixer = draw("mlstm", chunk=8)
    q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in mixer.project(x).split(mixer.sizes, dim=-1))
    raw = 15 * torch.tanh((mixer.gate_weight(x) + mixer.gate_bias) / 15)
    i, f = raw[..., :HEADS].exp(), torch.sigmoid(raw[..., HEADS:])
    memory, total, outputs = torch.zeros(3, HEADS, 4, 4), torch.zeros(3, HEADS, 4), []
    for t in range(TOKENS):
        key = k[:, t] / 2
        memory = f[:, t, :, None, None] * memory + i[:, t, :, None, None] * key[..., None] * v[:, t, :, None]
        total = f[:, t, :, None] * total + i[:, t, :, None] * key
        divisor = torch.einsum("bhk,bhk->bh", total, q[:, t]).abs().clamp(min=1)
        outputs.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, t]) / divisor[..., None])
    h = F.layer_norm(torch.stack(outputs, 1), (4,), eps=1e-6).flatten(2) * mixer.norm.weight
    expected = mixer.out(h * torch.sigmoid(mixer.output_gate(x)))
    # Ours divides by 1e-6 more, as transformers does.
    torch.testing.assert_close(run(mixer, x), expected, rtol=1e-4, atol=1e-4)


def test_slstm_is_the_formula_of_its_paper(x):
    mixer = draw("slstm")
    r = mixer.recurrent.unflatten(-1, (4, -1))  # [H, K, 4, K]
    h = c = n = torch.zeros(3, HEADS, 4)
    outputs = []
    for t in range(TOKENS):
        raw = mixer.project(x[:, t]).unflatten(-1, (4, HEADS, -1)) + torch.einsum("bhk,hkgj->bghj", h, r)
        i, f, z, o = raw.unbind(1)
        i, f = i.exp(), torch.sigmoid(f)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        outputs.append(h)
    expected = F.layer_norm(torch.stack(outputs, 1), (4,), eps=1e-6).flatten(2) * mixer.norm.weight
    weights = [mixer.recurrent, mixer.project.weight, mixer.project.bias, mixer.norm.weight]
    assert_same(x, run(mixer, x), expected, [(one, [one]) for one in weights])


def test_min_gru_is_the_formula_of_its_paper(x):
    mixer = draw("min-gru", chunk=4)
    z, candidate = mixer.project(x).chunk(2, dim=-1)
    z, h, outputs = torch.sigmoid(z), torch.zeros(3, WIDTH), []
    for t in range(TOKENS):
        h = (1 - z[:, t]) * h + z[:, t] * candidate[:, t]
        outputs.append(h)
    assert_same(x, run(mixer, x), torch.stack(outputs, 1), [(one, [one]) for one in mixer.parameters()])


def test_min_lstm_is_the_formula_of_its_paper(x):
    mixer = draw("min-lstm", chunk=4)
    f, i, candidate = mixer.project(x).chunk(3, dim=-1)
    f, i = torch.sigmoid(f), torch.sigmoid(i)
    h, outputs = torch.zeros(3, WIDTH), []
    for t in range(TOKENS):
        h = (f[:, t] * h + i[:, t] * candidate[:, t]) / (f[:, t] + i[:, t])
        outputs.append(h)
    assert_same(x, run(mixer, x), torch.stack(outputs, 1), [(one, [one]) for one in mixer.parameters()])

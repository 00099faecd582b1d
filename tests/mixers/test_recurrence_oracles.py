"""The recurrences against the implementations of transformers with the same weights, and against the formulas of their
papers. transformers computes parts of them in single precision; here it is made to use double precision throughout."""

import math

import pytest
import torch
from torch.nn import functional as F

from anaphor.mixers import Span, mixer_spec
from anaphor.mixers.recurrences.matrix_state import Steps, chunkwise, initial_memory, spread_writes
from anaphor.mixers.recurrences.vector_state import scan

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
    mixer = mixer_spec(name, width=WIDTH, heads=HEADS, **options).build().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def run(mixer, x):
    return mixer(x, mixer.initial_state(x), Span.whole(x))[0]


def assert_same(x, ours, theirs, pairs):
    """Outputs, gradient of the input, and gradients of weights, each ours with theirs in the same form."""
    torch.testing.assert_close(ours, theirs, **TIGHT)
    probe = torch.randn_like(ours)
    one, two = (torch.autograd.grad((y * probe).sum(), [x, *weights]) for y, weights in zip(
        (ours, theirs), zip(*pairs, strict=True), strict=True))  # fmt: skip
    for mine, other in zip(one, two, strict=True):
        torch.testing.assert_close(mine.flatten(), other.flatten(), **TIGHT)


def test_mamba2_is_that_of_transformers(double, x):
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = Mamba2Config(
        hidden_size=WIDTH, num_heads=HEADS, head_dim=8, expand=2, state_size=6, n_groups=1, conv_kernel=4, chunk_size=8,
        use_bias=False, layer_norm_epsilon=1e-5, num_hidden_layers=1,
    )  # fmt: skip
    theirs, mixer = Mamba2Mixer(config, 0).double().eval(), draw("mamba2", d_state=6, short_conv=4, chunk=8)
    pairs = [
        (mixer.project.weight, theirs.in_proj.weight),
        (mixer.convolution.weight, theirs.conv1d.weight),
        (mixer.convolution.bias, theirs.conv1d.bias),
        (mixer.A_log, theirs.A_log),
        (mixer.dt_bias, theirs.dt_bias),
        (mixer.D, theirs.D),
        (mixer.norm.weight, theirs.norm.weight),
        (mixer.out.weight, theirs.out_proj.weight),
    ]
    with torch.no_grad():
        for ours, other in pairs:
            other.copy_(ours.view_as(other))
    assert_same(x, run(mixer, x), theirs(x), pairs)


def test_gated_delta_is_that_of_qwen3_next(double, x):
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = Qwen3NextConfig(
        hidden_size=WIDTH, linear_num_key_heads=HEADS, linear_num_value_heads=HEADS, linear_key_head_dim=4,
        linear_value_head_dim=8, linear_conv_kernel_dim=4, rms_norm_eps=1e-5, num_hidden_layers=1,
        layer_types=["linear_attention"],
    )  # fmt: skip
    theirs = Qwen3NextGatedDeltaNet(config, 0).double().eval()
    mixer = draw("gated-delta", expand_v=2.0, short_conv=4, chunk=8)
    pairs = [
        (mixer.convolution.weight, theirs.conv1d.weight),
        (mixer.A_log, theirs.A_log),
        (mixer.dt_bias, theirs.dt_bias),
        (mixer.norm.weight, theirs.norm.weight),
        (mixer.out.weight, theirs.out_proj.weight),
    ]
    with torch.no_grad():
        for ours, other in pairs:
            other.copy_(ours.view_as(other))
        by_head = [part.unflatten(0, (HEADS, -1)) for part in mixer.project.weight.split(mixer.sizes)]
        together = torch.cat((*by_head, mixer.gate.weight.unflatten(0, (HEADS, -1))), dim=1)  # q, k, v, z of each head
        theirs.in_proj_qkvz.weight.copy_(together.flatten(0, 1))
        both = torch.stack((mixer.beta.weight, mixer.decay_up.weight), dim=1)
        theirs.in_proj_ba.weight.copy_(both.flatten(0, 1))
    assert_same(x, run(mixer, x), theirs(x), pairs)


def test_the_delta_rule_with_decays_by_channel_is_that_of_kimi_linear(double):
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention

    q, k, v = (torch.randn(2, 11, 3, size, requires_grad=True) for size in (4, 4, 5))
    g, beta = (-torch.rand(2, 11, 3, 4)).requires_grad_(), torch.rand(2, 11, 3, requires_grad=True)
    theirs, _ = chunk_kimi_delta_attention(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
    unit = [part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (q, k)]
    ours_q, ours_k, ours_v, ours_g = (part.transpose(1, 2) for part in (unit[0] / 2, unit[1], v, g))
    steps = Steps(ours_q, beta.transpose(1, 2)[..., None] * ours_k, ours_v, ours_g, b=ours_k)
    ours = chunkwise(steps, initial_memory(steps), 8)[0].transpose(1, 2)
    assert_same(q, ours, theirs, [(part, part) for part in (k, v, g, beta)])


def heads_of(x, count=HEADS):
    return x.unflatten(-1, (count, -1))


def rms_norm(y, weight):
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * weight


def test_retention_is_the_formula_of_its_paper(x):
    mixer = draw("retention", chunk=8)
    q, k, v = (heads_of(part) for part in mixer.project(x).split(mixer.sizes, dim=-1))
    angles = torch.arange(TOKENS)[:, None] * 10000.0 ** -(torch.arange(2) / 2)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    q, k = (torch.complex(*part.chunk(2, dim=-1)) * turn for part in (q, k))
    gamma = 1 - 2.0 ** (-5 - torch.arange(HEADS))
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    decay = torch.where(distance >= 0, gamma[:, None, None] ** distance, 0.0)
    weights = torch.einsum("bthk,bshk->bhts", q, k.conj()).real / math.sqrt(4) * decay
    y = torch.einsum("bhts,bshv->bthv", weights, v)
    expected = mixer.out(rms_norm(y, mixer.norm.weight).flatten(2) * F.silu(mixer.gate(x)))
    assert_same(x, run(mixer, x), expected, [(mixer.project.weight, mixer.project.weight)])


def test_gla_is_the_formula_of_its_paper(x):
    mixer = draw("gla", chunk=8)
    q, k, v = (heads_of(part) for part in mixer.project(x).split(mixer.sizes, dim=-1))
    alpha = heads_of(torch.sigmoid(mixer.decay_up(mixer.decay_down(x)))) ** (1 / 16)
    memory, outputs = torch.zeros(3, HEADS, 4, 4), []
    for t in range(TOKENS):
        memory = alpha[:, t, :, :, None] * memory + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, t] / 2))
    y = rms_norm(torch.stack(outputs, 1), mixer.norm.weight).flatten(2)
    weights = [mixer.project.weight, mixer.decay_up.bias]
    assert_same(x, run(mixer, x), mixer.out(y * F.silu(mixer.gate(x))), [(one, one) for one in weights])


@pytest.mark.parametrize("count", [1, 3])
def test_delta_is_a_product_of_reflections(x, count):
    mixer = draw("delta", num_householder=count, allow_neg_eigval=True, chunk=8)
    q, k, v = F.silu(mixer.project(x)).split(mixer.sizes, dim=-1)
    q, k, v = heads_of(q), heads_of(k, count * HEADS), heads_of(v, count * HEADS)
    q, k = F.normalize(q, dim=-1, eps=0), F.normalize(k, dim=-1, eps=0)
    k, v = k.unflatten(2, (count, HEADS)), v.unflatten(2, (count, HEADS))
    beta = (2 * torch.sigmoid(mixer.beta(x))).unflatten(-1, (count, HEADS))
    memory, outputs = torch.zeros(3, HEADS, 4, 4), []
    for t in range(TOKENS):
        for step in range(count):
            key, strength = k[:, t, step], beta[:, t, step, :, None, None]
            reflection = torch.eye(4) - strength * key[..., :, None] * key[..., None, :]
            memory = reflection @ memory + strength * key[..., :, None] * v[:, t, step, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, t] / 2))
    expected = mixer.out(rms_norm(torch.stack(outputs, 1), mixer.norm.weight).flatten(2))
    ours = run(mixer, x)
    # Ours adds 1e-6 to the square of a length, so that a vector of zeros stays one.
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def test_rwkv7_is_the_formula_of_its_paper(x):
    mixer = draw("rwkv7", chunk=8)
    before = F.pad(x[:, :-1], (0, 0, 1, 0))
    mixed = {name: x + (before - x) * share for name, share in mixer.mixture.items()}
    r, k, v = mixer.receptance(mixed["r"]), mixer.key(mixed["k"]), mixer.value(mixed["v"])
    w = torch.exp(-math.exp(-0.5) * torch.sigmoid(mixer.decay_map.up(torch.tanh(mixer.decay_map.down(mixed["w"])))))
    a = torch.sigmoid(mixer.rate_map.up(mixer.rate_map.down(mixed["a"])))
    g = mixer.gate_map.up(torch.sigmoid(mixer.gate_map.down(mixed["g"])))
    kappa = F.normalize(heads_of(k * mixer.k_k), dim=-1)
    k = k * (1 + (a - 1) * mixer.k_a)
    r, k, v, w, a = (heads_of(part) for part in (r, k, v, w, a))
    memory, outputs = torch.zeros(3, HEADS, 4, 4), []  # values by keys, as in the paper
    for t in range(TOKENS):
        key = kappa[:, t]
        transition = torch.diag_embed(w[:, t]) - key[..., :, None] * (a[:, t] * key)[..., None, :]
        memory = memory @ transition + v[:, t, :, :, None] * k[:, t, :, None, :]
        outputs.append(torch.einsum("bhvk,bhk->bhv", memory, r[:, t]))
    y = torch.stack(outputs, 1).flatten(2).flatten(0, 1)
    y = mixer.norm(y).view(3, TOKENS, WIDTH) + ((r * k * heads_of(mixer.r_k)).sum(-1, keepdim=True) * v).flatten(2)
    weights = [mixer.key.weight, mixer.k_k, mixer.r_k, mixer.mixture["w"], mixer.decay_map.up.bias]
    assert_same(x, run(mixer, x), mixer.out(y * g), [(one, one) for one in weights])


def test_mamba2_turns_its_state_by_angles_that_add_up(x):
    """With angles a state of pairs is one of complex numbers, multiplied by exp((-A + iθ) Δ)."""
    mixer = draw("mamba2", d_state=6, data_dependent_rope=True, chunk=8)
    gate, xbc, dt = mixer.project(x).split(mixer.sizes, dim=-1)
    v, b, c = F.silu(xbc).split((16, 6, 6), dim=-1)
    dt, v = F.softplus(dt + mixer.dt_bias), heads_of(v)
    b, c = (torch.complex(*part.chunk(2, dim=-1)) for part in (b, c))
    memory, outputs = torch.zeros(3, HEADS, 3, 8, dtype=torch.complex128), []
    for t in range(TOKENS):
        # Ours rotates B and C forwards and leaves the state: C conj(S) turns backwards here.
        rate = torch.complex(-mixer.A_log.exp()[:, None].expand(-1, 3), torch.zeros(HEADS, 3))
        rate = rate + 1j * mixer.rope(x[:, t])[:, None]
        memory = torch.exp(rate * dt[:, t, :, None])[..., None] * memory
        memory = memory + (dt[:, t, :, None] * b[:, t, None].conj())[..., None] * v[:, t, :, None]
        outputs.append(torch.einsum("bhnp,bn->bhp", memory, c[:, t]).real + mixer.D[:, None] * v[:, t])
    y = torch.stack(outputs, 1).flatten(2) * F.silu(gate)
    expected = mixer.out(mixer.norm(y))
    torch.testing.assert_close(run(mixer, x).detach(), expected.detach(), **TIGHT)


FLA = ("retention", "gla", "mamba2", "delta", "gated-delta", "channel-delta", "product")


@pytest.mark.parametrize("name", FLA)
def test_the_chunks_are_the_naive_functions_of_fla(name):
    """Where its package `fla-core` is installed: it computes in single precision."""
    pytest.importorskip("fla.ops", reason="fla-core is not installed")
    from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.kda.naive import naive_recurrent_kda
    from fla.ops.retention.naive import naive_retention
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    writes = 3 if name == "product" else 1
    q, k, v = torch.randn(2, 20, 3, 4), torch.randn(2, 20 * writes, 3, 4), torch.randn(2, 20 * writes, 3, 5)
    k, beta = F.normalize(k, dim=-1), 2 * torch.rand(2, 20 * writes, 3)
    g = -torch.rand(2, 20, 3, 4) if name in ("gla", "channel-delta") else -torch.rand(2, 20, 3)
    if name == "retention":
        theirs = naive_retention(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2)
        g = torch.log1p(-(2.0 ** (-5 - torch.arange(3)))).expand(2, 20, 3)
    elif name == "gla":
        theirs, _ = naive_recurrent_gla(q, k, v, g)
    elif name == "mamba2":
        theirs, _ = naive_recurrent_simple_gla(q, k, v, g)
    elif name == "gated-delta":
        theirs = naive_recurrent_gated_delta_rule(q, k, v, beta, g)[0]
    elif name == "channel-delta":
        theirs = naive_recurrent_kda(q, k, v, g, beta)[0]
    else:
        g = None if name == "delta" else g
        theirs = naive_recurrent_gated_delta_product(q, k, v, g, beta, 0.5, num_householder=writes)[0]
    log_decay = None if g is None else (g if g.ndim == 4 else g[..., None]).transpose(1, 2)
    ours_q, ours_k, ours_v = (part.transpose(1, 2) for part in (q / 2, k, v))
    is_delta = name not in ("retention", "gla", "mamba2")
    written = ours_k * beta.transpose(1, 2)[..., None] if is_delta else ours_k
    steps = spread_writes(Steps(ours_q, written, ours_v, log_decay, b=ours_k if is_delta else None))
    ours = chunkwise(steps, initial_memory(steps), 8)[0][:, :, writes - 1 :: writes].transpose(1, 2)
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=1e-4, atol=1e-5)


def test_the_general_correction_of_rwkv7_is_the_naive_function_of_fla():
    """It reads the memory before the decay, ours reads it after."""
    pytest.importorskip("fla.ops", reason="fla-core is not installed")
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence

    q, k, v = (torch.randn(2, 3, 20, size) for size in (4, 4, 5))
    removal, rate, g = F.normalize(torch.randn(2, 3, 20, 4), dim=-1), torch.rand(2, 3, 20, 4), -torch.rand(2, 3, 20, 4)
    theirs, memory = dplr_recurrence(*(part.float() for part in (q, k, v, -removal, removal * rate, g)))
    steps = Steps(q / 2, k, v, g, b=-removal * (-g).exp(), a=removal * rate)
    ours, ours_memory = chunkwise(steps, initial_memory(steps), 8)
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours_memory.float(), memory.float(), rtol=1e-4, atol=1e-5)


def test_the_scan_of_vectors_is_the_naive_function_of_fla():
    pytest.importorskip("fla.ops", reason="fla-core is not installed")
    from fla.ops.hgrn.naive import naive_recurrent_hgrn

    added, log_decay, hidden = torch.randn(2, 20, 6), -torch.rand(2, 20, 6), torch.randn(2, 6)
    theirs, last = naive_recurrent_hgrn(added.float(), log_decay.float(), hidden.float(), output_final_state=True)
    ours = scan(log_decay.exp(), added, hidden, 4)
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[:, -1].float(), last.float(), rtol=1e-4, atol=1e-5)

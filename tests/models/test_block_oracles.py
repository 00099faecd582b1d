"""Models of today's parts against transformers with the same weights: grouped heads, norms, gates, parallel residuals.
transformers computes parts of them in single precision; here it is made to use double precision throughout."""

import pytest
import torch

from anaphor.models import LanguageModelSpec

TIGHT = {"rtol": 1e-8, "atol": 1e-9}
VOCABULARY, WIDTH, HIDDEN, LAYERS = 23, 16, 20, 2
STACK = {"vocabulary": VOCABULARY, "width": WIDTH, "layers": LAYERS, "position": "rotary"}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
         "num_attention_heads": 4, "attn_implementation": "eager"}  # fmt: skip
GATED = {"norm_kind": "rmsnorm", "norm_eps": 1e-6, "activation": "swiglu", "feedforward": HIDDEN, "heads": 4,
         "feedforward_bias": False, "bias": False, "tied": False}  # fmt: skip
LLAMA = {
    "embedder.embedding": ["model.embed_tokens"],
    "layers.norm": ["model.norm"],
    "layers.{}.mixer_sublayer.norm": ["model.layers.{}.input_layernorm"],
    "layers.{}.mixer.project": [f"model.layers.{{}}.self_attn.{part}_proj" for part in "qkv"],
    "layers.{}.mixer.out": ["model.layers.{}.self_attn.o_proj"],
    "layers.{}.mixer.q_norm": ["model.layers.{}.self_attn.q_norm"],
    "layers.{}.mixer.k_norm": ["model.layers.{}.self_attn.k_norm"],
    "layers.{}.feedforward_sublayer.norm": ["model.layers.{}.post_attention_layernorm"],
    "layers.{}.feedforward.gate": ["model.layers.{}.mlp.gate_proj"],
    "layers.{}.feedforward.up": ["model.layers.{}.mlp.up_proj"],
    "layers.{}.feedforward.down": ["model.layers.{}.mlp.down_proj"],
    "head.own": ["lm_head.weight"],
}
NEOX = {
    "embedder.embedding": ["gpt_neox.embed_in"],
    "layers.norm": ["gpt_neox.final_layer_norm"],
    "layers.{}.mixer_sublayer.norm": ["gpt_neox.layers.{}.input_layernorm"],
    "layers.{}.mixer.project": ["gpt_neox.layers.{}.attention.query_key_value"],
    "layers.{}.mixer.out": ["gpt_neox.layers.{}.attention.dense"],
    "layers.{}.feedforward_sublayer.norm": ["gpt_neox.layers.{}.post_attention_layernorm"],
    "layers.{}.feedforward.up": ["gpt_neox.layers.{}.mlp.dense_h_to_4h"],
    "layers.{}.feedforward.down": ["gpt_neox.layers.{}.mlp.dense_4h_to_h"],
    "head.own": ["lm_head.weight"],
}
GPTJ = {
    "embedder.embedding": ["transformer.wte"],
    "layers.norm": ["transformer.ln_f"],
    "layers.{}.mixer_sublayer.norm": ["transformer.h.{}.ln_1"],
    "layers.{}.mixer.project": [f"transformer.h.{{}}.attn.{part}_proj" for part in "qkv"],
    "layers.{}.mixer.out": ["transformer.h.{}.attn.out_proj"],
    "layers.{}.feedforward.up": ["transformer.h.{}.mlp.fc_in"],
    "layers.{}.feedforward.down": ["transformer.h.{}.mlp.fc_out"],
    "head.own": ["lm_head.weight"],
    "head.bias": ["lm_head.bias"],
}


@pytest.fixture
def double(monkeypatch):
    """What asks for single precision gets double."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)


def by_head(tensor, heads=4):
    """Rows of query, key and value of each head together, in our order."""
    return tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def in_halves(tensor, heads=4, rotated=2):
    """Rows of queries or keys whose rotated pairs are neighbors, with the pairs half of their number apart."""
    turned, rest = tensor.unflatten(0, (heads, -1)).split((rotated, tensor.shape[0] // heads - rotated), 1)
    return torch.cat((turned[:, 0::2], turned[:, 1::2], rest), 1).flatten(0, 1)


def join(tensors):
    """Their tensors, or gradients of these, as our parameter: one below the other."""
    return torch.cat(tensors)


def join_neox(tensors):
    """The projection has query, key and value of each head together."""
    (tensor,) = tensors
    return by_head(tensor) if len(tensor) == 3 * WIDTH else tensor  # no other has so many rows


def join_gptj(tensors):
    """Rotated pairs are neighbors."""
    is_projection = len(tensors) == 3
    return torch.cat([in_halves(tensors[0]), in_halves(tensors[1]), tensors[2]]) if is_projection else tensors[0]


def assert_same(spec, peer, names, join=join):
    """Logits and gradients of all weights are those of the peer, with the same weights."""
    theirs = dict(peer.named_parameters())
    for name, parameter in theirs.items():
        torch.nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.3)
    ours, copies = spec.build().eval(), {}
    for name, parameter in ours.named_parameters():
        number = next((part for part in name.split(".") if part.isdigit()), "")
        stem = name.replace(f".{number}.", ".{}.", 1) if number else name
        part, _, end = stem.rpartition(".")
        found = names[stem] if stem in names else [f"{one}.{end}" for one in names[part]]
        copies[name] = [one.format(number) for one in found]
        with torch.no_grad():
            parameter.copy_(join([theirs[one] for one in copies[name]]))
    assert {one for found in copies.values() for one in found} == set(theirs)
    tokens = torch.randint(VOCABULARY, (2, 11))
    logits, _ = ours(tokens)
    expected = peer.eval()(tokens).logits
    torch.testing.assert_close(logits, expected, **TIGHT)
    probe = torch.randn_like(logits)
    (logits * probe).sum().backward()
    (expected * probe).sum().backward()
    for name, parameter in ours.named_parameters():
        gradient = join([theirs[one].grad for one in copies[name]])
        torch.testing.assert_close(parameter.grad, gradient, **TIGHT, msg=lambda text, name=name: f"{name}: {text}")


def library():
    return pytest.importorskip("transformers", reason="`pip install transformers` for this oracle")


ROPES = {
    "plain": ({}, {"rope_type": "default", "rope_theta": 10_000.0}),
    "base": ({"rope_theta": 500_000.0}, {"rope_type": "default", "rope_theta": 500_000.0}),
    "llama3": (
        {"rope_theta": 500_000.0, "rope_scaling": "llama3(32, 8, 1, 4)"},
        {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "original_max_position_embeddings": 8,
         "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "yarn": (
        {"rope_scaling": "yarn(4, 8)"},
        {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 8},
    ),
}  # fmt: skip


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_llama(double, kv_heads, rope):
    options, parameters = ROPES[rope]
    config = library().LlamaConfig(
        **SIZES, num_key_value_heads=kv_heads, head_dim=6, rope_parameters=parameters, rms_norm_eps=1e-6,
        max_position_embeddings=32,
    )  # fmt: skip
    spec = LanguageModelSpec(**STACK, **GATED, kv_heads=kv_heads, head_width=6, **options)
    assert_same(spec, library().LlamaForCausalLM(config), LLAMA)


def test_qwen2_has_biases_of_queries_keys_and_values_alone(double):
    config = library().Qwen2Config(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-6)
    spec = LanguageModelSpec(**STACK, **{**GATED, "bias": True}, out_bias=False, kv_heads=2, head_width=4)
    assert_same(spec, library().Qwen2ForCausalLM(config), LLAMA)


def test_qwen3_has_norms_of_queries_and_keys(double):
    config = library().Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6)
    spec = LanguageModelSpec(**STACK, **GATED, kv_heads=2, head_width=8, qk_norm="rmsnorm")
    assert_same(spec, library().Qwen3ForCausalLM(config), LLAMA)


def test_smollm3_has_layers_without_positions(double):
    config = library().SmolLM3Config(
        **SIZES, num_key_value_heads=2, no_rope_layers=[1, 0], pad_token_id=None, bos_token_id=None,
        eos_token_id=None, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )  # fmt: skip
    spec = LanguageModelSpec(**STACK, **GATED, kv_heads=2, rope_theta=5000.0, layer_positions=("rotary", "none"))
    assert_same(spec, library().SmolLM3ForCausalLM(config), LLAMA)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_gpt_neox(double, parallel, part):
    config = library().GPTNeoXConfig(
        **SIZES, use_parallel_residual=parallel, hidden_act="gelu",
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": part},
    )  # fmt: skip
    spec = LanguageModelSpec(
        **STACK, heads=4, feedforward=HIDDEN, tied=False, rope_theta=1000.0,
        partial_rotary_factor=part, parallel_residual="two-norms" if parallel else "none",
    )  # fmt: skip
    assert_same(spec, library().GPTNeoXForCausalLM(config), NEOX, join_neox)


def test_gpt_j_has_one_norm_for_both(double):
    config = library().GPTJConfig(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_inner=HIDDEN, rotary_dim=2, n_positions=32,
        attn_implementation="eager",
    )  # fmt: skip
    spec = LanguageModelSpec(
        **STACK, heads=4, feedforward=HIDDEN, activation="gelu-tanh", tied=False, bias=False,
        head_bias=True, partial_rotary_factor=0.5, parallel_residual="one-norm",
    )  # fmt: skip
    assert_same(spec, library().GPTJForCausalLM(config), GPTJ, join_gptj)

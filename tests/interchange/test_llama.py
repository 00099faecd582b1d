"""Llama, Mistral, Qwen2, Qwen3 and Mamba-2 of `transformers` in our models and back: logits, hidden states and
gradients are those of its own classes, and what was converted is exported byte by byte.

transformers computes norms, angles and scans in single precision; here it is made to use double precision throughout.
"""

import json

import pytest
import torch
from peers import DECODERS, SIZES, VOCABULARY, build_decoder, layer_outputs, library, load

from anaphor.errors import ConfigError, DataError
from anaphor.generate import Sampler, generate
from anaphor.interchange import Pretrained, read_pretrained, write_pretrained
from anaphor.models import preset


@pytest.fixture
def double(monkeypatch):
    """What asks for single precision gets double."""
    library()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    for name in ("float", "float32"):
        monkeypatch.setattr(torch, name, torch.float64)


def save(folder, kind, size="small", **more):
    build_decoder(kind, size, **more).save_pretrained(folder)
    return folder


def draw_tokens():
    return torch.randint(VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(2))


def close(ours, theirs, tolerance=1e-9):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", DECODERS)
def test_states_logits_and_gradients_are_those_of_transformers(double, tmp_path, kind, size):
    peer, ours = build_decoder(kind, size), read_pretrained(save(tmp_path, kind, size), dtype=torch.float64).model
    tokens = draw_tokens()
    given = peer(input_ids=tokens, output_hidden_states=True)
    with layer_outputs(ours) as found:
        logits, _ = ours(tokens)
    # The others have the embeddings, and the last layer behind the norm alone.
    found = [*(found[1:] if kind == "mamba2" else found[:-1]), ours.layers.norm(found[-1])]
    assert len(found) == len(given.hidden_states)
    for mine, other in zip(found, given.hidden_states, strict=True):
        close(mine, other)
    close(logits, given.logits)

    for one in (logits, given.logits):
        one.square().sum().backward()
    with torch.no_grad():  # gradients of the peer in place of its weights take the same way to our names
        for parameter in peer.parameters():
            parameter.copy_(parameter.grad)
    peer.save_pretrained(tmp_path / "gradients")
    gradients = read_pretrained(tmp_path / "gradients", dtype=torch.float64).model.state_dict()
    for name, parameter in ours.named_parameters():
        close(parameter.grad, gradients[name], 1e-8)


@pytest.mark.parametrize("kind", DECODERS)
def test_single_precision_differs_by_its_rounding_alone(single_precision, tmp_path, kind):
    folder = save(tmp_path, kind, "large")
    peer, ours = load(folder, torch.float32), read_pretrained(folder).model
    tokens = draw_tokens()
    with torch.no_grad():
        close(ours(tokens)[0], peer(input_ids=tokens).logits, 1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_what_was_converted_is_exported_byte_by_byte(tmp_path, kind):
    folder = save(tmp_path / "peer", kind, "middle")
    found = read_pretrained(folder, dtype=torch.float64)
    write_pretrained(found, tmp_path / "exported")
    before, after = (path / "model.safetensors" for path in (folder, tmp_path / "exported"))
    assert before.read_bytes() == after.read_bytes()
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    theirs = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == theirs["model_type"].replace("mistral", "llama")  # they compute the same
    assert theirs.get("rope_parameters", {}).items() <= config.get("rope_parameters", {}).items()
    assert read_pretrained(tmp_path / "exported", dtype=torch.float64).model.spec == found.model.spec
    tokens = draw_tokens()
    exported, original = (load(path)(input_ids=tokens).logits for path in (tmp_path / "exported", folder))
    close(exported, original, 1e-6 if kind == "mamba2" else 0)  # the length of the chunks of a scan is no weight


@pytest.mark.parametrize("kind", DECODERS)
def test_greedy_generation_is_that_of_transformers_with_its_cache(single_precision, tmp_path, kind):
    folder = save(tmp_path, kind, "middle")
    peer, ours = load(folder, torch.float32), read_pretrained(folder).model
    prompt = draw_tokens()[0, :5].tolist()
    expected = peer.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 5, dtype=torch.long), do_sample=False, max_new_tokens=20,
        min_new_tokens=20, pad_token_id=0, use_cache=True,
    )  # fmt: skip
    assert list(generate(ours, prompt, 20, Sampler(temperature=0))) == expected[0, 5:].tolist()


def test_older_files_have_the_base_of_rotary_positions_beside_their_scaling(tmp_path):
    folder = save(tmp_path, "llama 3.1")
    spec = read_pretrained(folder).model.spec
    config = json.loads((folder / "config.json").read_text())
    rotary = config.pop("rope_parameters")
    theta = rotary.pop("rope_theta")
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": theta, "rope_scaling": rotary}))
    assert read_pretrained(folder).model.spec == spec
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": theta, "rope_scaling": None}))
    assert read_pretrained(folder).model.spec.rope_theta == theta


def edit(folder, **values):
    file = folder / "config.json"
    config = {key: value for key, value in (json.loads(file.read_text()) | values).items() if value is not ...}
    file.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu' cannot be converted"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic' cannot be"),
        ("llama", {"rope_parameters": {"rope_type": ["linear"]}}, r"rope_type=\['linear'\] cannot be converted"),
        ("llama", {"rope_parameters": ["default"]}, r"rope_parameters=\['default'\] must hold names and values"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale=1.0 cannot be"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor must be a number"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 cannot be converted"),
        ("llama", {"num_key_value_heads": 3}, "kv_heads=3 does not divide heads=2"),
        ("llama", {"num_attention_heads": 0}, "heads=0"),
        ("llama", {"head_dim": 5}, "head_width must be even"),
        ("llama", {"head_dim": 2**60}, "the model would have more than"),
        ("llama", {"hidden_size": 2**60}, "the model would have more than"),
        ("llama", {"vocab_size": 41}, r"embed_tokens.weight is \[40, 8\], but the configuration implies \[41, 8\]"),
        ("mistral", {"sliding_window": 4096}, "sliding_window=4096 cannot be converted"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window=True cannot be converted"),
        ("mamba2", {"n_groups": 2}, "n_groups=2 cannot be converted"),
        ("mamba2", {"n_groups": ...}, "n_groups=8 cannot be converted"),
        ("mamba2", {"expand": 3}, "expand=3 cannot be converted"),
        ("mamba2", {"use_bias": True}, "use_bias=True cannot be converted"),
        ("mamba2", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon=1e-06 cannot be converted"),
        ("mamba2", {"time_step_limit": [0.1, 1.0]}, "time_step_limit"),
        ("mamba2", {"head_dim": 4}, "do not have 2 × 8 dimensions together"),
    ],
)  # fmt: skip
def test_what_our_models_do_not_have_is_refused_in_one_line(tmp_path, kind, values, message):
    with pytest.raises(DataError, match=message) as caught:
        read_pretrained(edit(save(tmp_path, kind), **values))
    assert "\n" not in str(caught.value)


def test_a_model_of_our_own_with_these_parts_has_the_same_logits_in_transformers(double, tmp_path):
    options = {"kv_heads": 2, "head_width": 6, "rope_theta": 300.0, "rope_scaling": "linear(4)", "bias": False}
    parts = {"norm_kind": "rmsnorm", "activation": "swiglu", "position": "rotary", "feedforward_bias": False}
    model = preset("transformer", vocabulary=9, width=16, layers=2, heads=4, feedforward=20, **options, **parts).build()
    write_pretrained(Pretrained(model.eval()), tmp_path)
    peer = load(tmp_path)
    assert type(peer).__name__ == "LlamaForCausalLM"
    tokens = torch.randint(9, (2, 13))
    close(model(tokens)[0], peer(input_ids=tokens).logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": "ntk(2)"}, r"its rope_scaling is 'ntk\(2\)'"),
        ({"activation": "gelu"}, "its activation is 'gelu', and the stock class has 'swiglu'"),
        ({"window": 4}, "its window is 4"),
        ({"softcap": 30.0}, "its softcap is 30.0"),
        ({"normalize": "softmax-sink"}, "its normalize is 'softmax-sink'"),
        ({"layer_positions": ("rotary",)}, "its layers differ: layer_positions"),
        ({"layer_windows": (8,)}, "its layers differ: layer_windows"),
        ({"parallel_residual": "two-norms"}, "its parallel_residual is 'two-norms'"),
        ({"out_bias": True}, "its attention has biases in one of its projections only"),
        ({"partial_rotary_factor": 0.5}, "its partial_rotary_factor is 0.5"),
    ],
)
def test_a_stack_that_no_class_computes_is_not_exported(tmp_path, change, message):
    parts = {
        "norm_kind": "rmsnorm",
        "activation": "swiglu",
        "position": "rotary",
        "feedforward_bias": False,
        "bias": False,
    }
    model = preset("transformer", vocabulary=9, width=16, layers=1, heads=4, **{**parts, **change}).build()
    with pytest.raises(ConfigError, match=message):
        write_pretrained(Pretrained(model), tmp_path)


def test_mamba2_with_parts_that_the_class_lacks_is_not_exported(tmp_path):
    model = preset("mamba2", vocabulary=9, width=16, layers=1).build()
    with pytest.raises(ConfigError, match="its norm_kind is 'layernorm', and the stock class has 'rmsnorm'"):
        write_pretrained(Pretrained(model), tmp_path)

"""Weights of `transformers` in our models: hidden states, pooled output, logits and gradients are those of its own
classes, and exported weights are the same again, bit by bit."""

import json
import shutil

import pytest
import torch
from peers import ENCODERS, SIZES, VOCABULARY, build, inputs, layer_outputs, library, load

from anaphor.errors import ConfigError, DataError
from anaphor.interchange import Pretrained, read_pretrained, write_pretrained
from anaphor.interchange.folder import PretrainedFolder
from anaphor.models import LanguageModel, image_preset, preset, text_preset

KINDS = [*ENCODERS, "gpt2", "vit"]
PRECISIONS = {torch.float64: 1e-10, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each kind and size, written by `transformers` when it is first asked for."""
    made = {}

    def folder(kind, size="small"):
        if (kind, size) not in made:
            made[kind, size] = tmp_path_factory.mktemp("peer")
            build(kind, size).save_pretrained(made[kind, size])
        return made[kind, size]

    return folder


def close(ours, theirs, tolerance):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def compare_states(kind, found, states, tolerance):
    valid = torch.ones(found[0].shape[:2], dtype=torch.bool)
    if kind in ENCODERS:
        lengths = inputs(kind)[1][1]
        valid = torch.arange(valid.shape[1]) < lengths[:, None]
    assert len(found) == len(states)
    for ours, theirs in zip(found, states, strict=True):
        close(ours[valid], theirs[valid], tolerance)


def outputs(kind, model, arguments):
    """Logits of a head, or pooled features; of an encoder without a pooler the features of the first token."""
    return model(*arguments)[0] if isinstance(model, LanguageModel) else model(*arguments)


def peer_outputs(peer, arguments):
    given = peer(**arguments, output_hidden_states=True)
    if hasattr(given, "logits"):
        return given.logits, given.hidden_states
    pooled = getattr(given, "pooler_output", None)
    return given.last_hidden_state[:, 0] if pooled is None else pooled, given.hidden_states


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_states_outputs_and_gradients_are_those_of_transformers(folders, tmp_path, kind, size, dtype):
    tolerance, folder = PRECISIONS[dtype], folders(kind, size)
    peer, ours = load(folder, dtype), read_pretrained(folder, dtype=dtype).model
    theirs_in, ours_in = inputs(kind)
    if kind == "vit":
        theirs_in, ours_in = {"pixel_values": theirs_in["pixel_values"].to(dtype)}, (ours_in[0].to(dtype),)
    expected, states = peer_outputs(peer, theirs_in)
    with layer_outputs(ours) as found:
        ours.compute_hidden_states(*ours_in)
    if kind == "gpt2":
        found[-1] = ours.layers.norm(found[-1])
    compare_states(kind, found, states, tolerance)
    logits = outputs(kind, ours, ours_in)
    close(logits, expected, tolerance)

    for given in (logits, expected):
        given.square().sum().backward()
    with torch.no_grad():  # gradients of the peer in place of its weights take the same way to our names
        for parameter in peer.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    peer.save_pretrained(tmp_path)
    gradients = read_pretrained(tmp_path, dtype=dtype).model.state_dict()
    for name, parameter in ours.named_parameters():
        close(parameter.grad, gradients[name], tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_exported_weights_are_the_same_and_are_loaded_by_transformers(folders, tmp_path, kind):
    folder = folders(kind, "middle")
    write_pretrained(read_pretrained(folder, dtype=torch.float64), tmp_path)
    before, after = PretrainedFolder(folder), PretrainedFolder(tmp_path)
    assert set(before) == set(after)
    assert all(torch.equal(before.read(name), after.read(name)) for name in before), "bit by bit"
    arguments = inputs(kind)[0]
    assert torch.equal(peer_outputs(load(tmp_path), arguments)[0], peer_outputs(load(folder), arguments)[0])
    again = read_pretrained(tmp_path, dtype=torch.float64)
    first = read_pretrained(folder, dtype=torch.float64)
    assert again.model.spec == first.model.spec
    assert again.classes == first.classes


@pytest.mark.parametrize(
    ("position", "expected"),
    [("learned", "GPT2LMHeadModel"), ("sinusoidal", "GPT2LMHeadModel"), ("rotary", "GPTNeoXForCausalLM")],
)
@pytest.mark.parametrize("tied", [True, False])
def test_language_models_of_ours_have_the_same_logits_in_transformers(tmp_path, position, expected, tied):
    model = preset("gpt2", vocabulary=30, width=12, layers=2, heads=3, max_positions=32, position=position, tied=tied)
    built = model.build().double().eval()
    write_pretrained(Pretrained(built), tmp_path)
    tokens = torch.randint(0, 30, (2, 20))
    peer = load(tmp_path)
    assert type(peer).__name__ == expected
    # Rotary angles are computed in single precision there.
    close(peer(tokens).logits, built(tokens)[0], 1e-5 if position == "rotary" else 1e-10)
    again = read_pretrained(tmp_path, dtype=torch.float64).model
    if position != "sinusoidal":
        assert all(torch.equal(weight, built.state_dict()[name]) for name, weight in again.state_dict().items())
    close(again(tokens)[0], built(tokens)[0], 1e-12)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (preset("lstm", vocabulary=9, width=8), "it has lstm layers"),
        (preset("hybrid", vocabulary=9, width=8), "it has lstm layers"),
        (preset("transformer-xl", vocabulary=9, width=8), "memory is 128"),
        (preset("gpt2", vocabulary=9, width=8, layers=1, heads=2, position="alibi"), "position encoding is 'alibi'"),
        (preset("gpt2", vocabulary=9, width=8, layers=1, heads=2, head_bias=True), "head has a bias"),
        (preset("openai-gpt", vocabulary=9, width=8, layers=1, heads=2), "norm is 'after'"),
        (text_preset("lstm", vocabulary=9, width=8, classes=2), "it has lstm layers"),
        (text_preset("bert-tiny", vocabulary=9, width=8, classes=2, pooling="mean"), "pooling is 'mean'"),
        (text_preset("bert-tiny", vocabulary=9, width=8, classes=2, pooler="none"), "pooler is 'none'"),
        (image_preset("vit-tiny", classes=2, image_size=16, width=12, heads=2, pooling="mean"), "pooling is 'mean'"),
        (image_preset("vit-nano", classes=2, image_size=16, width=12, heads=2), "position encoding is 'sinusoidal'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_models_without_a_stock_class_are_refused_with_the_reason(tmp_path, spec, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        write_pretrained(Pretrained(spec.build()), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_sharded_weights_are_the_same(folders, tmp_path):
    folder = folders("bert", "large")
    load(folder).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    whole, sharded = (read_pretrained(one, dtype=torch.float64).model.state_dict() for one in (folder, tmp_path))
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_old_names_of_norms_are_known(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(folders("bert"), tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "LayerNorm" in name]:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[old] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    new, old = (read_pretrained(one).model.state_dict() for one in (folders("bert"), tmp_path))
    assert all(torch.equal(new[name], old[name]) for name in new)


def test_other_heads_are_left_out_with_a_warning(tmp_path):
    config = library().BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=12)
    config.vocab_size = VOCABULARY
    library().BertForMaskedLM(config).save_pretrained(tmp_path)
    found = read_pretrained(tmp_path)
    assert found.classes is None
    assert found.model.spec.pooler == "none"
    assert ["cls.predictions" in line for line in found.warnings] == [True]


def edited(folders, tmp_path, kind="bert", tensors=None, **config):
    """A copy of a folder with another configuration or other tensors; None removes one."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folders(kind), tmp_path / "edited")
    file = tmp_path / "edited" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    if tensors is not None:
        stored = load_file(tmp_path / "edited" / "model.safetensors") | tensors
        save_file(
            {name: one for name, one in stored.items() if one is not None}, tmp_path / "edited" / "model.safetensors"
        )
    return tmp_path / "edited"


QUERY = "bert.encoder.layer.0.attention.self.query.weight"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({QUERY: None}, rf"{QUERY} is missing \(expected \[8, 8\]\)"),
        ({QUERY: torch.zeros(8, 9)}, rf"{QUERY} is \[8, 9\], but the configuration implies \[8, 8\]"),
        ({QUERY: torch.full((8, 8), torch.nan)}, f"{QUERY}.*not finite"),
        ({QUERY: torch.zeros(8, 8, dtype=torch.int32)}, f"{QUERY}.*int32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folders, tmp_path, tensors, message):
    with pytest.raises(DataError, match=message) as caught:
        read_pretrained(edited(folders, tmp_path, tensors=tensors))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("bert", {"model_type": "t5"}, "model_type='t5'"),
        ("bert", {"hidden_act": "swish"}, "hidden_act='swish'"),
        ("bert", {"hidden_act": ["gelu"]}, r"hidden_act=\['gelu'\]"),
        ("bert", {"hidden_size": "8"}, "hidden_size must be a whole number"),
        ("bert", {"num_hidden_layers": 10**9}, "1,000,000,000 layers"),
        ("bert", {"num_attention_heads": 3}, "heads=3 does not divide width=8"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("bert", {"vocab_size": 41}, r"word_embeddings.weight is \[40, 8\], but the configuration implies \[41, 8\]"),
        ("bert", {"id2label": {"0": "a", "1": "b"}}, "id2label names 2 classes, but the head has 3"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets=16"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ],
)
def test_configurations_that_do_not_fit_are_named(folders, tmp_path, kind, config, message):
    with pytest.raises(DataError, match=message) as caught:
        read_pretrained(edited(folders, tmp_path, kind, **config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_type='linear'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "type='linear'"),  # as older files spell it
        ({"rope_parameters": ["default"]}, r"rope_parameters=\['default'\]"),
    ],
)
def test_other_rotary_positions_are_refused(tmp_path, rotary, message):
    spec = preset("gpt2", vocabulary=9, width=8, layers=1, heads=2, position="rotary")
    write_pretrained(Pretrained(spec.build()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rotary_pct": 1.0, "rotary_emb_base": 10000}))
    assert read_pretrained(tmp_path).kind == "gpt_neox"
    (tmp_path / "config.json").write_text(json.dumps(config | {"rotary_pct": 1.0} | rotary))
    with pytest.raises(DataError, match=message) as caught:
        read_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [
    {"parallel_residual": "two-norms"},
    {"partial_rotary_factor": 0.5, "rope_theta": 500.0},
    {"parallel_residual": "two-norms", "partial_rotary_factor": 0.5},
], ids=str)  # fmt: skip
def test_parallel_residuals_and_parts_of_heads_are_those_of_gpt_neox(tmp_path, options):
    spec = preset("gpt2", vocabulary=30, width=16, layers=2, heads=4, position="rotary", **options)
    built = spec.build().double().eval()
    write_pretrained(Pretrained(built), tmp_path)
    tokens = torch.randint(0, 30, (2, 20))
    close(load(tmp_path)(tokens).logits, built(tokens)[0], 1e-5)  # angles are computed in single precision there
    again = read_pretrained(tmp_path, dtype=torch.float64).model
    assert torch.equal(again(tokens)[0], built(tokens)[0])
    assert {name: getattr(again.spec, name) for name in options} == options


LLAMA_BLOCKS = {"norm_kind": "rmsnorm", "activation": "swiglu", "feedforward_bias": False, "bias": False, "kv_heads": 1}


@pytest.mark.parametrize(("options", "reason"), [
    ({"kv_heads": 1}, "kv_heads is 1"),
    ({"out_bias": False}, "out_bias is False"),
    ({"qk_norm": "rmsnorm"}, "qk_norm is 'rmsnorm'"),
    ({"softcap": 5.0}, "softcap is 5.0"),
    ({"normalize": "softmax-sink"}, "normalize is 'softmax-sink'"),
    ({"norm_kind": "rmsnorm"}, "its activation is 'gelu-tanh', and the stock class has 'swiglu'"),
    ({**LLAMA_BLOCKS, "softcap": 5.0}, "softcap is 5.0"),
    ({**LLAMA_BLOCKS, "normalize": "softmax-sink"}, "normalize is 'softmax-sink'"),
    ({**LLAMA_BLOCKS, "parallel_residual": "two-norms"}, "parallel_residual is 'two-norms'"),
    ({**LLAMA_BLOCKS, "qk_norm": "layernorm"}, "qk_norm is 'layernorm'"),
    ({**LLAMA_BLOCKS, "window": 4}, "window is 4"),
    ({"activation": "geglu"}, "activation of its feed-forward networks is 'geglu'"),
    ({"feedforward_bias": False}, "feedforward_bias is False"),
    ({"parallel_residual": "one-norm"}, "its parallel residual has one norm|parallel_residual is 'one-norm'"),
    ({"rope_scaling": "linear(2)"}, r"rope_scaling is 'linear\(2\)'"),
    ({"layer_windows": (4, 0)}, r"its layers differ: layer_windows=\(4, 0\)"),
    ({"layer_positions": ("rotary", "none")}, r"its layers differ: layer_positions=\('rotary', 'none'\)"),
    ({"short_conv": 3}, "short_conv is 3"),
], ids=str)  # fmt: skip
def test_parts_without_a_stock_class_are_refused(tmp_path, options, reason):
    spec = preset("gpt2", vocabulary=9, width=8, layers=2, heads=2, position="rotary", **options)
    with pytest.raises(ConfigError, match=reason) as caught:
        write_pretrained(Pretrained(spec.build()), tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_token_ids_outside_the_vocabulary_are_warned_about(folders, tmp_path):
    found = read_pretrained(edited(folders, tmp_path, "gpt2", bos_token_id=50256))
    assert [line.split(": ")[1] for line in found.warnings] == [
        "bos_token_id=50256 is outside the vocabulary of 40 tokens, and is ignored"
    ]


def test_files_that_are_missing_or_damaged_are_named(folders, tmp_path):
    with pytest.raises(DataError, match="no folder at"):
        read_pretrained(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no config\.json"):
        read_pretrained(tmp_path)
    folder = edited(folders, tmp_path)
    (folder / "model.safetensors").write_bytes(b'\x08\x00\x00\x00\x00\x00\x00\x00{"a":1')
    with pytest.raises(DataError, match="is not a safetensors file"):
        read_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"has no model\.safetensors"):
        read_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"its weights in pytorch_model\.bin only.*save the model with safetensors"):
        read_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
    with pytest.raises(DataError, match=r"which model\.safetensors\.index\.json names"):
        read_pretrained(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match="is not valid JSON"):
        read_pretrained(folder)


def test_a_vit_without_a_classifier_is_refused(tmp_path):
    library().ViTModel(build("vit").config).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="no classifier"):
        read_pretrained(tmp_path)

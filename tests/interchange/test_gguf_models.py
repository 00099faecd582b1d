"""Models from GGUF files: their logits are those of the models of `transformers` that the files were made from, every
verb takes them, and what they cannot be is refused in one line."""

import json

import gguf_files
import numpy as np
import pytest
import torch
from gguf_files import described, gpt2_tokenizer
from peers import LLAMA3, build_decoder, load

import anaphor
from anaphor.cli.main import main
from anaphor.errors import DataError
from anaphor.interchange import read_pretrained, write_pretrained
from anaphor.interchange.gguf_source import FREQUENCIES, llama3_factors

TOKENS = 500
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def _library():
    gguf_files.library()


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def permute(weight, heads):
    """As llama.cpp has queries and keys of Llama: the two rows of a pair one below the other."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(model):
    """Tensors as llama.cpp's converter writes them."""
    config, found = model.config, {}
    for name, weight in model.state_dict().items():
        stem, end = name.rsplit(".", 1)
        values = weight.detach().numpy()
        if config.model_type == "llama" and stem.endswith(("q_proj", "k_proj")):
            values = permute(values, config.num_attention_heads if "q_proj" in stem else config.num_key_value_heads)
        if stem in OUTER:
            found[f"{OUTER[stem]}.{end}"] = values
        else:
            number, part = stem.removeprefix("model.layers.").split(".", 1)
            found[f"blk.{number}.{PARTS[part]}.{end}"] = values
    if config.tie_word_embeddings:
        del found["output.weight"]
    return found


def metadata_of(model, **more):
    config, name = model.config, model.config.model_type
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", config.hidden_size // config.num_attention_heads),
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    tokens = {
        **described(gpt2_tokenizer(), "gpt-2"),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    values = {"general.architecture": name, **{f"{name}.{key}": one for key, one in own.items()}, **tokens}
    return {key: one for key, one in (values | more).items() if one is not None}


def small(kind, **more):
    return build_decoder(kind, "small", vocab_size=TOKENS, **more).float()


@pytest.mark.parametrize("kind", ["llama", "llama with biases", "llama, tied", "qwen2", "qwen3"])
def test_logits_are_those_of_the_model_that_the_file_was_made_from(single_precision, tmp_path, kind):
    peer = small(kind)
    path = gguf_files.write(tmp_path / "model.gguf", metadata_of(peer), tensors_of(peer))
    found = read_pretrained(path)
    assert found.warnings == ()
    ids = torch.randint(TOKENS, (2, 19))
    with torch.no_grad():
        close(found.model(ids)[0], peer(input_ids=ids).logits)
    write_pretrained(found, tmp_path / "exported")
    exported = load(tmp_path / "exported", torch.float32)
    assert type(exported) is type(peer)
    own = peer.state_dict()
    assert all(torch.equal(weight, own[name]) for name, weight in exported.state_dict().items())
    assert found.tokenizer.boundary == 0
    assert found.tokenizer.ends[0] == 0


def test_quantized_weights_are_those_that_the_library_gives(single_precision, tmp_path):
    peer = build_decoder("llama", "small", vocab_size=TOKENS, hidden_size=64, intermediate_size=96, head_dim=32).float()
    tensors = tensors_of(peer)
    kinds = {name: "Q4_1" if "ffn" in name else "Q8_0" for name, one in tensors.items() if one.ndim == 2}
    path = gguf_files.write(tmp_path / "model.gguf", metadata_of(peer), tensors, kinds)
    library, found = gguf_files.library(), read_pretrained(path).model.state_dict()
    for one in library.GGUFReader(path).tensors:
        if one.name in ("blk.0.ffn_up.weight", "token_embd.weight", "blk.0.attn_output.weight"):
            ours = {"ffn_up": "layers.0.feedforward.up", "token_embd": "embedder.embedding"}
            name = next((own for part, own in ours.items() if part in one.name), "layers.0.mixer.out")
            expected = library.dequantize(one.data, one.tensor_type)
            np.testing.assert_array_equal(found[f"{name}.weight"].numpy(), expected)


def test_scaled_rotary_positions_of_llama_3_are_found_by_their_factors(single_precision, tmp_path):
    rotary = LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    peer = small("llama", rope_parameters=rotary, head_dim=64)
    factors = llama3_factors(500000.0, 64, 32.0)
    tensors = tensors_of(peer) | {FREQUENCIES: factors.numpy()}
    path = gguf_files.write(tmp_path / "model.gguf", metadata_of(peer), tensors)
    found = read_pretrained(path)
    assert found.model.spec.rope_scaling == "llama3(32, 8192)"
    ids = torch.randint(TOKENS, (1, 40))
    with torch.no_grad():
        close(found.model(ids)[0], peer(input_ids=ids).logits)
    write_pretrained(found, tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["rope_parameters"] == rotary
    gguf_files.write(path, metadata_of(peer), tensors | {FREQUENCIES: factors.numpy() * 1.01})
    with pytest.raises(DataError, match=r"rope_freqs\.weight scales rotary positions in another way"):
        read_pretrained(path)
    gguf_files.write(path, metadata_of(peer), tensors | {FREQUENCIES: np.ones(32)})
    assert read_pretrained(path).model.spec.rope_scaling is None
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    gguf_files.write(path, metadata_of(peer, **linear), tensors_of(peer))
    assert read_pretrained(path).model.spec.rope_scaling == "linear(4)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A converted run, and its file."""
    gguf_files.library()
    folder = tmp_path_factory.mktemp("gguf")
    peer = small("llama")
    path = gguf_files.write(folder / "model.gguf", metadata_of(peer), tensors_of(peer))
    assert main(["convert", str(path), "--out", str(folder / "run")]) == 0
    return folder / "run", path, peer


def test_every_verb_takes_a_converted_run(single_precision, run, tmp_path, answer_of):
    folder, path, peer = run
    loaded = anaphor.load_run(folder)
    assert loaded.result["source"] == str(path)
    assert loaded.result["kind"] == "llama"
    ids = loaded.encode("The statement is executed.")
    with torch.no_grad():
        expected = peer(ids, labels=ids).loss.item()
    (row,) = answer_of(["score", str(folder), "The statement is executed.", "--json"])
    assert row["loss"] == pytest.approx(expected, abs=1e-5)
    written = answer_of(["generate", str(folder), "--prompt", "The", "--tokens", "8", "--temperature", "0", "--json"])
    prompt, ends = loaded.encode("The"), list(loaded.tokenizer.ends)
    generated = peer.generate(prompt, do_sample=False, max_new_tokens=8, eos_token_id=ends, pad_token_id=0)
    new = generated[0, len(prompt[0]) :].tolist()
    assert written["tokens"] == list(loaded.tokenizer.until_end(iter(new)))
    assert main(["look", str(folder), "The statement", "--out", str(tmp_path / "look")]) == 0
    assert (tmp_path / "look" / "attention.html").is_file()
    assert main(["export", str(folder), "--out", str(tmp_path / "exported")]) == 0
    assert main(["convert", str(tmp_path / "exported"), "--out", str(tmp_path / "again")]) == 0
    again = anaphor.load_run(tmp_path / "again")
    assert all(torch.equal(one, again.model.state_dict()[name]) for name, one in loaded.model.state_dict().items())
    assert again.encode("The statement").tolist() == loaded.encode("The statement").tolist()
    assert again.tokenizer.ends == loaded.tokenizer.ends


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "lama"}, "architecture 'lama' cannot be converted; did you mean 'llama'?"),
        ({"general.architecture": "gemma3"}, "architecture 'gemma3' cannot be converted (known: llama, qwen2, qwen3)"),
        ({"split.count": 3}, "is one of 3 parts"),
        ({"llama.expert_count": 8}, "llama.expert_count=8 cannot be converted"),
        ({"llama.attention.sliding_window": 64}, "llama.attention.sliding_window=64 cannot be converted"),
        ({"llama.block_count": None}, "lacks llama.block_count"),
        ({"llama.block_count": "2"}, "llama.block_count must be a whole number"),
        ({"llama.block_count": 2**31}, "2,147,483,648 layers do not fit"),
        ({"llama.attention.head_count": 0}, "0 heads"),
        ({"llama.attention.head_count_kv": [1, 2]}, "llama.attention.head_count_kv must be a whole number"),
        ({"llama.attention.value_length": 2}, "llama.attention.value_length=2 cannot be converted"),
        ({"llama.attention.key_length": 2**31}, "but the configuration implies"),
        ({"llama.rope.dimension_count": 2}, "llama.rope.dimension_count=2 cannot be converted"),
        ({"llama.rope.scaling.type": "longrope"}, "rope_type='longrope' cannot be converted"),
        ({"llama.embedding_length": 2**31}, "but the configuration implies"),
        ({"tokenizer.ggml.tokens": None}, "lacks tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre='tekken' cannot be converted"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model='bert' cannot be converted"),
    ],
)
def test_a_file_that_cannot_be_converted_is_refused_in_one_line(run, tmp_path, error_of, change, message):
    peer = run[2]
    path = gguf_files.write(tmp_path / "model.gguf", metadata_of(peer) | change, tensors_of(peer))
    line = error_of(["convert", str(path), "--out", str(tmp_path / "run")])
    assert message in line
    assert not (tmp_path / "run").exists()

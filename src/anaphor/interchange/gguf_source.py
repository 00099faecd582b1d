"""A GGUF file as the folder of `transformers` that it was made from: the names of its configuration and tensors are
translated back, and so is the order of rows that llama.cpp changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphor.config import nearest
from anaphor.errors import DataError
from anaphor.interchange.folder import Config
from anaphor.interchange.gguf_file import GGUFFile
from anaphor.interchange.gguf_tokenizer import end_ids, read_tokens, token_ids, tokenizer_json
from anaphor.interchange.llama import write_rotary
from anaphor.mixers.attention.rope_scaling import Llama3

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""Classes of `transformers` by the name of the architecture, which is the `model_type` there as well."""
ADJACENT_PAIRS = ("llama",)
"""Architectures whose rotary positions rotate adjacent rows of queries and keys in llama.cpp; in `transformers` it is
row i of the first half and of the second half of each head."""
UNREAD = ("expert_count", "attention.sliding_window", "rope.scaling.attn_factor", "attention.scale", "logit_scale")
"""Options of an architecture that change what it computes, and that none of these models has."""
LLAMA3_LENGTH = 8192
"""Length of the texts in training of all published Llama 3.1 and 3.2 models, by which rotary positions are scaled:
a GGUF file has the results of the scaling alone."""
FREQUENCIES = "rope_freqs.weight"
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFSource:
    """Tensors are read and dequantized one by one, when they are asked for."""

    def __init__(self, path: Path | str) -> None:
        self._file = GGUFFile(path)
        self.path = self._file.path
        self._metadata = Config(self._file.metadata, self.path)
        name = self._metadata.get("general.architecture")
        if not isinstance(name, str) or name not in CLASSES:
            guess = nearest(name, CLASSES) if isinstance(name, str) else ""
            raise DataError(
                f"{self.path}: the architecture {str(name)[:100]!r} cannot be converted{guess} "
                f"(known: {', '.join(CLASSES)})"
            )
        if self._metadata.get("split.count", 1) not in (0, 1):
            raise DataError(
                f"{self.path} is one of {self._metadata['split.count']} parts: merge them to one file first"
            )
        self._architecture = name
        self._names = {_translate(own): own for own in self._file if own != FREQUENCIES}
        self.config = Config(self._read_config(), self.path)

    @property
    def tokenizer_path(self) -> Path:
        return self.path

    def _read_config(self) -> dict[str, Any]:
        """`config.json` of the model, with the defaults of llama.cpp."""
        for option in UNREAD:
            if (value := self._metadata.get(f"{self._architecture}.{option}")) not in (None, 0, 0.0):
                raise DataError(f"{self.path}: {self._architecture}.{option}={str(value)[:100]} cannot be converted")
        width, heads = self._integer("embedding_length"), self._integer("attention.head_count")
        if heads < 1 or width < 1:
            raise DataError(f"{self.path}: {heads} heads and an embedding_length of {width} are no sizes of a model")
        head_width = self._integer("attention.key_length", width // heads)
        for option in ("attention.value_length", "rope.dimension_count"):
            if (value := self._integer(option, head_width)) != head_width:
                raise DataError(
                    f"{self.path}: {self._architecture}.{option}={value} cannot be converted; only that of a head can, "
                    f"{head_width}"
                )
        first = "model.layers.0.self_attn"
        return {
            "architectures": [CLASSES[self._architecture]],
            "model_type": self._architecture,
            "vocab_size": len(read_tokens(self._metadata, self.path)),
            "hidden_size": width,
            "num_hidden_layers": self._integer("block_count"),
            "intermediate_size": self._integer("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._integer("attention.head_count_kv", heads),
            "head_dim": head_width,
            "hidden_act": "silu",
            "rms_norm_eps": self._metadata.number(self._key("attention.layer_norm_rms_epsilon"), default=1e-6),
            "rope_parameters": self._read_rotary(head_width),
            "attention_bias": f"{first}.q_proj.bias" in self._names,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._names,
            "tie_word_embeddings": "lm_head.weight" not in self._names,
            **token_ids(self._metadata),
        }

    def _key(self, option: str) -> str:
        return f"{self._architecture}.{option}"

    def _integer(self, option: str, default: int | None = None) -> int:
        return self._metadata.integer(self._key(option), default=default)

    def _read_rotary(self, head_width: int) -> dict[str, Any]:
        theta = self._metadata.number(self._key("rope.freq_base"), default=10000.0)
        plain = {"rope_type": "default", "rope_theta": theta}
        scaling = self._metadata.get(self._key("rope.scaling.type"), "none")
        if FREQUENCIES in self._file.tensors:
            return self._read_frequencies(theta, head_width)
        if scaling == "none":
            return plain
        factor = self._metadata.number(self._key("rope.scaling.factor"), default=1.0)
        return {**plain, "rope_type": str(scaling)[:100], "factor": factor}

    def _read_frequencies(self, theta: float, head_width: int) -> dict[str, Any]:
        """The scaling of Llama 3 whose factors are those of the file."""
        found = self._file.read(FREQUENCIES).double()
        factor = float(found.max())
        is_known = found.shape == (head_width // 2,) and theta > 0 and factor >= 1
        if not is_known or not torch.allclose(found, llama3_factors(theta, head_width, factor), rtol=1e-5, atol=0):
            raise DataError(f"{self.path}: {FREQUENCIES} scales rotary positions in another way than Llama 3.1 and 3.2")
        if factor == 1:
            return {"rope_type": "default", "rope_theta": theta}
        return write_rotary(theta, f"llama3({factor!r}, {LLAMA3_LENGTH})")

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._names[name]].shape

    def read(self, name: str) -> Tensor:
        if name not in self._names:
            raise DataError(f"{self.path} lacks the tensor {name!r}{nearest(name, self._names)}")
        tensor = self._file.read(self._names[name])
        match = re.search(r"\.([qk])_proj\.", name)
        if match is None or self._architecture not in ADJACENT_PAIRS:
            return tensor
        heads = self.config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
        rows: Tensor = tensor.unflatten(0, (heads, -1, 2))
        return rows.transpose(1, 2).flatten(0, 2)

    def tokenizer_json(self) -> str:
        return tokenizer_json(self._metadata, self.path)

    def end_ids(self) -> list[int]:
        return end_ids(self._metadata)

    def extra(self, name: str) -> dict[str, Any]:
        """A GGUF file has no other files."""
        return {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def llama3_factors(theta: float, head_width: int, factor: float) -> Tensor:
    """By how much Llama 3 divides the frequency of each pair: not at all where a period fits often into the length of
    training, by the factor where it does not fit, and in between by something in between. [K / 2]"""
    frequencies = theta ** -(torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    return frequencies / Llama3(factor, LLAMA3_LENGTH).inverse_frequencies(frequencies, theta)


def _translate(name: str) -> str:
    """The name of a tensor in `transformers`; one that is not known stays as it is."""
    match = re.fullmatch(r"(?:blk\.(\d{1,9})\.)?(\w+)\.(weight|bias)", name)
    if match is None:
        return name
    number, part, end = match.groups()
    if number is None:
        return f"{_OUTER[part]}.{end}" if part in _OUTER else name
    return f"model.layers.{int(number)}.{_BLOCK[part]}.{end}" if part in _BLOCK else name

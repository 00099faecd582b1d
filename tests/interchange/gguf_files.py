"""GGUF files, written by the library of that name, and headers written by hand."""

import json
import struct
from functools import cache

import numpy as np
import pytest
from peers import text_for_training

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NORMAL, CONTROL = 1, 3
METADATA = {"general.architecture": "llama", "a.number": 7, "a.share": 0.1, "a.text": "é", "some.words": ["x", "yz"]}


@cache
def library():
    return pytest.importorskip("gguf", reason="`pip install 'anaphor[gguf]'` for GGUF files")


def write(path, metadata, tensors, kinds=None):
    """A file with these values and tensors; `kinds` names the quantization of some of them. A tensor of bytes is
    written as it is."""
    gguf = library()
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for name, value in metadata.items():
        if name != "general.architecture" and value is not None:
            _add(writer, name, value)
    for name, tensor in tensors.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        data = np.asarray(tensor)
        if data.dtype != np.uint8 and kind.name != "F32":
            data = gguf.quantize(data.astype(np.float32), kind)
        elif data.dtype != np.uint8:
            data = data.astype(np.float32)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer, name, value):
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    else:
        writer.add_string(name, value)


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(name, kind, raw):
    return text(name) + struct.pack("<I", kind) + raw


def tensor(name, dimensions, kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def header(values=(), tensors=(), counts=None, magic=b"GGUF", version=3):
    """The bytes of a header; `counts` are those of tensors and values that it claims."""
    claimed = (len(tensors), len(values)) if counts is None else counts
    return magic + struct.pack("<IQQ", version, *claimed) + b"".join(values) + b"".join(tensors)


def train_bpe(pre_tokenizer, normalizer=None, specials=SPECIALS):
    """A byte-level BPE of the library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, special_tokens=specials, initial_alphabet=alphabet
    )
    made.train_from_iterator(text_for_training(), trainer)
    return made


def described(made, pre, **more):
    """The metadata that llama.cpp's converter writes for a tokenizer."""
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token in SPECIALS else NORMAL for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        **more,
    }


def gpt2_tokenizer():
    from tokenizers import pre_tokenizers

    return train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))

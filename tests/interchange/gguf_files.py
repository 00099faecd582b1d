"""GGUF files, written by the library of that name, and headers written by hand."""

import struct
from functools import cache

import numpy as np
import pytest

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
        if name != "general.architecture":
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

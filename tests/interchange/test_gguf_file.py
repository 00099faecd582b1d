"""GGUF files: values and tensors are those that the library `gguf` reads, and a header that lies costs one line."""

import random
import struct
import sys
import tracemalloc

import gguf_files
import numpy as np
import pytest
import torch
from gguf_files import METADATA, header, tensor, text, value

from anaphor.errors import ConfigError, DataError
from anaphor.interchange.gguf_file import GGUFFile

HUGE = 2**60
WRITTEN = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0")
READ = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ1_S", "MXFP4")
"""Types whose values the library can compute but not choose."""


@pytest.fixture(autouse=True)
def _library():
    gguf_files.library()


def read_all(path):
    found = GGUFFile(path)
    return [found.read(name) for name in found]


def damaged(path, raw):
    path.write_bytes(raw)
    with pytest.raises(DataError) as caught:
        read_all(path)
    line = str(caught.value)
    assert str(path) in line
    assert "\n" not in line
    assert len(line) < len(str(path)) + 300
    return line


def test_metadata_are_those_that_were_written(tmp_path):
    found = GGUFFile(gguf_files.write(tmp_path / "a.gguf", METADATA, {}))
    assert found.metadata == METADATA  # 0.1, not 0.10000000149011612
    assert list(found) == []


def test_tensors_of_every_type_are_those_of_the_library(tmp_path):
    library, draw = gguf_files.library(), np.random.default_rng(0)
    tensors = {name: draw.standard_normal((3, 512)) for name in WRITTEN}
    for name in READ:
        block, size = library.GGML_QUANT_SIZES[library.GGMLQuantizationType[name]]
        tensors[name] = draw.integers(0, 60, (3, 512 // block * size), dtype=np.uint8)  # small scales
    path = gguf_files.write(tmp_path / "a.gguf", METADATA, tensors, {name: name for name in tensors})
    found, peer = GGUFFile(path), library.GGUFReader(path)
    assert list(found) == [one.name for one in peer.tensors] == list(tensors)
    for one in peer.tensors:
        ours = found.read(one.name)
        assert ours.shape == (3, 512)
        assert ours.dtype == torch.float32
        np.testing.assert_array_equal(ours.numpy(), library.dequantize(one.data, one.tensor_type))
    error = np.abs(found.read("Q8_0").numpy() - tensors["Q8_0"]).max()
    assert 0 < error < 0.02


def test_tensors_in_double_precision_and_of_several_dimensions(tmp_path):
    gguf = gguf_files.library()
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    values = np.random.default_rng(0).standard_normal((2, 3, 4))
    writer.add_tensor("double", values)
    writer.add_tensor("whole", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GGUFFile(tmp_path / "a.gguf")
    np.testing.assert_array_equal(found.read("double").numpy(), values)
    with pytest.raises(DataError, match="'whole' is of type I32, which cannot be converted"):
        found.read("whole")
    with pytest.raises(DataError, match="lacks the tensor 'doubles'; did you mean 'double'"):
        found.read("doubles")


LIES = {
    "no GGUF file": (b"PK\x03\x04" + bytes(60), "is not a GGUF file"),
    "version 1": (header(version=1), "is GGUF of version 1"),
    "big endian": (header(version=3 << 24), "in the byte order of another machine"),
    "tensors": (header(counts=(HUGE, 0)), f"{HUGE:,} tensors would end at byte"),
    "values": (header(counts=(0, HUGE)), f"{HUGE:,} values would end at byte"),
    "length of a name": (header([struct.pack("<Q", HUGE) + bytes(9)]), f"a text of {HUGE:,} bytes would end"),
    "length of a text": (header([value("a", 8, struct.pack("<Q", HUGE))]), f"a text of {HUGE:,} bytes would end"),
    "array": (header([value("a", 9, struct.pack("<IQ", 4, HUGE))]), f"an array of {HUGE:,} values would end"),
    "array of texts": (header([value("a", 9, struct.pack("<IQ", 8, HUGE))]), f"an array of {HUGE:,} values would end"),
    "deep array": (header([value("a", 9, struct.pack("<IQ", 9, 1) * 10_000)]), "has arrays of arrays"),
    "unknown value": (header([value("a", 99, b"")]), "a value of the unknown type 99"),
    "no UTF-8": (header([value("a", 8, text(b"\xff\xfe"))]), "is not UTF-8"),
    "twice": (header([value("a", 7, b"\x01")] * 2), "'a' occurs twice"),
    "same tensors": (header(tensors=[tensor("t", [1])] * 2), "'t' occurs twice"),
    "alignment": (header([value("general.alignment", 4, struct.pack("<I", 3))]), "general.alignment=3"),
    "dimensions": (header(tensors=[text("t") + struct.pack("<I", 2**31) + bytes(99)]), "has a tensor of 2,147,483,648"),
    "shape": (header(tensors=[tensor("t", [HUGE, HUGE])]) + bytes(64), "'t' of shape 1,152,921,504,606,846,976 ×"),
    "no elements": (header(tensors=[tensor("t", [0, 4])]) + bytes(64), "'t' cannot have the shape 4 × 0"),
    "block": (header(tensors=[tensor("t", [33], kind=8)]) + bytes(64), "cannot have the shape 33 in blocks of 32"),
    "unknown type": (header(tensors=[tensor("t", [4], kind=777)]) + bytes(64), "unknown type 777"),
    "offset": (header(tensors=[tensor("t", [4], offset=HUGE)]) + bytes(64), "the file is truncated or damaged"),
    "overlap": (header(tensors=[tensor("t", [4]), tensor("u", [4])]) + bytes(99), "the tensors 't' and 'u' overlap"),
    "long name": (header(tensors=[tensor("t\n" * 5000, [4], kind=777)]) + bytes(64), "unknown type 777"),
    "not finite": (header(tensors=[tensor("t", [4])]) + b"\xff" * 64, "'t' has values that are not finite"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused_in_one_line_without_the_memory_it_asks_for(tmp_path, lie):
    raw, message = LIES[lie]
    tracemalloc.start()
    line = damaged(tmp_path / "a.gguf", raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in line
    assert peak < 2_000_000


def test_every_truncation_of_a_file_is_noticed(tmp_path):
    path = gguf_files.write(
        tmp_path / "a.gguf", METADATA, {"one": np.ones((2, 32)), "two": np.ones(8)}, {"one": "Q8_0"}
    )
    raw = path.read_bytes()
    end = max(one.start + one.size for one in GGUFFile(path).tensors.values())
    for length in range(0, end, 3):
        damaged(path, raw[:length])


def test_changed_bytes_give_an_error_of_ours_or_a_file(tmp_path):
    path = gguf_files.write(
        tmp_path / "a.gguf", METADATA, {"one": np.ones((2, 32)), "two": np.ones(8)}, {"one": "Q8_0"}
    )
    raw, draw, lines = path.read_bytes(), random.Random(0), []
    for _ in range(200):
        changed = bytearray(raw)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(raw))] = draw.choice([0, 1, 127, 255, draw.randrange(256)])
        path.write_bytes(changed)
        try:
            read_all(path)
        except DataError as error:
            lines.append(str(error))
    assert 50 < len(lines) < 200
    assert not any("\n" in line for line in lines)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.gguf cannot be read: No such file"):
        GGUFFile(tmp_path / "a.gguf")
    with pytest.raises(DataError, match="is not a file"):
        GGUFFile(tmp_path)
    assert "would end at byte 4, but the file has 0" in damaged(tmp_path / "empty.gguf", b"")


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"GGUF files need the package gguf: pip install 'anaphor\[gguf\]'"):
        GGUFFile(tmp_path / "a.gguf")

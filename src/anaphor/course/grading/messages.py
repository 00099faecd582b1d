"""Messages between the grader and a sandbox: a header of JSON, and the raw bytes of tensors.

The other end may be a student's code that sends what it likes. So nothing is unpickled, every size is bounded before
memory is allocated, and a wait has an end. What comes out is made of numbers, texts, lists, dicts and tensors alone.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

MAX_HEADER = 4_000_000
"""Most bytes of a header."""
MAX_TENSORS = 100_000_000
"""Most bytes of the tensors of a message."""
MAX_TEXT = 2_000
"""Characters of an object's description."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
_LENGTHS = struct.Struct(">QQ")


class Closed(Exception):
    """The other end is gone, sends what is no message, or takes too long."""


@dataclass(frozen=True)
class Described:
    """Stands for a value of a type that no message has, by its text."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Channel:
    """Two file descriptors: one to read from, one to write to."""

    reading: int
    writing: int

    def send(self, message: Mapping[str, Any], seconds: float | None = None) -> None:
        """Send a message, within so many seconds."""
        tensors: list[Tensor] = []
        content = _encode(dict(message), tensors)
        blobs = [_to_bytes(tensor) for tensor in tensors]
        shapes = [[str(one.dtype).removeprefix("torch."), [*one.shape], one.requires_grad] for one in tensors]
        header = json.dumps({"content": content, "tensors": shapes}).encode("utf-8", "surrogatepass")
        if len(header) > MAX_HEADER or sum(map(len, blobs)) > MAX_TENSORS:
            raise Closed("the values are too large to be sent")
        frame = b"".join((_LENGTHS.pack(len(header), sum(map(len, blobs))), header, *blobs))
        _write(self.writing, frame, _deadline(seconds))

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """The next message, within so many seconds."""
        end = _deadline(seconds)
        header_length, blob_length = _LENGTHS.unpack(_read(self.reading, _LENGTHS.size, end))
        if header_length > MAX_HEADER or blob_length > MAX_TENSORS:
            raise Closed("it sends more than a message may have")
        header, blob = _read(self.reading, header_length, end), _read(self.reading, blob_length, end)
        try:
            parsed = json.loads(header)
            tensors = _from_bytes(parsed["tensors"], blob)
            message = _decode(parsed["content"], tensors)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, RuntimeError):
            raise Closed("it sends what is no message") from None
        if not isinstance(message, dict):
            raise Closed("it sends what is no message")
        return message

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            os.close(descriptor)


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _wait(descriptor: int, end: float | None, writing: bool) -> None:
    if end is None:
        return
    sets = ([], [descriptor]) if writing else ([descriptor], [])
    remaining = end - time.monotonic()
    if remaining <= 0 or not any(select.select(*sets, [], remaining)[:2]):
        raise TimeoutError


def _read(descriptor: int, count: int, end: float | None) -> bytes:
    parts, missing = list[bytes](), count
    while missing:
        _wait(descriptor, end, writing=False)
        part = os.read(descriptor, min(missing, 1 << 20))
        if not part:
            raise Closed("it has ended")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _write(descriptor: int, content: bytes, end: float | None) -> None:
    remaining = memoryview(content)
    while remaining:
        _wait(descriptor, end, writing=True)
        try:
            remaining = remaining[os.write(descriptor, remaining) :]  # in part, where the descriptor does not block
        except BrokenPipeError:
            raise Closed("it has ended") from None


def _to_bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _from_bytes(shapes: Any, blob: bytes) -> list[Tensor]:
    tensors, begin = list[Tensor](), 0
    for name, shape, requires_grad in shapes:
        dtype = DTYPES[name]
        if not all(type(size) is int and 0 <= size <= MAX_TENSORS for size in shape) or len(shape) > 32:
            raise ValueError("no shape")
        end = begin + prod(shape) * dtype.itemsize
        if end > len(blob):
            raise ValueError("too few bytes")
        flat = torch.frombuffer(bytearray(blob[begin:end]), dtype=torch.uint8) if end > begin else torch.empty(0)
        tensor = flat.view(dtype).reshape(shape) if end > begin else torch.empty(shape, dtype=dtype)
        tensors.append(tensor.requires_grad_(bool(requires_grad) and dtype.is_floating_point))
        begin = end
    return tensors


def _encode(value: Any, tensors: list[Tensor]) -> Any:
    """A value of JSON; what JSON has no form for is a dict with one name that begins with `$`."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        if value.layout is torch.strided and value.device.type != "meta" and value.dtype in DTYPES.values():
            tensors.append(value)
            return {"$tensor": len(tensors) - 1}
        return {"$described": f"a tensor of {value.dtype} on {value.device}"}
    if isinstance(value, int | float | str):  # a subclass, such as a number of NumPy
        return _encode(next(kind(value) for kind in (int, float, str) if isinstance(value, kind)), tensors)
    if isinstance(value, list):
        return [_encode(one, tensors) for one in value]
    if isinstance(value, tuple):
        return {"$tuple": [_encode(one, tensors) for one in value]}
    if isinstance(value, set | frozenset):
        return {"$set": [_encode(one, tensors) for one in value]}
    if isinstance(value, bytes):
        return {"$bytes": list(value)}
    if isinstance(value, Mapping):
        return {"$dict": [[_encode(key, tensors), _encode(one, tensors)] for key, one in value.items()]}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of NumPy
        return _encode(torch.as_tensor(value), tensors)
    return {"$described": repr(value)[:MAX_TEXT]}


def _decode(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "$tensor":
        return tensors[content]
    if kind == "$tuple":
        return tuple(_decode(one, tensors) for one in content)
    if kind == "$set":
        return {_decode(one, tensors) for one in content}
    if kind == "$bytes":
        return bytes(content)
    if kind == "$dict":
        return {_decode(key, tensors): _decode(one, tensors) for key, one in content}
    if kind == "$described":
        return Described(str(content)[:MAX_TEXT])
    raise ValueError(f"unknown kind {kind}")

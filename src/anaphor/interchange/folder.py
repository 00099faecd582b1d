"""A folder as `transformers` writes it: configuration, tensors (in shards, too) and tokenizer. Nothing in it is
executed, and no other file is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anaphor.config import nearest
from anaphor.data.text import check_characters
from anaphor.errors import DataError
from anaphor.files import default_permissions, delete, describe_space, write_file
from anaphor.user_paths import create_folder, user_path, writing_to

CONFIG, TENSORS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
GENERATION = "generation_config.json"
MAX_JSON_BYTES = 100_000_000
"""Bytes of a JSON file; the largest tokenizers have a fifth of this."""
UNSAFE = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack", "model.ckpt.index")


class Config(dict[str, Any]):
    """`config.json`: values by name, checked when they are read."""

    def __init__(self, values: Mapping[str, Any], file: Path) -> None:
        super().__init__(values)
        self.file = file

    def integer(self, *names: str, default: int | None = None) -> int:
        """A whole number, under the first of these names that is there."""
        value = self._find(names, default)
        if type(value) is not int:
            raise DataError(f"{self.file}: {names[0]} must be a whole number, but it is {value!r}")
        return value

    def number(self, *names: str, default: float) -> float:
        value = self._find(names, default)
        if type(value) not in (int, float):
            raise DataError(f"{self.file}: {names[0]} must be a number, but it is {value!r}")
        return float(value)

    def _find(self, names: tuple[str, ...], default: Any) -> Any:
        for name in names:
            if self.get(name) is not None:
                return self[name]
        if default is None:
            raise DataError(f"{self.file} lacks {names[0]}")
        return default

    def require(self, name: str, *allowed: Any, default: Any) -> None:
        """Refuse a value that our models do not have."""
        value = self.get(name, default)
        if value not in allowed:
            listed = " or ".join(map(repr, allowed))
            raise DataError(f"{self.file}: {name}={value!r} cannot be converted; only {listed} can")

    def translate(self, name: str, table: Mapping[str, str], default: str) -> str:
        """Our name of a value."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in table:
            raise DataError(f"{self.file}: {name}={value!r} cannot be converted; known: {', '.join(table)}")
        return table[value]

    def labels(self, count: int) -> tuple[str, ...]:
        """Names of the classes."""
        names = self.get("id2label")
        if not isinstance(names, dict):
            return tuple(f"LABEL_{number}" for number in range(count))
        if {str(number) for number in names} != {str(number) for number in range(count)}:
            raise DataError(f"{self.file}: id2label names {len(names)} classes, but the head has {count}")
        found = tuple(str(names.get(str(number))) for number in range(count))
        for name in found:
            check_characters(name, f"{self.file}: id2label")
        if len(set(found)) < count:
            raise DataError(f"{self.file}: id2label gives two classes the same name")
        return found


class Source(Protocol):
    """Where a model comes from: its configuration, its tensors and its tokenizer, as `transformers` names them."""

    path: Path
    """The folder or file."""
    config: Config

    @property
    def tokenizer_path(self) -> Path:
        """The file of the tokenizer, for messages."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it."""

    def read(self, name: str) -> Tensor:
        """A tensor of finite floating point numbers."""

    def tokenizer_json(self) -> str | None:
        """The tokenizer as JSON of the library `tokenizers`, where there is one."""

    def end_ids(self) -> list[Any]:
        """Tokens after which a text has ended, as far as it says; unchecked."""

    def extra(self, name: str) -> dict[str, Any]:
        """Another JSON file; empty where there is none."""

    def __contains__(self, name: object, /) -> bool:
        """Whether it has a tensor of this name."""

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors."""

    def __len__(self) -> int:
        """Number of tensors."""


class PretrainedFolder:
    """The files of one folder. Tensors are read one by one, when they are asked for."""

    def __init__(self, folder: Path | str) -> None:
        self.path = user_path(Path(folder))
        if not self.path.is_dir():
            raise DataError(f"no folder at {self.path}: give one with {CONFIG} and {TENSORS}")
        if not (self.path / CONFIG).is_file():
            hint = "; it is a run folder already" if (self.path / "spec.yaml").is_file() else ""
            raise DataError(f"{self.path} has no {CONFIG}: it is not a folder of transformers{hint}")
        self.config = Config(read_json(self.path / CONFIG), self.path / CONFIG)
        stored = self._locate()
        self._stored = {_present_name(name): name for name in stored}
        self.files = {_present_name(name): file for name, file in stored.items()}
        """The file of each tensor."""

    @property
    def tokenizer_path(self) -> Path:
        return self.path / TOKENIZER

    def _locate(self) -> dict[str, Path]:
        if (self.path / INDEX).is_file():
            by_name = read_json(self.path / INDEX).get("weight_map")
            if not isinstance(by_name, dict):
                raise DataError(f"{self.path / INDEX} has no weight_map")
            shards = {name: str(shard) for name, shard in by_name.items()}
            for shard in sorted(set(shards.values())):
                # Not Path.is_file, which raises an OSError for names that no file can have.
                if Path(shard).name != shard or not os.path.isfile(self.path / shard):
                    raise DataError(f"{self.path} lacks {shard[:100]}, which {INDEX} names")
            found = {shard: self._names(self.path / shard) for shard in set(shards.values())}
            for name, shard in shards.items():
                if name not in found[shard]:
                    raise DataError(f"{self.path / shard} lacks {name[:100]!r}, which {INDEX} says is there")
            return {name: self.path / shard for name, shard in shards.items()}
        file = self.path / TENSORS
        if not file.is_file():
            unsafe = [name for name in UNSAFE if (self.path / name).is_file()]
            if unsafe:
                raise DataError(
                    f"{self.path} has its weights in {unsafe[0]} only, which is not read because it can execute code "
                    f"or needs another library: save the model with safetensors first"
                )
            raise DataError(f"{self.path} has no {TENSORS}")
        return dict.fromkeys(self._names(file), file)

    @staticmethod
    def _names(file: Path) -> set[str]:
        try:
            with safe_open(file, "pt") as tensors:
                return set(tensors.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{file} is not a safetensors file: {str(error)[:200]}") from None

    def shape(self, name: str) -> tuple[int, ...]:
        with safe_open(self.files[name], "pt") as tensors:
            return tuple(tensors.get_slice(self._stored[name]).get_shape())

    def read(self, name: str) -> Tensor:
        """A tensor by its name; one that is not there is refused with the nearest name."""
        if name not in self.files:
            raise DataError(f"{self.path} lacks the tensor {name!r}{nearest(name, self.files)}")
        with safe_open(self.files[name], "pt") as tensors:
            tensor: Tensor = tensors.get_tensor(self._stored[name])
        if not tensor.is_floating_point():
            raise DataError(f"{self.files[name]}: {name!r} is {tensor.dtype}, not floating point")
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{self.files[name]}: {name!r} has values that are not finite")
        return tensor

    def tokenizer_json(self) -> str | None:
        """`tokenizer.json`, where there is one."""
        file = self.tokenizer_path
        if not file.is_file():
            return None
        read_json(file)
        return file.read_text(encoding="utf-8")

    def end_ids(self) -> list[Any]:
        """Those that generation ends with in `transformers`."""
        ids = self.extra(GENERATION).get("eos_token_id", self.config.get("eos_token_id"))
        return ids if isinstance(ids, list) else [ids]

    def extra(self, name: str) -> dict[str, Any]:
        """Another JSON file of the folder; empty where there is none."""
        file = self.path / name
        return read_json(file) if file.is_file() else {}

    def __contains__(self, name: object) -> bool:
        return name in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def _present_name(name: str) -> str:
    """Old files call the parameters of a norm gamma and beta."""
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def read_json(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    if size > MAX_JSON_BYTES:
        raise DataError(f"{file} has {size:,} bytes; at most {MAX_JSON_BYTES:,} are read")
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise DataError(f"{file} must hold names and values, but it is a {type(value).__name__}")
    return value


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], files: Mapping[str, str]
) -> list[Path]:
    """Write such a folder; `files` are texts by name. Returns the paths of its files."""
    create_folder(folder)
    written = [folder / TENSORS, folder / CONFIG]
    with writing_to(folder):
        # Each with memory of its own: the format has no tied tensors.
        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        try:
            with default_permissions(folder / TENSORS) as file:
                save_file(copies, file, metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk
            needed = describe_space(folder, sum(tensor.nbytes for tensor in copies.values()))
            raise DataError(f"{folder / TENSORS} cannot be written: {error}; {needed}") from None
        for name, text in {CONFIG: json.dumps(dict(config), indent=2) + "\n", **files}.items():
            _write_text(folder / name, text)
            if folder / name not in written:
                written.append(folder / name)
    return written


def _write_text(path: Path, text: str) -> None:
    """Write a file; a new one that does not fit on the disk is not left behind."""
    is_new = not os.path.lexists(path)
    try:
        write_file(path, text.encode())
    except OSError:
        if is_new:
            delete(path)
        raise

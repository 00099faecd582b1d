"""Checkpoints: folders `step-N` of tensors and metadata under a manifest, written so that a kill never costs one.

A folder is filled under another name, its manifest last, and renamed when all of it is on the disk. So a folder with
its final name is complete, and the manifest's SHA-256 of every file shows any later damage. Only the parts that are
asked for are read, and each file is read and hashed once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from anaphor.config import FORMAT
from anaphor.errors import CheckpointError, ConfigError, Diverged
from anaphor.files import default_permissions, delete, describe_space, make_folder, rename, sync, write_file
from anaphor.training.mismatch import Mismatch, format_shape
from anaphor.training.progress import Progress

Parts = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, by the name of the file that holds them."""

ONLY_MODEL = "only_model"
"""Metadata of a checkpoint of weights alone, from which training cannot be resumed exactly."""
_MANIFEST, _METADATA = "manifest.json", "facts.json"  # names on disk, kept for the runs that have them
_WEIGHTS = ("model", "average")  # parts that a model computes with
_REQUIRED = ("spec", "data", "progress")
_FINISHED = re.compile(r"step-(\d{1,18})(\.old)?")  # the old one stays complete while the new one takes its name
_PART = re.compile(r"[a-z][a-z0-9-]{0,63}")

# Far more than is ever written, far less than would fill the memory.
MAX_MANIFEST_BYTES = 1_000_000
MAX_METADATA_BYTES = 20_000_000
MAX_HEADER_BYTES = 10_000_000


class Metadata(dict[str, Any]):
    """What a checkpoint says of its run by name. One that is missing is an error that names the file."""

    def __init__(self, values: Mapping[str, Any], file: Path) -> None:
        super().__init__(values)
        self.file = file

    def __missing__(self, name: str) -> Any:
        raise CheckpointError(f"{self.file} lacks {name}")


@dataclass(frozen=True)
class Checkpoint:
    """The contents of one folder."""

    path: Path
    step: int
    parts: dict[str, dict[str, Tensor]]
    """The tensors that were read, on the CPU; tied ones are one tensor again."""
    metadata: Metadata
    """Everything that is not a tensor, as plain JSON."""
    files: Mapping[str, Mapping[str, Any]]
    """What the manifest says of each file."""
    ties: Mapping[str, Any]
    """For each part, the names of tied tensors."""

    @property
    def names(self) -> frozenset[str]:
        """All parts that there are, read or not."""
        return frozenset(name.removesuffix(".safetensors") for name in self.files if name != _METADATA)

    def with_parts(self, parts: Collection[str] | None) -> Checkpoint:
        """The same with more parts read, all of them for None; its metadata are not read again."""
        wanted = self.names if parts is None else self.names & set(parts)
        more = {part: self._read_part(part) for part in sorted(wanted - self.parts.keys())}
        return replace(self, parts={**self.parts, **more})

    def _read_part(self, part: str) -> dict[str, Tensor]:
        file = self.file(part)
        try:
            tensors = _parse_tensors(_verified_bytes(file, self.files[file.name]), file)
        except OSError as error:
            raise _unreadable(error, file) from None
        if part in _WEIGHTS and (name := _find_nonfinite(tensors)) is not None:
            raise Diverged(f"{file} has values that are not finite in {name[:100]!r}: it cannot be used")
        return _tie(tensors, self.ties.get(part, {}), self.path)

    def file(self, part: str) -> Path:
        """The file with the tensors of one part, such as `model`."""
        return self.path / f"{part}.safetensors"

    @property
    def is_only_model(self) -> bool:
        """Whether it has the weights alone."""
        return bool(self.metadata.get(ONLY_MODEL))

    @property
    def metadata_file(self) -> Path:
        """The JSON file with all that is no tensor."""
        return self.path / _METADATA

    def load_into(self, model: nn.Module) -> None:
        """Load the model's weights, or raise and say what does not fit."""
        load_weights(model, self.parts["model"], str(self.file("model")))

    def check_usable(self) -> None:
        """Raise if its model cannot be used."""
        self._require(("model",), _REQUIRED)
        self.read_best_step()

    def check_resumable(self, *more: str, metadata: Iterable[str] = ()) -> None:
        """Raise if training cannot resume from it, or if one of `more` parts or `metadata` is missing."""
        self._require(("model", "optimizer", "random", *more), (*_REQUIRED, "schedule", *metadata))
        self.read_progress()

    def read_best_step(self) -> int | None:
        """The step of the best validation so far. No other value of the progress needs to be there."""
        progress = self.metadata["progress"]
        if "best_step" not in progress:
            raise CheckpointError(f"{self.metadata_file}: the progress does not fit: missing: best_step")
        names = {field.name for field in fields(Progress)}
        return self._build_progress({name: value for name, value in progress.items() if name in names}).best_step

    def read_progress(self) -> Progress:
        """Where training was: steps, position in the data, times, and the best validation."""
        progress = {"recent_correct": None, **self.metadata["progress"]}  # those of earlier versions did not count
        names = [field.name for field in fields(Progress)]
        missing = [name for name in names if name not in progress]
        unexpected = [name for name in progress if name not in names]
        Mismatch(missing, unexpected).raise_if_any(f"{self.metadata_file}: the progress")
        return self._build_progress(progress)

    def _require(self, parts: Iterable[str], metadata: Collection[str]) -> None:
        missing = [name for name in dict.fromkeys(metadata) if name not in self.metadata]
        if missing:
            raise CheckpointError(f"{self.metadata_file} lacks {', '.join(missing)}")
        for name in metadata:
            if not isinstance(self.metadata[name], dict):
                kind = type(self.metadata[name]).__name__
                raise CheckpointError(f"{self.metadata_file}: {name} must hold names and values, but it is a {kind}")
        # Of its own spec, not of the present one: a run may be resumed by --force with an average or without.
        averaged = ["average"] if self.metadata["spec"].get("average", "none") != "none" else []
        missing = [self.file(part).name for part in (*parts, *averaged) if part not in self.names]
        if missing:
            raise CheckpointError(f"{self.path} lacks {', '.join(missing)}")

    def _build_progress(self, values: dict[str, Any]) -> Progress:
        progress = Progress(**values)
        try:
            progress.check()
        except ConfigError as error:
            raise CheckpointError(f"{self.metadata_file}: {error}") from None
        return progress


def _find_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor with a value that is not finite."""
    return next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)


# ---- writing


def write(folder: Path, step: int, parts: Parts, metadata: Mapping[str, Any]) -> Path:
    """Save a checkpoint; one of the same step is replaced. On failure nothing is left behind. Returns its folder.

    Weights that are not finite are refused: a run that diverges is resumed from the last good ones.
    """
    for part in _WEIGHTS:
        if (name := _find_nonfinite(parts.get(part, {}))) is not None:
            raise Diverged(f"{part} weights have values that are not finite in {name}")
    assert all(_PART.fullmatch(name) for name in parts), f"these cannot be file names: {list(parts)}"
    final, draft = folder / f"step-{step}", folder / f"step-{step}.tmp"
    needed = sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values())
    try:
        make_folder(folder, within=folder.parent)
        _clean_up(folder)
        draft.mkdir()
        _fill(draft, step, parts, metadata)
        _commit(draft, final)
    except (OSError, SafetensorError) as error:
        _remove(draft)
        has_earlier = any(newest_first(folder))
        earlier = "earlier checkpoints are intact" if has_earlier else "there is no earlier checkpoint"
        raise CheckpointError(f"cannot write {final}: {error}; {describe_space(folder, needed)}; {earlier}") from None
    except BaseException:
        _remove(draft)
        raise
    return final


def prune(folder: Path, keep: int, also: Collection[int] = ()) -> None:
    """Delete all but the newest `keep` and those of the steps in `also`."""
    for path in list(newest_first(folder))[keep:]:
        if _step_of(path) not in also:
            _discard(path)


def keep_weights(path: Path) -> None:
    """Write a checkpoint again with its weights alone: it takes a third of the space, and training cannot be resumed
    exactly from it."""
    saved = read(path, _WEIGHTS)
    if saved.names > saved.parts.keys():
        write(path.parent, saved.step, saved.parts, {**saved.metadata, ONLY_MODEL: True})


def _fill(draft: Path, step: int, parts: Parts, metadata: Mapping[str, Any]) -> None:
    ties: dict[str, dict[str, str]] = {}
    for part, tensors in parts.items():
        copies, ties[part] = _copy_to_host(tensors)
        with default_permissions(draft / f"{part}.safetensors") as file:
            save_file(copies, file)
        sync(file)
    content = _to_json({"step": step, "facts": metadata, "ties": ties})
    assert len(content) <= MAX_METADATA_BYTES, f"{len(content):,} bytes of metadata could never be read again"
    write_file(draft / _METADATA, content)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in sorted(draft.iterdir())}
    write_file(draft / _MANIFEST, _to_json({"format": FORMAT, "files": files}))
    sync(draft)


def _copy_to_host(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors on the host, each with memory of its own, and for each tied name the name it is tied to."""
    first: dict[Any, str] = {}
    copies, ties = {}, {}
    as_they_are: set[int] = set()
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in first:
            ties[name] = first[place]
        else:
            first[place] = name
            # Where its memory is nothing but the tensor, it can be written as it is, but not in two shapes.
            memory = tensor.untyped_storage()
            is_plain = tensor.is_cpu and tensor.is_contiguous() and memory.nbytes() == tensor.nbytes
            is_plain = is_plain and memory.data_ptr() not in as_they_are
            if is_plain:
                as_they_are.add(memory.data_ptr())
            copies[name] = tensor.detach().to("cpu", copy=not is_plain, memory_format=torch.contiguous_format)
    return copies, ties


def _commit(draft: Path, final: Path) -> None:
    old = final.with_name(f"{final.name}.old")
    if final.exists():
        _rename(final, old)
    _rename(draft, final)
    sync(final.parent)
    if old.exists():
        _discard(old)


def _clean_up(folder: Path) -> None:
    """Remove what a killed process left behind."""
    for path in folder.glob("step-*.tmp"):
        _remove(path)
    for old in folder.glob("step-*.old"):
        current = old.with_suffix("")
        if current.exists():
            _discard(old)
        else:
            _rename(old, current)


def _discard(path: Path) -> None:
    """Delete a checkpoint. Under its own name it is complete or gone, also when this is interrupted."""
    doomed = path.with_name(f"{path.name}.tmp")
    _remove(doomed)
    _rename(path, doomed)
    _remove(doomed)


def _rename(path: Path, target: Path) -> None:
    rename(path, target, within=path.parents[1])


def _remove(path: Path) -> None:
    with suppress(OSError):
        delete(path, within=path.parents[1])


def _to_json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- reading


def read(path: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """A checkpoint with the given parts, or with all of them; every file that is read must match the manifest."""
    try:
        return _read_metadata(path).with_parts(parts)
    except OSError as error:
        raise _unreadable(error, path) from None


def newest(
    folder: Path, parts: Collection[str] | None = None, *, or_weights: bool = False
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be resumed exactly and whose given parts are undamaged, and what is wrong with
    each newer one that is damaged. None: there is none. With `or_weights`, one of weights alone that comes after a
    damaged one will do."""
    failures = list[CheckpointError | Diverged]()
    for path in newest_first(folder):
        try:
            found = read(path, ())
            if not found.is_only_model or (or_weights and failures):
                return found.with_parts(parts), list(map(str, failures))
        except (CheckpointError, Diverged) as error:
            failures.append(error)
    raise_divergence(failures)
    return None, list(map(str, failures))


def raise_divergence(failures: Iterable[CheckpointError | Diverged]) -> None:
    """Raise the first of these errors that says that weights are not finite, where no checkpoint can be used."""
    for error in failures:
        if isinstance(error, Diverged):
            raise error


def newest_first(folder: Path) -> Iterator[Path]:
    """The folders of all checkpoints, damaged or not."""
    found = [path for path in folder.iterdir() if _FINISHED.fullmatch(path.name)] if folder.is_dir() else []
    # Of two with the same step, the one without a suffix is the newer.
    yield from sorted(found, key=lambda path: (_step_of(path), path.suffix != ".old"), reverse=True)


def _step_of(path: Path) -> int:
    match = _FINISHED.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _read_metadata(path: Path) -> Checkpoint:
    files = _read_manifest(path)
    content = _parse_json(_verified_bytes(path / _METADATA, files[_METADATA], MAX_METADATA_BYTES), path / _METADATA)
    step, metadata, ties = content.get("step"), content.get("facts"), content.get("ties")
    if not isinstance(step, int) or not isinstance(metadata, dict) or not isinstance(ties, dict):
        raise CheckpointError(f"{path / _METADATA} does not hold a step, facts and ties")
    return Checkpoint(path, step, {}, Metadata(metadata, path / _METADATA), files, ties)


def _read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """What the manifest says of each file."""
    if path.is_symlink() or not path.is_dir():
        raise CheckpointError(f"no checkpoint at {path}")
    file = path / _MANIFEST
    if not file.is_file() or file.is_symlink():
        raise CheckpointError(f"{file} is missing")
    length = file.stat().st_size
    if length > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"{file} has {length:,} bytes; at most {MAX_MANIFEST_BYTES:,} are read")
    manifest = _parse_json(file.read_bytes(), file)
    files, version = manifest.get("files"), manifest.get("format")
    if version != FORMAT or isinstance(version, bool):
        given = "no format number" if version is None else f"format {str(version)[:40]}"
        raise CheckpointError(f"{file} has {given}, but this version of anaphor reads format {FORMAT}")
    if not isinstance(files, dict) or _METADATA not in files:
        raise CheckpointError(f"{file} is not a manifest: it does not list {_METADATA}")
    for name, entry in files.items():
        part = name.removesuffix(".safetensors")
        if name != _METADATA and (part == name or not _PART.fullmatch(part)):
            raise CheckpointError(f"{file} names {name[:100]!r}, which is not a file of a checkpoint")
        if not isinstance(entry, dict):
            raise CheckpointError(f"{file} has no size and hash for {name}")
        actual = path / name
        if not actual.is_file() or actual.is_symlink():
            raise CheckpointError(f"{actual} is missing")
    return files


def _parse_json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold names and values, but it is a {type(value).__name__}")
    return value


def _verified_bytes(path: Path, entry: Mapping[str, Any], limit: int | None = None) -> bytes:
    actual, expected = path.stat().st_size, entry.get("bytes")
    if actual != expected:
        raise CheckpointError(f"{path} is damaged: it has {actual:,} bytes, but its manifest says {expected!r}")
    if limit is not None and actual > limit:
        raise CheckpointError(f"{path} has {actual:,} bytes; at most {limit:,} are read")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in its manifest")
    return content


def _parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    header = int.from_bytes(content[:8], "little")
    if header > min(MAX_HEADER_BYTES, len(content)):
        raise CheckpointError(f"{path} is not a safetensors file: its header would have {header:,} bytes")
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {str(error)[:200]}") from None
    # Copied, because results may depend on the alignment of a tensor in memory.
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _tie(tensors: dict[str, Tensor], ties: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(ties, dict):
        raise CheckpointError(f"{path / _METADATA}: its ties are not names")
    for name, other in ties.items():
        if name in tensors or not isinstance(other, str) or other not in tensors:
            raise CheckpointError(f"{path / _METADATA} ties {name!r} to {other!r}, which is not there")
    return {**tensors, **{name: tensors[other] for name, other in ties.items()}}


def _unreadable(error: OSError, path: Path) -> CheckpointError:
    return CheckpointError(f"{error.filename or path} cannot be read: {error.strerror}")


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], what: str = "the checkpoint") -> None:
    """Load a model's weights. All must be there, of the right shape, and no others; else the model keeps its own."""
    expected = model.state_dict()
    tied: dict[Any, list[str]] = {}
    for name, tensor in expected.items():
        tied.setdefault((tensor.data_ptr(), tensor.shape) if tensor.numel() else name, []).append(name)
    chosen: dict[str, Tensor] = {}
    mismatch = Mismatch(unexpected=[name for name in tensors if name not in expected])
    for names in tied.values():
        stored = [name for name in names if name in tensors]  # of a tied weight, one name is enough
        if not stored:
            mismatch.missing.append(f"{names[0]} ({format_shape(expected[names[0]])})")
            continue
        first = tensors[stored[0]]
        for name in stored:
            mismatch.compare(name, tensors[name], expected[name])
            if tensors[name] is not first and not torch.equal(tensors[name], first):
                mismatch.wrong.append(f"{name} is not equal to {stored[0]}, to which the model ties it")
        chosen |= dict.fromkeys(names, first)
    mismatch.raise_if_any(what)
    model.load_state_dict(chosen)

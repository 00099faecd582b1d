"""Checkpoints: folders `step-N` of tensors and facts under a manifest, written so that a kill never costs one.

A folder is filled under another name, its manifest last, and renamed when all of it is on the disk. So a folder with
its final name is whole, and the manifest's SHA-256 of every file tells what happened to it since.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anaphor.errors import CheckpointError
from anaphor.training.durable import free, sync, write_file
from anaphor.training.mismatch import Mismatch, size

Parts = Mapping[str, Mapping[str, Tensor]]
"""Tensors by their names, by the names of the files that hold them."""

_MANIFEST, _FACTS = "manifest.json", "facts.json"
_FORMAT = 1
_FINISHED = re.compile(r"step-(\d{1,18})(\.old)?")  # the old one is still whole while the new one takes its name
_PART = re.compile(r"[a-z][a-z0-9-]{0,63}")

# Far more than we ever write, far less than would fill a memory: a file that claims more is none of ours.
LARGEST_MANIFEST = 1_000_000
LARGEST_FACTS = 20_000_000
LARGEST_HEADER = 10_000_000


@dataclass(frozen=True)
class Checkpoint:
    """What one folder held."""

    path: Path
    step: int
    parts: dict[str, dict[str, Tensor]]
    """Tensors, on the CPU, in memory of their own; tied ones are one tensor again."""
    facts: dict[str, Any]
    """Everything that is no tensor, as plain JSON."""

    def file(self, part: str) -> Path:
        """Where the tensors of a part stand."""
        return self.path / f"{part}.safetensors"

    @property
    def facts_file(self) -> Path:
        return self.path / _FACTS

    def give_weights(self, model: nn.Module) -> None:
        """Give a model its weights, or say what does not fit."""
        fit(model, self.parts["model"], str(self.file("model")))


def write(folder: Path, step: int, parts: Parts, facts: Mapping[str, Any]) -> Path:
    """Save a checkpoint and give its folder; one of the same step is replaced. On failure nothing is left behind."""
    assert all(_PART.fullmatch(name) for name in parts), f"these cannot be file names: {list(parts)}"
    final, draft = folder / f"step-{step}", folder / f"step-{step}.tmp"
    needed = sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _tidy(folder)
        draft.mkdir()
        _fill(draft, step, parts, facts)
        _commit(draft, final)
    except (OSError, SafetensorError) as error:
        _remove(draft)
        raise CheckpointError(
            f"cannot write {final}: {error}; it needs {needed:,} bytes{free(folder)}; earlier checkpoints are intact"
        ) from None
    except BaseException:
        _remove(draft)
        raise
    return final


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and one line for each newer one that is not. None: there is none."""
    warnings = []
    for path in _newest_first(folder):
        try:
            _verify(path)
        except CheckpointError as error:
            warnings.append(f"{error}; it is left out")
        else:
            return path, warnings
    return None, warnings


def read(path: Path) -> Checkpoint:
    """All that a checkpoint holds, if it is as it was written."""
    names = _verify(path)
    told = _read_json(path / _FACTS, LARGEST_FACTS)
    step, facts, ties = told.get("step"), told.get("facts"), told.get("ties")
    if not isinstance(step, int) or not isinstance(facts, dict) or not isinstance(ties, dict):
        raise CheckpointError(f"{path / _FACTS} does not hold a step, facts and ties")
    parts = {}
    for name in names:
        if name.endswith(".safetensors"):
            part = name.removesuffix(".safetensors")
            parts[part] = _untied(_read_tensors(path / name), ties.get(part, {}), path / _FACTS)
    return Checkpoint(path, step, parts, facts)


def prune(folder: Path, keep: int, also: Collection[int] = ()) -> None:
    """Delete all but the newest `keep` and those of the steps in `also`."""
    for path in list(_newest_first(folder))[keep:]:
        if _step_of(path) not in also:
            _discard(path)


def fit(model: nn.Module, tensors: Mapping[str, Tensor], what: str = "the checkpoint") -> None:
    """Give a model its weights. All must be there, of the right shape, and no others; else the model keeps its own."""
    wanted = model.state_dict()
    tied: dict[Any, list[str]] = {}
    for name, tensor in wanted.items():
        tied.setdefault((tensor.data_ptr(), tensor.shape) if tensor.numel() else name, []).append(name)
    chosen: dict[str, Tensor] = {}
    mismatch = Mismatch(extra=[name for name in tensors if name not in wanted])
    for names in tied.values():
        stored = [name for name in names if name in tensors]  # of a tied weight, one name is enough
        if not stored:
            mismatch.missing.append(f"{names[0]} ({size(wanted[names[0]])})")
            continue
        first = tensors[stored[0]]
        for name in stored:
            mismatch.compare(name, tensors[name], wanted[name])
            if tensors[name] is not first and not torch.equal(tensors[name], first):
                mismatch.unlike.append(f"{name} is not equal to {stored[0]}, to which the model ties it")
        chosen |= dict.fromkeys(names, first)
    mismatch.refuse(what)
    model.load_state_dict(chosen)


def _fill(draft: Path, step: int, parts: Parts, facts: Mapping[str, Any]) -> None:
    ties: dict[str, dict[str, str]] = {}
    for part, tensors in parts.items():
        copies, ties[part] = _copied(tensors)
        save_file(copies, draft / f"{part}.safetensors")
        sync(draft / f"{part}.safetensors")
    told = _to_json({"step": step, "facts": facts, "ties": ties})
    assert len(told) <= LARGEST_FACTS, f"{len(told):,} bytes of facts could never be read again"
    write_file(draft / _FACTS, told)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in sorted(draft.iterdir())}
    write_file(draft / _MANIFEST, _to_json({"format": _FORMAT, "files": files}))
    sync(draft)


def _commit(draft: Path, final: Path) -> None:
    old = final.with_name(f"{final.name}.old")
    if final.exists():
        final.rename(old)
    draft.rename(final)
    sync(final.parent)
    if old.exists():
        _discard(old)


def _tidy(folder: Path) -> None:
    """Clear away what a killed process left behind."""
    for path in folder.glob("step-*.tmp"):
        _remove(path)
    for old in folder.glob("step-*.old"):
        current = old.with_suffix("")
        if current.exists():
            _discard(old)
        else:
            old.rename(current)


def _copied(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Copies on the host, each with memory of its own, and the names of those that are another's twin."""
    first: dict[Any, str] = {}
    copies, ties = {}, {}
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in first:
            ties[name] = first[place]
        else:
            first[place] = name
            copies[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return copies, ties


def _untied(tensors: dict[str, Tensor], ties: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(ties, dict):
        raise CheckpointError(f"{path}: its ties are not names")
    for name, other in ties.items():
        if name in tensors or not isinstance(other, str) or other not in tensors:
            raise CheckpointError(f"{path} ties {name!r} to {other!r}, which is not there to be tied to")
    return {**tensors, **{name: tensors[other] for name, other in ties.items()}}


def _newest_first(folder: Path) -> Iterator[Path]:
    found = [path for path in folder.iterdir() if _FINISHED.fullmatch(path.name)] if folder.is_dir() else []
    # Of two with the same step, the one without a suffix is the newer.
    yield from sorted(found, key=lambda path: (_step_of(path), path.suffix != ".old"), reverse=True)


def _step_of(path: Path) -> int:
    match = _FINISHED.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _verify(path: Path) -> list[str]:
    """Names of the files in a checkpoint, after comparing each with the manifest."""
    try:
        return _verified(path)
    except OSError as error:
        raise CheckpointError(f"{error.filename or path} cannot be read: {error.strerror}") from None


def _verified(path: Path) -> list[str]:
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint at {path}")
    manifest = _read_json(path / _MANIFEST, LARGEST_MANIFEST)
    files = manifest.get("files")
    if manifest.get("format") != _FORMAT or not isinstance(files, dict) or _FACTS not in files:
        raise CheckpointError(f"{path / _MANIFEST} is not a manifest of format {_FORMAT}")
    for name, promise in files.items():
        part = name.removesuffix(".safetensors")
        if name != _FACTS and (part == name or not _PART.fullmatch(part)):
            raise CheckpointError(f"{path / _MANIFEST} names {name[:100]!r}, which is no file of a checkpoint")
        if not isinstance(promise, dict):
            raise CheckpointError(f"{path / _MANIFEST} does not say what {name} must be")
        _verify_file(path / name, promise.get("bytes"), promise.get("sha256"))
    return list(files)


def _verify_file(path: Path, promised: Any, digest: Any) -> None:
    if not path.is_file() or path.is_symlink():
        raise CheckpointError(f"{path} is missing")
    actual = path.stat().st_size
    if actual != promised:
        raise CheckpointError(f"{path} is damaged: it has {actual:,} bytes, but its manifest says {promised!r}")
    if _digest(path) != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in its manifest")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_tensors(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > min(LARGEST_HEADER, path.stat().st_size):
        raise CheckpointError(f"{path} is not a safetensors file: its header would have {header:,} bytes")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, KeyError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {str(error)[:200]}") from None
    # Away from the mapped file: what is computed must not depend on where in a page a tensor begins.
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _read_json(path: Path, limit: int) -> dict[str, Any]:
    if not path.is_file() or path.is_symlink():
        raise CheckpointError(f"{path} is missing")
    length = path.stat().st_size
    if length > limit:
        raise CheckpointError(f"{path} has {length:,} bytes; at most {limit:,} are read")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON of ours: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold names and values, but it is a {type(value).__name__}")
    return value


def _to_json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def _discard(path: Path) -> None:
    """Delete a checkpoint. Under its own name it is whole or gone, also when this is cut short."""
    doomed = path.with_name(f"{path.name}.tmp")
    _remove(doomed)
    path.rename(doomed)
    _remove(doomed)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)

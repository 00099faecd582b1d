"""The program in the sandbox: it loads a student's file and answers the grader, request by request.

What it sends is not trusted: the student's code runs in this process and may send anything. It has no reference to
compare with, and no verdict is made here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphor.course.grading.fingerprint import fingerprints
from anaphor.course.grading.limits import limit
from anaphor.course.grading.messages import Channel, Closed
from anaphor.course.implementation import Call, Form, LocalImplementation, clone, give_inputs, vary_cases
from anaphor.course.placeholder import find_placeholder
from anaphor.course.reference import Case, Reference
from anaphor.course.student import NotWritten, StudentError, load_subject
from anaphor.errors import AnaphorError
from anaphor.imported_files import ImportFailed
from anaphor.registry import import_object

MAX_FILES = 256
"""Files that the process may have open."""
MAX_COPIED = 32_000_000
"""Bytes of all files of a submission that its code may read; runs are not among them."""
MAX_COPIED_FILE = 8_000_000
OWNERS = (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm)
"""Layers whose weights are read in their own way: the first that the owner of a weight is one of is named."""


@dataclass
class Sandboxed:
    """The student's own that is being compared."""

    implementation: LocalImplementation | None = None
    weights: list[Tensor] = field(default_factory=list)
    calls: dict[int, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)
    """Leaves and outputs of every call, for the way back."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        actions: dict[str, Callable[..., dict[str, Any]]] = {
            "write": self.write,
            "fingerprint": self.fingerprint,
            "placeholder": self.placeholder,
            "load": self.load,
            "build": self.build,
            "set_weights": self.set_weights,
            "to": self.to,
            "run": self.run,
            "backward": self.backward,
            "meta": self.meta,
        }
        do = request.pop("do")
        return actions[do](**request)

    def write(self, files: dict[str, tuple[str, bool]]) -> dict[str, Any]:
        """Change files of the copy: parts of the solution, for what is built on them."""
        for name, (text, is_added) in files.items():
            path = Path(name)
            before = path.read_bytes() + b"\n\n" if is_added and path.is_file() else b""
            path.write_bytes(before + text.encode())
        return {}

    def fingerprint(self, file: str) -> dict[str, Any]:
        return {"found": fingerprints(Path(file).read_bytes())}

    def placeholder(self, file: str, name: str) -> dict[str, Any]:
        found = find_placeholder(Path(file), name)
        return {"found": None if found is None else str(NotWritten(found))}

    def load(self, target: str, place: str) -> dict[str, Any]:
        subject = load_subject(target)
        self.implementation = LocalImplementation(import_object(place), subject, torch.device("cpu"))
        return {}

    def build(self) -> dict[str, Any]:
        built = self._own.build()
        self.weights, self.calls = [one.value for one in built.given], {}
        given = [{"name": one.name, "value": one.value, "owner": _name_owner(one.owner)} for one in built.given]
        return {"sizes": built.sizes, "given": given, "hidden": built.hidden, "loads": built.loads_reference}

    def set_weights(self, values: list[Tensor], loaded: dict[str, Tensor] | None) -> dict[str, Any]:
        with torch.no_grad():
            for weight, value in zip(self.weights, values, strict=True):
                weight.copy_(value)
        self._own.set_weights(loaded)
        return {}

    def to(self, dtype: str) -> dict[str, Any]:
        self.calls = {}
        self._own.to(getattr(torch, dtype))
        return {}

    def run(self, number: int, call: dict[str, Any]) -> dict[str, Any]:
        made = _read_call(self._own.reference, self._own.sizes, call)
        given = made.case.inputs
        inputs = [one for one in _tensors(given) if one.requires_grad]
        own = {name: clone(value) for name, value in given.items()}
        outputs = self._own.run(replace(made, case=replace(made.case, inputs=own)))
        changed = [name for name, value in given.items() if not _is_equal(value, own[name])]
        found = [one for one in _tensors(outputs) if one.requires_grad]
        self.calls[number] = ([*inputs, *(one for one in self.weights if one.requires_grad)], found)
        return {"outputs": outputs, "changed": changed}

    def backward(self, number: int, gradients: list[Tensor]) -> dict[str, Any]:
        leaves, outputs = self.calls[number]
        found = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True, retain_graph=True)
        return {"gradients": [*found]}

    def meta(self, call: dict[str, Any]) -> dict[str, Any]:
        self._own.run_without_memory(_read_call(self._own.reference, self._own.sizes, call))
        return {}

    @property
    def _own(self) -> LocalImplementation:
        assert self.implementation is not None, "a file is loaded first"
        return self.implementation


def _tensors(value: Any) -> list[Tensor]:
    """All tensors in a value, in its order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in _tensors(part)] if isinstance(value, list | tuple) else []


def _is_equal(value: Any, other: Any) -> bool:
    return torch.equal(value, other) if isinstance(value, Tensor) else bool(value == other)


def _name_owner(owner: type) -> str:
    return next((kind.__name__ for kind in OWNERS if issubclass(owner, kind)), "Module")


def _read_call(reference: Reference, sizes: dict[str, int], call: dict[str, Any]) -> Call:
    form = Form(getattr(torch, call["dtype"]), call["form"])
    if "inputs" in call:
        case = Case(call["name"], call["inputs"], "")
    else:
        made = vary_cases(reference, sizes, call["seed"])[call["number"]]
        case = give_inputs(reference, made, form)
    return Call(case, call["number"], form, call["seed"])


def copy_small_files(source: Path, target: Path) -> None:
    """The files of a submission into a folder that may be written; not runs, and nothing large."""
    room = MAX_COPIED
    for parent, folders, names in os.walk(source):
        folders[:] = [name for name in folders if not (Path(parent) / name / "spec.yaml").is_file()]
        for name in names:
            path = Path(parent) / name
            size = path.lstat().st_size
            if path.is_symlink() or size > min(room, MAX_COPIED_FILE):
                continue
            room -= size
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def silence() -> None:
    """What the student's code prints, and what libraries write, is dropped."""
    sink = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(sink, descriptor)


def serve(channel: Channel) -> None:
    """Answer until the other end is gone."""
    work = Sandboxed()
    while True:
        try:
            request = channel.receive()
        except Closed:
            return
        try:
            answer = work.answer(request)
        except StudentError as error:
            answer = {"student_error": error.text, "where": error.where, "name": error.name}
        except ImportFailed as error:
            answer = {"error": str(error), "file": error.file}
        except AnaphorError as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 (a student's values may make any of our lines raise)
            answer = {"student_error": f"{type(error).__name__}: {str(error)[:500]}", "where": ""}
        try:
            channel.send(answer)
        except Exception as error:  # noqa: BLE001 (a student's values may be of any kind)
            channel.send({"student_error": f"what it returns cannot be sent: {str(error)[:500]}", "where": ""})


def main() -> None:
    """Arguments: two descriptors, bytes of memory, seconds of processor time, the submission, and its copy to make."""
    reading, writing, memory, processor = map(int, sys.argv[1:5])
    source, folder = map(Path, sys.argv[5:7])
    copy_small_files(source, folder)
    os.chdir(folder)
    torch.set_num_threads(1)
    limit(memory=memory, processor=processor, files=MAX_FILES)
    silence()
    serve(Channel(reading, writing))


if __name__ == "__main__":
    main()

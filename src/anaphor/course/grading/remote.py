"""A student's own in a sandbox, as the check sees it: inputs go there, values come back, and the comparison is here.

Gradients flow through a call as through any other: the way back is a second message.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.course.grading.messages import Channel, Closed, Described
from anaphor.course.grading.sandbox import COPY, MEMORY, SUBMISSION, Sandbox
from anaphor.course.implementation import Built, Call
from anaphor.course.reference import Outputs, Reference, Sizes, Weights
from anaphor.course.student import NotWritten, StudentError
from anaphor.course.weights import Weight
from anaphor.errors import ConfigError
from anaphor.imported_files import ImportFailed

OWNERS: Mapping[str, type[nn.Module]] = {
    "Linear": nn.Linear, "Embedding": nn.Embedding, "LayerNorm": nn.LayerNorm, "Module": nn.Module,
}  # fmt: skip
MAX_WEIGHTS = 500
MAX_NUMBERS = 1_000_000
"""Of one weight; those of the references have some thousands."""
START_SECONDS = 120.0
"""Until a process has imported torch, on a busy machine."""


class SandboxEnded(Exception):
    """The process is gone: it took too long, used too much, or ended itself."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        super().__init__(text)


class RemoteError(StudentError):
    """What the student's own raised in the sandbox."""

    def __init__(self, where: str, text: str, *, is_written: bool = True) -> None:
        self.where, self.text = where[:200], text[:1000]
        self.name = StudentError.name if is_written else NotWritten.name
        Exception.__init__(self, f"{self.where}: {self.text}")


class Remote:
    """A sandbox with one process that answers requests."""

    def __init__(self, sandbox: Sandbox, submission: Path, scratch: Path, seconds: float) -> None:
        self.sandbox, self.submission, self.seconds = sandbox, submission, seconds
        self.scratch = Path(tempfile.mkdtemp(dir=scratch))
        copy = self.scratch / "copy"
        copy.mkdir()
        here, there = os.pipe(), os.pipe()
        self.channel = Channel(there[0], here[1])
        os.set_blocking(here[1], False)
        source, target = (SUBMISSION, COPY) if sandbox.is_safe else (str(submission), str(copy))
        arguments = [here[0], there[1], MEMORY, int(10 * seconds) + 60, source, target]
        self.process = sandbox.start(
            "anaphor.course.grading.inside", [*map(str, arguments)], readable=[(submission, SUBMISSION)],
            descriptors=[here[0], there[1]], scratch=self.scratch,
        )  # fmt: skip
        for descriptor in (here[0], there[1]):
            os.close(descriptor)
        self.folder = target
        self.is_ready = False

    def request(self, do: str, **values: Any) -> dict[str, Any]:
        """The answer to a request, or an error: `SandboxEnded` where none comes."""
        seconds = self.seconds if self.is_ready else START_SECONDS
        try:
            self.channel.send({"do": do, **values}, seconds)
            answer = self.channel.receive(seconds)
        except TimeoutError:
            self.end()
            raise SandboxEnded("time-limit", f"it takes more than {self.seconds:g} s") from None
        except (Closed, OSError) as error:
            raise self._describe_end(error) from None
        self.is_ready = True
        if "student_error" in answer:
            is_written = answer.get("name") != NotWritten.name
            raise RemoteError(str(answer.get("where", "")), str(answer["student_error"]), is_written=is_written)
        if "file" in answer:
            raise ImportFailed(str(answer.get("error"))[:1000], str(answer["file"])[:200])
        if "error" in answer:
            raise ConfigError(str(answer["error"])[:1000])
        return answer

    def _describe_end(self, error: Exception) -> SandboxEnded:
        if str(error) != "it has ended":
            self.end()
            return SandboxEnded("ended", str(error))
        try:
            code = self.process.wait(10)
        except Exception:  # noqa: BLE001 (it closed its descriptors, and lives)
            code = None
        self.end()
        name = "" if code is None else _signal_name(code)
        if name in ("SIGXCPU", "SIGKILL"):
            return SandboxEnded("time-limit", "it used more processor time or memory than it may")
        return SandboxEnded("ended", f"the code ended its process ({name or f'exit code {code}'})")

    def end(self) -> None:
        """End the process with all that it has made."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        self.end()
        self.channel.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _signal_name(code: int) -> str:
    number = -code if code < 0 else code - 128
    return signal.Signals(number).name if number in {*map(int, signal.Signals)} else ""


class RemoteImplementation:
    """A student's own in a sandbox: see `Implementation`."""

    def __init__(self, reference: Reference, remote: Remote, name: str, *, sends_inputs: bool) -> None:
        self.reference, self.remote, self.name, self.sends_inputs = reference, remote, name, sends_inputs
        self.weights: list[Weight] = []
        self._numbers = count()

    def build(self) -> Built:
        answer = self.remote.request("build")
        try:
            sizes = {str(name): size for name, size in answer["sizes"].items()}
            self._check_sizes(sizes)
            given = list(self._read_weights(answer["given"]))
            hidden = [str(name)[:200] for name in answer["hidden"][:20]]
        except (KeyError, TypeError, AttributeError, ValueError):
            raise SandboxEnded("ended", "it sends what is no answer") from None
        self.weights = given
        return Built(sizes, given, hidden, answer["loads"] is True)

    def _check_sizes(self, sizes: Sizes) -> None:
        """Sizes are those of the reference, and no others that a student may like better."""
        known = {**self.reference.sizes}
        forms = [{name: known[name] for name in form if name in known} for form in self.reference.constructors]
        derived = [self.reference.derived(form) for form in (known, *forms)]
        allowed = {(name, size) for one in (known, *derived) for name, size in one.items()}
        if not {*sizes.items()} <= allowed:
            raise ValueError("other sizes")

    def _read_weights(self, given: Any) -> Iterator[Weight]:
        if len(given) > MAX_WEIGHTS:
            raise ValueError("too many weights")
        for one in given:
            value = one["value"]
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() > MAX_NUMBERS:
                raise ValueError("no weight")
            own = nn.Parameter(value.detach(), requires_grad=value.requires_grad)
            yield Weight(str(one["name"])[:200], own, OWNERS[one["owner"]])

    def set_weights(self, loaded: Weights | None) -> None:
        self.remote.request("set_weights", values=[one.value.detach() for one in self.weights], loaded=loaded)

    def to(self, dtype: torch.dtype) -> None:
        self.remote.request("to", dtype=str(dtype).removeprefix("torch."))
        for weight in self.weights:
            weight.value.data = weight.value.data.to(dtype)

    def run(self, call: Call) -> Outputs:
        number = next(self._numbers)
        answer = self.remote.request("run", number=number, call=self._describe(call))
        outputs, changed = answer.get("outputs"), answer.get("changed")
        if not isinstance(outputs, dict) or not isinstance(changed, list):
            raise SandboxEnded("ended", "it sends what is no answer")
        leaves = [one for one in tensors_in(call.case.inputs) if one.requires_grad]
        leaves += [one.value for one in self.weights if one.value.requires_grad]
        for name in changed:
            if name in call.case.inputs:
                call.case.inputs[name] = torch.empty(0, 0, 0, 0)  # another one than it was
        found = [one for one in tensors_in(outputs) if one.requires_grad]
        apply: Any = _Through.apply
        through = apply(self.remote, number, found, *leaves) if found and leaves else ()
        replaced = dict(zip(map(id, found), through, strict=False))
        return {str(name): _replace(value, replaced) for name, value in outputs.items()}

    def run_without_memory(self, call: Call) -> None:
        self.remote.request("meta", call=self._describe(call))

    def _describe(self, call: Call) -> dict[str, Any]:
        described: dict[str, Any] = {
            "name": call.case.name,
            "number": call.number,
            "dtype": str(call.form.dtype).removeprefix("torch."),
            "form": call.form.name,
            "seed": call.seed,
        }
        return described | ({"inputs": dict(call.case.inputs)} if self.sends_inputs else {})


class _Through(torch.autograd.Function):
    """Values that came from the sandbox, as functions of inputs and weights here."""

    @staticmethod
    def forward(ctx: Any, remote: Remote, number: int, values: list[Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.remote, ctx.number, ctx.shapes = remote, number, [one.shape for one in leaves]
        return tuple(one.detach() for one in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        answer = ctx.remote.request("backward", number=ctx.number, gradients=[one.detach() for one in gradients])
        found = answer.get("gradients")
        if not isinstance(found, list) or len(found) != len(ctx.shapes):
            raise SandboxEnded("ended", "it sends what is no answer")
        for one, shape in zip(found, ctx.shapes, strict=True):
            if one is not None and (not isinstance(one, Tensor) or one.shape != shape):
                raise SandboxEnded("ended", "it sends what is no answer")
        return (None, None, None, *(None if one is None else one.detach() for one in found))


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a value, in its order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in tensors_in(part)] if isinstance(value, list | tuple) else []


def _replace(value: Any, replaced: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return replaced.get(id(value), value.detach())
    if isinstance(value, dict):
        return {name: _replace(one, replaced) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replace(one, replaced) for one in value)
    return value


def can_send(inputs: Mapping[str, Any]) -> bool:
    """Whether a message can have these inputs."""
    return all(map(_is_plain, inputs.values()))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | bytes | Tensor | Described)

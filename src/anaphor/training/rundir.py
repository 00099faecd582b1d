"""Run folder: a run as plain files that outlive the program.

`spec.yaml` is enough to repeat the run, `metrics.jsonl` has a line for each thing measured, `samples.txt` what the
model wrote on the way, `checkpoints/` its weights, `result.json` the scores and `curves.png` the curves at the end,
`events/` what TensorBoard shows, if it is asked for, `data-path.txt` where the data were, if their name tells it in one
folder only.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from anaphor.config import finite
from anaphor.errors import ConfigError, DataError
from anaphor.training.durable import append_file, replace_file
from anaphor.training.lock import locked

STUDY = "study.yaml"  # what a folder has that is no run's but a study's
LARGEST_PLACE = 10_000  # bytes; no file system knows longer paths
LARGEST_RESULT = 10_000_000  # bytes; ours have a few hundred

_SAMPLE = re.compile(r"^=== step (\d+) ===$", flags=re.MULTILINE)


class RunDir:
    """The files of one run. To open one writes nothing; whoever writes takes the lock first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = folder / "spec.yaml"
        self.place = folder / "data-path.txt"
        self.metrics = folder / "metrics.jsonl"
        self.samples = folder / "samples.txt"
        self.checkpoints = folder / "checkpoints"
        self.result = folder / "result.json"
        self.events = folder / "events"
        self.curves = (folder / "curves.png", folder / "curves.svg")

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.spec.is_file()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes here. Refused at once if another is, or if nothing can be written."""
        if (self.folder / STUDY).is_file():
            raise ConfigError(f"{self.folder} holds a study: choose another --out")
        mine = not self.folder.exists()
        with ExitStack() as held:
            try:
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                for folder in (self.folder, self.checkpoints):
                    tempfile.TemporaryFile(dir=folder).close()  # permissions do not tell all: a disk may be read-only
                held.enter_context(locked(self.folder / ".lock", str(self.folder)))
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(f"cannot write to {self.folder}: {reason}; choose another --out") from None
            held.callback(self._leave_nothing, mine)
            yield

    def _leave_nothing(self, mine: bool) -> None:
        """Where no run was begun, because it was refused, nothing of it stays behind."""
        if self.exists:
            return
        with suppress(OSError):  # something else stands there, and stays
            (self.folder / ".lock").unlink(missing_ok=True)
            self.checkpoints.rmdir()
            if mine:
                self.folder.rmdir()

    def begin(self, spec: str, *, force: bool = False) -> None:
        """Start a run from its spec. One that is here already is kept, unless it is to be deleted by `force`."""
        if self.exists and not force:
            raise ConfigError(
                f"{self.folder} holds a run already: go on with it by --resume, delete it by --force, "
                f"or choose another --out"
            )
        from anaphor.training import checkpoint  # not above: it brings torch, and a bad folder is refused sooner

        with _writing(self.folder):
            self._forget_the_end()
            for events in self.events.glob("events.out.tfevents.*"):
                events.unlink()
            checkpoint.prune(self.checkpoints, keep=0)
            self.place.unlink(missing_ok=True)
            self.metrics.unlink(missing_ok=True)
            self.samples.unlink(missing_ok=True)
            replace_file(self.spec, spec.encode())

    def go_back(self, step: int) -> None:
        """Forget all that was told after a step, also a line that was cut short: it will be told again."""
        self.require()
        with _writing(self.folder):
            self._forget_the_end()
            if self.metrics.exists():
                kept = [line for line in self.read_metrics() if line["step"] <= step]
                replace_file(self.metrics, b"".join(map(_line, kept)))
            if self.samples.exists():
                text = self.samples.read_bytes().decode(errors="replace")
                text = text[: text.rfind("\n") + 1]
                later = (match.start() for match in _SAMPLE.finditer(text) if int(match[1]) > step)
                replace_file(self.samples, text[: next(later, len(text))].encode())

    def change(self, spec: str) -> None:
        """Go on with other settings than those it was begun with."""
        with _writing(self.spec):
            replace_file(self.spec, spec.encode())

    def keep_place(self, place: str | None) -> None:
        """Note where the data are; None means that their name tells it everywhere."""
        with _writing(self.place):
            if place is None:
                self.place.unlink(missing_ok=True)
            elif place != self.read_place():
                replace_file(self.place, os.fsencode(f"{place}\n"))

    def read_place(self) -> str | None:
        """Where the data were when this was last trained; None where that was not noted."""
        try:
            with self.place.open("rb") as file:
                return os.fsdecode(file.read(LARGEST_PLACE)).partition("\n")[0] or None
        except OSError:
            return None

    def _forget_the_end(self) -> None:
        for path in (self.result, *self.curves):
            path.unlink(missing_ok=True)

    def require(self) -> None:
        """Refuse a folder without a run."""
        if not self.exists:
            raise ConfigError(f"no run at {self.folder}: it has no {self.spec.name}")

    def log(self, step: int, **values: Any) -> None:
        """Add a line to the metrics. A number that is not finite becomes null: JSON has no name for it."""
        with _writing(self.metrics):
            append_file(self.metrics, _line({"step": step, **values}))

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of the metrics, in order. The last may be on its way and is left out if so."""
        if not self.metrics.exists():
            return []
        *lines, torn = self.metrics.read_bytes().split(b"\n")
        del torn  # a whole line ends with its newline, so that nothing stands behind the last of them
        return [self._parsed(line, number) for number, line in enumerate(lines, start=1)]

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.metrics}, line {number} is not JSON of ours: {str(error)[:100]}") from None
        if not isinstance(values, dict) or not isinstance(values.get("step"), int):
            raise DataError(f"{self.metrics}, line {number} does not name its step: {line[:60]!r}")
        return values

    def add_sample(self, step: int, text: str) -> None:
        """Keep what the model wrote at a step."""
        # A model may write what looks like our headings.
        harmless = _SAMPLE.sub(lambda match: f" {match[0]}", text)
        with _writing(self.samples):
            append_file(self.samples, f"=== step {step} ===\n{harmless}\n\n".encode(errors="replace"))

    def write_result(self, result: Mapping[str, Any]) -> None:
        with _writing(self.result):
            replace_file(self.result, json.dumps(finite(result), indent=2, ensure_ascii=False).encode() + b"\n")

    def read_result(self) -> dict[str, Any]:
        """The scores of a finished run."""
        self.require()
        if not self.result.is_file():
            raise DataError(f"the run at {self.folder} has no {self.result.name}: it is not finished")
        if self.result.stat().st_size > LARGEST_RESULT:
            raise DataError(f"{self.result} has more than {LARGEST_RESULT:,} bytes: it is not one of ours")
        try:
            result = json.loads(self.result.read_bytes())
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.result} is not JSON of ours: {str(error)[:100]}") from None
        if not isinstance(result, dict):
            raise DataError(f"{self.result} must hold names and values, but it is a {type(result).__name__}")
        return result


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(finite(values), ensure_ascii=False).encode() + b"\n"

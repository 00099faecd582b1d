"""Run folder: a run as plain files that outlive the program.

`spec.yaml` repeats the run, `metrics.jsonl` has a line for each validation, `steps.jsonl` one every few seconds,
`samples.txt` what the model wrote while it trained, `checkpoints/` its weights, `result.json` the scores and
`curves.png` the curves at the end, `events/` the TensorBoard events where they were asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import Any

from anaphor.config import NOT_SETTINGS, check_format, flatten_sections, look_up
from anaphor.draw import SUFFIXES as FIGURE_SUFFIXES
from anaphor.draw import figure_paths
from anaphor.errors import ConfigError, DataError, Diverged, count_noun
from anaphor.files import append_file, delete, make_folder, refuse_links, rename, replace_file
from anaphor.imported_files import IMPORTED, import_flag
from anaphor.plain_values import replace_nonfinite
from anaphor.registry import TASKS
from anaphor.training.lock import hold_lock
from anaphor.training.options import MAX_THREADS
from anaphor.training.task import TaskDefinition
from anaphor.user_paths import user_path
from anaphor.yaml_files import read_mapping

STUDY = "study.yaml"  # a file of a study's folder
MAX_RESULT_BYTES = 10_000_000  # bytes; results have a few hundred
MAX_STEPS_BYTES = 10_000_000  # bytes of a step log; 2,000 lines have 300,000
NO_DATA = "none"  # data of a run that was converted, and not trained here

_SAMPLE = re.compile(r"^=== step ([0-9]{1,18}) ===$", flags=re.MULTILINE)


class RunFolder:
    """The files of one run. Reading writes nothing; a writer takes the lock first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = user_path(folder)
        self.spec = folder / "spec.yaml"
        self.metrics = folder / "metrics.jsonl"
        self.steps = folder / "steps.jsonl"
        self.samples = folder / "samples.txt"
        self.checkpoints = folder / "checkpoints"
        self.result = folder / "result.json"
        self.events = folder / "events"
        self.trackers = folder / "trackers.json"
        self.previous = folder / "previous"
        self.curves = figure_paths(folder / "curves")

    @property
    def exists(self) -> bool:
        """Whether there is a run here."""
        return self.spec.is_file()

    def require(self) -> None:
        """Raise for a folder without a run."""
        if self.exists:
            return
        reason = "there is no such folder"
        if self.folder.is_dir():
            reason = f"it has no {self.spec.name}"
        if self.folder.is_file():
            reason = "it is a file, not a folder"
            if RunFolder(self.folder.parent).exists:
                reason = f"it is a file; give the folder of the run, {self.folder.parent}"
        elif (self.folder / STUDY).is_file():
            reason = f"it is a study, and its runs are in {self.folder / 'cells'}"
        raise ConfigError(f"no run at {self.folder}: {reason}")

    def read_document(self) -> dict[str, Any]:
        """`spec.yaml` as it is: format, task, sections, environment, imports. Another format number is refused."""
        self.require()
        values = read_mapping(self.spec)
        check_format(values, self.spec, required=True)
        return values

    def check_imports(self, *, force: bool, warn: Callable[[str], None]) -> None:
        """Raise unless the user's files that the run was trained with are imported, unedited or by `force`."""
        recorded = self.read_document().get("imports") or []
        hashes = {file.sha256 for file in IMPORTED.values()}
        names = {path.name for path in IMPORTED}
        for entry in recorded if isinstance(recorded, list) else []:
            if not isinstance(entry, dict) or entry.get("sha256") in hashes:
                continue
            path = Path(str(entry.get("file")))
            if path.name not in names:
                raise ConfigError(f"{self.folder} was trained with parts of {path.name}: pass {import_flag(path)}")
            if not force:
                raise ConfigError(
                    f"{path.name} has changed since {self.folder} was trained: pass the original file with --import, "
                    f"or --force to use this one"
                )
            warn(f"{path.name} has changed since {self.folder} was trained")

    def read_task(self) -> TaskDefinition:
        """The task of the run. Where it is a user's own, the error names the file to import."""
        name = str(self.read_document().get("task"))[:100]
        if name not in TASKS:
            self.check_imports(force=True, warn=lambda line: None)
        task: TaskDefinition = look_up(TASKS, name, "task")
        return task

    def read_settings(self) -> dict[str, Any]:
        """The settings of the run, flat and unparsed."""
        values = self.read_document()
        return flatten_sections({key: value for key, value in values.items() if key not in NOT_SETTINGS}, self.spec)

    def read_environment(self) -> dict[str, Any]:
        """Versions, device, dtype, threads and the path of the data, as they were in training."""
        environment = self.read_document().get("environment")
        return environment if isinstance(environment, dict) else {}

    def read_data_path(self) -> str | None:
        """Where the data were when the run was last trained; None where their name is enough."""
        return recorded_path(self.read_environment(), "data_path")

    def read_threads(self) -> int | None:
        """The number of CPU threads that the run was trained with; None where it does not say."""
        threads = self.read_environment().get("threads") if self.exists else None
        return threads if type(threads) is int and 1 <= threads <= MAX_THREADS else None

    def read_ranks(self) -> int:
        """The number of processes that the run was trained by."""
        ranks = self.read_environment().get("ranks", 1) if self.exists else 1
        return ranks if type(ranks) is int else 1

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes here. Raises at once if another one is, or if nothing can be written."""
        if (self.folder / STUDY).is_file():
            raise ConfigError(f"{self.folder} holds a study: choose another --out")
        is_new = not self.folder.exists()
        with ExitStack() as held:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                folders = [self.folder]
                if not self.checkpoints.is_symlink():  # to resume is refused below, to overwrite sets the link aside
                    make_folder(self.checkpoints, within=self.folder)
                    folders.append(self.checkpoints)
                for folder in folders:
                    tempfile.TemporaryFile(dir=folder).close()  # permissions are not all: a disk may be read-only
                held.enter_context(hold_lock(self.folder / ".lock", str(self.folder)))
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(f"cannot write to {self.folder}: {reason}; choose another --out") from None
            held.callback(self._remove_if_unused, is_new)
            yield

    def _remove_if_unused(self, is_new: bool) -> None:
        """Where no run was created, because it was refused, remove what was made for it."""
        if self.exists:
            return
        with suppress(OSError):  # other files are there, and stay
            delete(self.folder / ".lock")
            self.checkpoints.rmdir()  # not of a link
            if is_new:
                self.folder.rmdir()

    def check_resumable(self, *, force: bool, warn: Callable[[str], None]) -> None:
        """Raise unless there is a run whose training can be resumed."""
        self.require()
        self.refuse_links()
        if self.read_earlier_result().get("status") == "converted":  # weights without the state of an optimizer
            raise ConfigError(
                f"{self.folder} was converted: there is no training to resume; start a new run from its weights with "
                f"--init {quote(str(self.folder))}"
            )
        self.check_imports(force=force, warn=warn)

    def refuse_links(self) -> None:
        """Raise if a file of the run, or one of its folders, is a link, before it would be written to."""
        files = (
            self.spec,
            self.metrics,
            self.steps,
            self.samples,
            self.checkpoints,
            self.result,
            self.events,
            self.trackers,
            self.previous,
        )
        for path in (*files, *self._figures()):
            refuse_links(path, self.folder)

    def refuse_existing(self) -> None:
        """Raise if there is a run."""
        if self.exists:
            raise ConfigError(
                f"{self.folder} already holds a run: resume it with --resume, replace it with --overwrite, "
                f"or choose another --out{self.describe_previous()}"
            )

    def describe_previous(self) -> str:
        """Where a run is that was being overwritten when the new one ended; empty where there is none."""
        return f"; the run that was being overwritten is in {self.previous}" if self.previous.exists() else ""

    def describe_last_checkpoint(self) -> str:
        """What is left of a run that diverges."""
        is_there = any(self.checkpoints.glob("step-*"))
        return "the last good checkpoint is kept" if is_there else "there was no checkpoint yet"

    def describe_contents(self) -> str:
        """What overwriting deletes, in words."""
        steps = sorted(int(path.name[5:]) for path in self.checkpoints.glob("step-*") if path.name[5:].isdecimal())
        saved = f"{count_noun(len(steps), 'checkpoint')} (step {str(steps)[1:-1]})" if steps else "no checkpoint"
        return f"{saved} and its result" if self.result.is_file() else saved

    def create(self, spec: str) -> None:
        """Start a run from its spec document. A run that is here is kept in `previous` until the first checkpoint."""
        with _explain_write_errors(self.folder):
            if self.exists:
                refuse_links(self.spec, self.folder)
                self._set_aside()
            self.refuse_links()
            replace_file(self.spec, spec.encode())

    def _set_aside(self) -> None:
        # Of the folder of events only our own files, unless it is a link.
        events: Iterable[Path] = (
            [self.events] if self.events.is_symlink() else self.events.glob("events.out.tfevents.*")
        )
        files = [self.checkpoints, self.metrics, self.steps, self.samples, self.result, self.trackers]
        files += [*events, *self._figures()]
        if self.previous.exists() and not any(self.checkpoints.glob("step-*")):
            # The run here never had a checkpoint, so that the one that it was to replace is still the last good one.
            for path in files[1:]:
                delete(path)
            return
        delete(self.previous)
        make_folder(self.previous, within=self.folder)
        replace_file(self.previous / self.spec.name, self.spec.read_bytes())  # first, so that it is a run at any moment
        for path in files:
            if path.is_symlink() or path.exists():
                kept = self.previous / path.relative_to(self.folder)
                make_folder(kept.parent, within=self.folder)
                rename(path, kept, within=self.folder)
        make_folder(self.checkpoints, within=self.folder)

    def delete_previous(self) -> None:
        """Delete the run that was overwritten, now that the new one has a checkpoint."""
        delete(self.previous)

    def truncate_after(self, step: int) -> None:
        """Remove everything that was logged after a step, and an incomplete line: it will be logged again."""
        self.require()
        with _explain_write_errors(self.folder):
            self.delete_result()
            if self.metrics.exists():
                kept = [line for line in self.read_metrics() if line["step"] <= step]
                replace_file(self.metrics, b"".join(map(_line, kept)))
            if self.steps.exists():
                replace_file(self.steps, b"".join(_line(row) for row in self.read_steps() if row["step"] <= step))
            if self.samples.exists():
                text = self.samples.read_bytes().decode(errors="replace")
                text = text[: text.rfind("\n") + 1]
                later = (match.start() for match in _SAMPLE.finditer(text) if int(match[1]) > step)
                replace_file(self.samples, text[: next(later, len(text))].encode())

    def write_spec(self, spec: str) -> None:
        """Replace the spec document."""
        with _explain_write_errors(self.spec):
            replace_file(self.spec, spec.encode())

    def delete_result(self) -> None:
        """Delete the result and its figures."""
        for path in (*self._figures(), self.result):
            delete(path)

    def _figures(self) -> set[Path]:
        """Curves, and the figures that the result names."""
        curves = {found for path in self.curves for found in self.folder.glob(f"{path.stem}*{path.suffix}")}
        named = self.read_earlier_result().get("figures")
        names = [Path(name).name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        figures = {self.folder / name for name in names if name.endswith(FIGURE_SUFFIXES)}
        return curves | {path for path in figures if os.path.lexists(path)}  # not of a name that no file can have

    def log(self, step: int, **values: Any) -> bytes:
        """Append a line to the metrics. Returns the line."""
        line = _line({"step": step, **values})
        with _explain_write_errors(self.metrics):
            append_file(self.metrics, line)
        return line

    def hash_metrics(self) -> hashlib._Hash:
        """SHA-256 of all lines of the metrics, to which further lines can be added."""
        return hashlib.sha256(b"".join(map(_line, self.read_metrics())))

    def log_step(self, line: Mapping[str, Any]) -> None:
        """Append a line to the step log."""
        with _explain_write_errors(self.steps):
            append_file(self.steps, _line(line))

    def read_steps(self) -> list[dict[str, Any]]:
        """All lines of the step log that can be read, in order. It is for the eye: others are left out."""
        try:
            with self.steps.open("rb") as file:
                *lines, _ = file.read(MAX_STEPS_BYTES).split(b"\n")
        except OSError:
            return []
        rows = []
        for number, line in enumerate(lines, start=1):
            with suppress(DataError):
                rows.append(self._parse_line(line, number))
        return rows

    def thin_steps(self) -> int:
        """Delete every second line of the step log, and return how many are left."""
        kept = self.read_steps()[::2]
        with _explain_write_errors(self.steps):
            replace_file(self.steps, b"".join(map(_line, kept)))
        return len(kept)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of the metrics, in order, without an incomplete last one."""
        *lines, _ = self._metrics_bytes().split(b"\n")  # a complete line ends with a newline
        return [self._parse_line(line, number) for number, line in enumerate(lines, start=1)]

    def set_damaged_lines_aside(self, warn: Callable[[str], None]) -> bool:
        """Move lines of the metrics that cannot be read to a file beside them: the weights do not depend on them.
        Returns whether there are any."""
        readable, damaged = list[bytes](), list[bytes]()
        *lines, incomplete = self._metrics_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                self._parse_line(line, number)
                readable.append(line + b"\n")
            except DataError:
                damaged.append(line + b"\n")
        if damaged:
            aside = self.metrics.with_name(f"{self.metrics.name}.damaged")
            with _explain_write_errors(self.folder):
                append_file(aside, b"".join(damaged))
                replace_file(self.metrics, b"".join([*readable, incomplete]))
            warn(f"{self.metrics} has {count_noun(len(damaged), 'damaged line')}: moved to {aside}")
        return bool(damaged)

    def _metrics_bytes(self) -> bytes:
        try:
            return self.metrics.read_bytes() if self.metrics.exists() else b""
        except OSError as error:
            raise DataError(f"{self.metrics} cannot be read: {error.strerror}") from None

    def _parse_line(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.metrics}, line {number} is not valid JSON: {str(error)[:100]}") from None
        if not isinstance(values, dict) or not isinstance(values.get("step"), int):
            raise DataError(f"{self.metrics}, line {number} has no step: {line[:60]!r}")
        return values

    def add_sample(self, step: int, text: str) -> None:
        """Keep what the model wrote at a step."""
        # A model may write what looks like these headings.
        escaped = _SAMPLE.sub(lambda match: f" {match[0]}", text)
        with _explain_write_errors(self.samples):
            append_file(self.samples, f"=== step {step} ===\n{escaped}\n\n".encode(errors="replace"))

    def tracker_id(self, *, resume: bool) -> str:
        """The name by which trackers know the run: a new one, or that of the run that is resumed."""
        try:
            is_there = resume and self.trackers.is_file() and self.trackers.stat().st_size < MAX_RESULT_BYTES
            found = json.loads(self.trackers.read_bytes()) if is_there else {}
            known = found.get("id") if isinstance(found, dict) else None
        except (ValueError, RecursionError):
            known = None
        if isinstance(known, str) and re.fullmatch("[0-9a-f]{1,32}", known):
            return known
        new = uuid.uuid4().hex[:12]  # no generator of torch, numpy or Python is asked for it
        with _explain_write_errors(self.trackers):
            replace_file(self.trackers, json.dumps({"id": new}).encode() + b"\n", within=self.folder)
        return new

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`. Values that are not finite become null."""
        with _explain_write_errors(self.result):
            replace_file(
                self.result, json.dumps(replace_nonfinite(result), indent=2, ensure_ascii=False).encode() + b"\n"
            )

    @contextmanager
    def record_divergence(self, *, keep_finished: bool) -> Iterator[None]:
        """In the block: where training diverges, or weights are no longer finite, the result says so.

        With `keep_finished` the scores of a run that was finished before are kept, and say so under `resumed`: those
        are the scores of weights that were good.
        """
        earlier = self.read_earlier_result() if keep_finished else {}
        try:
            yield
        except Diverged as error:
            result: dict[str, Any] = {"status": "diverged", "reason": str(error), "run": str(self.folder)}
            if earlier.get("status") == "finished":
                result = {**earlier, "figures": [str(path) for path in sorted(self._figures())], "resumed": result}
            self.write_result(result)
            raise

    def read_result(self) -> dict[str, Any]:
        """The scores of a finished run."""
        self.require()
        if not self.result.is_file():
            raise DataError(f"the run at {self.folder} has no {self.result.name}: it is not finished")
        if self.result.stat().st_size > MAX_RESULT_BYTES:
            raise DataError(f"{self.result} has more than {MAX_RESULT_BYTES:,} bytes")
        try:
            result = json.loads(self.result.read_bytes())
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.result} is not valid JSON: {str(error)[:100]}") from None
        if not isinstance(result, dict):
            raise DataError(f"{self.result} must hold names and values, but it is a {type(result).__name__}")
        return result

    def read_earlier_result(self) -> dict[str, Any]:
        """The scores that are there, of a run that will write others: empty where there are none, or damaged ones."""
        if not self.exists or not self.result.is_file():
            return {}
        try:
            return self.read_result()
        except DataError:
            return {}


class SharedRunFolder(RunFolder):
    """The folder of a run that another process writes: this one reads it, and leaves it as it is."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def create(self, spec: str) -> None:
        return

    def delete_previous(self) -> None:
        return

    def truncate_after(self, step: int) -> None:
        return

    def set_damaged_lines_aside(self, warn: Callable[[str], None]) -> bool:
        return False

    def write_spec(self, spec: str) -> None:
        return

    def log(self, step: int, **values: Any) -> bytes:
        return b""

    def log_step(self, line: Mapping[str, Any]) -> None:
        return

    def thin_steps(self) -> int:
        return 0

    def hash_metrics(self) -> hashlib._Hash:
        return hashlib.sha256()

    def add_sample(self, step: int, text: str) -> None:
        return

    def write_result(self, result: Mapping[str, Any]) -> None:
        return

    @contextmanager
    def record_divergence(self, *, keep_finished: bool) -> Iterator[None]:
        yield


@contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error, IsADirectoryError) else path
        raise DataError(f"cannot write {named}: {error.strerror or error}") from None


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(replace_nonfinite(values), ensure_ascii=False).encode() + b"\n"


def recorded_path(environment: Any, key: str) -> str | None:
    """A path that the environment of a run names: `data_path` or `init_path`."""
    path = environment.get(key) if isinstance(environment, dict) else None
    return path if isinstance(path, str) and path else None


def unused_folder(model: str) -> Path:
    """A folder for a new run, named by the model and the time, and by a number where there is one of that name."""
    first = Path("runs") / f"{model}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2)))
    # Not Path.exists, which raises an OSError for names that no file can have.
    return next(path for path in names if not os.path.exists(path))

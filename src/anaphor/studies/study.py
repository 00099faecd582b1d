"""A study: run what is missing, choose by validation, seal the choice, then read the test split once.

Nothing is kept in memory that is not in the folder, so that a study that was killed goes on by the same command.
"""

from __future__ import annotations

import json
import math
import signal
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import yaml

from anaphor.config import finite, read_mapping
from anaphor.errors import ConfigError, DataError
from anaphor.studies.cell import ENDED, JOB, STOP, TEST, Cell, make_cell, read_json
from anaphor.studies.engines import Ended, Engine, Job
from anaphor.studies.hopes import hopeless
from anaphor.studies.search import Proposals, proposals
from anaphor.studies.spec import Setting, StudySpec
from anaphor.studies.units import has_unknown_words
from anaphor.training.files import append_file, locked, replace_file
from anaphor.training.run_folder import STUDY, RunFolder

SEAL, DESCRIBED, LOG = "seal.json", STUDY, "log.jsonl"
CHOOSING = ("task", "base", "method", "metric", "parameters", "seeds", "trials")  # parts that decide a search
TERMINATED = 143  # exit code of a worker that was asked to end, and saved its last step before
KILLS = 5  # times that a cell is begun again after a signal ended it: then it is the cell's own fault
OVER = ("finished", "diverged", "stopped")  # states in which a cell stays when the study is run again
WRONG = ("diverged", "stopped")  # those that say of a setting that it is bad


class Watcher(Protocol):
    """Somebody who is told how a study goes: a live table, or nobody."""

    def changed(self, cell: Cell, status: str, reason: str = "") -> None: ...

    def waited(self, running: list[Cell]) -> None:
        """Called every second or so while cells run."""


@dataclass
class Awaited:
    """A setting that was proposed and is not over."""

    setting: Setting
    cells: list[Cell]
    left: set[str]
    """Those of its cells that are not over, by key."""


@dataclass
class Study:
    """Everything that takes part. `run` gives every cell with its status, in the order of the study."""

    spec: StudySpec
    folder: Path
    engine: Engine
    watcher: Watcher
    threads: int = 1
    cells: list[Cell] = field(default_factory=list)
    _queue: deque[Cell] = field(default_factory=deque)
    _begun: set[str] = field(default_factory=set)
    """Cells that were queued since this start, by key: none of them is queued twice."""
    _past: set[str] = field(default_factory=set)
    """Those of them that are over, whether they finished or failed."""
    _open: list[Awaited] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)
    """The cells whose end stands in the log."""

    def run(self) -> None:
        """Train every cell that is missing."""
        plan = proposals(self.spec, self.folder)
        described = yaml.safe_dump(self.spec.to_plain(), sort_keys=False, allow_unicode=True)
        replace_file(self.folder / DESCRIBED, described.encode())
        self._told = told_in(self.folder / LOG)
        self._drive(
            lambda: self._next(plan), self._submit, lambda cell, ended: self._over(plan, cell, ended),
            self._stop_hopeless if self.spec.stop_hopeless else lambda running: None,
        )  # fmt: skip

    def _drive(
        self,
        following: Callable[[], Cell | None],
        submit: Callable[[Cell], Future[Ended]],
        over: Callable[[Cell, Ended], None],
        meanwhile: Callable[[list[Cell]], None] = lambda running: None,
    ) -> None:
        """Keep the engine busy until nothing follows. A cell that a signal ended is begun again, unless it was ours."""
        running: dict[Future[Ended], tuple[Cell, int]] = {}
        while True:
            while len(running) < self.engine.slots and (cell := following()) is not None:
                running[submit(cell)] = (cell, 1)
            if not running:
                return
            for future in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                cell, attempt = running.pop(future)
                ended = end_of(future)
                number = signal_of(ended)
                if number is not None and attempt <= KILLS and not (cell.folder / STOP).exists():
                    self.log("killed", cell, signal=number, attempt=attempt)
                    running[submit(cell)] = (cell, attempt + 1)
                else:
                    over(cell, ended)
            going = [cell for cell, _ in running.values()]
            meanwhile(going)
            self.watcher.waited(going)

    def _next(self, plan: Proposals) -> Cell | None:
        """A cell that has to be run. Settings are asked for one by one, since a search may look at what came before."""
        while not self._queue:
            setting = plan.next()
            if setting is None:
                return None
            # A search may draw a setting twice: it has its cells already, and is told what comes of them.
            made = [cell for cell in self.cells if cell.setting == setting] or self._made(setting)
            left = {cell.key: cell for cell in made if not self._is_over(cell)}
            if left:
                self._open.append(Awaited(setting, made, set(left)))
                # Two names may stand for the same run, whose cells are trained for both.
                self._queue += [cell for key, cell in left.items() if key not in self._begun]
                self._begun |= set(left)
            else:
                plan.report(setting, self._outcome(made))
        return self._queue.popleft()

    def _made(self, setting: Setting) -> list[Cell]:
        """The cells of a setting that was not met before. Those that are over are told so."""
        made = [make_cell(setting, seed, self.cells_folder, self.spec.task, self.threads) for seed in self.spec.seeds]
        self.cells += made
        for cell in filter(self._is_over, made):
            status = cell.status(self.spec)
            if status in OVER and cell.key not in self._told:
                self.log(status, cell)  # the study was killed after the cell ended and before it was told
            self.watcher.changed(cell, status)
        return made

    def _is_over(self, cell: Cell) -> bool:
        return cell.key in self._past or (cell.key not in self._begun and cell.status(self.spec) in OVER)

    def _submit(self, cell: Cell) -> Future[Ended]:
        cell.write_job(self.spec, self.threads)
        for name in (ENDED, STOP):
            (cell.folder / name).unlink(missing_ok=True)
        self.log("started", cell)
        self.watcher.changed(cell, "running")
        return self.engine.submit(Job("train", cell.folder, self.threads))

    def _over(self, plan: Proposals, cell: Cell, ended: Ended) -> None:
        status = cell.status(self.spec)
        if status not in OVER:
            status = "stopped" if (cell.folder / STOP).exists() else "failed"
            reason = "worse than the median of the others" if status == "stopped" else why(ended)
            cell.end(status, reason)
        reason = self.reason(cell, status)
        self.log(status, cell, **({"reason": reason} if reason else {}))
        self._past.add(cell.key)
        for same in self.cells:
            if same.key == cell.key:
                self.watcher.changed(same, status, reason)
        for awaited in self._open:
            awaited.left.discard(cell.key)
            if not awaited.left:
                plan.report(awaited.setting, self._outcome(awaited.cells))
        self._open = [awaited for awaited in self._open if awaited.left]

    def reason(self, cell: Cell, status: str) -> str:
        """Why there is no result, if there is none."""
        if status == "finished" and self.value(cell) is None:
            name = self.spec.metric.partition(".")[2]
            unknown = has_unknown_words(cell.read(RunFolder(cell.folder).result.name)["valid"])
            # Letters that nobody has to predict would make bits look fewer than they are.
            why = ", for words that it does not know are one token" if name == "bits_per_byte" and unknown else ""
            return f"its score has no {name}{why}"
        if status == "diverged":
            return str(cell.read(RunFolder(cell.folder).result.name).get("reason", ""))
        return str(cell.read(ENDED).get("reason", "")) if status in ("failed", "stopped") else ""

    def value(self, cell: Cell) -> float | None:
        """What the cell is judged by; None where it has not finished."""
        return cell.value(self.spec)

    def _outcome(self, cells: list[Cell]) -> float | None:
        """What is reported of a setting: the mean over its seeds, or the worst there is where one of them went wrong,
        so that a search keeps away from there. A crash says nothing of a setting."""
        if any(cell.status(self.spec) in WRONG for cell in cells):
            return math.inf if self.spec.goal == "minimize" else -math.inf
        values = [value for cell in cells if (value := self.value(cell)) is not None]
        return statistics.fmean(values) if len(values) == len(cells) else None

    def _stop_hopeless(self, running: list[Cell]) -> None:
        for cell in hopeless(running, self.cells, self.spec.metric):
            (cell.folder / STOP).touch()

    @property
    def cells_folder(self) -> Path:
        return self.folder / "cells"

    def log(self, event: str, cell: Cell | None = None, **facts: Any) -> None:
        """Add a line to the study's log."""
        line: dict[str, Any] = {"time": now(), "event": event}
        if cell is not None:
            line |= {"cell": cell.key, "parameters": dict(cell.setting.parameters), "seed": cell.seed}
        line = finite({**line, **facts})
        append_file(self.folder / LOG, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        if cell is not None and event in OVER:
            self._told.add(cell.key)

    # After all cells: choose, seal, test.

    def seal(self, chosen: Setting | None, *, force: bool = False) -> None:
        """Write down what was chosen and from what, before the test split is opened. A choice is made once."""
        path = self.folder / SEAL
        cells = {cell.key: self.value(cell) for cell in self.cells}
        parameters = None if chosen is None else dict(chosen.parameters)
        choice: dict[str, Any] = finite({"metric": self.spec.metric, "chosen": parameters, "cells": cells})
        if path.is_file():
            before = read_seal(self.folder)
            if finite({key: before.get(key) for key in choice}) == choice:
                return
            if not force:
                raise another_choice(self.folder)
            for cell in self.cells:
                (cell.folder / TEST).unlink(missing_ok=True)
        replace_file(path, json.dumps({"at": now(), **choice}, indent=2, ensure_ascii=False).encode() + b"\n")
        self.log("sealed", **choice)

    def test(self, cells: list[Cell]) -> dict[str, str]:
        """Score them on test, each once, after the seal. Gives the keys of those that have no score, and why."""
        if not (self.folder / SEAL).is_file():
            raise ConfigError(f"{self.folder}: the test split is read after the choice is sealed, not before")
        waiting = deque({cell.key: cell for cell in cells if not cell.read(TEST)}.values())
        untested: dict[str, str] = {}

        def over(cell: Cell, ended: Ended) -> None:
            if ended.code:
                untested[cell.key] = why(ended)
                self.log("test failed", cell, reason=why(ended))
                self.watcher.changed(cell, "untested", why(ended))
            else:
                self.watcher.changed(cell, "tested")

        self._drive(lambda: waiting.popleft() if waiting else None, self._submit_test, over)
        return untested

    def _submit_test(self, cell: Cell) -> Future[Ended]:
        if not (cell.folder / JOB).is_file():
            cell.write_job(self.spec, self.threads)
        (cell.folder / STOP).unlink(missing_ok=True)  # it was told to stop when it was just finished
        self.log("test", cell)
        return self.engine.submit(Job("test", cell.folder, self.threads))


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def told_in(log: Path) -> set[str]:
    """The cells whose end stands in a log. A line that cannot be read was cut short, and tells nothing."""
    told = set()
    for line in log.read_bytes().split(b"\n") if log.exists() else []:
        try:
            said = json.loads(line)
            if said["event"] in OVER:
                told.add(str(said["cell"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return told


def end_of(future: Future[Ended]) -> Ended:
    """How a job ended. An engine that breaks, for want of memory or of a node, fails this job and not the study."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 (what it raises is its own affair)
        return Ended(1, " ".join(f"{type(error).__name__}: {error}".split())[:500])


def signal_of(ended: Ended) -> int | None:
    """The signal that ended a worker, if one did."""
    if ended.code == TERMINATED:
        return signal.SIGTERM.value
    return -ended.code if ended.code < 0 else None


def why(ended: Ended) -> str:
    """In words: the worker's last line, or the signal that ended it."""
    number = signal_of(ended)
    if number is not None:
        also = ", as the system does to a process for which memory is short" if number == signal.SIGKILL else ""
        return f"ended by signal {number}, {KILLS + 1} times{also}"
    return ended.reason or f"ended with exit code {ended.code}"


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Be the only process that runs the study of this folder."""
    if RunFolder(folder).exists:
        raise ConfigError(f"{folder} holds a run: choose another --out")
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(folder / ".lock", str(folder)))
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from None
        yield


def require_same_choice(spec: StudySpec, folder: Path, threads: int) -> None:
    """Refuse a study that would choose among other cells than those it was sealed with, before one of them is run."""
    if spec.test == "none" or not (folder / SEAL).is_file():
        return
    sealed = read_seal(folder)
    if spec.searches:  # where it went is not known beforehand, but what it was told is
        before = read_mapping(folder / DESCRIBED)
        same = all(before.get(key) == value for key, value in spec.to_plain().items() if key in CHOOSING)
    else:
        made = [make_cell(*of, folder / "cells", spec.task, threads) for of in product(spec.settings(), spec.seeds)]
        same = {cell.key for cell in made} == set(sealed["cells"])
    if not same or sealed["metric"] != spec.metric:
        raise another_choice(folder)
    failed = [key for key in sealed["cells"] if read_json(folder / "cells" / key / ENDED).get("status") == "failed"]
    if failed:  # they would be tried again, and a choice with them would be another one
        cells = "1 cell" if len(failed) == 1 else f"{len(failed)} cells"
        raise ConfigError(
            f"{folder} has made its choice without {cells} that failed and would be tried again: choose another --out, "
            f"or choose again by --force (the log keeps both)"
        )


def read_seal(folder: Path) -> dict[str, Any]:
    """The choice that was made here."""
    path = folder / SEAL
    try:
        sealed: dict[str, Any] = json.loads(path.read_bytes())
        sealed["cells"], sealed["metric"], sealed["chosen"]
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is not JSON of ours: {str(error)[:100]}; choose another --out") from None
    return sealed


def another_choice(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder} has made its choice among other cells (settings, seeds, data or version of the program) and may "
        f"have read test since: choose another --out, or choose again by --force (the log keeps both)"
    )

"""A study: train the missing cells, select by validation, freeze the selection, then evaluate on test once.

The state is in the folder, so that a study that was killed is resumed by the same command.
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, product
from pathlib import Path
from typing import Any, Protocol

import yaml

from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.files import append_file, delete, replace_file, write_file
from anaphor.plain_values import replace_nonfinite
from anaphor.studies.cell import STATUS, STOP, TEST, Cell, is_damaged, make_cell, read_json
from anaphor.studies.claims import Alone, Sharing
from anaphor.studies.engines import TERMINATED, Engine, Job, JobResult
from anaphor.studies.search import ListProposals, Proposals, find_pruned, make_proposals
from anaphor.studies.spec import GOALS, Setting, StudySpec
from anaphor.studies.study_folder import CELLS, FROZEN, LOG
from anaphor.studies.tuning import choose_values
from anaphor.training.run_folder import STUDY, RunFolder
from anaphor.training.trusted_data import trust_run
from anaphor.yaml_files import read_mapping

SEARCH_KEYS = ("task", "base", "method", "metric", "parameters", "seeds", "trials")  # they decide a search
MAX_RESTARTS = 5  # of a cell whose process is killed by a signal, before it counts as failed
POLL = 0.5  # seconds between two looks at what others do
FINAL = ("finished", "diverged", "stopped")  # statuses that remain when the study is run again
BAD = ("diverged", "stopped")  # statuses for which a search counts a setting as infinitely bad


class StudyCallback(Protocol):
    """Called while a study runs, to show its progress."""

    def on_status(self, cell: Cell, status: str, reason: str = "") -> None: ...

    def on_wait(self, running: list[Cell]) -> None:
        """Called about once a second while cells run."""


@dataclass
class PendingSetting:
    """A setting whose cells are not all done."""

    setting: Setting
    cells: list[Cell]
    left: set[str]
    """Keys of those that are not done."""


@dataclass
class Study:
    """A study in its folder. `run` trains its cells, `freeze` records the selection, `test` evaluates on test."""

    spec: StudySpec
    folder: Path
    engine: Engine
    callback: StudyCallback
    threads: int = 1
    sharing: Sharing = field(default_factory=Alone)
    """How its work is shared with other processes that run it in the same folder."""
    log_file: Path | None = None
    """Log of this process; that of the study if not given."""
    cells: list[Cell] = field(default_factory=list)
    _queue: deque[Cell] = field(default_factory=deque)
    _queued: set[str] = field(default_factory=set)
    """Keys of the cells that were queued by this process; none is queued twice."""
    _done: set[str] = field(default_factory=set)
    """Those of them that are done, finished or failed."""
    _pending: list[PendingSetting] = field(default_factory=list)
    _logged: set[str] = field(default_factory=set)
    """Keys of the cells whose final status is in the log."""

    def run(self) -> bool:
        """Train the missing cells: those that tune, if any, and then those that are compared. Returns whether all are
        done, or others that share the folder are left to finish them."""
        spec = self.spec
        proposals = make_proposals(spec, self.folder, is_shared=self.sharing.is_shared)
        if not self.sharing.is_shared or not (self.folder / STUDY).exists():
            self.write_spec()
        self._logged = read_logged(self.folder / LOG)
        prune = self._prune if spec.prune else lambda running: None
        if spec.tune:
            self._train(proposals, spec.tuning_seeds, prune, lambda: True)
            chosen = [choice.setting for choice in choose_values(spec, self.cells) if choice.setting is not None]
            proposals, prune = ListProposals(chosen), lambda running: None
        self._train(proposals, spec.seeds, prune, self.sharing.stays)
        return not self._queue

    def write_spec(self) -> None:
        """Write the study as it is now."""
        text = yaml.safe_dump(self.spec.to_plain(), sort_keys=False, allow_unicode=True)
        replace_file(self.folder / STUDY, text.encode())

    def _train(
        self,
        proposals: Proposals,
        seeds: Sequence[int],
        on_wait: Callable[[list[Cell]], None],
        stays: Callable[[], bool],
    ) -> None:
        """Train the missing cells of some settings. `stays` says whether to wait for those that others train."""
        self._run_jobs(
            lambda: self._next(proposals, seeds),
            lambda cell: self._submit(cell, self._count_following(proposals)),
            lambda cell, result: self._finish(proposals, cell, result),
            on_wait,
            lambda: bool(self._queue) and stays(),
        )

    def _count_following(self, proposals: Proposals) -> int:
        """Jobs that follow, at most: cells to be trained, and those that are evaluated on test after them."""
        seeds = len(self.spec.seeds)
        trained = len(self._queue) + proposals.left * seeds
        tested = {"none": 0, "best": seeds, "all": len(self.cells) + proposals.left * seeds}
        return trained + tested[self.spec.test]

    def _run_jobs(
        self,
        next_cell: Callable[[], Cell | None],
        submit: Callable[[Cell], Future[JobResult]],
        finish: Callable[[Cell, JobResult], None],
        on_wait: Callable[[list[Cell]], None] = lambda running: None,
        stays: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run all cells, and wait for those of others while it `stays`.

        A cell whose process is killed is restarted, unless the study stopped it.
        """
        running: dict[Future[JobResult], tuple[Cell, int]] = {}
        while True:
            while len(running) < self.engine.slots and (cell := next_cell()) is not None:
                running[submit(cell)] = (cell, 1)
            self.sharing.check()
            if not running:
                if not stays():
                    return
                time.sleep(POLL)
                continue
            for future in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                cell, attempt = running.pop(future)
                result = read_result(future)
                number = find_signal(result)
                if number is not None and attempt <= MAX_RESTARTS and not (cell.folder / STOP).exists():
                    self.log("killed", cell, signal=number, attempt=attempt)
                    running[submit(cell)] = (cell, attempt + 1)
                else:
                    finish(cell, result)
            cells = [cell for cell, _ in running.values()]
            on_wait(cells)
            self.callback.on_wait(cells)

    def _next(self, proposals: Proposals, seeds: Sequence[int]) -> Cell | None:
        """The next cell to train. Settings are requested one by one, because a search uses earlier results."""
        while (cell := self._take_queued(proposals)) is None:
            setting = proposals.next()
            if setting is None:
                return None
            # A search may draw a setting again, which then has its cells already; others were trained to tune.
            cells = [cell for cell in self.cells if cell.setting == setting]
            present = {cell.seed for cell in cells}
            cells += self._add_cells(setting, [seed for seed in seeds if seed not in present])
            left = {cell.key: cell for cell in cells if not self._is_done(cell)}
            if left:
                self._pending.append(PendingSetting(setting, cells, set(left)))
                # Two names may stand for the same run, which is trained once for both.
                self._queue += [cell for key, cell in left.items() if key not in self._queued]
                self._queued |= set(left)
            else:
                proposals.report(setting, self._mean(cells))
        return cell

    def _take_queued(self, proposals: Proposals) -> Cell | None:
        """The first queued cell that no other process works on; None where there is none."""
        for cell in list(self._queue):
            if self.sharing.is_done_by_other(cell.key) or not self.sharing.take(cell.key):
                status = cell.status(self.spec)
                is_done = status in FINAL or self.sharing.is_done_by_other(cell.key)
            else:  # it may have been finished just before
                status = cell.status(self.spec) if self.sharing.is_shared else ""
                is_done = status in FINAL
                if not is_done:
                    self._queue.remove(cell)
                    return cell
                self.sharing.release(cell.key)
            if is_done:
                self._queue.remove(cell)
                if status in FINAL:  # the one that trained it may have been killed before it said so
                    self.log(status, cell)
                self._settle(proposals, cell, status, self.reason(cell, status))
        return None

    def _add_cells(self, setting: Setting, seeds: Sequence[int]) -> list[Cell]:
        """New cells of a setting."""
        cells = [make_cell(setting, seed, self.cells_folder, self.spec.task, self.threads) for seed in seeds]
        self.cells += cells
        for cell in filter(self._is_done, cells):
            status = cell.status(self.spec)
            if status in FINAL and cell.key not in self._logged:
                self.log(status, cell)  # the study was killed after the cell finished and before it was logged
            self.callback.on_status(cell, status)
        return cells

    def _is_done(self, cell: Cell) -> bool:
        return cell.key in self._done or (cell.key not in self._queued and cell.status(self.spec) in FINAL)

    def _submit(self, cell: Cell, following: int) -> Future[JobResult]:
        cell.write_job(self.spec, self.threads)
        for name in (STATUS, STOP):
            delete(cell.folder / name, within=self.folder)
        self.log("started", cell)
        self.callback.on_status(cell, "running")
        return self.engine.submit(Job("train", cell.folder, self.threads, following))

    def _finish(self, proposals: Proposals, cell: Cell, result: JobResult) -> None:
        status = cell.status(self.spec)
        if status not in FINAL:
            is_stopped = (cell.folder / STOP).exists()
            status = "stopped" if is_stopped else "failed"
            cell.write_status(status, "worse than the median" if is_stopped else describe_failure(result))
        trust_run(cell.folder)  # a worker of Ray may have another home folder
        reason = self.reason(cell, status)
        self.log(status, cell, **({"reason": reason} if reason else {}))
        self.sharing.release(cell.key)
        self._settle(proposals, cell, status, reason)

    def _settle(self, proposals: Proposals, cell: Cell, status: str, reason: str) -> None:
        """A cell is done, by this process or another worker."""
        self._done.add(cell.key)
        for same in self.cells:
            if same.key == cell.key:
                self.callback.on_status(same, status, reason)
        for pending in self._pending:
            pending.left.discard(cell.key)
            if not pending.left:
                proposals.report(pending.setting, self._mean(pending.cells))
        self._pending = [pending for pending in self._pending if pending.left]

    def reason(self, cell: Cell, status: str) -> str:
        """Why a cell has no value; empty where it has one."""
        if status == "finished" and self.value(cell) is None:
            return self.spec.support.missing_reason(cell.result["valid"], self.spec.target)
        if status == "diverged":
            return str(cell.result.get("reason", ""))
        return str(cell.read(STATUS).get("reason", "")) if status in ("failed", "stopped") else ""

    def value(self, cell: Cell) -> float | None:
        return cell.value(self.spec)

    def _mean(self, cells: list[Cell]) -> float | None:
        """Mean over seeds for a search: infinitely bad where one of them diverged or was stopped, None where one
        failed, which says nothing about the setting."""
        if any(cell.status(self.spec) in BAD for cell in cells):
            return math.inf if self.spec.goal == GOALS["min"] else -math.inf
        values = [value for cell in cells if (value := self.value(cell)) is not None]
        return statistics.fmean(values) if len(values) == len(cells) else None

    def _prune(self, running: list[Cell]) -> None:
        for cell in find_pruned(running, self.cells, self.spec):
            write_file(cell.folder / STOP, b"", within=self.folder)

    @property
    def cells_folder(self) -> Path:
        return self.folder / CELLS

    def log(self, event: str, cell: Cell | None = None, **details: Any) -> None:
        """Append a line to the log."""
        line: dict[str, Any] = {"time": now(), "event": event}
        if cell is not None:
            line |= {"cell": cell.key, "parameters": cell.setting.labels, "seed": cell.seed}
        line = replace_nonfinite({**line, **details})
        append_file(self.log_file or self.folder / LOG, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        if cell is not None and event in FINAL:
            self._logged.add(cell.key)

    def freeze(self, chosen: Setting | None, *, force: bool = False) -> None:
        """Record the selected setting and all values before the test split is opened. A study selects once."""
        path = self.folder / FROZEN
        cells = {cell.key: self.value(cell) for cell in self.cells}
        parameters = None if chosen is None else chosen.labels
        choice: dict[str, Any] = replace_nonfinite({"metric": self.spec.metric, "chosen": parameters, "cells": cells})
        if self.spec.tune:
            choices = choose_values(self.spec, self.cells)
            choice["tuned"] = replace_nonfinite([one.setting.labels for one in choices if one.setting is not None])
        if path.is_file():
            before = read_frozen_selection(self.folder)
            if replace_nonfinite({key: before.get(key) for key in choice}) == choice:
                return
            if not force:
                raise changed_error(self.folder)
            for cell in self.cells:
                delete(cell.folder / TEST, within=self.folder)
        replace_file(path, json.dumps({"at": now(), **choice}, indent=2, ensure_ascii=False).encode() + b"\n")
        self.log("sealed", **choice)

    def test(self, cells: list[Cell]) -> dict[str, str]:
        """Evaluate cells on test after the selection is frozen: once, and again where more is measured.

        Returns failures by key.
        """
        if not (self.folder / FROZEN).is_file():
            raise ConfigError(f"{self.folder}: test is evaluated after the selection is frozen, not before")
        waiting = deque({cell.key: cell for cell in cells if not cell.is_tested(self.spec)}.values())
        untested: dict[str, str] = {}

        def finish(cell: Cell, result: JobResult) -> None:
            if result.exit_code:
                untested[cell.key] = reason = describe_failure(result)
                self.log("test failed", cell, reason=reason)
                self.callback.on_status(cell, "untested", reason)
            else:
                self.callback.on_status(cell, "tested")

        self._run_jobs(
            lambda: waiting.popleft() if waiting else None, lambda cell: self._submit_test(cell, len(waiting)), finish
        )
        return untested

    def _submit_test(self, cell: Cell, following: int) -> Future[JobResult]:
        cell.write_job(self.spec, self.threads)
        delete(cell.folder / STOP, within=self.folder)  # stopped when it had just finished
        self.log("test", cell)
        return self.engine.submit(Job("test", cell.folder, self.threads, following))


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def read_logged(log: Path) -> set[str]:
    """Keys of the cells whose final status is in a log. Lines that were cut off are skipped."""
    keys = set()
    for line in log.read_bytes().split(b"\n") if log.exists() else []:
        try:
            entry = json.loads(line)
            if entry["event"] in FINAL:
                keys.add(str(entry["cell"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return keys


def read_result(future: Future[JobResult]) -> JobResult:
    """How a job ended. An error of the engine, such as a lost node, fails this job and not the study."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 (an engine may raise anything)
        return JobResult(1, " ".join(f"{type(error).__name__}: {error}".split())[:500])


def find_signal(result: JobResult) -> int | None:
    """The signal that killed a worker, if one did."""
    if result.exit_code == TERMINATED:
        return signal.SIGTERM.value
    return -result.exit_code if result.exit_code < 0 else None


def describe_failure(result: JobResult) -> str:
    """The last line of a worker's output, or the signal that killed it."""
    number = find_signal(result)
    if number is not None:
        hint = " (the system may be out of memory)" if number == signal.SIGKILL else ""
        return f"killed by signal {number}, {MAX_RESTARTS + 1} times{hint}"
    return result.last_line or f"exit code {result.exit_code}"


def validate_data(settings: Iterable[Setting], task: str) -> None:
    """Raise if data or initial weights are missing, before the folder of the study exists."""
    for setting in settings:
        make_cell(setting, 0, Path(), task, threads=1)


def validate_sealed(spec: StudySpec, folder: Path, threads: int) -> None:
    """Raise if a frozen study would select among other cells or values now, before a cell is trained."""
    if spec.test == "none" or not (folder / FROZEN).is_file():
        return
    frozen = read_frozen_selection(folder)
    if spec.is_search:  # its settings are not known beforehand, but what decides them
        before = read_mapping(folder / STUDY)
        same = all(before.get(key) == value for key, value in spec.to_plain().items() if key in SEARCH_KEYS)
    else:
        same = list_keys(spec, folder, threads, frozen.get("tuned", [])) == set(frozen["cells"])
    if not same or frozen["metric"] != spec.metric:
        raise changed_error(folder)
    for result in (RunFolder(folder / CELLS / key).result for key in frozen["cells"]):
        if is_damaged(result):
            raise DataError(f"{result} is damaged: delete it, and the same command trains this cell again")
    failed = [key for key in frozen["cells"] if read_json(folder / CELLS / key / STATUS).get("status") == "failed"]
    if failed:  # they would be trained again, and might change the selection
        count = count_noun(len(failed), "failed cell")
        raise ConfigError(
            f"{folder} is frozen, and {count} would be trained again: use another --out, or --force to select again "
            f"(the log keeps both)"
        )


def list_keys(spec: StudySpec, folder: Path, threads: int, tuned: Sequence[Mapping[str, Any]]) -> set[str]:
    """Keys of all cells of a study that is no search; `tuned` are the settings that were chosen, if it tunes."""
    settings = spec.settings()
    cells = product(settings, spec.tuning_seeds if spec.tune else spec.seeds)
    chosen = [setting for setting in settings if replace_nonfinite(setting.labels) in tuned] if spec.tune else []
    return {
        make_cell(setting, seed, folder / CELLS, spec.task, threads).key
        for setting, seed in chain(cells, product(chosen, spec.seeds))
    }


def read_frozen_selection(folder: Path) -> dict[str, Any]:
    """The frozen selection of a study."""
    path = folder / FROZEN
    try:
        frozen: dict[str, Any] = json.loads(path.read_bytes())
        dict(frozen["cells"]), frozen["metric"], frozen["chosen"]
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is damaged: {str(error)[:100]}; use another --out") from None
    return frozen


def changed_error(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder} is frozen with other cells (settings, seeds, data, device, code or version of torch) and test may "
        f"have been evaluated: use another --out, or --force to select again (the log keeps both)"
    )

"""Tries all faults, counts what was survived, and keeps the seed of each failure."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch

from torture.command_lines import COMMAND_LINES, SPEC_FILES
from torture.damages import DAMAGED
from torture.fault import Fault, Outcome, failed
from torture.kills import KILLED
from torture.ranks import ELASTIC, RANK_LOST
from torture.storage import DISK_FULL, FEW_DESCRIPTORS, NO_INODES, NO_SHARED_MEMORY, READ_ONLY
from torture.studies import RAY_KILLED, STUDY_KILLED

FAULTS: dict[str, Fault] = {
    "kills": KILLED,
    "damages": DAMAGED,
    "command-lines": COMMAND_LINES,
    "spec-files": SPEC_FILES,
    "disk-full": DISK_FULL,
    "no-inodes": NO_INODES,
    "read-only": READ_ONLY,
    "few-descriptors": FEW_DESCRIPTORS,
    "no-shared-memory": NO_SHARED_MEMORY,
    "rank-kills": RANK_LOST,
    "elastic-ranks": ELASTIC,
    "study-kills": STUDY_KILLED,
    "ray-kills": RAY_KILLED,
}


@dataclass
class Report:
    """What the tries of one fault gave."""

    key: str
    fault: Fault
    count: int = 0
    survived: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, Outcome]] = field(default_factory=list)
    seconds: float = 0.0
    missing: str | None = None

    def add(self, seed: int, outcome: Outcome) -> None:
        self.count += outcome.count
        self.ends[outcome.how] += outcome.count
        self.kinds.update(outcome.kinds)
        if outcome.survived:
            self.survived += outcome.count
        else:
            self.failures.append((seed, outcome))

    def describe_ends(self) -> str:
        ends = "; ".join(f"{count:,} {how}" for how, count in self.ends.most_common() if count)
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.items())
        return f"{ends} ({kinds})" if kinds else ends


def run_experiment(
    place: Path, keys: Sequence[str], *, hours: float = 1.0, tries: int | None = None, seed: int = 0, jobs: int = 1
) -> Iterator[Report]:
    """Try each of these faults, for its share of so many hours or so many times."""
    torch.set_num_threads(1)  # children of a process whose threads have worked would wait for them for ever
    for key in keys:
        yield run_fault(place / key, key, hours, tries, seed, jobs)


def run_fault(place: Path, key: str, hours: float, tries: int | None, seed: int, jobs: int) -> Report:
    fault = FAULTS[key]
    report = Report(key, fault, missing=fault.missing())
    if report.missing is not None:
        return report
    place.mkdir()
    began = time.perf_counter()
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        pool.submit(fault.prepare, place).result()
        wanted = max(1, round(fault.count * hours)) if tries is None else tries
        for number, outcome in _outcomes(pool, key, place, seed, wanted, jobs):
            report.add(number, outcome)
            _show(report, wanted)
    report.seconds = time.perf_counter() - began
    shutil.rmtree(place, ignore_errors=True)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    return report


def _outcomes(
    pool: ProcessPoolExecutor, key: str, place: Path, seed: int, wanted: int, jobs: int
) -> Iterator[tuple[int, Outcome]]:
    """Tries until there were enough faults: a try may have several, or, where a kill comes too late, none."""
    count, following = 0, seed
    while count < wanted:
        size = min(4 * jobs, math.ceil((wanted - count) / FAULTS[key].each))
        waiting = {
            pool.submit(attempt_fault, key, place, number): number for number in range(following, following + size)
        }
        following += size
        for done in as_completed(waiting):
            outcome = done.result()
            count += max(outcome.count, 0)
            yield waiting[done], outcome


def attempt_fault(key: str, place: Path, seed: int) -> Outcome:
    """One try in a folder of its own."""
    own = Path(tempfile.mkdtemp(prefix=f"try-{seed}-", dir=place))
    try:
        return FAULTS[key].attempt(place, own, seed)
    except Exception:  # noqa: BLE001  # a mistake of the experiment is a failure with a seed, too
        return failed("the experiment failed", traceback.format_exc())
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _show(report: Report, wanted: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{report.key}: {report.survived} of {report.count} survived, {wanted} wanted")


def describe(report: Report) -> str:
    """A line for the terminal."""
    if report.missing is not None:
        return f"{report.key:<18} skipped: {report.missing}\n"
    counts = f"{report.survived:>6} of {report.count:>6}  {report.seconds:6.0f} s"
    return f"{report.key:<18} {counts}  {report.describe_ends()}\n"


def describe_failures(reports: Sequence[Report]) -> str:
    """What each failure was, and what repeats it."""
    return "".join(
        f"\n{report.key} --seed {seed} --tries 1: {outcome.how}\n{outcome.seen}\n"
        for report in reports
        for seed, outcome in report.failures[:20]
    )


def write_report(reports: Sequence[Report], path: Path) -> None:
    """The table of `results/faults.md`."""
    from torture.results import faults_page

    path.write_text(faults_page(reports), encoding="utf-8")

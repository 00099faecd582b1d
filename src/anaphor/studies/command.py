"""What `anaphor study` does: train the cells of a study and report on them, or list them with an estimated time."""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anaphor.config import look_up
from anaphor.draw import figure_lines
from anaphor.errors import AnaphorError, ConfigError, count_noun
from anaphor.processor import count_cores
from anaphor.progress import Bar, SecondBar, duration
from anaphor.studies.axes import format_setting
from anaphor.studies.cell import make_cell
from anaphor.studies.claims import Claims, refuse_workers
from anaphor.studies.engines import ENGINES, Engine, build_engine
from anaphor.studies.import_runs import import_runs
from anaphor.studies.progress import LineProgress, make_progress
from anaphor.studies.report import report
from anaphor.studies.shared_folder import choose_log, join_folder, run_shared
from anaphor.studies.size_matching import format_difference
from anaphor.studies.spec import Setting, StudySpec
from anaphor.studies.study import FINAL, Study, validate_data, validate_sealed
from anaphor.studies.study_folder import lock_study
from anaphor.studies.validation import estimate_range, validate_study
from anaphor.studies.verb import Options

PARTIAL = 4
"""Exit code of a study of which some cells failed."""


ProgressMaker = Callable[[StudySpec, Sequence[Setting] | None, int], LineProgress]


def run_study(spec: StudySpec, folder: Path, options: Options) -> int:
    """Train the cells that are not finished, report, and print the result. Returns the exit code."""
    result = execute_study(spec, folder, options, make_progress)
    if result is None:
        return 0
    print_result(result, options)
    cells = result["cells"]
    return PARTIAL if any(cell["status"] in ("failed", "diverged") or "untested" in cell for cell in cells) else 0


def execute_study(spec: StudySpec, folder: Path, options: Options, progress: ProgressMaker) -> dict[str, Any] | None:
    """Train the cells that are not finished, and report. None where another worker reports."""
    settings = None if spec.is_search else spec.settings()
    validate_study(spec, settings)
    validate_data([spec.example_setting()] if settings is None else settings, spec.task)
    if not options.force:
        validate_sealed(spec, folder, options.threads)
    with make_engine(options, spec) as engine:
        shown = progress(spec, settings, engine.slots)
        if options.worker:
            return run_worker(spec, folder, engine, shown, options)
        return run_alone(spec, folder, engine, shown, options)


def run_alone(
    spec: StudySpec, folder: Path, engine: Engine, progress: LineProgress, options: Options
) -> dict[str, Any]:
    """The result of a study that is run by this process alone."""
    with lock_study(folder), progress:
        refuse_workers(folder)
        study = Study(spec, folder, engine, progress, options.threads)
        if options.of is not None:
            import_runs(spec, study.cells_folder, options.of, options.threads)
        with explain_interruption(study):
            study.run()
            return report(study, force=options.force)


def run_worker(
    spec: StudySpec, folder: Path, engine: Engine, progress: LineProgress, options: Options
) -> dict[str, Any] | None:
    """The result of a study that workers share; None where another one reports."""
    with join_folder(spec, folder) as claims, progress, engine:  # its cells end before the claims are given back
        study = Study(spec, folder, engine, progress, options.threads, claims, choose_log(folder))
        with explain_interruption(study):
            if not run_shared(study, claims):
                print_leaving(folder, claims, options)
                return None
            result = report(study, force=options.force)
            claims.release(claims.report)
            return result


@contextmanager
def explain_interruption(study: Study) -> Iterator[None]:
    """Where the study is interrupted, log it, and say how to resume it."""
    try:
        yield
    except KeyboardInterrupt:
        study.log("interrupted")
        message = f"interrupted; finished cells are in {study.folder}: resume with the same command"
        raise KeyboardInterrupt(message) from None


def print_leaving(folder: Path, claims: Claims, options: Options) -> None:
    """Say that this worker has nothing left to do."""
    holder = str(claims.find_holder(claims.report) or "another worker")
    if options.json:
        print(json.dumps({"study": str(folder), "reported_by": holder}))
    else:
        print(f"no cell of {folder} is left for this worker; {holder} reports when all are done")


def make_engine(options: Options, spec: StudySpec) -> Engine:
    look_up(ENGINES, options.engine, "engine")
    if options.address is not None and options.engine != "ray":
        raise ConfigError(f"address={options.address} has no effect without --engine ray")
    if options.workers is not None and options.engine == "ray":
        raise ConfigError(f"workers={options.workers} has no effect with --engine ray: use --per-device and --threads")
    return build_engine(
        options.engine,
        device=spec.base["device"],
        devices_per_job=spec.devices,
        per_device=options.per_device,
        threads=options.threads,
        slots=options.workers,
        address=options.address,
    )


def print_cells(spec: StudySpec, folder: Path, options: Options) -> int:
    """List all cells with their status and an estimate of the remaining time."""
    if spec.is_search:
        raise ConfigError(f"method {spec.method} draws settings while it runs: its {spec.trials} cannot be listed")

    settings = spec.settings()
    validate_study(spec, settings)
    if not options.force:
        try:
            validate_sealed(spec, folder, options.threads)
        except AnaphorError as error:  # nothing is written, so that a folder in the way is worth a warning only
            print(f"anaphor: {error}", file=sys.stderr)
    with make_engine(options, spec) as engine:
        slots = engine.slots
    rows: list[dict[str, Any]] = []
    left: list[tuple[float, float]] = []
    ranges: dict[str, list[tuple[float, float]]] = {}  # of all values that are tuned, by setting
    for setting, (low, high) in zip(settings, _estimate_ranges(settings, options.threads), strict=True):
        ranges.setdefault(format_setting(setting.parameters), []).append((low, high))
        for seed in spec.tuning_seeds if spec.tune else spec.seeds:
            cell = make_cell(setting, seed, folder / "cells", spec.task, options.threads)
            status = cell.status(spec)
            if status not in FINAL:
                left.append((low, high))
            rows.append({
                "parameters": setting.labels, "seed": seed, "status": status, "seconds": round((low + high) / 2, 1),
                "seconds_range": [round(low, 1), round(high, 1)], **describe_size(spec, setting),
            })  # fmt: skip
    later = spec.count_cells() - len(rows)  # cells with the values that will be chosen
    left += [(min(found)[0], max(found)[1]) for found in ranges.values()] * (later // len(ranges))
    # More processes than cores take turns.
    at_once = min(slots, len(left))
    share = max(1.0, at_once * options.threads / count_cores()) if at_once > 1 else 1.0
    least, most = total_time([low for low, _ in left], slots), share * total_time([high for _, high in left], slots)
    if options.json:
        total = {"seconds_left": round((least + most) / 2, 1), "seconds_left_range": [round(least, 1), round(most, 1)]}
        after = {"cells_after_tuning": later} if spec.tune else {}
        print(json.dumps({"cells": rows, "workers": slots, **total, **after}))
        return 0
    for row in rows:
        times = " to ".join(map(duration, row["seconds_range"]))
        size = f" ({row['size']})" if "size" in row else ""
        print(f"{format_setting(row['parameters'])}{size}, seed {row['seed']}: {row['status']}, {times}")
    if later:
        print(f"{count_noun(later, 'cell')} of the values that will be chosen, with the other seeds")
    count = count_noun(len(rows) + later, "cell")
    print(
        f"{count}, {slots} at a time: {duration(least)} to {duration(most)}, estimated from "
        f"a few steps of each (the least on a machine with nothing else to do, the most on one as busy as now)"
    )
    return 0


def describe_size(spec: StudySpec, setting: Setting) -> dict[str, str]:
    """What a study that matches sizes has found for a setting."""
    if not spec.match or setting.size is None:
        return {}
    by, difference = spec.match["by"], format_difference(setting.size, spec.match["parameters"])
    return {"size": f"{by} {getattr(setting.run, by)}, {setting.size:,} parameters, {difference}"}


def _estimate_ranges(settings: Sequence[Setting], threads: int) -> Iterator[tuple[float, float]]:
    """The time of a cell of each setting. Progress is shown: the first steps of a large model may take a minute."""
    with Bar("estimating") as bar:
        show = SecondBar(bar, alone=True)
        for number, setting in enumerate(settings):
            show("estimating", number / len(settings))
            yield estimate_range(setting.run, threads)


def total_time(durations: Sequence[float], slots: int) -> float:
    """Time of jobs of which so many run at once, each of them as soon as there is a slot for it."""
    ends = [0.0] * slots
    for seconds in durations:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def print_result(result: dict[str, Any], options: Options) -> None:
    if options.json:
        print(json.dumps(result))
        return
    print(result["table"])
    for key, table in result.items():
        if key.startswith("table_by_"):
            print(f"by {key.removeprefix('table_by_')}:\n\n{table}")
    for line in result["findings"]:
        print(line)
    for figure in figure_lines(result["figures"]):
        print(f"figure: {figure}")
    print(f"study: {result['study']}")

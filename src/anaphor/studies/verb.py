"""`anaphor study PRESET|FILE`: train many runs and compare them."""

from __future__ import annotations

import dataclasses
import heapq
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.config import from_text, look_up, read_mapping
from anaphor.errors import AnaphorError, ConfigError, count_noun
from anaphor.flags import Positional, parse
from anaphor.registry import import_file
from anaphor.studies.axes import read_seeds
from anaphor.studies.names import MAX_NAME, check_name
from anaphor.studies.spec import TESTS, StudySpec, find_study_file, list_presets, read_study

if TYPE_CHECKING:
    from anaphor.studies.engines import Engine

PARTIAL = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train every setting of a study with several seeds, compare them, and report what is significant.

    `anaphor study list` lists the presets. The same command resumes an interrupted study: finished cells are kept.
    """

    study: Annotated[str, Positional("STUDY")]
    """Preset or YAML file; `list` lists the presets."""
    data: str | None = None
    """Data set, in place of the study's own."""
    init: str | None = None
    """Run, or folder of transformers, with the initial weights of every run."""
    set: tuple[str, ...] = ()
    """Settings of every run as `name=value`; they override the study's own."""
    seeds: int | None = None
    """Number of seeds, in place of the study's own."""
    out: Path | None = None
    """Folder of the study (studies/NAME if not given)."""
    of: Path | None = None
    """Run, or finished study, to measure in place of training."""
    select: str | None = None
    """Metric that selects, in place of the study's own."""
    test: str | None = None
    """Settings to evaluate on test after the selection: best, all or none."""
    prune: bool = False
    """Stop settings early that are worse than the median of the others at the same step."""
    engine: str = "local"
    """Engine that runs the cells: local (processes of this machine) or ray (a cluster)."""
    address: str | None = None
    """Address of a Ray cluster (a new one on this machine if not given)."""
    workers: int | None = None
    """Number of local processes (one for each core, or --per-device for each GPU, if not given)."""
    per_device: int = 4
    """Processes per GPU."""
    threads: int = 1
    """CPU threads per process; results depend on it, because sums are rounded differently."""
    device: str | None = None
    """Device: auto, cpu or cuda (as in the study's file, or auto, if not given)."""
    imports: tuple[Path, ...] = dataclasses.field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers parts of your own; may be given several times."""
    force: bool = False
    """Select again, although the study is sealed with other cells."""
    dry_run: bool = False
    """List the cells with an estimate of the time, and stop."""
    json: bool = False
    """Print one JSON value; progress goes to stderr."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor study")
    if options.study == "list":
        return print_presets(options)
    for path in options.imports:
        import_file(path)
    spec = build_spec(options)
    folder = options.out or Path("studies") / default_name(spec)
    if options.dry_run:
        return print_cells(spec, folder, options)

    from anaphor.studies.import_runs import import_runs
    from anaphor.studies.progress import make_progress
    from anaphor.studies.report import report
    from anaphor.studies.study import Study, lock_study, validate_data, validate_sealed
    from anaphor.studies.validation import validate_study

    settings = None if spec.is_search else spec.settings()
    validate_study(spec, settings)
    validate_data([spec.example_setting()] if settings is None else settings, spec.task)
    if not options.force:
        validate_sealed(spec, folder, options.threads)
    with (
        make_engine(options, spec.base["device"]) as engine,
        lock_study(folder),
        make_progress(spec, settings, engine.slots) as progress,
    ):
        study = Study(spec, folder, engine, progress, options.threads)
        if options.of is not None:
            import_runs(spec, study.cells_folder, options.of, options.threads)
        try:
            study.run()
            result = report(study, force=options.force)
        except KeyboardInterrupt:
            study.log("interrupted")
            message = f"interrupted; finished cells are in {folder}: resume with the same command"
            raise KeyboardInterrupt(message) from None
    print_result(result, options)
    cells = result["cells"]
    return PARTIAL if any(cell["status"] in ("failed", "diverged") or "untested" in cell for cell in cells) else 0


def default_name(spec: StudySpec) -> str:
    """Name of the folder of a study: its own and that of its data, unless the data vary."""
    data = spec.base.get("data")
    part = re.sub(r"[^\w.-]+", "-", Path(data.partition(",")[0]).stem).strip("-.") if isinstance(data, str) else ""
    name = f"{spec.name}-{part}"[:MAX_NAME].rstrip(" -.")
    check_name(name, "folder")
    return name


def build_spec(options: Options) -> StudySpec:
    """The study, overridden by the command line."""
    for name in ("threads", "per_device", "workers"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise ConfigError(f"{name}={count}: it must be at least 1")
    if options.of is not None:
        from anaphor.studies.import_runs import read_study_of

        if any(given is not None for given in (options.data, options.init, options.seeds)) or options.set:
            raise ConfigError(f"--of {options.of} has its own settings: leave out --data, --init, --seeds and --set")
        spec = read_study_of(options.of, find_study_file(options.study))
    else:
        spec = read_study(find_study_file(options.study), data=options.data)
        given = dict(read_assignment(word) for word in options.set)
        if options.init is not None:
            given["init"] = options.init
        for name in [*given, *(["data"] if options.data is not None else [])]:
            refuse_varied(spec, name, options.study)
        spec = spec.with_base(**given)
    device = None if options.of is not None else spec.base.get("device")  # a run may be measured on another device
    spec = spec.with_base(device=options.device or device or "auto")
    changes: dict[str, Any] = {}
    if options.seeds is not None:
        if options.seeds < 1:
            raise ConfigError(f"seeds={options.seeds}: it must be at least 1")
        changes["seeds"] = read_seeds(options.seeds)
    if options.select is not None:
        changes |= {"metric": options.select, "goal": ""}
    if options.test is not None:
        look_up(TESTS, options.test, "choice of test scores")
        changes["test"] = options.test
    if options.prune:
        changes["prune"] = True
    return dataclasses.replace(spec, **changes)


def refuse_varied(spec: StudySpec, name: str, study: str) -> None:
    """Refuse to set what the study varies itself: it would have no effect."""
    if name in ("seed", "seeds"):
        raise ConfigError(f"--set {name}: use --seeds, or a list of seeds in the study's file")
    if name == "device":
        raise ConfigError("--set device: use --device")
    axis = spec.find_axis_of(name)
    if axis is None:
        return
    from anaphor.studies.axes import format_value

    flag = f"--{name}" if name in ("data", "init") else f"--set {name}"
    varied = name if axis == name else f"{name} along the axis {axis}"
    values = f" ({', '.join(map(format_value, spec.axes[axis]))})" if axis in spec.axes else ""
    raise ConfigError(
        f"{flag}: the study varies {varied}{values}; for other values edit `parameters` in a copy of "
        f"{find_study_file(study)}"
    )


def read_assignment(word: str) -> tuple[str, Any]:
    """`epochs=2` as a name and a value."""
    import yaml

    name, equals, value = word.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {word}: write name=value, such as epochs=2")
    try:
        return name.replace("-", "_"), from_text(value)
    except ConfigError as error:
        raise ConfigError(f"--set {word[:60]} {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none is a ValueError
        raise ConfigError(f"--set {word}: {value!r} is neither a number, a name nor a list of them") from None


def make_engine(options: Options, device: str) -> Engine:
    from anaphor.studies.engines import ENGINES, build_engine

    look_up(ENGINES, options.engine, "engine")
    if options.address is not None and options.engine != "ray":
        raise ConfigError(f"address={options.address} has no effect without --engine ray")
    if options.workers is not None and options.engine == "ray":
        raise ConfigError(f"workers={options.workers} has no effect with --engine ray: use --per-device and --threads")
    return build_engine(
        options.engine,
        device=device,
        per_device=options.per_device,
        threads=options.threads,
        slots=options.workers,
        address=options.address,
    )


def print_presets(options: Options) -> int:
    presets = {name: str(read_mapping(path).get("about", "")) for name, path in list_presets().items()}
    if options.json:
        print(json.dumps([{"study": name, "about": about} for name, about in presets.items()]))
        return 0
    width = max(map(len, presets))
    for name, about in presets.items():
        print(f"{name:<{width}}  {about}")
    return 0


def print_cells(spec: StudySpec, folder: Path, options: Options) -> int:
    """List all cells with their status and an estimate of the remaining time."""
    if spec.is_search:
        raise ConfigError(f"method {spec.method} draws settings while it runs: its {spec.trials} cannot be listed")
    from anaphor.progress import duration
    from anaphor.studies.axes import format_setting
    from anaphor.studies.cell import make_cell
    from anaphor.studies.study import FINAL, validate_sealed
    from anaphor.studies.validation import estimate_range, validate_study

    settings = spec.settings()
    validate_study(spec, settings)
    if not options.force:
        try:
            validate_sealed(spec, folder, options.threads)
        except AnaphorError as error:  # nothing is written, so that a folder in the way is worth a warning only
            print(f"anaphor: {error}", file=sys.stderr)
    with make_engine(options, spec.base["device"]) as engine:
        slots = engine.slots
    rows: list[dict[str, Any]] = []
    left: list[tuple[float, float]] = []
    for setting in settings:
        low, high = estimate_range(setting.run, options.threads)
        for seed in spec.seeds:
            cell = make_cell(setting, seed, folder / "cells", spec.task, options.threads)
            status = cell.status(spec)
            if status not in FINAL:
                left.append((low, high))
            rows.append({
                "parameters": setting.parameters, "seed": seed, "status": status, "seconds": round((low + high) / 2, 1),
                "seconds_range": [round(low, 1), round(high, 1)],
            })  # fmt: skip
    # More processes than cores take turns.
    at_once = min(slots, len(left))
    share = max(1.0, at_once * options.threads / len(os.sched_getaffinity(0))) if at_once > 1 else 1.0
    least, most = total_time([low for low, _ in left], slots), share * total_time([high for _, high in left], slots)
    if options.json:
        total = {"seconds_left": round((least + most) / 2, 1), "seconds_left_range": [round(least, 1), round(most, 1)]}
        print(json.dumps({"cells": rows, "workers": slots, **total}))
        return 0
    for row in rows:
        times = " to ".join(map(duration, row["seconds_range"]))
        print(f"{format_setting(row['parameters'])}, seed {row['seed']}: {row['status']}, {times}")
    print(
        f"{count_noun(len(rows), 'cell')}, {slots} at a time: {duration(least)} to {duration(most)}, estimated from "
        f"a few steps of each (the least on a machine with nothing else to do, the most on one as busy as now)"
    )
    return 0


def total_time(durations: Sequence[float], slots: int) -> float:
    """Time of jobs of which so many run at once, each of them as soon as there is a slot for it."""
    ends = [0.0] * slots
    for duration in durations:
        heapq.heapreplace(ends, ends[0] + duration)
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
    for figure in result["figures"]:
        print(f"figure: {figure}")
    print(f"study: {result['study']}")

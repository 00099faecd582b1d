"""`anaphor study PRESET|FILE`: many runs, one answer."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anaphor.config import from_text, look_up
from anaphor.errors import ConfigError
from anaphor.flags import parse
from anaphor.studies.presets import questions, study_file
from anaphor.studies.spec import TESTS, StudySpec, read_study

if TYPE_CHECKING:
    from anaphor.studies.engines import Engine

PARTIAL = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train a model at every place of a study, compare them, and say what the numbers support.

    `anaphor study list` names the studies that come with the program. A study that was interrupted goes on by the same
    command: what is finished is never run again.
    """

    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """A study by name, or a YAML file; `list` names those that there are."""
    data: str | None = None
    """Another data set than the study's own."""
    set: tuple[str, ...] = ()
    """Settings of every run, as `name=value`, over those of the study."""
    seeds: int | None = None
    """How many seeds; None means as many as the study says."""
    out: Path | None = None
    """Folder of the study; None means one called after it under studies."""
    of: Path | None = None
    """A run, or a finished study whose choice is taken: its model is looked at, instead of training anew."""
    test: str | None = None
    """What is scored on test after the choice: best, all or none; None means as the study says."""
    stop_hopeless: bool = False
    """End runs early that are worse than the median of the others at the same point."""
    engine: str = "local"
    """What runs the cells: local (processes of this machine) or ray (a cluster)."""
    address: str | None = None
    """Where an existing Ray cluster is; None starts one here."""
    workers: int | None = None
    """How many local processes run side by side; None means one for each core, or per_device for each GPU."""
    per_device: int = 4
    """How many processes share a GPU."""
    threads: int = 1
    """Processor threads of each process. Another number is another study: sums are rounded otherwise."""
    device: str | None = None
    """Where the runs are: auto, cpu or cuda; None means as the study's file says, or auto."""
    force: bool = False
    """Choose again where a choice was made among other cells."""
    dry_run: bool = False
    """List the cells and how long they would take, and stop."""
    json: bool = False
    """Print one JSON value; progress goes to stderr."""


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor study")
    if options.study == "list":
        return tell_presets(options)
    spec = chosen(options)
    folder = options.out or Path("studies") / spec.name
    if options.dry_run:
        return tell_cells(spec, folder, options)

    from anaphor.cli.study_table import table_for
    from anaphor.studies.adoption import adopt
    from anaphor.studies.report import report
    from anaphor.studies.soundness import check_study
    from anaphor.studies.study import Study, holding

    settings = None if spec.searches else spec.settings()
    check_study(spec, settings)  # refused before anything is started
    refuse_another(spec, folder, options)
    with (
        engine_for(options, spec.base["device"]) as engine,
        holding(folder),
        table_for(spec, settings, engine.slots) as table,
    ):
        study = Study(spec, folder, engine, table, options.threads)
        if options.of is not None:
            adopt(spec, study.cells_folder, options.of, options.threads)
        try:
            study.run()
            result = report(study, force=options.force)
        except KeyboardInterrupt:
            study.log("interrupted")
            print(f"what is finished stays in {folder}; the same command goes on", file=sys.stderr)
            raise
    show(result, options)
    return PARTIAL if any(incomplete(cell) for cell in result["cells"]) else 0


def incomplete(cell: dict[str, Any]) -> bool:
    """Whether something of a cell is not known that the study asks."""
    return cell["status"] in ("failed", "diverged") or "untested" in cell


def refuse_another(spec: StudySpec, folder: Path, options: Options) -> None:
    """A changed study of a folder that has made its choice is refused before anything is written or run."""
    from anaphor.studies.study import require_same_choice

    if not options.force:
        require_same_choice(spec, folder, options.threads)


def chosen(options: Options) -> StudySpec:
    """The study with what the command line says over it."""
    for name in ("threads", "per_device", "workers"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise ConfigError(f"{name}={count}: it must be at least 1")
    if options.of is not None:
        from anaphor.studies.adoption import study_of

        if options.data is not None or options.seeds is not None or options.set:
            raise ConfigError(
                f"of={options.of} brings its own data, seeds and settings: leave --data, --seeds and --set away"
            )
        spec = study_of(options.of, study_file(options.study))
    else:
        spec = read_study(study_file(options.study), data=options.data)
        given = dict(assignment(word) for word in options.set)
        for name in [*given, *(["data"] if options.data is not None else [])]:
            require_free(spec, name, options.study)
        spec = spec.with_base(**given)
    said = None if options.of is not None else spec.base.get("device")  # a run tells where it was, not where to be
    spec = spec.with_base(device=options.device or said or "auto")
    changes: dict[str, Any] = {}
    if options.seeds is not None:
        if options.seeds < 1:
            raise ConfigError(f"seeds={options.seeds}: it must be at least 1")
        changes["seeds"] = tuple(range(options.seeds))
    if options.test is not None:
        look_up(TESTS, options.test, "choice of test scores")
        changes["test"] = options.test
    if options.stop_hopeless:
        changes["stop_hopeless"] = True
    return dataclasses.replace(spec, **changes)


def require_free(spec: StudySpec, name: str, study: str) -> None:
    """Refuse to set what the study sets itself at every place, for it would count for nothing."""
    if name in ("seed", "seeds"):
        raise ConfigError(f"--set {name}: seeds are given by --seeds, or as a list in the study's file")
    if name == "device":
        raise ConfigError("--set device: give it as --device")
    axis = spec.varied_by(name)
    if axis is None:
        return
    from anaphor.studies.groups import told

    flag = "--data" if name == "data" else f"--set {name}"
    along = "is what" if axis == name else f"is set along {axis}, which"
    values = f" ({', '.join(map(told, spec.axes[axis]))})" if axis in spec.axes else ""
    raise ConfigError(
        f"{flag}: {name} {along} this study varies{values}; for other values change `parameters` in a copy of "
        f"{study_file(study)} and give that file"
    )


def assignment(word: str) -> tuple[str, Any]:
    """`epochs=2` as a name and a value."""
    import yaml

    name, equals, value = word.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {word}: write name=value, such as epochs=2")
    try:
        return name.replace("-", "_"), from_text(value)
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none is a ValueError
        raise ConfigError(f"--set {word}: {value!r} is neither a number, a name nor a list of them") from None


def engine_for(options: Options, device: str) -> Engine:
    from anaphor.studies.engines import ENGINES, build_engine

    look_up(ENGINES, options.engine, "engine")
    if options.address is not None and options.engine != "ray":
        raise ConfigError(f"address={options.address} means nothing without --engine ray")
    if options.workers is not None and options.engine == "ray":
        raise ConfigError(f"workers={options.workers}: a Ray cluster knows itself how many fit")
    return build_engine(
        options.engine,
        device=device,
        per_device=options.per_device,
        threads=options.threads,
        slots=options.workers,
        address=options.address,
    )


def tell_presets(options: Options) -> int:
    if options.json:
        print(json.dumps([{"study": name, "about": about} for name, about in questions().items()]))
        return 0
    width = max(map(len, questions()))
    for name, about in questions().items():
        print(f"{name:<{width}}  {about}")
    return 0


def tell_cells(spec: StudySpec, folder: Path, options: Options) -> int:
    """What would be run, what is there already, and about how long the rest would take."""
    if spec.searches:
        raise ConfigError(f"method {spec.method} chooses as it goes: its {spec.trials} settings cannot be listed")
    from anaphor.cli.progress import duration
    from anaphor.studies.cell import make_cell
    from anaphor.studies.estimate import estimate
    from anaphor.studies.groups import label
    from anaphor.studies.soundness import check_study
    from anaphor.studies.study import OVER

    settings = spec.settings()
    check_study(spec, settings)
    refuse_another(spec, folder, options)
    with engine_for(options, spec.base["device"]) as engine:
        slots = engine.slots
    rows: list[dict[str, Any]] = []
    left = 0.0
    for setting in settings:
        seconds = estimate(setting)
        for seed in spec.seeds:
            cell = make_cell(setting, seed, folder / "cells", spec.task, options.threads)
            status = cell.status(spec)
            left += 0 if status in OVER else seconds
            rows.append(
                {"parameters": setting.parameters, "seed": seed, "status": status, "seconds": round(seconds, 1)}
            )
    if options.json:
        print(json.dumps({"cells": rows, "workers": slots, "seconds_left": round(left / slots, 1)}))
        return 0
    for row in rows:
        print(f"{label(row['parameters'])}, seed {row['seed']}: {row['status']}, about {duration(row['seconds'])}")
    print(f"{len(rows)} cells, {slots} at a time: about {duration(left / slots)}, an estimate from two steps of each")
    return 0


def show(result: dict[str, Any], options: Options) -> None:
    if options.json:
        print(json.dumps(result))
        return
    print(result["table"])
    if "table_by_length" in result:
        print(f"by length:\n\n{result['table_by_length']}")
    for line in result["findings"]:
        print(line)
    for figure in result["figures"]:
        print(f"figure: {figure}")
    print(f"study: {result['study']}")

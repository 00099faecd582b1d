"""Options of `anaphor study PRESET|FILE`, and the study that they mean. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from anaphor.config import check_at_least, check_range, look_up
from anaphor.errors import ConfigError
from anaphor.flags import Positional, parse
from anaphor.imported_files import import_file
from anaphor.studies.axes import format_value, read_seeds
from anaphor.studies.names import MAX_NAME, check_name
from anaphor.studies.spec import TESTS, StudySpec
from anaphor.studies.study_file import find_study_file, list_presets, read_study, resolve_callback
from anaphor.studies.study_folder import refuse_running
from anaphor.yaml_files import parse_yaml, read_mapping

MAX_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train every setting of a study with several seeds, compare them, and report what is significant.

    `anaphor study list` lists the presets. The same command resumes an interrupted study: finished cells are kept.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor study list",
        "anaphor study bptt",
    )

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
    callbacks: tuple[str, ...] = dataclasses.field(default=(), metadata={"flag": "callback", "repeated": True})
    """FILE.py:Class, called at every step and validation of every run; may be given several times."""
    prune: bool = False
    """Stop settings early that are worse than the median of the others at the same step."""
    engine: str = "local"
    """Engine that runs the cells: local (processes of this machine) or ray (a cluster)."""
    address: str | None = None
    """Address of a Ray cluster (a new one on this machine if not given)."""
    worker: bool = False
    """Share the folder with other workers, on any machine that sees it; the first one that is free reports."""
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
    """Select again, although the study is frozen with other cells."""
    dry_run: bool = False
    """List the cells with an estimate of the time, and stop."""
    json: bool = False
    """Print one JSON value; progress goes to stderr."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor study")
    if options.study == "list":
        return print_presets(options)
    is_alone = not (options.dry_run or options.worker)
    if is_alone and options.out is not None:
        refuse_running(options.out)  # before torch is imported: a folder that is in use is refused at once
    for path in options.imports:
        import_file(path)
    spec = build_spec(options)
    folder = options.out or Path("studies") / default_name(spec)
    if is_alone and options.out is None:
        refuse_running(folder)
    from anaphor.studies.command import print_cells, run_study

    return print_cells(spec, folder, options) if options.dry_run else run_study(spec, folder, options)


def default_name(spec: StudySpec) -> str:
    """Name of the folder of a study: its own and that of its data, unless the data vary."""
    data = spec.base.get("data")
    part = re.sub(r"[^\w.-]+", "-", Path(data.partition(",")[0]).stem).strip("-.") if isinstance(data, str) else ""
    name = f"{spec.name}-{part}"[:MAX_NAME].rstrip(" -.")
    check_name(name, "folder")
    return name


def build_spec(options: Options) -> StudySpec:
    """The study, overridden by the command line."""
    check_counts(options)
    if options.worker and (options.of is not None or options.dry_run):
        other = "--dry-run" if options.dry_run else "--of"
        raise ConfigError(f"--worker trains the cells of a study with others: leave it out with {other}")
    spec = override(_read_given(options), options)
    if options.worker and spec.method == "bayes":
        raise ConfigError("method bayes draws settings by earlier results: --worker needs random, grid, zip or list")
    return spec


def check_counts(options: Options) -> None:
    """Raise for numbers of processes and threads that no machine has."""
    for name in ("threads", "per_device", "workers"):
        check_range(1, MAX_WORKERS, **{name: getattr(options, name)})


def _read_given(options: Options) -> StudySpec:
    """The study that is named, with the settings that are given."""
    if options.of is not None:
        from anaphor.studies.import_runs import read_study_of

        if any(given is not None for given in (options.data, options.init, options.seeds)) or options.set:
            raise ConfigError(f"--of {options.of} has its own settings: leave out --data, --init, --seeds and --set")
        return read_study_of(options.of, find_study_file(options.study))
    file = find_study_file(options.study)
    spec = read_study(file, data=options.data)
    given = dict(read_assignment(word) for word in options.set)
    if options.init is not None:
        given["init"] = options.init
    for name in [*given, *(["data"] if options.data is not None else [])]:
        refuse_varied(spec, name, str(file))
    return spec.with_base(**given)


def override(spec: StudySpec, options: Options) -> StudySpec:
    """The study with other seeds, metric, test and device."""
    device = None if options.of is not None else spec.base.get("device")  # a run may be measured on another device
    spec = spec.with_base(device=options.device or device or "auto")
    changes: dict[str, Any] = {}
    if options.seeds is not None:
        check_at_least(1, seeds=options.seeds)
        changes["seeds"] = read_seeds(options.seeds)
    if options.select is not None:
        changes |= {"metric": options.select, "goal": ""}
    if options.test is not None:
        look_up(TESTS, options.test, "choice of test scores")
        changes["test"] = options.test
    if options.prune:
        changes["prune"] = True
    if options.callbacks:
        changes["callbacks"] = (*spec.callbacks, *map(resolve_callback, options.callbacks))
    return dataclasses.replace(spec, **changes)


def refuse_varied(spec: StudySpec, name: str, file: str) -> None:
    """Refuse to set what the study in a file varies itself: it would have no effect."""
    if name in ("seed", "seeds"):
        raise ConfigError(f"--set {name}: use --seeds, or a list of seeds in the study's file")
    if name == "device":
        raise ConfigError("--set device: use --device")
    axis = spec.find_axis_of(name)
    if axis is None:
        return
    flag = f"--{name}" if name in ("data", "init") else f"--set {name}"
    varied = name if axis == name else f"{name} along the axis {axis}"
    tuned = {one.name: one.values for one in spec.tune}
    given = {**spec.axes, **tuned}.get(axis, ())
    values = f" ({', '.join(map(format_value, given))})" if given else ""
    where = "tune" if axis in tuned else "parameters"
    raise ConfigError(f"{flag}: the study varies {varied}{values}; for other values edit `{where}` in a copy of {file}")


def read_assignment(word: str) -> tuple[str, Any]:
    """`epochs=2` as a name and a value."""
    import yaml

    name, equals, value = word.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {word}: write name=value, such as epochs=2")
    try:
        return name.replace("-", "_"), parse_yaml(value)
    except ConfigError as error:
        raise ConfigError(f"--set {word[:60]} {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none is a ValueError
        raise ConfigError(f"--set {word}: {value!r} is neither a number, a name nor a list of them") from None


def print_presets(options: Options) -> int:
    presets = {name: str(read_mapping(path).get("about", "")) for name, path in list_presets().items()}
    if options.json:
        print(json.dumps([{"study": name, "about": about} for name, about in presets.items()]))
        return 0
    width = max(map(len, presets))
    for name, about in presets.items():
        print(f"{name:<{width}}  {about}")
    return 0

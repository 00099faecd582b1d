"""Runs of other trackers as runs of ours: `anaphor runs --add FOLDER`.

TensorBoard's event files and the offline folders of wandb are read; settings and curves become `spec.yaml`,
`metrics.jsonl` and `steps.jsonl` of a folder, which the table, the page and reports show as they show a run of a user's
own task. There are no weights. The folder may come from anybody: sizes are bounded, and nothing in it is executed.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

from anaphor.config import FORMAT
from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.files import make_folder, replace_file
from anaphor.metrics.described import describe_metrics
from anaphor.metrics.result import Metric
from anaphor.web.summary import find_metric
from anaphor.yaml_files import dump_yaml

FOLDER = "added"
"""Name of the folder for runs that were added."""
MAX_RUNS, MAX_FILES, MAX_POINTS, MAX_RECORD = 1000, 100_000, 2_000_000, 16 * 2**20
VALID = re.compile(r"(?:^|(?<=[/_.\s-]))(?:valid|validation|val|eval|evaluation|dev|test)(?=$|[/_.\s-])", re.IGNORECASE)
TRAIN = re.compile(r"(?:^|(?<=[/_.\s-]))(?:train|training|step)(?=$|[/_.\s-])", re.IGNORECASE)
STEP_CURVES = {
    "loss": ("loss",),
    "lr": ("lr", "learning-rate", "learning_rate"),
    "grad_norm": ("grad_norm", "gradient-norm", "gradient_norm"),
    "throughput": ("throughput", "tokens_per_second"),
}
"""Curves of training that `steps.jsonl` has, by the names that others give them."""
LARGER_IS_BETTER = re.compile(r"acc|f1|auc|score|reward|precision|map\b", re.IGNORECASE)
"""Parts of names of metrics. What our own tasks measure they say themselves."""


@dataclass
class ForeignRun:
    """A run as another program has it."""

    source: Path
    """The folder or file that it was read from."""
    program: str
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    """Values by tag and step."""
    times: dict[int, float] = field(default_factory=dict)
    """Seconds since 1970, by step."""
    settings: dict[str, Any] = field(default_factory=dict)
    points: int = 0

    def add(self, tag: str, step: int, value: float, time: float) -> None:
        if math.isfinite(value) and step >= 0 and self.points < MAX_POINTS:
            self.curves.setdefault(tag[:200], {})[step] = value
            self.times[step] = time
            self.points += 1


def add_runs(source: Path, folder: Path) -> list[Path]:
    """Read all runs below a folder and write each below `added/` of ours, in place of what was added from there before.

    Returns:
        The folders that were written.
    """
    if not source.is_dir():
        raise DataError(f"--add {source}: no folder is there")
    written = []
    for run in find_runs(source):
        if run.curves:
            target = folder / FOLDER / _folder_name(source, run)
            make_folder(target, within=folder)
            write_run(run, target)
            written.append(target)
    if not written:
        raise DataError(
            f"--add {source}: there are no runs of TensorBoard (events.out.tfevents…) "
            f"or wandb (run-….wandb) with curves"
        )
    return written


def _folder_name(source: Path, run: ForeignRun) -> str:
    """One name for the place of a run: `logs-resnet-lr0.1`."""
    parts = [source.resolve().name, *run.source.relative_to(source).with_suffix("").parts]
    kept = [part for part in parts if part not in ("wandb", "")]
    return re.sub(r"[^\w.-]+", "-", "-".join(kept)).strip(".-")[-120:] or "run"


def find_runs(source: Path) -> Iterator[ForeignRun]:
    """The runs below a folder. Links are not followed."""
    events: dict[Path, list[Path]] = {}
    found, seen = 0, 0
    for path in sorted(source.rglob("*")):
        seen += 1
        if seen > MAX_FILES:
            raise DataError(f"--add {source}: more than {MAX_FILES:,} files; name a folder with fewer")
        if path.is_symlink() or not path.is_file():
            continue
        if path.name.startswith("events.out.tfevents."):
            events.setdefault(path.parent, []).append(path)
        elif path.suffix == ".wandb":
            found += 1
            yield read_wandb(path)
        if found + len(events) > MAX_RUNS:
            raise DataError(f"--add {source}: more than {MAX_RUNS:,} runs; name a folder with fewer")
    for parent, files in events.items():
        yield read_tensorboard(parent, files)


def write_run(run: ForeignRun, folder: Path) -> None:
    """Write a run's files."""
    metrics, steps = sort_curves(run)
    start = min(run.times.values())
    select = metrics[0][1]
    document = {
        "format": FORMAT,
        "task": run.program,
        "settings": {"select": select.name, **run.settings},
        "environment": {"added_from": str(run.source)},
        "measures": describe_metrics([metric for _, metric in metrics], "items"),
    }
    rows = sorted({step for tag, _ in metrics for step in run.curves[tag]})
    lines = []
    for step in rows:
        valid = {metric.name: run.curves[tag][step] for tag, metric in metrics if step in run.curves[tag]}
        lines.append({"step": step, "seconds": round(run.times[step] - start, 3), "valid": valid})
    logged = sorted({step for tag in steps.values() for step in run.curves[tag]})
    step_lines = [
        {"step": step, **{key: run.curves[tag].get(step) for key, tag in steps.items()}, "seconds_left": None}
        for step in logged
    ]
    best = max if select.goal == "max" else min
    chosen = {metric.name: best(run.curves[tag].values()) for tag, metric in metrics[:1]}
    result = {"status": "finished", "valid": chosen, "test": None, "steps": max(run.times)}
    replace_file(folder / "spec.yaml", dump_yaml(document).encode(), within=folder)
    replace_file(folder / "metrics.jsonl", _as_lines(lines), within=folder)
    replace_file(folder / "steps.jsonl", _as_lines(step_lines), within=folder)
    replace_file(folder / "result.json", json.dumps(result).encode() + b"\n", within=folder)


def _as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def sort_curves(run: ForeignRun) -> tuple[list[tuple[str, Metric]], dict[str, str]]:
    """Which curves are metrics of validation, the one that selects first, and which are curves of training by key.

    A curve is one of validation if its name says so; where none does, all are that are not said to be of training.
    """
    valid = [tag for tag in run.curves if VALID.search(tag)]
    chosen = valid or [tag for tag in run.curves if not TRAIN.search(tag)] or list(run.curves)
    metrics: dict[str, tuple[str, Metric]] = {}
    for tag in chosen:
        name = _metric_name(tag)
        known = find_metric(name)
        goal: Literal["min", "max"] = "max" if LARGER_IS_BETTER.search(name) else "min"
        goal = goal if known is None else known.goal
        metrics.setdefault(name, (tag, Metric(name, goal, name.replace("_", " "))))
    ordered = sorted(metrics.values(), key=lambda one: (one[1].name != "loss", one[1].name))
    steps: dict[str, str] = {}
    for tag in run.curves:
        for key, names in STEP_CURVES.items():
            if tag not in chosen and _metric_name(tag).lower() in names:
                steps.setdefault(key, tag)
    return ordered, steps


def _metric_name(tag: str) -> str:
    """`eval/loss`, `loss/valid` and `val_loss` are `loss`."""
    rest = TRAIN.sub("", VALID.sub("", tag)).strip("/_. -")
    return re.sub(r"[^\w-]+", "_", rest)[:60] or re.sub(r"[^\w-]+", "_", tag)[:60]


# TensorBoard ----------------------------------------------------------------------------------------------------------


def read_tensorboard(folder: Path, files: list[Path]) -> ForeignRun:
    """All event files of a folder as one run: a later file replaces what an earlier one has of the same steps."""
    if find_spec("tensorboardX") is None:
        raise ConfigError("--add of TensorBoard's events needs a package: pip install 'anaphor[tensorboard]'")
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    run = ForeignRun(folder, "tensorboard")
    for path in files:
        with open(path, "rb") as file:
            for record in _event_records(file):
                try:
                    event = Event.FromString(record)
                except DecodeError:
                    break  # the rest of a damaged file
                for value in event.summary.value:
                    number = _scalar(value)
                    if number is not None:
                        run.add(value.tag, event.step, number, event.wall_time)
    return run


def _event_records(file: IO[bytes]) -> Iterator[bytes]:
    """Records of a file: length, checksum, content, checksum. An incomplete one ends it."""
    while len(head := file.read(12)) == 12:
        (size,) = struct.unpack("<Q", head[:8])
        if size > MAX_RECORD:
            return
        content = file.read(size + 4)
        if len(content) < size + 4:
            return
        yield content[:size]


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or value.tensor.tensor_shape.dim:
        return None
    if value.tensor.float_val:
        return float(value.tensor.float_val[0])
    if value.tensor.dtype == 1 and len(value.tensor.tensor_content) == 4:  # DT_FLOAT, as TensorFlow 2 writes it
        return float(struct.unpack("<f", value.tensor.tensor_content)[0])
    return None


# wandb ----------------------------------------------------------------------------------------------------------------

BLOCK = 2**15
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_wandb(path: Path) -> ForeignRun:
    """The file of a run of wandb, online or offline."""
    if find_spec("wandb") is None:
        raise ConfigError("--add of runs of wandb needs a package: pip install 'anaphor[wandb]'")
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    run = ForeignRun(path, "wandb")
    with open(path, "rb") as file:
        for content in _log_records(file):
            try:
                record = Record.FromString(content)
            except DecodeError:
                break
            kind = record.WhichOneof("record_type")
            if kind == "run":
                for item in record.run.config.update:
                    _add_setting(run, item.key, _from_json(item.value_json))
            elif kind == "history":
                _add_history(run, record.history)
    return run


def _add_history(run: ForeignRun, history: Any) -> None:
    values = {item.key or ".".join(item.nested_key): _from_json(item.value_json) for item in history.item}
    step, time = values.pop("_step", history.step.num), values.pop("_timestamp", 0.0)
    if type(step) is not int or not isinstance(time, int | float):
        return
    for tag, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and not tag.startswith("_"):
            run.add(tag, step, float(value), float(time))


def _add_setting(run: ForeignRun, key: str, value: Any) -> None:
    is_plain = isinstance(value, str | int | float | bool)
    if re.fullmatch(r"[A-Za-z]\w{0,60}", key) and is_plain and len(str(value)) < 200 and len(run.settings) < 300:
        run.settings[key] = value


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _log_records(file: IO[bytes]) -> Iterator[bytes]:
    """Records of a log in blocks: checksum, length, kind, content. One that does not fit into a block goes on in the
    next. An incomplete one ends the file."""
    file.seek(7)  # the name of the format and its version
    place, parts = 7, list[bytes]()
    while True:
        left = BLOCK - place % BLOCK
        if left < 7:
            file.seek(left, 1)
            place += left
            continue
        head = file.read(7)
        if len(head) < 7:
            return
        size, kind = struct.unpack("<HB", head[4:])
        content = file.read(size)
        if len(content) < size or kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        place += 7 + size
        if kind in (FULL, FIRST):
            parts = []
        parts.append(content)
        if sum(map(len, parts)) > MAX_RECORD:
            return
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []


def describe_added(written: list[Path], source: Path) -> str:
    """One line that says what was added."""
    return f"{count_noun(len(written), 'run')} of {source} added below {written[0].parent}"

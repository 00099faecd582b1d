"""The program that scores the runs of a submission again, in a sandbox: from their weights, on data of the sheet.

No code of a student runs here: parts of a student's own are not imported, and a run that has some is not scored. So
what this program prints is what the weights give.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from anaphor.cli.train import read_command_line
from anaphor.course.grading.limits import limit
from anaphor.errors import AnaphorError
from anaphor.evaluation import eval_mode
from anaphor.registry import DATASETS, TASKS, import_object
from anaphor.training.build import build_experiment
from anaphor.training.load import Run, load_run, read_spec
from anaphor.training.run_folder import RunFolder
from anaphor.training.spec import DataSection, EvaluationSection, RunSpec

PREFIX = "@"
"""Begins each line of the answer: libraries may print, too."""
NOT_SCORING = ("select", "eval_every", "patience")
"""Settings of the evaluation that do not change what a score means."""
SMALL_SETTINGS = ("device", "dtype", "seed", "data")


def main() -> None:
    """Arguments: the job file, bytes of memory, seconds of processor time."""
    job_file, memory, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    os.chdir(job["data"])
    torch.set_num_threads(1)
    limit(memory=memory, processor=seconds)
    for one in job["runs"]:
        say({"begins": one["folder"]})
        say({"folder": one["folder"], **answer(Path(job["submission"]) / one["folder"], one)})


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(f"{PREFIX}{json.dumps(value)}\n")
    sys.stdout.flush()


def answer(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """The score of a run, or why it has none."""
    try:
        return score(folder, wanted)
    except AnaphorError as error:
        return {"problem": str(error).replace(f"{folder.parent}/", "")[:600]}
    except Exception as error:  # noqa: BLE001 (files of a student's may be anything)
        return {"problem": f"it cannot be scored: {type(error).__name__}: {str(error)[:300]}"}


def score(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Metrics of the validation split, what the run says of them, and what differs from the sheet."""
    if RunFolder(folder).read_document().get("imports"):
        return {"problem": "the run has parts of the student's own, which are not executed here", "flag": "own-code"}
    spec = read_spec(folder)
    expected = read_command(wanted["command"]) if wanted.get("command") else None
    differences = [] if expected is None else list(setting_differences(spec, *expected, wanted.get("settings", {})))
    data = spec.data if expected is None else expected[0].data
    if spec.data != data:
        return {"problem": f"it was trained on {spec.data!r}; the sheet names {data!r}", "flag": "other-data"}
    if expected is None and data not in DATASETS and not Path(data).is_absolute() and ".." in Path(data).parts:
        return {"problem": f"it names the data {data!r}, which are not in its folder", "flag": "other-data"}
    run = load_run(folder, device="cpu", trust=True, warn=lambda line: None)
    found: dict[str, Any] = {"differences": differences, "weights": digest_weights(run.model), "step": run.step}
    found["changed"] = changed_preprocessing(run)
    split = "valid"
    with eval_mode(run.model):
        result = run.experiment.evaluate(split)
        if wanted.get("metric") and result.values.get(wanted["metric"]) is None:
            result = run.experiment.score(split)
    found["metrics"] = {name: value for name, value in result.values.items() if value is not None}
    found["signature"] = result.signature
    found["task"] = spec.task
    found["claimed"] = read_claims(folder)
    if wanted.get("losses"):
        found["items"] = item_losses(run, split)
    return found


def read_command(command: str) -> tuple[RunSpec, set[str]]:
    """The settings that a command of a sheet gives, and the names of those that it says."""
    argv = shlex.split(command)
    at = argv.index("train")
    _, spec, given = read_command_line(TASKS[argv[at + 1]], argv[at + 2 :])
    return spec, given


def setting_differences(spec: RunSpec, expected: RunSpec, given: set[str], settings: dict[str, Any]) -> Any:
    """Settings that are not those of the sheet: whether they decide what the score means, and both values."""
    if type(spec) is not type(expected):
        yield [True, "task", spec.task, expected.task]
        return
    decisive = {
        field.name
        for kind in type(spec).__mro__
        if dataclasses.is_dataclass(kind) and issubclass(kind, DataSection | EvaluationSection)
        and not issubclass(kind, RunSpec)
        for field in dataclasses.fields(kind)
    } - {*NOT_SCORING}  # fmt: skip
    fields = {field.name for field in dataclasses.fields(spec)}
    for name in sorted((decisive | given | {*settings}) & fields):
        found, wanted = getattr(spec, name), settings.get(name, getattr(expected, name))
        is_open = wanted is None and name not in settings
        if found != wanted and not is_open and (name in decisive or name in settings or name not in SMALL_SETTINGS):
            yield [name in decisive or name in settings, name, repr(found)[:80], repr(wanted)[:80]]


def changed_preprocessing(run: Run) -> list[str]:
    """What of the data and the tokenizer is not as the data of the sheet make it."""
    try:
        fresh = build_experiment(dataclasses.replace(run.spec, device="cpu")).fingerprint()
    except AnaphorError as error:
        return [f"data ({error})"]
    saved = run.experiment.saved
    changed = [name for name in fresh if name != "data" and saved.get(name) != json.loads(json.dumps(fresh[name]))]
    before, now = saved.get("data", {}), fresh.get("data", {})
    return changed + [f"data of {split}" for split in now if before.get(split) != now[split]]


def read_claims(folder: Path) -> dict[str, float]:
    """The numbers of the validation split in `result.json`."""
    try:
        valid = RunFolder(folder).read_result().get("valid")
    except AnaphorError:
        return {}
    values = valid.items() if isinstance(valid, dict) else ()
    return {str(name)[:40]: value for name, value in values if isinstance(value, int | float)}


def digest_weights(model: torch.nn.Module) -> str:
    """A digest of the values of all weights, whatever their names and the files they come from."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def item_losses(run: Run, split: str) -> dict[str, Any] | None:
    """The loss of every item of a split, to compare runs on the same items; None for a task without them."""
    reference = run.task.page.get("passages")
    if reference is None:
        return None
    losses = import_object(reference)(run.experiment, split)
    values, lines = losses.losses.astype("float32"), losses.lines.astype("int32")
    items = getattr(losses, "digest", "")
    return {
        "same": f"{run.spec.task} {items} {len(values)}",
        "losses": base64.b64encode(values.tobytes()).decode(),
        "lines": base64.b64encode(lines.tobytes()).decode(),
    }


if __name__ == "__main__":
    main()

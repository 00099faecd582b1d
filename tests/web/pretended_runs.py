"""Runs without a model: their files, as the trainer writes them."""

import json

from anaphor.training.run_folder import RunFolder
from anaphor.yaml_files import dump_yaml

SIGNATURE = "bptt:8|tokens:100"


def write_run(folder, *, losses=(3.0, 2.0, 2.5), result="finished", task="lm", **settings):
    """A run with a validation for each loss, and a result of that status; None for no result."""
    run = RunFolder(folder)
    (run.checkpoints / "step-1").mkdir(parents=True)
    given = {"model": "lstm", "lr": 0.1, "seed": 0, "epochs": 4.0, **settings}
    sections = {
        "data": {"data": "text"},
        "model": {"model": given.pop("model"), "width": given.pop("width", 8)},
        "training": given,
        "evaluation": {"select": "loss"},
    }
    run.create(dump_yaml({"format": 2, "task": task, **sections, "environment": {"device": "cpu", "threads": 1}}))
    for number, loss in enumerate(losses, start=1):
        log(run, number, loss)
    if result is not None:
        scores = {"loss": min(losses, default=None), "perplexity": 9.5, "signature": SIGNATURE, "by_class": {"a": 1}}
        values = {
            "parameters": 1234,
            "steps": 10 * len(losses),
            "tokens_per_second": 555.5,
            "valid": scores,
            "test": None,
        }
        run.write_result({"status": result, "run": "elsewhere", **(values if result == "finished" else {})})
    return run


def log(run, number, loss):
    valid = {"loss": loss, "perplexity": 2 * loss, "tokens": 7, "signature": SIGNATURE}
    run.log(
        10 * number, epoch=number, tokens=100 * number, seconds=number / 2, train_loss=loss + 1,
        tokens_per_second=400.0, lr=0.1, valid=valid,
    )  # fmt: skip


STUDY = {
    "about": "which width is best?",
    "task": "lm",
    "base": {"data": "text"},
    "method": "grid",
    "metric": {"name": "valid.loss", "goal": "minimize"},
    "parameters": {"width": {"values": [4, 8]}},
    "seeds": [0, 1],
    "trials": 20,
}


def write_study(folder, **changes):
    folder.mkdir(parents=True)
    (folder / "cells").mkdir()
    (folder / "study.yaml").write_text(dump_yaml({**STUDY, **changes}))
    (folder / "log.jsonl").touch()
    return folder


def add_cell(folder, parameters, seed, *, key=None, event="finished", loss=2.0, reason="", task="lm"):
    """A cell of a study and its lines in the log: finished, diverged, failed, stopped, or only started."""
    key = key or f"{len(list((folder / 'cells').iterdir())):016x}"
    cell = folder / "cells" / key
    if event in ("finished", "diverged"):
        write_run(cell, losses=(loss + 1, loss), result=event, seed=seed, task=task, **parameters)
        if event == "diverged":
            RunFolder(cell).write_result({"status": "diverged", "reason": reason})
    cell.mkdir(exist_ok=True)
    (cell / "job.json").write_text("{}")
    if event == "finished":
        (cell / "measures.json").write_text('{"wanted": {}}')
    if event in ("failed", "stopped"):
        (cell / "status.json").write_text(json.dumps({"status": event, "reason": reason}))
    with (folder / "log.jsonl").open("a") as file:
        for happened in ("started", *([event] if event != "started" else [])):
            file.write(json.dumps({"event": happened, "cell": key, "parameters": parameters, "seed": seed}) + "\n")
    return cell

"""The catalog finds every run and study below a folder, says how each stands, and survives whatever lies there."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from anaphor.errors import DataError
from anaphor.training.run_folder import RunFolder
from anaphor.web import catalog as catalog_module
from anaphor.web import locks, summary
from anaphor.web.catalog import Catalog, make_id
from anaphor.web.history import read_curves
from anaphor.web.locks import HeldLocks, Holder
from anaphor.web.summary import count_parameters, find_checkpoint, plan_steps
from web.pretended_runs import add_cell, log, write_run, write_study


def scan(folder):
    """The runs by name."""
    return {row["run"]: row for row in Catalog(folder).scan().to_plain()["runs"]}


@pytest.mark.needs("studies")
def test_numbers_are_those_of_the_result_and_of_the_last_validation(folder):
    rows = scan(folder)
    checked = 0
    for name, row in rows.items():
        path = folder / name
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] if row["last"] else []
        if lines:
            assert row["last"] == lines[-1]["valid"][row["metric"]]
            assert row["last"] in read_curves(path)["columns"][f"valid.{row['metric']}"]
        if row["status"] == "finished":
            result = json.loads((path / "result.json").read_text())
            assert row["best"] == result["valid"][row["metric"]] == row["scores"]["valid"][row["metric"]]
            assert row["scores"]["valid"]["signature"] == result["valid"]["signature"]
            assert (row["step"], row["parameters"]) == (result["steps"], result["parameters"])
            assert count_parameters(find_checkpoint(path)) == result["parameters"]
            assert row["throughput"] == result[f"{row['counted']}_per_second"]
            checked += 1
    assert checked >= 9  # with the cells of the study


@pytest.mark.needs("studies")
def test_every_run_has_its_status_task_and_study(folder):
    rows = scan(folder)
    found = {name.partition(" ")[0]: (row["task"], row["status"]) for name, row in rows.items() if not row["study"]}
    assert found == {
        "diverged": ("lm", "diverged"), "hybrid": ("lm", "finished"), "images": ("images", "finished"),
        "labels": ("classify", "finished"), "lstm": ("lm", "finished"), "lstm-1": ("lm", "finished"),
        "training": ("lm", "training"), "translation": ("translate", "finished"),
    }  # fmt: skip
    assert {row["study"] for name, row in rows.items() if "cells" in name} == {make_id("study")}
    assert rows["diverged"]["error"].startswith("training diverged at step 2: ")
    assert rows["lstm"]["group"] == rows["lstm-1"]["group"] != rows["images"]["group"]
    assert "tokens" in rows["lstm"]["offers"]
    assert "tokens" not in rows["diverged"]["offers"]  # it has no checkpoint


def test_all_of_it_is_json_without_paths_of_this_machine(folder):
    plain = Catalog(folder).scan().to_plain()
    for row in plain["runs"]:
        del row["settings"]  # with the data as they were given
    text = json.dumps(plain, allow_nan=False)
    assert str(folder) not in text


@pytest.mark.parametrize("result", ["finished", "interrupted", "diverged", "converted", None])
def test_a_run_that_no_process_holds_is_as_its_result_says(tmp_path, result):
    write_run(tmp_path / "run", result=result)
    assert scan(tmp_path)["run"]["status"] == (result or "stopped")


def test_best_and_last_of_a_run_without_result_are_those_of_its_metrics(tmp_path):
    write_run(tmp_path / "run", losses=(3.0, 2.0, 2.5), result=None)
    row = scan(tmp_path)["run"]
    assert (row["best"], row["last"], row["step"], row["steps"], row["epoch"]) == (2.0, 2.5, 30, 40, 3)
    assert (row["throughput"], row["counted"], row["metric"], row["goal"]) == (400.0, "tokens", "loss", "min")
    assert row["curves"] == ["train_loss", "throughput", "lr", "valid.loss", "valid.perplexity"]
    assert row["settings"] == {
        "data": "text", "model": "lstm", "width": 8, "lr": 0.1, "seed": 0, "epochs": 4.0, "select": "loss"
    }  # fmt: skip


def test_a_run_without_a_validation_has_its_step_loss_and_speed(tmp_path):
    run = write_run(tmp_path / "run", losses=(), result=None)
    for step, loss in ((1, 5.0), (40, 4.0)):
        run.log_step(
            {"step": step, "loss": loss, "lr": 0.1, "grad_norm": 1.5, "throughput": 250.0, "seconds_left": 60.0}
        )
    row = scan(tmp_path)["run"]
    assert (row["step"], row["train_loss"], row["throughput"], row["counted"]) == (40, 4.0, 250.0, "tokens")
    assert (row["best"], row["last"], row["seconds_left"]) == (None, None, None), "nobody trains it"
    assert row["curves"] == ["train_loss", "lr", "grad_norm", "throughput", "seconds_left"]
    with run.lock():
        assert scan(tmp_path)["run"]["seconds_left"] == 60.0
        log(run, 7, 1.0)
        row = scan(tmp_path)["run"]
        assert (row["step"], row["last"], row["throughput"]) == (70, 1.0, 250.0)


def test_columns_have_labels_by_task(tmp_path):
    write_run(tmp_path / "words")
    write_run(tmp_path / "pictures", task="images")
    write_run(tmp_path / "own", task="my-task")
    labels = Catalog(tmp_path).scan().to_plain()["labels"]
    assert labels["lm"]["valid.loss"] == {"text": "validation loss", "unit": "nats per token"}
    assert labels["lm"]["train_loss"] == {"text": "training loss", "unit": "nats per token"}
    assert labels["lm"]["throughput"] == {"text": "speed", "unit": "tokens/s"}
    assert labels["images"]["valid.loss"]["unit"] == "nats per image"
    assert labels["my-task"]["valid.perplexity"]["text"] == "validation perplexity"
    assert {one["lr"]["text"] for one in labels.values()} == {"learning rate"}


def test_the_size_of_a_run_in_progress_is_that_of_its_checkpoint(folder):
    rows = scan(folder)
    assert rows["training"]["parameters"] == rows["lstm"]["parameters"] > 0


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]", None])
def test_damaged_weights_have_no_size(tmp_path, content):
    run = write_run(tmp_path / "run", result=None)
    weights = run.checkpoints / "step-1" / "model.safetensors"
    weights.symlink_to("/dev/zero") if content is None else weights.write_bytes(content)
    assert not scan(tmp_path)["run"]["parameters"]


def test_a_converted_run_has_no_values(tmp_path):
    run = write_run(tmp_path / "run", losses=(), result=None)
    run.write_result({"status": "converted", "run": "run", "source": "gpt2", "kind": "gpt2", "parameters": 99})
    row = scan(tmp_path)["run"]
    assert (row["status"], row["parameters"], row["best"], row["last"], row["step"]) == (
        "converted",
        99,
        None,
        None,
        None,
    )


def test_a_run_is_training_while_its_lock_is_held(tmp_path):
    run = write_run(tmp_path / "run")
    catalog = Catalog(tmp_path)
    assert catalog.scan().runs[0]["status"] == "finished"
    with run.lock():
        assert catalog.scan().runs[0]["status"] == "training"
        log(run, 4, 1.0)
        row = catalog.scan().runs[0]
        assert (row["step"], row["last"]) == (40, 1.0)
    assert catalog.scan().runs[0]["status"] == "finished"


def test_a_killed_holder_does_not_train(tmp_path):
    run = write_run(tmp_path / "run", result=None)
    script = f"""
from pathlib import Path
from anaphor.training.run_folder import RunFolder
with RunFolder(Path({str(run.folder)!r})).lock():
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert scan(tmp_path)["run"]["status"] == "training"
        process.kill()
    assert scan(tmp_path)["run"]["status"] == "stopped"


def test_looking_never_takes_the_lock(tmp_path, monkeypatch):
    write_run(tmp_path / "run", result=None)
    write_study(tmp_path / "study")

    def refuse(*arguments):
        raise AssertionError("a training that starts now would be refused")

    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, refuse)
    assert len(Catalog(tmp_path).scan().runs) == 1


def write_lock(folder, process, host, since):
    stamp = datetime.fromtimestamp(since).astimezone().isoformat(sep=" ", timespec="seconds")
    (folder / ".lock").write_text(f"process {process} on {host} since {stamp}\n")


@pytest.mark.parametrize(
    ("process", "since", "held"),
    [("alive", "now", True), ("alive", "before it began", False), ("dead", "now", False), ("no number", "now", False)],
)
def test_where_the_kernel_has_no_list_the_process_in_the_file_must_hold_the_lock(tmp_path, process, since, held):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    number = {"alive": os.getpid(), "dead": child.pid, "no number": "x"}[process]
    write_lock(tmp_path, number, socket.gethostname(), time.time() - (0 if since == "now" else 10_000_000))
    without_list = HeldLocks(tmp_path / "no such file")
    with open(tmp_path / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert without_list.is_held(tmp_path, locks.read_holder(tmp_path), None) is held
    assert not without_list.is_held(tmp_path, locks.read_holder(tmp_path), None)


@pytest.mark.parametrize(("age", "has_result", "held"), [(5, False, True), (5, True, False), (5000, False, False)])
def test_a_process_of_another_machine_trains_while_it_writes(tmp_path, age, has_result, held):
    write_lock(tmp_path, 1, "elsewhere", time.time() - age)
    os.utime(tmp_path / ".lock", (time.time() - age,) * 2)
    written = None if has_result else time.time() - age
    assert HeldLocks().is_held(tmp_path, locks.read_holder(tmp_path), written) is held


def test_a_file_system_with_another_device_number_is_recognized_by_the_process(tmp_path):
    (tmp_path / ".lock").touch()
    number = (tmp_path / ".lock").stat().st_ino
    table = tmp_path / "locks"
    table.write_text(
        f"1: POSIX  ADVISORY  WRITE 7 00:2f:{number} 0 EOF\n2: FLOCK  ADVISORY  WRITE 7 00:2f:{number} 0 EOF\n"
    )
    held = HeldLocks(table)
    assert held.is_held(tmp_path, Holder(7, socket.gethostname(), 0.0), None)
    assert not held.is_held(tmp_path, Holder(8, socket.gethostname(), 0.0), None)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"- 1\n", b"format: 3\ntask: lm\n", b"task: lm\n", b"a: [", b"[" * 20_000, b"a: b\n" * 300_000,
     b"format: 2\nmodel: {lr: 1}\ntraining: {lr: 2}\n", b"&a [*a, *a]", b"a: 2026-99-99\n", b"\0"],
)  # fmt: skip
def test_a_damaged_spec_is_told_in_one_line_and_the_rest_is_shown(tmp_path, content):
    run = write_run(tmp_path / "run", result=None)
    write_run(tmp_path / "other")
    run.spec.write_bytes(content)
    rows = scan(tmp_path)
    assert rows["run"]["status"] == "unreadable"
    assert rows["run"]["error"].startswith("spec.yaml ")
    assert "\n" not in rows["run"]["error"]
    assert str(tmp_path) not in rows["run"]["error"]
    assert (rows["run"]["step"], rows["run"]["last"]) == (30, 2.5)
    assert rows["other"]["status"] == "finished"


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"status": ', b"[" * 100_000, b"\xff", b"x" * 11_000_000])
def test_a_damaged_result_is_told(tmp_path, content):
    run = write_run(tmp_path / "run", result=None)
    run.result.write_bytes(content)
    row = scan(tmp_path)["run"]
    assert row["status"] == "stopped"
    assert row["error"].startswith("result.json ")
    assert row["best"] == 2.0


def test_strange_values_are_made_plain(tmp_path):
    run = write_run(tmp_path / "run", result=None, lr=float("nan"), note="x" * 5000)
    spec = run.spec.read_text() + 'when: 2026-01-01\nnested: {1: [.inf, !!binary aGk=]}\nfar: "\\ud800"\n'
    run.spec.write_text(spec)
    run.result.write_text('{"status": ["finished"], "steps": true, "parameters": 1e999, "valid": [1], "test": 5}')
    run.metrics.write_bytes(b'{"step": 1, "epoch": "x", "valid": 5}\n{"step": 2, "lr": {}, "valid": {"loss": "low"}}\n')
    row = scan(tmp_path)["run"]
    assert json.dumps(row, allow_nan=False).encode()
    assert (row["status"], row["step"], row["best"], row["last"], row["parameters"]) == ("stopped", 2, None, None, None)
    assert row["settings"]["lr"] is None
    assert row["settings"]["when"] == "2026-01-01"
    assert len(row["settings"]["note"]) == 1000


def test_a_budget_beyond_all_numbers_has_no_steps(tmp_path):
    write_run(tmp_path / "run", result=None, epochs=1e308)
    run = write_run(tmp_path / "other", result=None, epochs=2.0)
    for folder in (run.folder, tmp_path / "run"):
        (folder / "metrics.jsonl").write_bytes(b'{"step": 10, "epoch": 0.5, "valid": {"loss": 2.0}}\n')
    assert {name: row["steps"] for name, row in scan(tmp_path).items()} == {"run": None, "other": 40}


def test_damaged_and_torn_lines_of_metrics_cost_only_themselves(tmp_path):
    run = write_run(tmp_path / "run", result=None)
    with run.metrics.open("ab") as file:
        file.write(b"damaged\n")
    log(run, 4, 1.5)
    with run.metrics.open("ab") as file:
        file.write(b'{"step": 50, "valid": {"loss": 0.1')
    row = scan(tmp_path)["run"]
    assert (row["best"], row["last"], row["step"]) == (1.5, 1.5, 40)
    assert row["error"] == "metrics.jsonl has 1 damaged line"


def test_a_task_of_the_users_own_is_listed_from_its_files_alone(tmp_path):
    marker = tmp_path / "executed"
    own = tmp_path / "own.py"
    own.write_text(f"open({str(marker)!r}, 'w')")
    run = write_run(tmp_path / "run", task="my-task", result=None)
    run.spec.write_text(run.spec.read_text() + f"imports: [{{file: {own}, sha256: '0'}}]\n")
    row = scan(tmp_path)["run"]
    assert (row["task"], row["status"], row["metric"], row["goal"]) == ("my-task", "stopped", "loss", "min")
    assert (row["best"], row["last"], row["counted"], row["throughput"]) == (2.0, 2.5, "tokens", 400.0)
    assert [metric["name"] for metric in row["metrics"]] == ["loss", "perplexity", "tokens"]
    assert row["offers"] == []
    assert not marker.exists()


@pytest.mark.parametrize(("best", "goal", "shown"), [(2.0, "min", 2.0), (3.0, "max", 3.0), (None, None, None)])
def test_the_goal_of_an_unknown_metric_is_that_of_the_best_checkpoint(tmp_path, best, goal, shown):
    run = write_run(tmp_path / "run", task="my-task", losses=(), result=None)
    run.spec.write_text(run.spec.read_text().replace("select: loss", "select: mse"))
    for step, value in enumerate((3.0, 2.0, 2.5), start=1):
        run.log(step, valid={"mse": value})
    facts = {"step": 3, "facts": {"progress": {"best_value": best, "best_step": 1}}}
    (run.checkpoints / "step-1" / "facts.json").write_text(json.dumps(facts))
    row = scan(tmp_path)["run"]
    assert (row["metric"], row["goal"], row["best"], row["last"]) == ("mse", goal, shown, 2.5)
    assert row["metrics"] == [{"name": "mse", "goal": goal, "label": "mse", "unit": "", "digits": 4}]


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    write_run(outside / "run")
    inside = tmp_path / "inside"
    run = write_run(inside / "run", result=None)
    (inside / "out").symlink_to(outside)
    (inside / "out-run").symlink_to(outside / "run")
    (inside / "cycle").symlink_to(inside)
    (inside / "broken").symlink_to(inside / "nothing")
    linked = inside / "linked"
    (linked / "checkpoints").mkdir(parents=True)
    (linked / "spec.yaml").symlink_to(outside / "run" / "spec.yaml")
    for name in ("result.json", "metrics.jsonl"):
        (run.folder / name).unlink(missing_ok=True)
        (run.folder / name).symlink_to(outside / "run" / name)
    rows = scan(inside)
    assert set(rows) == {"run", "linked"}
    assert (rows["linked"]["status"], rows["linked"]["settings"]) == ("unreadable", {})
    assert (rows["run"]["best"], rows["run"]["parameters"], rows["run"]["step"]) == (None, None, None)
    assert rows["run"]["error"].count("Too many levels of symbolic links") == 2


def test_a_folder_that_is_replaced_by_a_link_has_no_path(tmp_path):
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "secret")
    catalog = Catalog(tmp_path / "runs")
    catalog.scan()
    assert catalog.path(make_id("a")) == tmp_path / "runs" / "a"
    shutil.rmtree(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "secret")
    for key in (make_id("a"), make_id("../secret"), "../secret", "", "a"):
        with pytest.raises(KeyError):
            catalog.path(key)
    assert catalog.scan().runs == []


@pytest.mark.needs("studies")
def test_only_folders_of_runs_are_runs(tmp_path):
    write_run(tmp_path / "run")
    write_run(tmp_path / "run" / "inner")
    study = write_study(tmp_path / "study")
    for copy in ("run/checkpoints/step-1", "run/previous", "run/events/x", ".hidden/run", "study/cells/copy.tmp"):
        shutil.copytree(tmp_path / "run" / "inner", tmp_path / copy, dirs_exist_ok=True)
    add_cell(study, {"width": 4}, 0, key="cell")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "spec.yaml").write_text("openapi: 3\n")
    assert set(scan(tmp_path)) == {"run", "run/inner", "study/cells/cell"}
    assert set(scan(tmp_path / "run" / "inner")) == {"."}


@pytest.mark.parametrize("name", ["checkpoints", "previous", "events", "old.tmp"])
def test_names_of_parts_of_a_run_may_be_those_of_other_folders(tmp_path, name):
    write_run(tmp_path / name / "run")
    assert set(scan(tmp_path)) == {f"{name}/run"}


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>".replace("/", "⁄"), "a\nb\x1b[31m", b"\xff\xfe", "ü [bold]"]
)
def test_any_name_can_be_listed_and_found_again(tmp_path, name):
    folder = tmp_path / os.fsdecode(name)
    write_run(folder)
    catalog = Catalog(tmp_path)
    (row,) = catalog.scan().to_plain()["runs"]
    assert json.dumps(row["run"], ensure_ascii=False).encode()
    assert catalog.path(row["id"]) == folder


def test_a_folder_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    write_run(tmp_path / "open")
    write_run(tmp_path / "closed")
    real = os.scandir

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    listing = Catalog(tmp_path).scan()
    assert [row["run"] for row in listing.runs] == ["open"]
    assert listing.notes == ["closed cannot be read: Permission denied"]


def test_a_run_that_is_deleted_while_it_is_read_is_left_out(tmp_path, monkeypatch):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    real = summary.read_yaml

    def delete_and_read(path):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        return real(path)

    monkeypatch.setattr(summary, "read_yaml", delete_and_read)
    catalog = Catalog(tmp_path)
    assert [row["run"] for row in catalog.scan().runs] == ["a"]
    assert set(catalog.runs) == {make_id("a")}


def test_no_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no folder at"):
        Catalog(tmp_path / "nothing").scan()


@pytest.mark.needs("studies")
def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", result=None)
    add_cell(write_study(tmp_path / "study"), {"width": 4}, 0)
    catalog = Catalog(tmp_path)
    first = catalog.scan()
    with monkeypatch.context() as patch:
        patch.setattr(summary, "read_file", None)
        patch.setattr("anaphor.web.study_view.read_file", None)
        assert catalog.scan().version == first.version
    log(run, 4, 1.0)
    second = catalog.scan()
    assert second.version != first.version
    assert second.runs[0]["last"] == 1.0


def test_settings_that_differ_are_those_of_runs_of_one_task(tmp_path):
    write_run(tmp_path / "a", lr=0.1)
    write_run(tmp_path / "b", lr=0.2, clip=1.0)
    write_run(tmp_path / "c", task="images", model="vit")
    listing = Catalog(tmp_path).scan()
    assert listing.differing == ["lr", "clip"]


def test_runs_of_one_group_differ_in_seed_and_device_alone(tmp_path):
    for name, settings in {"a": {}, "b": {"seed": 1, "device": "cuda"}, "c": {"lr": 0.2}}.items():
        write_run(tmp_path / name, **settings)
    groups = {name: row["group"] for name, row in scan(tmp_path).items()}
    assert groups["a"] == groups["b"] != groups["c"]


def test_many_folders_are_bounded_and_quick(tmp_path, monkeypatch):
    for number in range(1500):
        (tmp_path / f"group-{number % 10}" / f"empty-{number}").mkdir(parents=True)
    write_run(tmp_path / "group-9" / "run")
    start = time.process_time()
    catalog = Catalog(tmp_path)
    assert len(catalog.scan().runs) == 1
    assert time.process_time() - start < 1.0
    monkeypatch.setattr(catalog_module, "MAX_FOLDERS", 100)
    assert "more than 100 folders" in catalog.scan().notes[0]


def test_a_very_deep_tree_ends(tmp_path):
    deep = tmp_path
    for _ in range(40):
        deep /= "a"
    write_run(deep)
    assert Catalog(tmp_path).scan().runs == []
    assert RunFolder(deep).exists


def test_a_run_with_a_shorter_second_epoch_has_no_more_steps_than_all():
    """Epochs of another number of batches each: the budget is that of the first."""
    assert plan_steps({"epochs": 2}, {"step": 26, "epoch": 2.0833}) == 26
    assert plan_steps({"epochs": 4}, {"step": 13, "epoch": 1}) == 52

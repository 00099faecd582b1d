"""A study as data: its numbers are those of its own report, also while it grows, and with cells that failed."""

import json
import os
import shutil
import time

import pytest

pytest.importorskip("anaphor.studies")

from anaphor.errors import DataError
from anaphor.metrics.statistics import confidence_interval
from anaphor.studies.claims import Claims
from anaphor.studies.study_folder import lock_study
from anaphor.training.run_folder import RunFolder
from anaphor.web.catalog import Catalog, make_id
from anaphor.web.study_view import read_study
from web.pretended_runs import add_cell, write_run, write_study


def view(root, name="study"):
    """The study as the page has it, and its line in the list."""
    catalog = Catalog(root)
    listing = catalog.scan()
    (row,) = listing.studies
    found = read_study(catalog.path(make_id(name)), catalog)
    assert json.dumps(found, allow_nan=False)
    return found, row


def test_a_finished_study_has_the_numbers_of_its_report(folder):
    found, row = view(folder)
    result = json.loads((folder / "study" / "result.json").read_text())
    assert (found["study"], found["status"], found["axes"]) == ("study", "finished", {"width": [4, 8]})
    assert found["findings"] == result["findings"]
    assert found["best"]["parameters"] == result["best"]["parameters"]
    interval = {name: found["best"][name] for name in ("mean", "low", "high")}
    assert interval == {name: result["best"]["valid"][name] for name in interval}
    metric = found["metric"]
    assert [cell["value"] for cell in found["cells"]] == [cell["valid"][metric] for cell in result["cells"]]
    assert [cell["run"] for cell in found["cells"]] == [
        make_id(f"study/cells/{cell['run'].rpartition('/')[2]}") for cell in result["cells"]
    ]
    assert (row["cells"], row["finished"], row["failed"], row["status"]) == (4, 4, 0, "finished")


def test_a_study_that_workers_share_is_running_and_shows_the_cells_of_their_logs(tmp_path):
    folder = write_study(tmp_path / "study")
    add_cell(folder, {"width": 4}, 0, loss=3.0)
    add_cell(folder, {"width": 8}, 0, event="started")
    (folder / "workers").mkdir()
    (folder / "log.jsonl").rename(folder / "workers" / "host-1.jsonl")
    (folder / "workers" / "link.jsonl").symlink_to(folder / "workers" / "host-1.jsonl")
    with Claims(folder):
        assert [row["status"] for row in Catalog(tmp_path).scan().studies] == ["stopped"], "no cell is claimed"
    with Claims(folder) as claims:
        assert claims.take("a-cell")
        found, row = view(tmp_path)
        assert (row["status"], found["running"], row["finished"]) == ("training", 1, 1)
        assert [cell["status"] for cell in found["cells"]] == ["finished", "waiting", "training", "waiting"]
        later = time.time() - 1000
        os.utime(folder / "claims" / "a-cell.1", (later, later))
        assert Catalog(tmp_path).scan().studies[0]["status"] == "stopped", "no sign of life"
    found, row = view(tmp_path)
    assert (row["status"], found["running"]) == ("stopped", 0)


def test_a_growing_study_shows_what_is_done_what_runs_and_what_waits(tmp_path):
    folder = write_study(tmp_path / "study")
    with lock_study(folder):
        found, row = view(tmp_path)
        assert [cell["status"] for cell in found["cells"]] == ["waiting"] * 4
        add_cell(folder, {"width": 4}, 0, loss=3.0)
        add_cell(folder, {"width": 4}, 1, loss=2.0)
        add_cell(folder, {"width": 8}, 0, loss=1.0)
        running = add_cell(folder, {"width": 8}, 1, event="started")
        found, row = view(tmp_path)
        assert [cell["status"] for cell in found["cells"]] == ["finished", "finished", "finished", "training"]
        assert (row["status"], row["cells"], row["finished"], found["running"]) == ("training", 4, 3, 1)
        expected = confidence_interval([3.0, 2.0])
        first, second = found["groups"]
        assert (first["mean"], first["low"], first["high"]) == (expected.mean, expected.low, expected.high)
        assert (first["seeds"], first["missing"], second["seeds"], second["missing"]) == ([3.0, 2.0], 0, [1.0], 1)
        assert found["best"] == first  # the other one may be good only because its other seed is missing
        write_run(running, losses=(9.0,), result=None, width=8, seed=1)
        with RunFolder(running).lock():
            found, _ = view(tmp_path)
            assert found["cells"][3]["run"] == make_id(f"study/cells/{running.name}")
    found, row = view(tmp_path)
    assert (row["status"], found["cells"][3]["status"], found["running"]) == ("stopped", "stopped", 0)
    assert found["findings"] == []


def test_a_study_that_tunes_shows_all_values_and_compares_the_chosen_ones_at_its_end(tmp_path):
    folder = write_study(tmp_path / "study", tune={"lr": {"values": [0.1, 0.2]}}, tune_seeds=[7])
    with lock_study(folder):
        kept = add_cell(folder, {"width": 4, "lr": 0.1}, 7, loss=1.0)
        left = add_cell(folder, {"width": 4, "lr": 0.2}, 7, loss=2.0)
        found, _ = view(tmp_path)
    assert found["axes"] == {"width": [4, 8], "lr": [0.1, 0.2]}
    assert [cell["status"] for cell in found["cells"]] == ["finished", "finished", "waiting", "waiting"]
    with lock_study(folder):
        chosen = add_cell(folder, {"width": 4, "lr": 0.1}, 0, loss=3.0)
        found, _ = view(tmp_path)
    assert [cell["seed"] for cell in found["cells"]] == [7, 7, 7, 7, 0], "cells that are compared, when they have begun"
    cells = [
        {"parameters": {"width": 4, "lr": lr}, "seed": seed, "run": str(cell), "chosen": cell is chosen}
        for lr, seed, cell in ((0.1, 7, kept), (0.2, 7, left), (0.1, 0, chosen))
    ]
    (folder / "result.json").write_text(json.dumps({"cells": cells}))
    found, row = view(tmp_path)
    assert (row["cells"], row["finished"], found["tuned"]) == (3, 3, ["lr"])
    assert [(group["parameters"], group["mean"]) for group in found["groups"]] == [({"width": 4, "lr": 0.1}, 3.0)]
    assert [(group["parameters"]["lr"], group["mean"]) for group in found["tried"]] == [(0.1, 1.0), (0.2, 2.0)]


def test_cells_without_a_result_say_why(tmp_path):
    folder = write_study(tmp_path / "study")
    add_cell(folder, {"width": 4}, 0, event="failed", reason="out of memory <script>")
    add_cell(folder, {"width": 4}, 1, event="diverged", reason="training diverged at step 3")
    add_cell(folder, {"width": 8}, 0, event="stopped", reason="worse than the median")
    gone = add_cell(folder, {"width": 8}, 1)
    shutil.rmtree(gone)
    found, row = view(tmp_path)
    assert [(cell["status"], cell["reason"]) for cell in found["cells"]] == [
        ("failed", "out of memory <script>"),
        ("diverged", "training diverged at step 3"),
        ("stopped", "worse than the median"),
        ("deleted", "its folder is gone"),
    ]
    assert (found["failed"], row["failed"], found["best"]) == (1, 1, None)
    assert (found["diverged"], row["diverged"]) == (1, 1)
    assert found["cells"][0]["run"] is None  # it failed before there was a run
    assert [group["mean"] for group in found["groups"]] == [None, None]


def test_reasons_of_cells_show_no_folders(tmp_path):
    folder = write_study(tmp_path / "study")
    reason = "KeyError in line 3 of /home/jane doe/parts.py: 'a'"
    cell = add_cell(folder, {"width": 4}, 0, event="failed", reason=reason)
    write_run(cell, losses=(3.0,), result=None, width=4, seed=0)
    found, _ = view(tmp_path)
    assert found["cells"][0]["reason"] == "KeyError in line 3 of parts.py: 'a'"
    (run,) = Catalog(tmp_path).scan().to_plain()["runs"]
    assert run["error"] == "KeyError in line 3 of parts.py: 'a'"


def test_a_finished_study_that_is_extended_shows_the_new_cells_as_well(tmp_path):
    folder = write_study(tmp_path / "study", seeds=[0])
    cells = [add_cell(folder, {"width": width}, 0, loss=float(width)) for width in (4, 8)]
    listed = [
        {"parameters": {"width": width}, "seed": 0, "run": str(cell)} for width, cell in zip((4, 8), cells, strict=True)
    ]
    (folder / "result.json").write_text(json.dumps({"cells": listed}))
    (folder / "findings.txt").write_text("Best of 2 settings: width 4.\n")
    found, _ = view(tmp_path)
    assert (found["status"], found["findings"]) == ("finished", ["Best of 2 settings: width 4."])
    (folder / "study.yaml").write_text((folder / "study.yaml").read_text().replace("seeds:\n- 0", "seeds:\n- 0\n- 1"))
    with lock_study(folder):
        found, row = view(tmp_path)
    assert [(cell["seed"], cell["status"]) for cell in found["cells"]] == [
        (0, "finished"), (1, "waiting"), (0, "finished"), (1, "waiting")
    ]  # fmt: skip
    assert (row["status"], found["findings"]) == ("training", [])


def test_notes_of_the_table_say_what_cannot_be_compared(tmp_path):
    folder = write_study(tmp_path / "study", seeds=[0])
    cells = [add_cell(folder, {"width": width}, 0, loss=float(width)) for width in (4, 8)]
    listed = [{"parameters": {"width": width}, "seed": 0, "run": str(cells[width == 8])} for width in (4, 8)]
    (folder / "result.json").write_text(json.dumps({"cells": listed}))
    (folder / "table.csv").write_text("width,validation loss,±,seeds,note\n4,4,,1,sees later tokens\n8,8,,1,\n")
    found, _ = view(tmp_path)
    assert [group["note"] for group in found["groups"]] == ["sees later tokens", ""]
    assert found["best"]["parameters"] == {"width": 8}


def test_a_search_shows_what_it_tried(tmp_path):
    folder = write_study(
        tmp_path / "study", method="random", trials=3, seeds=[0], parameters={"lr": {"min": 0.1, "max": 0.9}}
    )
    for lr in (0.25, 0.5):
        add_cell(folder, {"lr": lr}, 0, loss=lr)
    found, row = view(tmp_path)
    assert (found["axes"], found["best"]["parameters"], row["cells"]) == ({"lr": [0.25, 0.5]}, {"lr": 0.25}, 2)
    with lock_study(folder):
        found, row = view(tmp_path)
    assert (row["cells"], len(found["groups"])) == (3, 2)


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("grid", {"lr": {"values": [4, 8]}, "clip": {"value": 1}}, [{"lr": 4, "clip": 1}, {"lr": 8, "clip": 1}]),
        ("zip", {"lr": {"values": [4, 8]}, "clip": {"values": [1, 2]}}, [{"lr": 4, "clip": 1}, {"lr": 8, "clip": 2}]),
        ("list", [{"width": 4}, {"lr": 2}], [{"width": 4, "lr": None}, {"width": None, "lr": 2}]),
        ("grid", {"betas": {"values": [[0.9, 0.95]]}}, [{"betas": "[0.9, 0.95]"}]),
        ("grid", {"m": {"settings": {"a": {"width": 1}, "b": {"lr": 2}}}}, [{"m": "a"}, {"m": "b"}]),
    ],
)  # fmt: skip
def test_settings_are_those_of_the_study_file(tmp_path, method, parameters, expected):
    write_study(tmp_path / "study", method=method, parameters=parameters, seeds=[0])
    found, _ = view(tmp_path)
    assert [cell["parameters"] for cell in found["cells"]] == expected


def test_a_study_of_an_unknown_task_is_shown_by_its_files(tmp_path):
    folder = write_study(
        tmp_path / "study", task="my-task", metric={"name": "valid.reward", "goal": "maximize"}, seeds=[0]
    )
    for width, reward in ((4, 1.0), (8, 5.0)):
        cell = add_cell(folder, {"width": width}, 0, task="my-task")
        RunFolder(cell).write_result({"status": "finished", "valid": {"reward": reward}})
    found, _ = view(tmp_path)
    assert (found["goal"], found["best"]["parameters"], found["metric"]) == ("max", {"width": 8}, "reward")


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"a: [", b"parameters: 5\n", b"parameters: {width: {valves: [1]}}\n", b"\xff"]
)
def test_a_damaged_study_file_is_told(tmp_path, content):
    folder = write_study(tmp_path / "study")
    (folder / "study.yaml").write_bytes(content)
    catalog = Catalog(tmp_path)
    (row,) = catalog.scan().studies
    assert row["status"] == "unreadable"
    assert row["error"].startswith("study.yaml ")
    with pytest.raises(DataError, match=r"^study\.yaml "):
        read_study(folder, catalog)


def test_damaged_files_of_a_study_cost_only_themselves(tmp_path):
    folder = write_study(tmp_path / "study", seeds=[0])
    add_cell(folder, {"width": 4}, 0)
    damaged = add_cell(folder, {"width": 8}, 0)
    (damaged / "result.json").write_bytes(b"{")
    with (folder / "log.jsonl").open("ab") as file:
        file.write(b'oops\n{"cell": "../../x", "parameters": {"width": 8}, "seed": 0}\n{"cell": 5}\n{"cell": "tor')
    (folder / "result.json").write_text('{"cells": [1, {"run": "a"}, {"parameters": {}, "run": "../.."}]}')
    found, _ = view(tmp_path)
    assert [cell["status"] for cell in found["cells"]] == ["finished", "stopped"]


def test_a_deleted_study_is_told(tmp_path):
    folder = write_study(tmp_path / "study")
    catalog = Catalog(tmp_path)
    catalog.scan()
    shutil.rmtree(folder)
    with pytest.raises(DataError, match=r"^the study was deleted$"):
        read_study(folder, catalog)
    assert catalog.scan().studies == []

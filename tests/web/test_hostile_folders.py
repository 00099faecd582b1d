"""Runs and studies that someone else sends: one that is broken, deep, endless or too large costs the others nothing."""

import json
import shutil
import time

import pytest

from anaphor.errors import AnaphorError, ConfigError
from anaphor.web.catalog import Catalog, make_id
from anaphor.web.history import read_curves, read_samples
from anaphor.web.inference import Cache
from web.hostile import FOLDERS, deep_spec, many_combinations
from web.pretended_runs import add_cell, write_run, write_study

pytestmark = pytest.mark.needs("studies")

SECONDS = 2.0
"""Far more than the list takes, far less than what the folders ask for."""


@pytest.fixture
def good(tmp_path):
    return write_run(tmp_path / "good").folder


@pytest.mark.parametrize("name", FOLDERS)
def test_one_hostile_folder_neither_hides_nor_slows_the_others(good, name):
    FOLDERS[name](good.with_name("bad"))
    catalog, start = Catalog(good.parent), time.process_time()
    plain = catalog.scan().to_plain()
    rows = {row.get("run") or row["study"]: row for row in (*plain["runs"], *plain["studies"])}
    assert json.dumps(plain, allow_nan=False)
    assert rows["good"]["status"] == "finished"
    assert "bad" in rows
    for read, paths in (
        (catalog.read_study, catalog.studies),
        (read_curves, catalog.runs),
        (read_samples, catalog.runs),
    ):
        if path := paths.get(make_id("bad")):
            try:
                answer = json.dumps(read(path))
            except AnaphorError as error:
                answer = str(error)
            assert len(answer) < 1_000_000
    assert time.process_time() - start < SECONDS


def test_the_list_in_the_terminal_has_all_of_them(good, capsys, answer_of):
    for number, write in enumerate(FOLDERS.values()):
        write(good.with_name(f"bad-{number}"))
    rows = {row["run"].rpartition("/")[2]: row for row in answer_of(["runs", str(good.parent), "--json"])}
    assert len(rows) == 1 + len(FOLDERS) + sum("cells" in row["run"] for row in rows.values())
    assert rows["good"]["status"] == "finished"
    assert rows["bad-0"]["status"] == "unreadable"
    assert "levels of nesting" in rows["bad-0"]["error"]


def test_a_mistake_of_ours_costs_one_row(good, monkeypatch):
    write_run(good.with_name("bad"))
    summarize = "anaphor.web.summary.plan_steps"
    monkeypatch.setattr(summarize, lambda settings, flat: 1 / (settings["lr"] - 0.5))
    write_run(good.with_name("other"), lr=0.5)
    rows = {row["run"]: row for row in Catalog(good.parent).scan().to_plain()["runs"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "good": "finished", "bad": "finished", "other": "unreadable",
    }  # fmt: skip
    assert "ZeroDivisionError" in rows["other"]["error"]
    assert {*rows["other"]} == {*rows["good"]}


def test_too_many_folders_in_one_hide_no_others(good, monkeypatch):
    monkeypatch.setattr("anaphor.web.catalog.MAX_FOLDERS_EACH", 3)
    for number in range(9):
        (good.parent / "bad" / str(number)).mkdir(parents=True)
    listing = Catalog(good.parent).scan()
    assert [row["run"] for row in listing.runs] == ["good"]
    assert listing.notes == ["bad has more than 3 folders: the others are not looked at"]


def test_cells_of_a_study_are_not_read_through_a_link(tmp_path):
    study = write_study(tmp_path / "shown" / "study")
    add_cell(study, {"width": 4}, 0, loss=1.25, key="a")
    shutil.move(study / "cells", tmp_path / "elsewhere")
    (study / "cells").symlink_to(tmp_path / "elsewhere")
    catalog = Catalog(study.parent)
    catalog.scan()
    shown = catalog.read_study(study)
    assert [cell["value"] for cell in shown["cells"]] == [None] * 4
    assert {cell["reason"] for cell in shown["cells"] if cell["key"]} == {"its folder is a link, which is not followed"}


@pytest.mark.parametrize("name", ["spec.yaml", "checkpoints", "checkpoints/step-1"])
def test_no_model_is_loaded_through_a_link(tmp_path, name):
    run = write_run(tmp_path / "run").folder
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"^{name} of .*run is a link, which the page does not follow$"):
        Cache().run(run)


@pytest.mark.parametrize("write", [deep_spec, many_combinations])
def test_a_report_of_a_good_run_does_not_need_the_others(good, tmp_path, capsys, write, answer_of):
    write(tmp_path / "bad")
    answer_of(["report", str(good), str(tmp_path / "bad"), "--no-model", "--out", str(tmp_path / "r.html"), "--json"])

"""The bench of the live page: its folder has real runs, its limits are held, and a missing browser is one line."""

import json
import shutil

import pytest

from anaphor.web.catalog import Catalog
from benchmarks import web
from benchmarks.__main__ import main


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    web.write_runs(folder, runs=24, rows=12)
    return folder


@pytest.mark.slow
def test_the_folder_holds_finished_runs_and_the_shown_ones_are_newest(many):
    rows = Catalog(many).scan().to_plain()["runs"]
    assert len(rows) == 24
    assert {(row["status"], row["step"]) for row in rows} >= {("finished", 1)}
    assert all(len((many / row["run"] / "metrics.jsonl").read_text().splitlines()) == 12 for row in rows)
    newest = sorted(rows, key=lambda row: row["age"])[: web.SHOWN]
    assert {row["run"] for row in newest} == {f"run-{number:03}" for number in range(web.SHOWN)}
    # Only these may be changed without changing others.
    assert all((many / row["run"] / "metrics.jsonl").stat().st_nlink == 1 for row in newest)


@pytest.mark.parametrize(("values", "kept"), [([1.0, 1.9], True), ([0.1, 2.1], False), ([2.0], True)])
def test_a_limit_is_kept_when_no_value_exceeds_it(values, kept):
    found = web._limit("seconds", values, 2.0, "s", "")
    assert found.kept is kept
    assert found.promise == "at most 2 s"


def test_a_missing_browser_is_one_line(monkeypatch, capsys):
    pytest.importorskip("playwright.sync_api")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["--parts", "web"]) == 2
    said = capsys.readouterr()
    assert said.err.strip().endswith(
        "the part web needs Chromium, and there is none on the path: apt-get install chromium"
    )


@pytest.mark.slow
def test_the_command_that_is_measured_writes_what_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(web, "TRAINING", web.SMALL)
    seconds = web._train(tmp_path / "run")
    assert seconds == json.loads((tmp_path / "run" / "result.json").read_bytes())["seconds"] > 0


@pytest.mark.slow
def test_a_small_folder_keeps_every_limit(many, monkeypatch):
    """The measurement itself, on a folder that is small."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("there is no Chromium to open the page with: apt-get install chromium")
    monkeypatch.setattr(web, "LOADS", 2)
    monkeypatch.setattr(web, "MAX_SECONDS", 60.0)  # two on a machine that does nothing else
    with web.launch_chromium() as browser:
        findings = list(web._measure_page(browser, many, lambda what: None))
    assert all(finding.kept for finding in findings), findings

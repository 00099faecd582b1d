"""The data of the page: what it is, and what is said of runs that are killed, cut off, deleted, or grow."""

import gzip
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from anaphor.training.run_folder import RunFolder
from anaphor.web import server
from anaphor.web.catalog import Catalog
from anaphor.web.jobs import Jobs
from web.serving import PRETENDED, Served, begin_run, serving


@pytest.fixture
def live(copied, monkeypatch):
    """A server for runs that a test changes, which looks at the folder at every request."""
    monkeypatch.setattr(server, "SCAN_SECONDS", 0.0)
    monkeypatch.setattr(server, "SCAN_PAUSE", 0.0)
    with serving(copied) as found:
        yield found


def listed(served):
    return {row["run"]: row for row in served.ask("/api/runs")["runs"]}


def test_the_page_and_its_files_are_served(served):
    page = served.request("GET", "/")
    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/html")
    for name in page.body.decode().split('src="')[1:]:
        script = served.request("GET", name.partition('"')[0])
        assert script.status == 200, name
        assert script.headers["Content-Type"].startswith("text/javascript")
    for name in page.body.decode().split('rel="stylesheet" href="')[1:]:
        assert served.request("GET", name.partition('"')[0]).headers["Content-Type"].startswith("text/css"), name
    for name in ("app.html", "app", "", "nothing.js", "../server.py"):
        assert served.request("GET", f"/static/{name}").status == 404


@pytest.mark.needs("studies")
def test_runs_of_every_kind_are_listed(served, ids):
    found = served.ask("/api/runs")
    rows = {row["id"]: row for row in found["runs"]}
    assert {ids[name] for name in ids if name != "study"} <= set(rows)
    assert {name: rows[ids[name]]["status"] for name in ("lstm", "diverged", "training")} == {
        "lstm": "finished", "diverged": "diverged", "training": "training"
    }  # fmt: skip
    assert [one["id"] for one in found["studies"]] == [ids["study"]]
    assert served.ask(f"/api/runs?version={found['version']}") == {"version": found["version"], "unchanged": True}


def test_only_new_rows_travel(live, ids):
    key, path = ids["training"], live.folder / "training" / "metrics.jsonl"
    first = live.ask(f"/api/curves?runs={key}:")["runs"][key]
    assert first["columns"]["step"] == [json.loads(line)["step"] for line in path.read_text().splitlines()]
    logged = first["log"]["cursor"]
    assert live.ask(f"/api/curves?runs={key}:{first['cursor']}:{logged}") == {"runs": {}}
    more = (live.folder / "lstm" / "metrics.jsonl").read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as file:
        file.write(more)
    second = live.ask(f"/api/curves?runs={key}:{first['cursor']},{ids['lstm']}:")["runs"]
    assert second[key]["columns"]["step"] == [json.loads(more)["step"]]
    assert not second[key]["restart"]
    path.write_bytes(more)  # resumed from an earlier checkpoint
    assert live.ask(f"/api/curves?runs={key}:{second[key]['cursor']}")["runs"][key]["restart"]


def test_a_part_of_a_curve_and_fewer_points_can_be_asked_for(served, ids):
    key = ids["lstm"]
    steps = served.ask(f"/api/curves?runs={key}:")["runs"][key]["columns"]["step"]
    assert len(steps) > 2
    for query, expected in (
        (f"from={steps[1]}", steps[1:]), (f"to={steps[1]}", steps[:2]), (f"from={steps[1]}&to={steps[1]}", [steps[1]])
    ):  # fmt: skip
        assert served.ask(f"/api/curves?runs={key}:&{query}")["runs"][key]["columns"]["step"] == expected
    for query in ("from=-1", "to=x", "points=5", "points=", "points=1e3", "points=٣٣", "after=x"):
        assert served.request("GET", f"/api/curves?runs={key}:&{quote(query, safe='=')}").status == (
            200 if query == "after=x" else 400
        )


def test_many_curves_arrive_in_several_answers(served, ids, monkeypatch):
    monkeypatch.setattr(server, "CURVES_SECONDS", -1.0)
    cursors = dict.fromkeys([ids["lstm"], ids["lstm-1"], ids["hybrid"]], "")
    for count in (1, 2, 3):
        found = served.ask("/api/curves?runs=" + ",".join(f"{key}:{cursors[key]}" for key in reversed(cursors)))["runs"]
        cursors |= {key: run["cursor"] for key, run in found.items()}
        cursors = dict(sorted(cursors.items(), key=lambda item: bool(item[1]), reverse=True))
        assert sum(map(bool, cursors.values())) == count


def test_a_torn_line_is_left_out_until_it_is_whole(live, ids):
    key, path = ids["training"], live.folder / "training" / "metrics.jsonl"
    whole = (live.folder / "lstm" / "metrics.jsonl").read_bytes().splitlines(keepends=True)[-1]
    rows = len(path.read_bytes().splitlines())
    with path.open("ab") as file:
        file.write(whole[:20])
    torn = live.ask(f"/api/curves?runs={key}:")["runs"][key]
    assert (torn["rows"], torn["torn"]) == (rows, True)
    with path.open("ab") as file:
        file.write(whole[20:])
    after = live.ask(f"/api/curves?runs={key}:{torn['cursor']}")["runs"][key]
    assert after["columns"]["step"] == [json.loads(whole)["step"]]
    assert (after["rows"], after["torn"]) == (rows + 1, False)


def test_a_killed_run_is_no_longer_shown_as_training(live):
    with RunFolder(live.folder / "training").lock():
        assert listed(live)["training"]["status"] == "training"
    assert listed(live)["training"]["status"] == "stopped"


def test_a_run_that_is_deleted_while_it_is_open_is_said_to_be_and_the_others_stay(live, ids):
    key, other = ids["lstm"], ids["lstm-1"]
    before = live.ask(f"/api/curves?runs={key}:,{other}:")["runs"]
    shutil.rmtree(live.folder / "lstm")
    after = live.ask(f"/api/curves?runs={key}:{before[key]['cursor']},{other}:")["runs"]
    assert "deleted" in after[key]["error"]
    assert after[other] == before[other]
    answer = live.request("GET", f"/api/samples?run={key}")
    assert 400 <= answer.status < 500
    assert "deleted" in json.loads(answer.body)["error"]
    assert "lstm" not in listed(live)
    assert "deleted" in live.ask(f"/api/curves?runs={key}:")["runs"][key]["error"]
    for verb, values in (("look", {"run": key, "text": "a"}), ("tokens", {"runs": [other, key], "text": "a"})):
        sent = live.request("POST", f"/api/{verb}", json.dumps(values).encode())
        assert sent.status == 404
        assert "deleted" in json.loads(sent.body)["error"]


@pytest.mark.needs("studies")
def test_a_new_run_and_a_study_that_grows_appear(live, ids, trained):
    study = live.folder / "study"
    cells = live.ask(f"/api/study?id={ids['study']}")["cells"]
    gone = next(path for path in sorted(study.rglob("spec.yaml")))
    aside = live.folder.parent / "aside"
    shutil.move(gone.parent, aside)
    (study / "result.json").unlink(missing_ok=True)
    smaller = live.ask(f"/api/study?id={ids['study']}")["cells"]
    shutil.move(aside, gone.parent)
    whole = live.ask(f"/api/study?id={ids['study']}")["cells"]
    finished = [sum(cell["status"] == "finished" for cell in found) for found in (cells, smaller, whole)]
    assert finished == [4, 3, 4]
    begin_run(live.folder / "later", trained / "lstm")
    assert listed(live)["later"]["status"] == "stopped"


def test_a_broken_run_does_not_hide_the_others(live):
    (live.folder / "lstm" / "spec.yaml").write_text("{{{{")
    (live.folder / "lstm-1" / "result.json").write_text("[1, 2")
    (live.folder / "images" / "metrics.jsonl").write_bytes(b"\x00\xff\n[]\n")
    rows = listed(live)
    assert rows["lstm"]["status"] == "unreadable"
    assert rows["lstm"]["error"]
    assert str(live.folder) not in json.dumps(rows)
    assert rows["labels"]["status"] == "finished"
    live.ask("/api/curves?runs=" + ",".join(f"{row['id']}:" for row in rows.values()))


def test_a_poll_reads_no_file_that_has_not_changed(folder, monkeypatch):
    """A page that is open on a machine that trains costs it a few calls for each file."""
    catalog = Catalog(folder)
    first = catalog.scan()
    opened = []
    audit = {"on": True}

    def hook(event, arguments):
        if audit["on"] and event == "open" and str(arguments[0]).startswith(str(folder)):
            opened.append(arguments[0])

    sys.addaudithook(hook)
    try:
        assert catalog.scan().version == first.version
    finally:
        audit["on"] = False
    assert {Path(path).name for path in opened} <= {".lock"}


def test_the_folder_is_looked_at_a_twentieth_of_the_time_at_most(folder, monkeypatch):
    now = 100.0
    catalog = Catalog(folder)
    scan, scans = catalog.scan, []

    def slow_scan():
        nonlocal now
        now += 2.0
        scans.append(now)
        return scan()

    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(catalog, "scan", slow_scan)
    api = server.Api(catalog, None)
    for _ in range(1000):
        api.list_runs()
        now += 0.1
    assert len(scans) == 3


def test_a_page_that_is_closed_cancels_its_work(folder, ids, browser):
    jobs = Jobs(PRETENDED)
    with serving(folder, jobs=jobs) as served:
        page = browser.new_page()
        page.goto(served.address)
        request = {"run": ids["lstm"], "text": "works for long"}
        page.evaluate("(body) => { send('/api/look', body).catch(() => {}); }", request)
        with page.expect_response(lambda answer: "/api/job" in answer.url):
            pass
        (job,) = jobs.jobs.values()
        page.close(run_before_unload=True)  # as a user closes it: what a page does when it ends is done
        deadline = time.monotonic() + 30
        while not job.is_closed and time.monotonic() < deadline:
            served.ask("/api/runs")
        assert (job.state, job.error) == ("cancelled", "cancelled")


@pytest.mark.slow
@pytest.mark.needs("studies")
def test_with_a_full_disk_everything_is_shown_and_models_answer(folder, ids):
    """No process of the server may write a single byte; and the one that answers pages does not load torch."""

    def fill_the_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    words = [
        sys.executable,
        "-P",
        "-m",
        "anaphor",
        "serve",
        str(folder),
        "--port",
        "0",
        "--no-browser",
        "--json",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=fill_the_disk)
    try:
        found = json.loads(process.stdout.readline())
        address, _, token = found["address"].partition("/?token=")
        served = Served(url=address, port=found["port"], token=token)
        assert len(served.ask("/api/runs")["runs"]) > 7
        assert served.ask(f"/api/curves?runs={ids['lstm']}:")["runs"][ids["lstm"]]["columns"]["step"]
        assert served.ask(f"/api/study?id={ids['study']}")["cells"]
        if sys.platform == "linux":
            assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        tokens = served.send("/api/tokens", runs=[ids["lstm"], ids["hybrid"]], text="the cat sat")
        assert set(tokens["losses"]) == {ids["lstm"], ids["hybrid"]}
        other = served.send("/api/tokens", runs=[ids["images"]], text="the cat")
        assert "images" in other["error"]
        assert "/" not in other["error"]
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 143


def test_long_answers_are_packed_for_those_who_unpack_them(served):
    packed = served.request("GET", "/api/runs", Accept_Encoding="gzip")
    plain = served.request("GET", "/api/runs")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 3
    assert json.loads(gzip.decompress(packed.body))["runs"]
    assert json.loads(plain.body)["runs"]

"""Stop and resume from the page: for a run that was trained here and nothing else, with the command that does it."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from anaphor.training.run_folder import RunFolder
from anaphor.training.trained_runs import record_run
from anaphor.web import commands
from anaphor.web.catalog import make_id
from anaphor.web.commands import Commands, find_holder
from browsing import open_page
from web.pretended_runs import write_run
from web.serving import serving

WORDS = (
    "train lm --data grammar --model lstm --width 8 --layers 1 --steps 1000000 --eval-every 20 --device cpu --no-test"
)


@pytest.fixture
def run(tmp_path):
    """The folder of a run that was stopped, and trained here as far as records tell."""
    folder = write_run(tmp_path / "runs" / "run", result=None)
    record_run(folder.folder, folder.spec.read_text())
    return folder.folder


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """Commands that would be run. The program ends at once with an error."""
    found = []

    class Recorded(subprocess.Popen):
        def __init__(self, words, **options):
            found.append(words)
            super().__init__(
                [sys.executable, "-c", "raise SystemExit('anaphor: no memory in /home/me/runs')"], **options
            )

    monkeypatch.setattr(commands.subprocess, "Popen", Recorded)
    return found


def post(served, verb, name):
    answer = served.request("POST", f"/api/{verb}", json.dumps({"run": make_id(name)}).encode())
    return answer.status, json.loads(answer.body)


def test_a_run_that_was_trained_here_is_resumed_by_its_command(run, started, monkeypatch):
    monkeypatch.chdir(run.parent.parent)
    with serving(run.parent) as served:
        described = served.ask(f"/api/command?run={make_id('run')}")
        command = "anaphor train lm --resume --out runs/run"
        assert described == {"verb": "resume", "command": command, "reason": None, "failure": None}
        assert started == []
        assert post(served, "resume", "run") == (200, {"command": command})
    assert started == [[sys.executable, "-P", "-m", "anaphor", "train", "lm", "--resume", "--out", str(run)]]


def test_a_training_that_fails_says_why_without_paths(run):
    every = Commands()
    every.resume(run, None)
    every._started[str(run)].process.wait()
    assert every.describe(run, None)["failure"] == "anaphor: no memory in runs"
    every.close()


def copy_elsewhere(run):
    shutil.copytree(run, run.with_name("copy"))
    return run.with_name("copy")


def edit_spec(run):
    spec = run / "spec.yaml"
    spec.write_text(spec.read_text().replace("width: 8", "width: 80000"))
    return run


def import_file(run):
    spec = run / "spec.yaml"
    spec.write_text(spec.read_text() + "imports:\n- {file: mine.py, sha256: abc}\n")
    record_run(run, spec.read_text())
    return run


def link_spec(run):
    spec = run / "spec.yaml"
    spec.rename(run.parent / "elsewhere.yaml")
    spec.symlink_to(run.parent / "elsewhere.yaml")
    return run


def finish(run):
    RunFolder(run).write_result({"status": "finished"})
    return run


@pytest.mark.parametrize("change", [copy_elsewhere, edit_spec, import_file, link_spec, finish])
def test_what_was_not_trained_here_as_it_is_starts_nothing(run, started, change):
    """The command can be copied where there is one, and the page says why it does not run it."""
    changed = change(run)
    with serving(run.parent) as served:
        if changed.name in {row["run"] for row in served.ask("/api/runs")["runs"]}:
            assert served.ask(f"/api/command?run={make_id(changed.name)}")["reason"]
        status, answer = post(served, "resume", changed.name)
    assert status in (400, 404, 503)
    assert "/" not in answer["error"]
    assert started == []


def test_cells_of_studies_and_unknown_runs_are_not_resumed(run, started):
    assert "study" in Commands().describe(run, "a study")["reason"]
    with serving(run.parent) as served:
        assert post(served, "resume", "nothing")[0] == post(served, "stop", "nothing")[0] == 404
        for body in (b"{}", b'{"run": 5}', b'{"run": ["x"]}'):
            assert served.request("POST", "/api/resume", body).status == 400
    assert started == []


@pytest.mark.parametrize("kind", ["not held", "another file's lock"])
def test_a_lock_file_that_names_a_process_does_not_get_it_a_signal(run, kind, monkeypatch):
    """Only a process that holds this very lock is stopped."""
    sent = []
    monkeypatch.setattr(commands.os, "kill", lambda process, number: sent.append(process))
    other = run.parent / "other"
    with RunFolder(other).lock():
        line = (other / ".lock").read_text()
        if kind == "not held":
            (run / ".lock").write_text(line)
        else:
            os.link(other / ".lock", run / ".lock")
        assert find_holder(run) is None
        with serving(run.parent) as served:
            assert post(served, "stop", "run")[0] == 400
    assert sent == []


def test_a_run_is_stopped_by_the_signal_of_ctrl_c(run, monkeypatch):
    sent = []
    monkeypatch.setattr(commands.os, "kill", lambda process, number: sent.append((process, number)))
    with RunFolder(run).lock(), serving(run.parent) as served:
        assert served.ask(f"/api/command?run={make_id('run')}")["command"] == f"kill -INT {os.getpid()}"
        assert sent == []
        assert post(served, "stop", "run") == (200, {"command": f"kill -INT {os.getpid()}"})
        assert post(served, "resume", "run")[0] == 400
    assert sent == [(os.getpid(), signal.SIGINT)]


@pytest.mark.slow
def test_a_training_is_stopped_and_resumed_from_the_page(tmp_path, browser, monkeypatch):
    monkeypatch.undo()  # real programs
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = tmp_path / "run"
    first = subprocess.Popen([sys.executable, "-m", "anaphor", *WORDS.split(), "--out", run], stderr=subprocess.DEVNULL)
    with serving(tmp_path) as served:
        tab = open_page(browser.new_context())
        tab.goto(served.address)
        tab.wait_for_selector(".badge.training")
        while not any(run.glob("checkpoints/step-*")):
            tab.wait_for_timeout(100)
        tab.click("button.name")
        tab.click(".command button:text('Stop training')")
        tab.wait_for_selector(".badge.interrupted")
        assert first.wait() == 130
        tab.wait_for_selector(f".command code:text('anaphor train lm --resume --out {run}')")
        tab.click(".command button:text('Resume training')")
        tab.wait_for_selector(".badge.training")
        tab.click(".command button:text('Stop training')")
        tab.wait_for_selector(".badge.interrupted, .badge.stopped")
        assert tab.wrong == []
        tab.context.close()

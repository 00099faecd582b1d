"""Workers that share a folder train every cell once, whoever is killed, and one of them reports what one alone does."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import Future

import pytest

from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.flags import parse
from anaphor.studies import command
from anaphor.studies.claims import Claims
from anaphor.studies.engines import JobResult
from anaphor.studies.shared_folder import merge_logs, report_claim
from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from anaphor.studies.verb import Options, build_spec
from forked import start
from studies.here import Here, Silent
from studies.pretended import Pretending

LINES = """
base: {data: %s, model: lstm, layers: 1, batch_size: 4, bptt: 8, eval_every: 5, device: cpu, lr: 0.01, %s}
parameters: {width: {values: %s}}
seeds: 2
test: all
"""


@pytest.fixture
def write(tmp_path):
    """A function that writes a study."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 60)

    def write(steps="steps: 10", widths="[2, 3, 4, 5, 6]"):
        file = tmp_path / "study.yaml"
        file.write_text(LINES % (tmp_path / "text.txt", steps, widths))
        return file

    return write


class Watched(Here):
    """Trains cells in this process, and records what it begins and ends, and whether another one works on it."""

    def work(self, job):
        key = f"{job.action} {job.folder.name}"
        lock = os.open(job.folder / "busy", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            record(job.folder.parents[1], f"twice {key}")
        record(job.folder.parents[1], f"begin {key}")
        code = super().work(job)
        record(job.folder.parents[1], f"end {key}")
        os.close(lock)
        return code


class Endless(Here):
    """Its cells never end."""

    def submit(self, job):
        return Future()


def never_end():
    command.build_engine = lambda name, **options: Endless()


def record(folder, line):
    with open(folder / "record.txt", "a") as file:
        file.write(f"{line}\n")


def watch():
    """In the new process: no process of its own for each cell."""
    command.build_engine = lambda name, **options: Watched()


def begin(file, folder, first=watch):
    words = ["study", str(file), "--out", str(folder), "--worker", "--device", "cpu", "--json"]
    cache = {"ANAPHOR_CACHE": str(file.parent / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    return start(words, cache, first=first, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(workers):
    """What they print, as soon as all have ended."""
    printed = []
    for worker in workers:
        output, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
        printed.append(json.loads(output))
    return printed


def without_folder(result):
    """What a study found, without times and places."""
    cells = [{key: cell[key] for key in ("parameters", "seed", "status", "valid", "test")} for cell in result["cells"]]
    return {**{key: result[key] for key in ("best", "findings", "table")}, "cells": cells}


def alone(file, folder):
    """The result of the same study without workers."""
    words = ["study", str(file), "--out", str(folder), "--device", "cpu", "--json"]
    with start(words, {"CUDA_VISIBLE_DEVICES": ""}, first=watch, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=300)
    return json.loads(output)


def kill_and_replace(workers, kills, make, pause):
    """Kill one of the workers again and again, and start another one in its place. Returns those at the end."""
    chance = random.Random(0)
    done = 0
    while done < kills:
        time.sleep(chance.uniform(0, pause))  # kills at any moment are what is tested
        place = chance.randrange(len(workers))
        if workers[place].poll() is None:
            workers[place].kill()
            done += 1
        workers[place].communicate()
        workers[place] = make()
    return workers


def check(folder):
    """Every cell ends once, then the choice is frozen once, then test is read."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]
    finished = [line["cell"] for line in log if line["event"] == "finished"]
    assert len(finished) == len(set(finished)) == len(list((folder / "cells").iterdir()))
    events = [line["event"] for line in log]
    sealed = [place for place, event in enumerate(events) if event == "sealed"]
    assert len(sealed) == 1
    assert max(place for place, event in enumerate(events) if event == "finished") < sealed[0]
    assert min(place for place, event in enumerate(events) if event == "test") > sealed[0]
    return finished


@pytest.mark.slow
def test_two_workers_train_every_cell_once_and_one_of_them_reports(write, tmp_path):
    file = write(widths="[2, 3]")
    first, second = finish([begin(file, tmp_path / "out"), begin(file, tmp_path / "out")])
    result, left = (first, second) if "cells" in first else (second, first)
    assert set(left) == {"study", "reported_by"} or left["table"] == result["table"]
    check(tmp_path / "out")
    lines = (tmp_path / "out" / "record.txt").read_text().splitlines()
    trained = [line for line in lines if line.startswith("end train")]
    assert len(trained) == len(set(trained)) == 4
    assert not [line for line in lines if line.startswith("twice")]
    assert without_folder(result) == without_folder(alone(file, tmp_path / "alone"))


@pytest.mark.slow
def test_workers_of_a_random_search_draw_the_settings_that_one_alone_draws(write, tmp_path):
    pytest.importorskip("optuna")
    file = write(widths="[2, 3, 4, 5, 6]")
    file.write_text(
        f"{file.read_text()}method: random\ntrials: 4\n".replace("lr: 0.01, ", "").replace(
            "parameters: {", "parameters: {lr: {min: 0.001, max: 0.1, distribution: log_uniform}, "
        )
    )
    printed = finish([begin(file, tmp_path / "out"), begin(file, tmp_path / "out")])
    result = next(one for one in printed if "cells" in one)
    assert len(check(tmp_path / "out")) == 8
    lines = (tmp_path / "out" / "record.txt").read_text().splitlines()
    assert not [line for line in lines if line.startswith("twice")]
    assert without_folder(result) == without_folder(alone(file, tmp_path / "alone"))


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_two_workers_under_kills_train_every_cell_once(kills, write, tmp_path):
    """Cells are trained in the processes that are killed, so that none is left over for long."""
    file, folder = write("steps: 60", str(list(range(2, 2 + (kills + 10) // 5)))), tmp_path / "out"
    workers = [begin(file, folder) for _ in range(2)]
    workers = kill_and_replace(workers, kills, lambda: begin(file, folder), 0.5)
    printed = finish(workers)
    finished = check(folder)
    assert len(finished) == 2 * ((kills + 10) // 5)
    lines = (folder / "record.txt").read_text().splitlines()
    assert not [line for line in lines if line.startswith("twice")], "two worked on one cell at a time"
    ended = [line for line in lines if line.startswith("end train")]
    assert len(ended) == len(set(ended)), "a cell that was finished was trained again"
    result = next(one for one in printed if "cells" in one)
    assert without_folder(result) == without_folder(alone(file, tmp_path / "alone"))


@pytest.mark.slow
def test_the_command_itself_under_twenty_kills(write, tmp_path):
    """With a process for each cell, which outlives its worker for a moment."""
    file, folder = write("steps: 400", "[2, 4, 6, 8]"), tmp_path / "out"

    def run():
        words = ["study", str(file), "--out", str(folder), "--worker", "--workers", "1", "--device", "cpu", "--json"]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "anaphor", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    workers = kill_and_replace([run(), run()], 20, run, 12)
    printed = finish(workers)
    assert len(check(folder)) == 8
    result = next(one for one in printed if "cells" in one)
    assert [cell["status"] for cell in result["cells"]] == ["finished"] * 8


def test_a_worker_that_is_asked_to_end_gives_its_claims_back(write, tmp_path):
    file, folder = write(), tmp_path / "out"
    worker = begin(file, folder, never_end)
    while not list(folder.glob("cells/*/job.json")):
        assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=60)
    assert "interrupted; finished cells are in" in errors
    states = [json.loads(path.read_bytes())["state"] for path in folder.glob("claims/*.1")]
    assert states
    assert set(states) == {"free"}


def test_a_cell_that_fails_is_tried_once_by_workers_that_began_together(write, tmp_path, own_cache):
    """And again by one that begins later, as by every start of a study."""
    spec, folder = read_study(write(widths="[2, 3]")), tmp_path / "out"
    folder.mkdir()

    def join():
        return Study(
            spec.with_base(device="cpu"), folder, Pretending(ends=lambda job: JobResult(1, "no memory")), Silent(),
            sharing=Claims(folder),
        )  # fmt: skip

    first, second = join(), join()
    assert first.run()
    assert second.run()
    assert (len(first.engine.jobs), len(second.engine.jobs)) == (4, 0)
    late = join()
    assert late.run()
    assert len(late.engine.jobs) == 4


def test_logs_of_workers_become_one_with_the_end_of_each_cell_once(tmp_path):
    (tmp_path / "workers").mkdir()
    a = [{"time": "2", "event": "started", "cell": "x"}, {"time": "5", "event": "finished", "cell": "x"}]
    b = [{"time": "1", "event": "started", "cell": "y"}, {"time": "6", "event": "finished", "cell": "x"}]
    for name, lines in (("a", a), ("b", b)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "workers" / f"{name}.jsonl").write_text(text + '{"time": "7", "ev')
    for _ in range(2):
        merge_logs(tmp_path)
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [line["time"] for line in lines] == ["1", "2", "5"]


def test_a_study_with_other_settings_has_a_report_of_its_own(write):
    first, second = read_study(write()), read_study(write(widths="[2, 3]"))
    assert report_claim(first) == report_claim(read_study(write())) != report_claim(second)


def test_a_folder_that_workers_share_is_refused_without_worker(write, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **options: Here())
    folder = tmp_path / "out"
    folder.mkdir()
    with Claims(folder) as own:
        assert own.take("a")
        assert main(["study", str(write()), "--out", str(folder), "--device", "cpu"]) == 2
    assert "join them with --worker" in capsys.readouterr().err
    assert not (folder / "cells").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--of", "runs/x"], "leave it out with --of"),
        (["--dry-run"], "leave it out with --dry-run"),
        ([], "method bayes draws settings by earlier results"),
    ],
)
def test_what_workers_do_not_do_is_refused(words, message, write):
    file = write()
    if not words:
        file.write_text(f"{file.read_text()}method: bayes\n")
    with pytest.raises(ConfigError, match=message):
        build_spec(parse(Options, [str(file), "--worker", *words], program="anaphor study"))

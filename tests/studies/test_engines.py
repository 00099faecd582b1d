"""The local engine: devices are shared out evenly, the service for sharing them is started once and stopped."""

import io
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter, deque
from contextlib import nullcontext

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.studies import engines, worker
from anaphor.studies.engines import Job, LocalEngine, read_last_line, visible_gpus


class Process:
    """Ends at once and remembers where it was to run."""

    def __init__(self, environment):
        self.environment = environment

    def wait(self):
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def started(monkeypatch):
    found = []

    def start(job, environment):
        found.append(environment)
        return Process(environment)

    monkeypatch.setattr(engines, "start_worker", start)
    monkeypatch.setattr(engines, "start_spare", lambda threads, environment: start(None, environment))
    monkeypatch.setattr(engines, "assign", lambda process, job: True)
    monkeypatch.setattr(engines, "stop_worker", lambda process: None)
    return found


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A stand-in for the control of NVIDIA's service, which writes down how it was called."""
    script = tmp_path / engines.MPS_CONTROL
    script.write_text(f'#!/bin/sh\necho "$@ $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls\ncat >> {tmp_path}/calls\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return tmp_path / "calls"


def run(engine, tmp_path, jobs):
    with engine:
        return [promise.result().exit_code for promise in [engine.submit(Job("train", tmp_path)) for _ in range(jobs)]]


def test_every_device_gets_as_many_processes(started, control, tmp_path):
    engine = LocalEngine(devices=["0", "1"], per_device=2)
    assert engine.slots == 4
    assert run(engine, tmp_path, 8) == [0] * 8
    assert set(Counter(environment["CUDA_VISIBLE_DEVICES"] for environment in started)) <= {"0", "1"}


def test_the_service_is_started_for_shared_devices_and_stopped(started, control, tmp_path):
    run(LocalEngine(devices=["0"], per_device=3), tmp_path, 2)
    calls = control.read_text()
    assert calls.startswith("-d ")
    assert calls.rstrip().endswith("quit")
    folder = started[0]["CUDA_MPS_PIPE_DIRECTORY"]
    assert folder in calls
    assert not os.path.exists(folder)


def test_one_process_for_each_device_needs_no_service(started, control, tmp_path):
    run(LocalEngine(devices=["0"], per_device=1), tmp_path, 1)
    assert not control.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in started[0]


def test_without_the_service_devices_are_shared_in_turns(monkeypatch):
    monkeypatch.setattr(engines.shutil, "which", lambda name: None)
    with engines.share_gpus() as environment:
        assert environment == {}


def test_a_service_that_does_not_start_is_done_without(control, monkeypatch):
    def fail(*words, **options):
        raise subprocess.CalledProcessError(1, words)

    monkeypatch.setattr(engines.subprocess, "run", fail)
    with engines.share_gpus() as environment:
        assert environment == {}


def test_a_closed_engine_starts_nothing_more(started, tmp_path):
    engine = LocalEngine(slots=1)
    engine._closed = True
    assert engine.submit(Job("train", tmp_path)).result().exit_code == 143
    engine.close()
    assert started == []


def test_a_process_that_was_just_being_started_is_asked_to_end_as_well(tmp_path, monkeypatch):
    engine = LocalEngine(slots=1)

    class Started(Process):
        stdin = io.BytesIO()

        def wait(self):
            assert self.stdin.closed, "it would run to its end while everybody waits for it"
            return 143

    def start(job, environment):
        with monkeypatch.context() as patch:
            patch.setattr(engine._pool, "shutdown", lambda **options: None)  # it would wait for this very thread
            engine.close()
        return Started(environment)

    monkeypatch.setattr(engines, "start_worker", start)
    assert engine.submit(Job("train", tmp_path)).result().exit_code == 143
    engine.close()


def test_the_next_process_of_a_device_is_started_beforehand(started, tmp_path):
    """The first job starts its own and one for the second, which starts one for the third."""
    assert run(LocalEngine(devices=["0"], per_device=1), tmp_path, 3) == [0] * 3
    assert len(started) == 1 + 3
    started.clear()
    assert run(LocalEngine(slots=1), tmp_path, 3) == [0] * 3
    assert len(started) == 3, "without a GPU it would take the time of those that work"


@pytest.mark.parametrize(("devices", "per_device"), [(1, 1), (1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("jobs", [1, 2, 3, 7])
def test_no_more_processes_wait_than_jobs_are_left(devices, per_device, jobs, tmp_path, monkeypatch):
    """A process that waits holds memory of a GPU. Jobs end in another order than they were submitted."""
    ends, starts = [threading.Event() for _ in range(jobs)], queue.SimpleQueue()

    class Waiting(Process):
        is_stopped = False

    class Working(Process):
        def wait(self):
            starts.put(self)
            ends[self.number].wait()
            return 0

    def give(process, job):
        process.number = int(job.folder.name)
        process.wait = Working.wait.__get__(process)
        return True

    def start(job, environment):
        process = Working(environment)
        process.number = int(job.folder.name)
        return process

    waiting = []
    monkeypatch.setattr(engines, "start_worker", start)
    monkeypatch.setattr(engines, "start_spare", lambda *given: waiting.append(Waiting(None)) or waiting[-1])
    monkeypatch.setattr(engines, "assign", give)
    monkeypatch.setattr(engines, "stop_worker", lambda process: setattr(process, "is_stopped", True))
    monkeypatch.setattr(engines, "read_last_line", lambda folder: "")
    monkeypatch.setattr(engines, "share_gpus", lambda: nullcontext({}))
    engine = LocalEngine(devices=list("012"[:devices]), per_device=per_device)
    left, running = deque(range(jobs)), {}
    with engine:
        while left or running:
            while left and len(running) < engine.slots:
                number = left.popleft()
                running[number] = engine.submit(Job("train", tmp_path / str(number), 1, len(left)))
                starts.get()
            spares = [spare for spare in waiting if not hasattr(spare, "number") and not spare.is_stopped]
            assert len(spares) <= len(left)
            assert len(spares) == sum(map(len, engine._spares.values()))
            assert spares or not left
            last = max(running)
            ends[last].set()
            assert running.pop(last).result().exit_code == 0
    assert all(hasattr(spare, "number") or spare.is_stopped for spare in waiting)


def test_processes_wait_in_free_slots_for_jobs_that_come_later(started, control, tmp_path):
    """As those on test do, after all of training."""
    with LocalEngine(devices=["0"], per_device=3) as engine:
        trained = [engine.submit(Job("train", tmp_path, 1, following)) for following in (5, 4, 3)]
        assert [future.result().exit_code for future in trained] == [0] * 3
        assert len(engine._spares["0"]) == 3
        before = len(started)
        tested = [engine.submit(Job("test", tmp_path, 1, following)) for following in (2, 1, 0)]
        assert [future.result().exit_code for future in tested] == [0] * 3
        assert len(started) == before
        assert engine._spares["0"] == []


def test_two_jobs_of_a_device_may_want_its_waiting_process_at_once(started, tmp_path):
    class Contested(list):
        """It has one process, until it is taken."""

        def __bool__(self):
            return True

    engine = LocalEngine(devices=["0"], per_device=2)
    engine._spares["0"] = Contested()
    assert run(engine, tmp_path, 1) == [0]
    assert len(started) == 2, "it starts its own, and one for the next"


def test_a_job_runs_where_no_process_can_be_started_for_the_next_one(started, tmp_path, monkeypatch):
    def fail(threads, environment):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(engines, "start_spare", fail)
    assert run(LocalEngine(devices=["0"]), tmp_path, 2) == [0] * 2


def test_a_waiting_process_for_which_a_gpu_has_no_memory_yet_still_waits(monkeypatch):
    def fail(*size, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", fail)
    monkeypatch.setattr(worker.os, "read", lambda file, size: b"")
    assert worker.wait_for_job() == []


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        LocalEngine(slots=0)


def test_visible_gpus_keep_the_names_they_were_given(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert visible_gpus() == ["3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == ["0", "1"]


def test_the_reason_is_the_last_line_of_a_worker(tmp_path):
    assert read_last_line(tmp_path) == ""
    (tmp_path / "output.txt").write_text("a\n" * 9000 + "MemoryError: no room\n\n")
    assert read_last_line(tmp_path) == "MemoryError: no room"


TASK_OF_A_JOB = {"task": "nonsense", "imports": {"nowhere.py": ""}}
"""Refused by the worker in one line, before it loads anything more."""


@pytest.mark.slow
def test_on_a_device_the_next_process_waits_for_its_job(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(TASK_OF_A_JOB))
    started = []
    for name in ("start_worker", "start_spare"):
        start = getattr(engines, name)

        def recorded(*arguments, name=name, start=start):
            started.append(name)
            return start(*arguments)

        monkeypatch.setattr(engines, name, recorded)
    engine = LocalEngine(devices=["0"], slots=1)
    with engine:
        results = [engine.submit(Job("train", folder)).result() for folder in folders[:2]]
        (dead,) = engine._spares["0"]
        dead.kill()
        dead.wait()
        results.append(engine.submit(Job("train", folders[2])).result())
        (spare,) = engine._spares["0"]
    assert {(result.exit_code, result.last_line) for result in results} == {
        (2, "--import nowhere.py: No such file or directory")
    }
    assert started == ["start_worker", "start_spare", "start_spare", "start_worker", "start_spare"]
    assert spare.returncode == 0, "a worker without a job ends with its study"


def test_a_worker_bounds_the_spinning_of_threads_before_torch_is_loaded():
    script = (
        "import os, sys\n"
        "class Watch:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        assert name != 'torch' or 'GOMP_SPINCOUNT' in os.environ\n"
        "sys.meta_path.insert(0, Watch)\n"
        "import anaphor.studies.worker\n"
        "assert 'torch' in sys.modules"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0

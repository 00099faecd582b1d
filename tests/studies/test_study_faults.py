"""Faults 16 and 17: workers and the coordinator are killed, cells fail; no result is lost, none is doubled."""

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import forked
from anaphor.cli.main import main
from studies.here import Here

STUDY = """
base: {data: %(text)s, layers: 1, batch_size: 2, bptt: 8, steps: %(steps)d, eval_every: 10, device: cpu}
parameters:
  width: {values: %(widths)s}
seeds: %(seeds)d
test: none
"""


def write_study(room, *, widths, seeds, steps):
    path = room / "study.yaml"
    path.write_text(STUDY % {"text": room / "text.txt", "widths": widths, "seeds": seeds, "steps": steps})
    return path


def begin(room, out, *words):
    command = ["study", str(room / "study.yaml"), "--out", str(out), "--device", "cpu", "--json", *words]
    return forked.start(command, {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process):
    """Exit code and what it printed."""
    output, complaints = process.communicate(timeout=500)
    assert process.returncode in (0, 4), complaints
    return process.returncode, json.loads(output)


def workers(out):
    """Processes that work in the study's folder now."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if b"anaphor.studies.worker" in words and any(word.startswith(str(out).encode()) for word in words):
            found.append(int(place.name))
    return found


def kill(numbers):
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def await_end(numbers):
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(number)
            select.select([descriptor], [], [], 60)
            os.close(descriptor)


def events(out):
    log = out / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def numbers(result):
    return {
        (json.dumps(cell["parameters"]), cell["seed"]): (cell["status"], cell["valid"]["loss"])
        for cell in result["cells"]
    }


def disturbed(room, out, generator, *, kills, coordinator_kills, words=()):
    """Run a study to its end while workers and the coordinator are killed now and then."""
    process = begin(room, out, *words)
    while process.poll() is None:
        try:
            process.wait(generator.uniform(0.3, 2))
            break
        except subprocess.TimeoutExpired:
            pass
        if kills and (there := workers(out)):
            kill([generator.choice(there)])
            kills -= 1
        elif coordinator_kills and any(line["event"] == "finished" for line in events(out)):
            process.kill()
            process.communicate()
            coordinator_kills -= 1
            process = begin(room, out, *words)
    return end(process)


def assert_nothing_lost_or_doubled(room, out, result, cells):
    assert len(result["cells"]) == cells
    assert {cell["status"] for cell in result["cells"]} == {"finished"}
    finished = Counter(line["cell"] for line in events(out) if line["event"] == "finished")
    assert set(finished.values()) == {1}, "a finished cell is not run again"
    assert len(finished) == len(list((out / "cells").iterdir())) == cells
    await_end(workers(out))  # of a killed coordinator: it saves a checkpoint before it ends
    assert workers(out) == []


@pytest.mark.slow
def test_killed_workers_and_a_killed_coordinator_change_no_number(room, monkeypatch, capsys):
    path = write_study(room, widths=[4, 8], seeds=1, steps=60)
    with monkeypatch.context() as patch:  # undisturbed cells need no process of their own
        patch.setattr("anaphor.studies.command.build_engine", lambda name, **options: Here())
        torch.set_default_dtype(torch.float32)
        assert main(["study", str(path), "--out", str(room / "calm"), "--device", "cpu", "--json"]) == 0
    calm = json.loads(capsys.readouterr().out)
    code, result = disturbed(room, room / "wild", random.Random(1), kills=1, coordinator_kills=1)
    assert code == 0
    assert_nothing_lost_or_doubled(room, room / "wild", result, 2)
    assert numbers(result) == numbers(calm)


@pytest.mark.slow
def test_forty_cells_survive_random_kills(room):
    write_study(room, widths=[4, 6, 8, 10], seeds=10, steps=150)
    code, calm = end(begin(room, room / "calm"))
    assert code == 0
    code, result = disturbed(room, room / "wild", random.Random(2), kills=30, coordinator_kills=4)
    assert code == 0
    assert_nothing_lost_or_doubled(room, room / "wild", result, 40)
    assert numbers(result) == numbers(calm)


@pytest.mark.slow
def test_workers_end_when_their_study_is_gone(room):
    write_study(room, widths=[4], seeds=2, steps=100_000)
    out = room / "out"
    process = begin(room, out)
    until = time.monotonic() + 120
    while not (there := workers(out)) and time.monotonic() < until:
        process.poll()
    assert there
    process.kill()
    process.communicate()
    while workers(out) and time.monotonic() < until:
        pass
    assert workers(out) == []


@pytest.mark.slow
def test_a_cell_that_always_fails_is_recorded_and_the_others_finish(room):
    """A model that no machine has room for, beside one that fits."""
    path = write_study(room, widths=[4], seeds=1, steps=4)
    path.write_text(path.read_text().replace("width: {values: [4]}", "width: {values: [4, 40000000]}"))
    code, result = end(begin(room, room / "out"))
    assert code == 4
    good, bad = result["cells"]
    assert good["status"] == "finished"
    assert bad["status"] == "failed"
    assert bad["reason"]
    assert any("width 40000000" in line for line in result["findings"])


@pytest.mark.parametrize("name", ["log.jsonl", "study.yaml"])
def test_a_folder_in_the_place_of_a_file_is_named_in_one_line(room, capsys, name):
    path, out = write_study(room, widths=[4], seeds=1, steps=1), room / "study"
    (out / name).mkdir(parents=True)
    assert main(["study", str(path), "--out", str(out)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"anaphor: {out / name} is a folder, but a file is needed there"

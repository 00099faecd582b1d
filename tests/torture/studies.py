"""Studies whose workers and coordinator are killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import forked
from torture import children
from torture.fault import Fault, Outcome, failed
from torture.runs import TEXT

CELLS = 6
KILLS = 15
WORKERS = 2
STUDY = """
base: {data: text.txt, model: lstm, layers: 1, batch_size: 2, bptt: 8, steps: 60, eval_every: 10, device: cpu, lr: 0.01}
parameters:
  width: {values: [4, 6, 8]}
seeds: 2
test: all
"""


def prepare(place: Path) -> None:
    """The study undisturbed."""
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    (place / "study.yaml").write_text(STUDY.replace("text.txt", str(place / "text.txt")), encoding="utf-8")
    done = children.checked(children.run(place, study(place, place / "calm", "--worker"), first=children.skip_fsync))
    (place / "expected.json").write_text(json.dumps(numbers_of(json.loads(done.stdout))), encoding="utf-8")


def study(place: Path, out: Path, *more: str) -> list[str]:
    return ["study", str(place / "study.yaml"), "--out", str(out), "--device", "cpu", "--json", *more]


def numbers_of(result: dict[str, Any]) -> list[Any]:
    cells = [
        [cell["parameters"], cell["seed"], cell["status"], cell["valid"]["loss"], cell["test"]["loss"]]
        for cell in result["cells"]
    ]
    return sorted(cells, key=json.dumps)


def attempt(place: Path, own: Path, seed: int) -> Outcome:
    draw, out = random.Random(seed), own / "study"
    if seed % 2:
        kills, done = disturb_workers(place, out, draw)
    else:
        kills, done = disturb_coordinator(place, out, draw)
    if done.returncode:
        return failed(f"exit code {done.returncode}", done.stderr)
    result = json.loads(done.stdout)
    if json.loads(json.dumps(numbers_of(result))) != json.loads((place / "expected.json").read_text(encoding="utf-8")):
        return failed("other numbers", json.dumps(result["cells"])[:2000])
    finished = Counter(line["cell"] for line in events(out) if line["event"] == "finished")
    if len(finished) != CELLS or set(finished.values()) != {1}:
        return failed("a cell was trained twice, or is missing", repr(finished))
    how = "workers that share a folder" if seed % 2 else "a coordinator and its workers"
    return Outcome(True, f"every cell once ({how})", count=kills)


def events(out: Path) -> Iterable[dict[str, Any]]:
    """All logs of a study: the coordinator's, and one for each worker that shares its folder."""
    for log in sorted(out.rglob("*log*.jsonl")):
        for line in log.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def disturb_workers(place: Path, out: Path, draw: random.Random) -> tuple[int, subprocess.CompletedProcess[str]]:
    """Kill workers that share the folder, and start others in their place; at last one works to the end."""
    words, kills = study(place, out, "--worker"), 0
    there = [children.start(place, words, first=children.skip_fsync) for _ in range(WORKERS)]
    for _ in range(KILLS):
        number = draw.randrange(WORKERS)
        try:
            there[number].wait(draw.uniform(0.2, 1.5))
        except subprocess.TimeoutExpired:
            there[number].kill()
            there[number].wait()
            kills += 1
        there[number] = children.start(place, words, first=children.skip_fsync)
    for process in there:
        process.wait(300)
    return kills, children.run(place, words, first=children.skip_fsync)


def disturb_coordinator(place: Path, out: Path, draw: random.Random) -> tuple[int, subprocess.CompletedProcess[str]]:
    """Kill workers, and now and then the coordinator, which is started again."""
    words, kills = study(place, out), 0
    process = start(place, words)
    while process.poll() is None:
        try:
            process.wait(draw.uniform(0.5, 2.5))
        except subprocess.TimeoutExpired:
            there = workers(out)
            if kills >= KILLS:
                continue
            if draw.random() < 0.3:
                process.kill()
                process.communicate()
                await_end(out)
                process = start(place, words)
                kills += 1
            elif there:
                os.kill(draw.choice(there), signal.SIGKILL)
                kills += 1
    output, errors = process.communicate()
    return kills, subprocess.CompletedProcess(words, process.returncode, output, errors)


def start(place: Path, words: list[str]) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked.start(words, children.environment(place), first=children.skip_fsync, **pipes)


def workers(out: Path) -> list[int]:
    """Processes that train cells of this study now."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if b"anaphor.studies.worker" in words and any(word.startswith(str(out).encode()) for word in words):
            found.append(int(place.name))
    return found


def await_end(out: Path) -> None:
    """Until workers of a coordinator that was killed have noticed it."""
    until = time.monotonic() + 60
    while workers(out) and time.monotonic() < until:
        os.sched_yield()


STUDY_KILLED = Fault(
    name="killed workers and coordinators of studies",
    promise="every cell once, with the numbers of an undisturbed study",
    count=100,
    prepare=prepare,
    attempt=attempt,
)

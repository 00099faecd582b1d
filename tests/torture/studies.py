"""Studies whose workers and coordinator are killed at random moments; on Ray, nodes leave as well."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forked
from anaphor import registry
from ray_nodes import RayNodes, start_nodes
from torture import children
from torture.fault import Fault, Outcome, failed
from torture.runs import TEXT

CELLS = 40
KILLS = 50
"""Of one study, spread over its cells: a machine that is slow, and kills all the same, would finish none."""
WORKERS = 2
SECONDS = 1200
"""A study that takes longer to end, once nothing of it is killed any more, hangs."""
STUDY = """
base: {data: text.txt, model: lstm, layers: 1, batch_size: 2, bptt: 8, steps: 60, eval_every: 10, device: cpu, lr: 0.01}
parameters:
  width: {values: [4, 6, 8, 10]}
seeds: 10
test: best
"""


def prepare(place: Path) -> None:
    """The study undisturbed."""
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    (place / "study.yaml").write_text(STUDY.replace("text.txt", str(place / "text.txt")), encoding="utf-8")
    done = children.checked(run(place, study(place, place / "calm"), first=train_here))
    (place / "expected.json").write_text(json.dumps(numbers_of(json.loads(done.stdout))), encoding="utf-8")


def train_here() -> None:
    """In a child: undisturbed cells need no process of their own."""
    from anaphor.studies import command
    from studies.here import Here

    children.skip_fsync()
    command.build_engine = lambda name, **options: Here()  # type: ignore[assignment]


def study(place: Path, out: Path, *more: str) -> list[str]:
    return ["study", str(place / "study.yaml"), "--out", str(out), "--device", "cpu", "--json", *more]


def numbers_of(result: dict[str, Any]) -> list[Any]:
    cells = [
        [cell["parameters"], cell["seed"], cell["status"], cell["valid"]["loss"], cell.get("test", {}).get("loss")]
        for cell in result["cells"]
    ]
    return sorted(cells, key=json.dumps)


def attempt(place: Path, own: Path, seed: int) -> Outcome:
    draw, out = random.Random(seed), own / "study"
    if seed % 2:
        kills, done = disturb_workers(place, out, draw)
    else:
        kills, done = disturb_coordinator(place, out, draw)
    return judge(place, out, done) or survived(kills)


def attempt_on_ray(place: Path, own: Path, seed: int) -> Outcome:
    out = own / "study"
    with start_nodes() as nodes:
        kills, done = disturb_coordinator(place, out, random.Random(seed), nodes)
    return judge(place, out, done) or survived(kills)


def survived(kills: Counter[str]) -> Outcome:
    return Outcome(True, "every cell once", kills.total(), kinds=kills)


def judge(place: Path, out: Path, done: subprocess.CompletedProcess[str]) -> Outcome | None:
    """The failure of a study; None if it has all cells, each trained once, with the numbers of the undisturbed one."""
    if done.returncode:
        return failed(f"exit code {done.returncode}", done.stderr)
    result = json.loads(done.stdout)
    if json.loads(json.dumps(numbers_of(result))) != json.loads((place / "expected.json").read_text(encoding="utf-8")):
        return failed("other numbers", json.dumps(result["cells"])[:2000])
    finished = Counter(line["cell"] for line in events(out / "log.jsonl") if line["event"] == "finished")
    if len(finished) != CELLS or set(finished.values()) != {1}:
        return failed("a cell was trained twice, or is missing", repr(finished))
    return None


def events(*logs: Path) -> Iterable[dict[str, Any]]:
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
            with contextlib.suppress(ValueError):  # cut off by a kill, or not yet whole
                yield json.loads(line)


def disturb_workers(
    place: Path, out: Path, draw: random.Random
) -> tuple[Counter[str], subprocess.CompletedProcess[str]]:
    """Kill workers that share the folder, and start others in their place; at last one works to the end."""
    words, kills = study(place, out, "--worker", "--workers", "1"), Counter[str]()
    there = [children.start(place, words, first=children.skip_fsync) for _ in range(WORKERS)]
    until = time.monotonic() + SECONDS
    while kills.total() < KILLS and time.monotonic() < until:
        number = draw.randrange(WORKERS)
        try:
            there[number].wait(draw.uniform(0.3, 2.5))
            break  # the study is done
        except subprocess.TimeoutExpired:
            if not is_time(out, kills.total()):
                continue
            there[number].kill()
            there[number].wait()
            kills["workers that share a folder"] += 1
            there[number] = children.start(place, words, first=children.skip_fsync)
    for process in there:
        process.wait(SECONDS)
    return kills, run(place, words)


def disturb_coordinator(
    place: Path, out: Path, draw: random.Random, nodes: RayNodes | None = None
) -> tuple[Counter[str], subprocess.CompletedProcess[str]]:
    """Kill workers, and now and then the coordinator, which is started again. On Ray, a node leaves now and then, and
    another one joins."""
    from anaphor.studies.study import MAX_RESTARTS  # here: shelves may be missing

    words = study(place, out, *(() if nodes is None else ("--engine", "ray", "--address", nodes.address)))
    process, kills, killed = start(place, words), Counter[str](), Counter[str]()
    until = time.monotonic() + SECONDS
    while kills.total() < KILLS and time.monotonic() < until:
        try:
            output, errors = process.communicate(timeout=draw.uniform(0.3, 2.5))
            return kills, subprocess.CompletedProcess(words, process.returncode, output, errors)
        except subprocess.TimeoutExpired:
            there = [(number, cell) for number, cell in workers(out) if killed[cell] < MAX_RESTARTS]
        what = draw.random()
        if not there or not is_time(out, kills.total()):
            continue
        if what < 0.15:
            process.kill()
            process.communicate()
            await_end(out)
            process, killed = start(place, words), Counter()
            kills["coordinators"] += 1
        elif what < 0.3 and nodes is not None:
            nodes.replace_second(is_sudden=what < 0.22)
            kills["nodes that left"] += 1
        else:
            number, cell = draw.choice(there)
            os.kill(number, signal.SIGKILL)
            killed[cell] += 1
            kills["workers of a coordinator"] += 1
    return kills, end(process, words)


def is_time(out: Path, kills: int) -> bool:
    """Whether there is a kill left for the cells that are done and those that come next."""
    logs = (out / "log.jsonl", *(out / "workers").glob("*.jsonl"))
    done = {line["cell"] for line in events(*logs) if line["event"] == "finished"}
    return kills * CELLS < KILLS * (len(done) + 2 * WORKERS)


def start(
    place: Path, words: Sequence[str], first: Callable[[], object] = children.skip_fsync
) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked.start(words, children.environment(place), first=first, **pipes)


def end(process: subprocess.Popen[str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def run(
    place: Path, words: Sequence[str], first: Callable[[], object] = children.skip_fsync
) -> subprocess.CompletedProcess[str]:
    return end(start(place, words, first), words)


def workers(out: Path) -> list[tuple[int, str]]:
    """Processes that train cells of this study now, and the folder of the cell of each."""
    found = []
    for place in sorted(Path("/proc").glob("[0-9]*")):
        try:
            words = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        cells = [word for word in words if word.startswith(str(out))]
        if "anaphor.studies.worker" in words and cells:
            found.append((int(place.name), cells[0]))
    return found


def await_end(out: Path) -> None:
    """Until workers of a coordinator that was killed have noticed it."""
    for number, _ in workers(out):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(number)
            select.select([descriptor], [], [], 60)
            os.close(descriptor)


def missing_studies() -> str | None:
    return None if registry.has_shelf("studies") else "anaphor.studies is not there"


def missing_ray() -> str | None:
    return missing_studies() or (None if find_spec("ray") is not None else "ray is not installed")


ONCE = "every cell once, with the numbers of an undisturbed study"
STUDY_KILLED = Fault(
    name="killed workers and coordinators of studies",
    promise=f"of {CELLS} cells {ONCE}",
    count=100,
    prepare=prepare,
    attempt=attempt,
    missing=missing_studies,
    each=KILLS,
)
RAY_KILLED = Fault(
    name="killed workers, coordinators and nodes of studies on Ray",
    promise=f"of {CELLS} cells {ONCE}",
    count=100,
    prepare=prepare,
    attempt=attempt_on_ray,
    missing=missing_ray,
    each=KILLS,
)

"""The live page of many runs in Chromium: time to the first chart, memory, bytes of a refresh, cost for a training."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from anaphor.errors import ConfigError, DataError
from benchmarks.processes import run_python
from benchmarks.timing import Finding, Ratio, estimate_ratio

RUNS, ROWS, SHOWN = 200, 10_000, 10
LOADS = 5
TRAININGS = 6
MAX_SECONDS, MAX_MEMORY, MAX_REFRESH, MAX_SLOWDOWN = 2.0, 300.0, 50.0, 1.05
WATCH_SECONDS = 6.0
VARIANTS = 20  # histories that differ: those that are shown, and as many that the other runs share

SMALL = "train lm --data grammar --model lstm --width 16 --steps 1 --no-test --device cpu"
TRAINING = "train lm --data grammar --model lstm --width 256 --steps 300 --eval-every 30 --no-test --device cpu"

# Two frames after a view is ready, its canvas is on the screen.
READY = """
new MutationObserver((changes, observer) => {
  if (document.documentElement?.dataset.ready !== "curves") return;
  observer.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.firstChart = performance.now(); }));
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-ready"] });
"""


def count_ticks(pairs: int, device: torch.device) -> int:
    return LOADS + 2 + 2 * min(pairs, TRAININGS)


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    with launch_chromium() as browser, tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        write_runs(runs)
        findings = list(_measure_page(browser, runs, tick))
        shutil.rmtree(runs)
        return [*findings, _measure_training(browser, Path(folder), min(pairs, TRAININGS), tick)]


@contextmanager
def launch_chromium() -> Iterator[Any]:
    """A browser without window. One line says what is missing where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise ConfigError("the part web needs playwright: pip install 'anaphor[test]'") from None
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise ConfigError("the part web needs Chromium, and there is none on the path: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def write_runs(folder: Path, runs: int = RUNS, rows: int = ROWS) -> None:
    """Finished runs that differ in learning rate and seed, with a validation in each row; the first ones are newest."""
    pattern = folder / "pattern"
    run_python("-m", "anaphor", *SMALL.split(), "--out", str(pattern))
    spec, result = (pattern / "spec.yaml").read_text(), (pattern / "result.json").read_text()
    (row,) = map(json.loads, (pattern / "metrics.jsonl").read_text().splitlines())
    shutil.rmtree(pattern)
    for number in range(runs):
        run = folder / f"run-{number:03}"
        run.mkdir()
        changed = re.sub(r"^  lr: .*", f"  lr: {0.001 * (1 + number // 5):.3f}", spec, flags=re.MULTILINE)
        (run / "spec.yaml").write_text(re.sub(r"^  seed: .*", f"  seed: {number % 5}", changed, flags=re.MULTILINE))
        (run / "result.json").write_text(result)
        if number < VARIANTS:
            draw = random.Random(number)
            with open(run / "metrics.jsonl", "w", encoding="utf-8") as file:
                file.writelines(_row(row, step, number, draw) for step in range(1, rows + 1))
        else:
            shared = SHOWN + number % (VARIANTS - SHOWN)
            os.link(folder / f"run-{shared:03}" / "metrics.jsonl", run / "metrics.jsonl")
        if number >= SHOWN:
            for file_name in ("spec.yaml", "result.json", "metrics.jsonl"):
                os.utime(run / file_name, (time.time() - 3600,) * 2)


def _row(like: dict[str, Any], step: int, number: int, draw: random.Random) -> str:
    loss = 3 + 3 * math.exp(-step / 1500) + 0.02 * number + draw.gauss(0, 0.1)
    return json.dumps({
        **like, "step": step, "epoch": step / 1000, "tokens": 700 * step, "seconds": 0.02 * step,
        "train_loss": loss - 0.05, "valid": {**like["valid"], "loss": loss, "perplexity": math.exp(loss)},
    }) + "\n"  # fmt: skip


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of the live page of a folder, served by a process of its own."""
    argv = [sys.executable, "-m", "anaphor", "serve", str(folder), "--no-browser", "--port", "0"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            for line in server.stdout or ():
                if found := re.search(r"http://\S+", line):
                    yield found[0]
                    return
            raise DataError(f"the live page of {folder} cannot be served: no address was printed")
        finally:
            server.terminate()


@contextmanager
def open_curves(browser: Any, address: str, runs: Sequence[str] = ()) -> Iterator[Any]:
    """A page with the curves of some runs, or of those that are shown at first, drawn."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.add_init_script(READY)
        chosen = f"?runs={','.join(runs)}" if runs else ""
        page.goto(f"{address}#curves{chosen}")
        end = time.monotonic() + 120
        while page.evaluate("window.firstChart === undefined"):
            if time.monotonic() > end:
                raise DataError("no chart was drawn within two minutes")
            page.wait_for_timeout(50)
        yield page
    finally:
        context.close()


def _measure_page(browser: Any, folder: Path, tick: Callable[[str], None]) -> Iterator[Finding]:
    seconds, memory = [], []
    for load in range(LOADS):
        with serve(folder) as address, open_curves(browser, address) as page:
            seconds.append(page.evaluate("window.firstChart") / 1000)
            memory.append(read_memory(browser))
            tick("first chart")
            if load == LOADS - 1:
                refresh = _count_refresh(page, folder)
                tick("refresh")
                ids = [run["id"] for run in page.evaluate("fetch('/api/runs').then((answer) => answer.json())")["runs"]]
                with open_curves(browser, address, ids) as every:
                    # Measured with the other page open, whose process is another one.
                    all_seconds, all_memory = every.evaluate("window.firstChart") / 1000, read_memory(browser)
                tick("all runs")
    where = f"{RUNS} runs with {ROWS:,} validations each"
    yield _limit("seconds to the first chart", seconds, MAX_SECONDS, "s", f"{where}; the {SHOWN} newest are drawn")
    yield _limit("memory of the page (MiB)", memory, MAX_MEMORY, "MiB", f"{where}; private memory of its process")
    yield _limit(
        "a refresh (KiB)", [refresh], MAX_REFRESH, "KiB", f"{where}; a new row in each of the {SHOWN} shown runs"
    )
    yield _limit(
        "memory with all runs drawn (MiB)", [all_memory], MAX_MEMORY, "MiB", f"drawn after {all_seconds:.1f} s"
    )


def _limit(what: str, values: Sequence[float], limit: float, unit: str, detail: str) -> Finding:
    mean = statistics.fmean(values)
    around = 2 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    low, high = (None, None) if around is None else (mean - around, mean + around)
    loads = f"; {len(values)} loads, each with a new server" if len(values) > 1 else ""
    target, kept = f"at most {limit:g} {unit}", max(values) <= limit
    return Finding(what, "a fixed limit", mean, low, high, promise=target, kept=kept, detail=detail + loads)


def read_memory(browser: Any) -> float:
    """MiB that only the page's process uses: the largest of the browser's pages."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = []
    for process in processes:
        if process["type"] == "renderer":
            lines = Path(f"/proc/{process['id']}/smaps_rollup").read_text().splitlines()[1:]
            sizes.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024)
    return max(sizes)


def _count_refresh(page: Any, folder: Path) -> float:
    """KiB sent, headers included, until all runs that are shown have their new row, and a while after it."""
    points = "() => Math.min(...[...document.querySelectorAll('.chart')].map((chart) => chart.dataset.points))"
    wanted = page.evaluate(points) + SHOWN
    session = page.context.new_cdp_session(page)
    received = [0.0]

    def add(event: dict[str, Any]) -> None:
        received[0] += event["encodedDataLength"]

    session.on("Network.loadingFinished", add)
    session.send("Network.enable")
    for run in sorted(folder.iterdir())[:SHOWN]:
        lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        row = json.loads(lines[-1])
        with open(run / "metrics.jsonl", "ab") as file:
            file.write(json.dumps({**row, "step": row["step"] + 1}).encode() + b"\n")
    end = time.monotonic() + 60
    while page.evaluate(points) < wanted:
        if time.monotonic() > end:
            raise DataError("the new rows did not arrive within a minute")
        page.wait_for_timeout(50)
    page.wait_for_timeout(1000 * WATCH_SECONDS)  # the list of runs changes too
    session.detach()
    return received[0] / 1024


def _measure_training(browser: Any, folder: Path, pairs: int, tick: Callable[[str], None]) -> Finding:
    times = []
    for number in range(pairs):
        alone = with_page = 0.0
        for watched in (False, True) if number % 2 else (True, False):
            out = folder / f"trained-{number}-{watched}"
            if watched:
                with serve(folder) as address, open_curves(browser, address):
                    with_page = _train(out)
            else:
                alone = _train(out)
            tick("training beside an open page")
        times.append((alone, with_page))
    ratio: Ratio = estimate_ratio(times)
    return ratio.to_finding(
        "a training beside an open page of its curves: seconds", "the same training alone",
        promise=f"at most {MAX_SLOWDOWN} ×", kept=ratio.value <= MAX_SLOWDOWN, detail=f"`{TRAINING}`",
    )  # fmt: skip


def _train(out: Path) -> float:
    """Seconds of training, validations included, without the start of the process."""
    run_python("-m", "anaphor", *TRAINING.split(), "--out", str(out))
    return float(json.loads((out / "result.json").read_bytes())["seconds"])

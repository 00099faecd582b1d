"""Random command lines, and random spec files: of flags that there are, with values from hostile to right."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import forked
from anaphor import registry
from torture import children
from torture.fault import Fault, Outcome, failed

SECONDS = 60
"""A command line that takes longer hangs: all trainings have two steps at most. On a busy machine these are seconds of
the processor, while it gets any."""
ROUNDS = 10
BATCH = 25
"""Command lines that one process runs, one after another."""
GIB = 2**30
CODES = {0, 2, 3, 4}
TASKS = ("lm", "translate", "images", "classify")
ALL_VERBS = (
    *(f"train {task}" for task in TASKS), "evaluate", "generate", "score", "translate", "predict", "bleu", "look",
    "check-mixer", "models", "convert", "export", "study", "trace", "lab", "check", "handout", "hint",
    "runs", "report", "leaderboard", "adapter",
)  # fmt: skip
VERBS = tuple(verb for verb in ALL_VERBS if verb.split()[0] in registry.VERBS)  # shelves may be missing
NEVER = {"--help", "--out", "--steps", "--epochs", "--minutes", "--dry-run", "--threads", "--device", "--max-examples",
         "--callback", "--max-file-bytes"}  # fmt: skip
"""Flags that decide how long a command takes, or where it writes: always given, never drawn."""
VALUES = (
    "", " ", "-1", "0", "1", "2", "3", "7", "16", "100", "0.5", "1e-3", "1e308", "-1e308", "nan", "inf", "1e9",
    "1000000000", "10" * 20, "true", "false", "none", "auto", "best", "last", "é", "\u202e", "\u2028x", "\x1b[31m",
    "a b", "'", '"', "*", "..", "../..", "/", "/dev/null", "/dev/zero", "/nonexistent/file", "text.txt", "run", "lstm",
    "attention", "transformer", "hybrid", "mamba2", "grammar", "echo", "shapes", "negation", "recall:pairs=2",
    "recall:pairs=", "{}", "[]", "null", "!!python/object", "a" * 5000, "-", "--", "x=y", "softmax", "rotary", "cosine",
    "word", "byte", "bpe", "window(3)", "causal & window(", "0x10", "१", "1_000", "+5", "1,2", "study.yaml", "list",
)  # fmt: skip


def prepare(place: Path) -> None:
    """A text, a run, a study file, and the flags of all verbs."""
    (place / "text.txt").write_text("the cat sat on the mat\n" * 60, encoding="utf-8")
    (place / "study.yaml").write_text("base: {data: text.txt}\nparameters: {width: {values: [4, 8]}}\nseeds: 1\n")
    words = ["train", "lm", "--data", str(place / "text.txt"), "--width", "8", "--layers", "2", "--model", "hybrid"]
    more = ["--steps", "2", "--heads", "2", "--memory", "4", "--device", "cpu", "--out", str(place / "run")]
    children.checked(children.run(place, [*words, *more, "--bptt", "5", "--batch-size", "2"]))
    flags = {}
    for verb in VERBS:
        text = children.checked(children.run(place, [*verb.split(), "--help"])).stdout
        flags[verb] = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) - NEVER)
    (place / "flags.json").write_text(json.dumps(flags), encoding="utf-8")


def draw_line(draw: random.Random, flags: dict[str, list[str]]) -> list[str]:
    """One command line. Relative paths are those of the folder that it runs in."""
    verb = draw.choice(VERBS)
    words = verb.split()
    if draw.random() < 0.05:
        words = [draw.choice(["trian", "", "--json", "-x", "evaluate lm", "train"]), *words[1:]]
    if verb in ("evaluate", "generate", "score", "translate", "predict", "look", "export", "report"):
        words.append(draw.choice(["run", "run", "run", "nothing", "text.txt", ""]))
    for _ in range(draw.choice([0, 1, 1, 2, 3, 5, 8])):
        flag = draw.choice(flags[verb] or ["--json"])
        if draw.random() < 0.03:
            flag = flag[:-1]
        if draw.random() < 0.03:
            flag += "x"
        if draw.random() < 0.2:
            words.append(f"{flag}={draw.choice(VALUES)}")
            continue
        words.append(flag)
        words += draw.choices(VALUES, k=draw.choice([0, 1, 1, 1, 1, 1, 2]))
    if draw.random() < 0.3:
        words.insert(draw.randrange(1, len(words) + 1), draw.choice(VALUES))
    return [*words, *limits(verb, draw)]


def limits(verb: str, draw: random.Random) -> list[str]:
    """What keeps a command line that is right from taking long."""
    if verb.startswith("train"):
        end = ["--steps", "2", "--device", "cpu", "--out", "made"]
        if not verb.endswith("lm"):
            end += ["--max-examples", "8"]
        return [*end, "--dry-run"] if draw.random() < 0.5 else [*end, "--overwrite"]
    if verb == "study":
        return ["--dry-run", "--out", "made"]
    if verb in ("evaluate", "look", "convert", "export", "handout", "report", "leaderboard", "adapter"):
        return ["--out", "made"]
    return []


def run_lines(place: Path, own: Path, lines: list[list[str]]) -> Iterator[tuple[int, int | None, str]]:
    """The number, exit code and stderr of each line. The code is None where it hung, and the line after it goes on in
    another process."""
    start = 0
    while start < len(lines):
        process = forked.start([], children.environment(place), first=partial(_run_all, place, own, lines, start),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        assert process.stdout is not None
        with process:
            for number in range(start, len(lines)):
                ready = await_answer(process)
                answer = process.stdout.readline() if ready else ""
                start = number + 1
                if not answer:
                    process.kill()
                    code = process.wait()
                    hung = "" if not ready else f"the process ended with {code}"
                    yield number, None if not ready else code, hung
                    break
                found = json.loads(answer)
                yield number, found["code"], found["errors"]
            process.kill()


def await_answer(process: subprocess.Popen[str]) -> bool:
    """Whether a process has printed something before it counts as one that hangs."""
    began = before = processor_seconds(process.pid)
    for _ in range(ROUNDS):
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        if ready:
            return True
        now = processor_seconds(process.pid)
        if now - began >= SECONDS or now - before < SECONDS / 60:
            return False
        before = now
    return False


def processor_seconds(process: int) -> float:
    """Seconds that a process has computed, and those that it has started and waited for."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _run_all(place: Path, own: Path, lines: list[list[str]], start: int) -> None:
    """In a child: run lines from `start` on, and report each on the stdout that the child began with."""
    from anaphor.cli.main import main

    report = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    resource.setrlimit(resource.RLIMIT_AS, (8 * GIB, 8 * GIB))
    os.environ.update(children.environment(place))
    os.chdir(own)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in range(start, len(lines)):
        code, errors = _call(main, lines[number], own)
        os.write(report, json.dumps({"code": code, "errors": errors[-3000:]}).encode() + b"\n")
    os._exit(0)


def _call(main: Callable[[list[str]], int], words: list[str], own: Path) -> tuple[int, str]:
    """Exit code and stderr of one command line."""
    import sys
    import traceback

    log = own / "stderr.txt"
    with open(log, "w", encoding="utf-8") as stderr, open(os.devnull, "w", encoding="utf-8") as stdout:
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = stdout, stderr
        try:
            code = main(list(words))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001  # Python would print it, and end with 1
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout, sys.stderr = before
    return code, log.read_text(encoding="utf-8", errors="replace")


def attempt(place: Path, own: Path, seed: int) -> Outcome:
    draw = random.Random(seed)
    flags = json.loads((place / "flags.json").read_text(encoding="utf-8"))
    for name in ("text.txt", "study.yaml"):
        (own / name).write_bytes((place / name).read_bytes())
    shutil.copytree(place / "run", own / "run")
    lines = [draw_line(draw, flags) for _ in range(BATCH)]
    return judge(lines, run_lines(place, own, lines))


def judge(lines: list[list[str]], answers: Iterator[tuple[int, int | None, str]]) -> Outcome:
    refused = 0
    for number, code, errors in answers:
        shown = json.dumps(["anaphor", *lines[number]])
        if code is None:
            return failed(f"hangs for {SECONDS} s", shown)
        if "Traceback" in errors:
            return failed("traceback", f"{shown}\n{errors}")
        allowed = CODES | ({1} if lines[number][:1] in (["check"], ["check-mixer"], ["lab"]) else set())
        if code not in allowed:
            return failed(f"exit code {code}", f"{shown}\n{errors}")
        if code == 2 and sum(line.startswith("anaphor: ") for line in errors.splitlines()) < 1:
            return failed("no message", f"{shown}\n{errors}")
        refused += code == 2
    return Outcome(True, "no traceback, no hang, a known exit code", count=len(lines))


# Spec files -----------------------------------------------------------------------------------------------------------

PIECES = (
    "model: lstm", "width: 8", "layers: 2", "model: {name: lstm}", "width: [8", "mixers: [lstm, attention]", "lr: 1e-3",
    "data: text.txt", "data: {data: text.txt}", "training: {steps: 2}", "training: [1, 2]", "format: 2", "format: 99",
    "task: lm", "task: nothing", "- a", "? x", "&a [*a, *a]", "<<: {width: 4}", "width: !!python/name:os.system",
    "a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b]", "seeds: 100000", "parameters: {width: {values: [4, 8]}}", "steps: -1",
    "parameters: {lr: {min: 1, max: 0}}", "tune: {lr: {values: []}}", "base: {width: 4}", "match: {parameters: 1}",
    "'': 1", "null: 1", "1: 2", "heads: 0", "dropout: 7", "betas: [0.9]", "betas: [2, 2]", "position: rotary",
    "extras: x", "imports: [{file: /etc/passwd, sha256: x}]", "environment: {threads: 1000000}", "seed: 99999999999999",
    "name: " + "x" * 1000, "width: " + "[" * 500, "metric: nothing", "report: [accuracy]", "\ttab: 1", "about: é\u2028",
    "layer_lr: [1, 2, 3]", "bptt: 1e30", "batch_size: 10000000000",
)  # fmt: skip


def attempt_spec_files(place: Path, own: Path, seed: int) -> Outcome:
    draw = random.Random(seed)
    (own / "text.txt").write_bytes((place / "text.txt").read_bytes())
    spec = (place / "run" / "spec.yaml").read_text(encoding="utf-8").splitlines()
    lines = []
    for number in range(BATCH):
        kind = draw.random()
        if kind < 0.4:
            content = draw.sample(PIECES, draw.choice([1, 2, 3, 5]))
        else:
            content = list(spec)
            for _ in range(draw.choice([1, 2, 4])):
                at = draw.randrange(len(content))
                content[at : at + draw.choice([0, 1])] = [draw.choice(["", "  "]) + draw.choice(PIECES)]
        file = f"spec-{number}.yaml"
        (own / file).write_text("\n".join(content), encoding="utf-8")
        task = draw.choice(TASKS)
        lines.append(
            ["study", file, "--dry-run", "--out", "made"]
            if draw.random() < 0.4
            else ["train", task, "--config", file, "--dry-run", "--steps", "2", "--device", "cpu", "--out", "made"]
        )
    return judge(lines, run_lines(place, own, lines))


COMMAND_LINES = Fault(
    name="random command line",
    promise="no traceback, nothing that hangs for 60 s, exit code 0, 2, 3 or 4 (1 from checks)",
    count=8000,
    prepare=prepare,
    attempt=attempt,
    each=BATCH,
)
SPEC_FILES = Fault(
    name="random spec or study file",
    promise="no traceback, nothing that hangs for 60 s, exit code 0 or 2",
    count=2000,
    prepare=prepare,
    attempt=attempt_spec_files,
    each=BATCH,
)

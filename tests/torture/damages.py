"""Random damages of every kind of file of a run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture import children
from torture.fault import Fault, Outcome, failed, judge_refusal
from torture.runs import command, write_inputs

DAMAGED_RUNS = (
    "hybrid with memory, dropout and an average",
    "lstm with weight drop and a plateau schedule",
    "translation with input feeding",
    "images with mixup, cutmix and augmentation",
    "a classifier with dropout",
)


def prepare(place: Path) -> None:
    """Train runs of all tasks, killed before the checkpoint of step 35 of 40; note what each command says of them."""
    write_inputs(place)
    for number, name in enumerate(DAMAGED_RUNS):
        run = place / f"run-{number}"
        children.run(place, command(name, place, run), first=end_before_step_35)
        whole = place / f"whole-{number}"
        shutil.copytree(run, whole)
        expected = {"evaluate": json.loads(children.checked(children.run(place, evaluate(run))).stdout)}
        children.checked(children.run(place, resume(name, place, whole), first=children.skip_fsync))
        expected["resume"] = children.hash_tensors(whole)
        (place / f"expected-{number}.json").write_text(json.dumps(expected), encoding="utf-8")


def end_before_step_35() -> None:
    children.skip_fsync()
    mkdir = os.mkdir

    def watched(path: Any, *arguments: Any, **options: Any) -> None:
        if "step-35" in os.fspath(path):
            os.kill(os.getpid(), signal.SIGKILL)
        mkdir(path, *arguments, **options)

    os.mkdir = watched


def evaluate(run: Path) -> list[str]:
    return ["evaluate", str(run), "--device", "cpu", "--threads", "1", "--split", "valid", "--json"]


def resume(name: str, place: Path, run: Path) -> list[str]:
    return command(name, place, run, "--resume")


def attempt(place: Path, own: Path, seed: int) -> Outcome:
    draw = random.Random(seed)
    number = draw.randrange(len(DAMAGED_RUNS))
    name, run = DAMAGED_RUNS[number], own / "run"
    shutil.copytree(place / f"run-{number}", run)
    expected = json.loads((place / f"expected-{number}.json").read_text(encoding="utf-8"))
    file = draw.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    kind = draw.choice(list(DAMAGES))
    DAMAGES[kind](file, draw)
    what = f"{kind} of {file.relative_to(run)}"
    if draw.random() < 0.5:
        done = children.run(place, evaluate(run))
        found, wanted = parse(done.stdout), expected["evaluate"]
    else:
        # It was trained elsewhere as far as records go: the copy has another name.
        done = children.run(place, [*resume(name, place, run), "--trust"], first=children.skip_fsync)
        found, wanted = (children.hash_tensors(run) if done.returncode == 0 else None), expected["resume"]
    if done.returncode == 0:
        if "Traceback" in done.stderr:
            return failed("traceback", f"{what}: {done.stderr}")
        if found == wanted:
            return Outcome(True, "the same numbers")
        if any(line.startswith("anaphor: ") for line in done.stderr.splitlines()):
            return Outcome(True, "other numbers, with a warning")
        return failed("silently wrong", f"{what}, {' '.join(done.args[:2])}")
    failure = judge_refusal(done.returncode, done.stderr)
    if failure is not None:
        return failed(failure.how, f"{what}: {failure.seen}")
    return Outcome(True, "refused in one line")


def parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


# Kinds of damage ------------------------------------------------------------------------------------------------------


def flip_bit(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes()) or bytearray(b"\0")
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(bytes(content))


def truncate(file: Path, draw: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content) + 1)])


def append(file: Path, draw: random.Random) -> None:
    file.write_bytes(file.read_bytes() + draw.randbytes(draw.choice([1, 10, 1000])))


def zero(file: Path, draw: random.Random) -> None:
    """A block of zeros, as a file system leaves it after a power failure."""
    content = bytearray(file.read_bytes())
    start = draw.randrange(len(content) + 1)
    end = min(start + draw.choice([16, 512, 4096]), len(content))
    content[start:end] = bytes(end - start)
    file.write_bytes(bytes(content))


def replace_by_noise(file: Path, draw: random.Random) -> None:
    file.write_bytes(draw.randbytes(file.stat().st_size))


def delete(file: Path, draw: random.Random) -> None:
    file.unlink()


def replace_by_other_file(file: Path, draw: random.Random) -> None:
    others = sorted(path for path in file.parents[0].rglob("*") if path.is_file() and path != file)
    if others:
        shutil.copyfile(draw.choice(others), file)


def replace_by_folder(file: Path, draw: random.Random) -> None:
    file.unlink()
    file.mkdir()


def replace_by_pipe(file: Path, draw: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def make_unreadable(file: Path, draw: random.Random) -> None:
    """A link that leads nowhere: root may read every file."""
    file.unlink()
    file.symlink_to("nowhere")


def swap_lines(file: Path, draw: random.Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    if len(lines) > 1:
        first, second = draw.sample(range(len(lines)), 2)
        lines[first], lines[second] = lines[second], lines[first]
    file.write_bytes(b"".join(lines))


def change_number(file: Path, draw: random.Random) -> None:
    """One digit becomes another one: the file stays well-formed."""
    content = bytearray(file.read_bytes())
    digits = [place for place, byte in enumerate(content[:100_000]) if chr(byte).isdigit()]
    if digits:
        place = draw.choice(digits)
        content[place] = ord(draw.choice([digit for digit in "0123456789" if ord(digit) != content[place]]))
    file.write_bytes(bytes(content))


def repeat_content(file: Path, draw: random.Random) -> None:
    file.write_bytes(file.read_bytes() * 2)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped bit": flip_bit,
    "truncation": truncate,
    "appended noise": append,
    "block of zeros": zero,
    "noise in place": replace_by_noise,
    "deletion": delete,
    "other file in place": replace_by_other_file,
    "folder in place": replace_by_folder,
    "pipe in place": replace_by_pipe,
    "dead link in place": make_unreadable,
    "swapped lines": swap_lines,
    "changed digit": change_number,
    "repeated content": repeat_content,
}

DAMAGED = Fault(
    name="damaged file of a run",
    promise="refused in one line, or survived with the same numbers or a warning",
    count=1000,
    prepare=prepare,
    attempt=attempt,
)

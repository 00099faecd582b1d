"""Disks that are full, without inodes or read-only, few open files, and no shared memory."""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from anaphor.errors import AnaphorError
from anaphor.training import checkpoint
from torture import children
from torture.fault import Fault, Outcome, failed, judge_refusal
from torture.runs import command, write_inputs

NAME = "hybrid with memory, dropout and an average"
PAGE = 4096
CLONE_NEWNS = 0x00020000


def prepare(place: Path) -> None:
    """The run undisturbed, and how much room it takes."""
    write_inputs(place)
    out = place / "reference"
    children.checked(children.run(place, command(NAME, place, out), first=children.skip_fsync))
    used = sum(-(-path.stat().st_size // PAGE) for path in out.rglob("*") if path.is_file())
    facts = {"pages": used, "files": sum(1 for _ in out.rglob("*")), "tensors": children.hash_tensors(out)}
    (place / "reference.json").write_text(json.dumps(facts), encoding="utf-8")


def missing_mounts() -> str | None:
    """Why no disk can be mounted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "to mount a disk needs root"
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return None if done.returncode == 0 else "disks cannot be mounted here"


def mount(place: Path, options: str) -> None:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)


def attempt_full(place: Path, own: Path, seed: int) -> Outcome:
    """A disk of so many pages, from none at all to more than the run needs: it is full at another write each time."""
    facts = json.loads((place / "reference.json").read_text(encoding="utf-8"))
    sizes = list(range(1, facts["pages"] + 4))
    random.Random(0).shuffle(sizes)  # each of them once before one comes again
    pages = sizes[seed % len(sizes)]
    return on_disk(place, own, f"size={pages * PAGE}", facts)


def attempt_few_inodes(place: Path, own: Path, seed: int) -> Outcome:
    facts = json.loads((place / "reference.json").read_text(encoding="utf-8"))
    return on_disk(place, own, f"size=64m,nr_inodes={random.Random(seed).randrange(2, facts['files'] + 8)}", facts)


def on_disk(place: Path, own: Path, options: str, facts: dict[str, object]) -> Outcome:
    """Train on a disk of its own until it is full; then give it room, and resume."""
    disk = own / "disk"
    mount(disk, options)
    try:
        out = disk / "run"
        done = children.run(place, command(NAME, place, out), first=children.skip_fsync)
        failure = judge_folder(out, done, options)
        if failure is not None:
            return failure
        if done.returncode == 0:
            return Outcome(True, "there was room enough")
        subprocess.run(["mount", "-o", "remount,size=256m,nr_inodes=10000", str(disk)], check=True)
        resumed = ["--resume"] if (out / "spec.yaml").exists() else []
        done = children.run(place, command(NAME, place, out, *resumed), first=children.skip_fsync)
        if done.returncode or children.hash_tensors(out) != facts["tensors"]:
            return failed("not resumed to the same bits", f"{options}: {done.stderr}")
        return Outcome(True, "one line, and resumed to the same bits with room")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def judge_folder(out: Path, done: subprocess.CompletedProcess[str], what: str) -> Outcome | None:
    """The failure of a run without room; None if it said so in one line, left no litter and lost no checkpoint."""
    if done.returncode:
        failure = judge_refusal(done.returncode, done.stderr)
        if failure is not None:
            return failed(failure.how, f"{what}: {failure.seen}")
    elif "Traceback" in done.stderr:
        return failed("traceback", f"{what}: {done.stderr}")
    litter = [str(path.relative_to(out)) for path in out.rglob("*") if path.suffix in (".tmp", ".old")]
    if litter:
        return failed("litter", f"{what}: {litter}")
    if (out / "checkpoints").exists():
        try:
            _, warnings = checkpoint.newest(out / "checkpoints")
        except AnaphorError as error:
            return failed("a checkpoint is lost", f"{what}: {error}")
        if warnings:
            return failed("a checkpoint is damaged", f"{what}: {warnings}")
    return None


def attempt_read_only(place: Path, own: Path, seed: int) -> Outcome:
    """A disk that is read-only from the start, or from some moment of a training on."""
    disk = own / "disk"
    mount(disk, "size=64m")
    out = disk / "run"
    try:
        if seed % 2:
            words = command(NAME, place, out)
            steps = str(7 * random.Random(seed).randrange(1, 5))
            words[words.index("--steps") + 1] = steps
            children.checked(children.run(place, words, first=children.skip_fsync))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        more = ["--resume"] if seed % 2 else []
        done = children.run(place, command(NAME, place, out, *more), first=children.skip_fsync)
        failure = judge_refusal(done.returncode, done.stderr) or judge_folder(out, done, "read-only")
        return failure or Outcome(True, "refused in one line")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def limit_descriptors(number: int) -> None:
    children.skip_fsync()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def attempt_few_descriptors(place: Path, own: Path, seed: int) -> Outcome:
    """From 16 open files to 64; with 64 it has to train."""
    number = 64 if seed % 4 == 0 else random.Random(seed).randrange(16, 64)
    out = own / "run"
    done = children.run(place, command(NAME, place, out), first=partial(limit_descriptors, number))
    failure = judge_folder(out, done, f"{number} open files")
    if failure is not None:
        return failure
    if number == 64 and done.returncode:
        return failed("64 open files are too few", done.stderr)
    return Outcome(True, "trained" if done.returncode == 0 else "refused in one line")


def hide_shared_memory(size: str, then: Callable[[], None]) -> None:
    """In a child: /dev/shm is a full disk for it alone."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", "/dev/shm"], check=True)
    Path("/dev/shm/full").write_bytes(b"x")
    then()


def attempt_without_shared_memory(place: Path, own: Path, seed: int) -> Outcome:
    out = own / "run"
    first = partial(hide_shared_memory, f"{PAGE}", children.skip_fsync)
    done = children.run(place, command(NAME, place, out), first=first)
    failure = judge_folder(out, done, "/dev/shm full")
    if failure is not None:
        return failure
    if done.returncode:
        return failed("not trained", done.stderr)
    facts = json.loads((place / "reference.json").read_text(encoding="utf-8"))
    if children.hash_tensors(out) != facts["tensors"]:
        return failed("other bits", "/dev/shm full")
    return Outcome(True, "the same bits")


WHOLE = "no checkpoint lost, no litter, one line; with room again it resumes to the same bits"
DISK_FULL = Fault("disk full", WHOLE, 100, prepare, attempt_full, missing_mounts)
NO_INODES = Fault("no inodes", WHOLE, 20, prepare, attempt_few_inodes, missing_mounts)
READ_ONLY = Fault("read-only disk", "refused in one line, nothing lost", 6, prepare, attempt_read_only, missing_mounts)
FEW_DESCRIPTORS = Fault(
    "few open files", "trains with 64, refuses less in one line, nothing lost", 12, prepare, attempt_few_descriptors
)
NO_SHARED_MEMORY = Fault(
    "full /dev/shm", "trains to the same bits", 3, prepare, attempt_without_shared_memory, missing_mounts
)

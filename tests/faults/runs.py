"""A small run that is made in a process of its own, so that it can be killed."""

import contextlib
import io
import os
import subprocess
from pathlib import Path
from unittest import mock

import torch

import forked
from anaphor.cli.main import main
from command_line import override

SETTINGS = [
    "--model", "hybrid", "--width", "16", "--layers", "2", "--heads", "2", "--memory", "8", "--dropout", "0.2",
    "--batch-size", "4", "--bptt", "6", "--steps", "60", "--eval-every", "7", "--device", "cpu", "--no-test",
    "--average", "ema",
]  # fmt: skip


def text_file(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text("the cat sat on the mat\nthe dog sat on the log\na bird sang\n" * 40, encoding="utf-8")
    return path


def command(folder: Path, out: Path, *more: str) -> list[str]:
    words = ["train", "lm", "--data", str(text_file(folder)), "--out", str(out)]
    return [*override([*words, *SETTINGS], *more), "--json"]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"ANAPHOR_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def run(folder: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return forked.run(command(folder, out, *more), environment(folder))


def begin(folder: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return forked.start(
        command(folder, out, *more), environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def here(folder: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which needs no seconds to begin: for what ends by itself."""
    words, told, complained = command(folder, out, *more), io.StringIO(), io.StringIO()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    try:
        with (
            mock.patch.dict(os.environ, environment(folder)),
            contextlib.redirect_stdout(told),
            contextlib.redirect_stderr(complained),
        ):
            code = main(words)
    finally:
        torch.set_default_dtype(before)
    return subprocess.CompletedProcess(words, code, told.getvalue(), complained.getvalue())


def hashes(out: Path) -> dict[str, str]:
    """SHA-256 of every part of the last checkpoint."""
    import json

    last = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    return {"step": last.name, **json.loads((last / "manifest.json").read_text())}

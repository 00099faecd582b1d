"""Runs that an earlier version wrote, and what every verb said of them: used once more through the command alone.

`python tests/against/recorded_runs.py` writes what this version says into `recorded_runs.json`, which has the commands.
The runs stand beside it in `old_runs`.
"""

import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from recording import Record, read_recorded, recorded_files, to_text

import anaphor
from anaphor.cli.main import main

FILE_NAME = "recorded_runs.json"
RUNS = {path.name: path for folder in recorded_files("old_runs") for path in sorted(folder.iterdir())}
WORDS = ["every", "old", "cat", "likes", "some", "clever", "sailors", ".", "birds", "sing", "and", "Ada", "thinks"]


def copy_run(name: str, folder: Path) -> Path:
    """A copy of an old run, which may be written to; with a second one, for what takes several."""
    shutil.copytree(RUNS[name], folder / "copy")
    return Path(shutil.copytree(RUNS[name], folder / name))


def write_inputs(folder: Path) -> None:
    """What commands read beside a run: `TEXT`, sentences with words of the grammar, and `IMAGE`."""
    draw = random.Random(37)
    sentences = [[WORDS[int(len(WORDS) * draw.random())] for _ in range(6)] for _ in range(40)]
    (folder / "text.txt").write_text("".join(f"{' '.join(words)} .\n" for words in sentences), encoding="utf-8")
    row = np.linspace(0, 255, 32, dtype=np.uint8)
    Image.fromarray(np.stack([row + row[:, None], row * row[:, None], row[:, None] - row], axis=-1)).save(
        folder / "image.png"
    )


def command_output(words: Sequence[str], run: Path) -> Any:
    """What a command prints with `--json`. The words may name `RUN`, its `COPY`, and the inputs `TEXT` and `IMAGE`."""
    folder = run.parent
    torch.set_default_dtype(torch.float32)
    places = {"RUN": run, "COPY": run.with_name("copy"), "TEXT": folder / "text.txt", "IMAGE": folder / "image.png"}
    words = [str(places.get(word, word)) for word in words]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([*words, "--device", "cpu", "--threads", "1", "--json"])
    assert code == 0, words
    return json.loads(printed.getvalue().replace(str(folder), "."))


def resume(task: str, run: Path) -> dict[str, Any]:
    """Train an old run to its end, as its own files say. Returns the losses, and the last validation."""
    torch.set_default_dtype(torch.float32)
    record = Record()
    anaphor.train(task, out=run, resume=True, callback=record)
    return {"task": task, "losses": record.losses, "valid": record.valid}


def differences(recorded: Any, now: Any, place: str = "") -> Iterator[str]:
    """What was recorded and is no longer the same. Values may be added; numbers agree to a millionth."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name, value in recorded.items():
            if name in now:
                yield from differences(value, now[name], f"{place}.{name}")
            else:
                yield f"{place}.{name} is gone"
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for number, (old, new) in enumerate(zip(recorded, now, strict=True)):
            yield from differences(old, new, f"{place}[{number}]")
    elif isinstance(recorded, float) and isinstance(now, float):
        if abs(recorded - now) > 1e-6 * max(1, abs(recorded)):
            yield f"{place} was {recorded} and is {now}"
    elif recorded != now:
        yield f"{place} was {recorded!r} and is {now!r}"


def record(name: str, recorded: dict[str, Any]) -> None:
    """Write what the commands print, and the losses of the remaining steps, into what is recorded of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run = copy_run(name, Path(folder))
        write_inputs(Path(folder))
        for command in recorded["commands"][name]:
            command["printed"] = command_output(command["words"], run)
        recorded["resumed"][name] = resume(recorded["resumed"][name]["task"], run)


def record_all(wanted: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ANAPHOR_CACHE"] = cache
        for path, recorded in read_recorded(FILE_NAME).items():
            for name in recorded["commands"]:
                if not wanted or name in wanted:
                    record(name, recorded)
            path.write_text(to_text(recorded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record_all(sys.argv[1:])

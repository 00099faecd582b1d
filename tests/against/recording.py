"""Train what was recorded once more, through the public functions alone, on data that every machine has.

What needs a shelf is recorded in the folder of its tests, everything else in this one, in files of the same names.
`python tests/against/recording.py` writes the losses and values that this version has into `recorded_losses.json`, of
all cases or of those whose names contain one of the words given. A new case is added to that file by its settings.
"""

import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import anaphor

FILE_NAME = "recorded_losses.json"
KINDS = ("presets", "recipes", "settings")
SAME_EVERYWHERE = {"device": "cpu", "dtype": "float32", "threads": 1}
ONSETS = ["ba", "cir", "do", "el", "fa", "gu", "hin", "jo", "ka", "lem"]


def recorded_files(name: str) -> list[Path]:
    """The files of a name in the folders of tests that are there."""
    return sorted(Path(__file__).parents[1].glob(f"*/{name}"))


def read_recorded(name: str) -> dict[Path, dict[str, Any]]:
    """What these files hold."""
    return {path: json.loads(path.read_text(encoding="utf-8")) for path in recorded_files(name)}


class Enough(Exception):
    """The last step was taken, and nothing after it was recorded."""


class Record:
    """A callback that keeps the losses, and the result of the last validation."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.losses: list[float] = []
        self.valid: dict[str, Any] | None = None
        self.stop_after = stop_after

    def on_step(self, info: Any) -> None:
        self.losses.append(info.loss)
        if len(self.losses) == self.stop_after:
            raise Enough

    def on_evaluation(self, info: Any) -> None:
        self.valid = {**info.result.values, "signature": info.result.signature}


def write_text(folder: Path) -> None:
    """A text with as many words as a natural one of its length: half of them are new, many others have come just
    before. They share syllables, and some are numbers. A blank line ends an example where examples are padded."""
    draw, known = random.Random(35), list[str]()
    for split, length in (("train", 8_000), ("valid", 1_000), ("test", 1_000)):
        text = ""
        for _ in range(length):
            text += _draw_word(draw, known) + (" " if draw.random() < 0.9 else draw.choice(["\n", "\n", "\n\n"]))
        (folder / f"{split}.txt").write_text(text + "\n", encoding="utf-8")


def _draw_word(draw: random.Random, known: list[str]) -> str:
    kind = draw.random()
    if kind >= 0.5 and len(known) >= 50:
        recent = 40 if kind < 0.8 else len(known)
        return known[-1 - int(recent * draw.random())]
    if kind > 0.45:
        word = str(int(3000 * draw.random()))
    else:
        word = "".join(ONSETS[int(10 * draw.random())] for _ in range(2 + int(4 * draw.random())))
    known.append(word)
    return word


def write_many_words(folder: Path) -> None:
    """A text of so many words that a CPU computes the loss for a part of the vocabulary at a time."""
    words = [f"{ONSETS[number % 10]}{number}" for number in range(17_000)]
    for split, kept in (("train", words), ("valid", words[::50])):
        (folder / f"{split}.txt").write_text(" ".join(kept) + "\n", encoding="utf-8")


def write_pairs(folder: Path) -> None:
    """Sentences, and the same words in another order and spelling."""
    draw = random.Random(36)
    known = [first + second for first in ONSETS for second in ONSETS]
    for split, count in (("train", 300), ("valid", 20), ("test", 20)):
        drawn = [[known[int(100 * draw.random())] for _ in range(2 + int(7 * draw.random()))] for _ in range(count)]
        sentences = {"en": drawn, "de": [[word[::-1].upper() for word in words[::-1]] for words in drawn]}
        for language, lines in sentences.items():
            text = "".join(f"{' '.join(words)}\n" for words in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


WRITTEN = {"words": write_text, "many words": write_many_words, "pairs": write_pairs}
"""Data of cases that are written into a folder; other names are those of data sets inside the package."""


def train(folder: Path, task: str, settings: dict[str, Any], *, stop_after: int | None = None) -> Record:
    """Train as a case says, in a folder of its own.

    `start` holds the settings of another run of the task, which is trained first and has the initial weights.
    """
    torch.set_default_dtype(torch.float32)
    folder.mkdir(exist_ok=True)
    settings = {**settings}
    start = settings.pop("start", None)
    if start is not None:
        train(folder / "start", task, start)
        settings["init"] = str(folder / "start" / "run")
    if settings.get("data") in WRITTEN:
        data = folder / "data"
        data.mkdir()
        WRITTEN[settings["data"]](data)
        settings["data"] = str(data)
    record = Record(stop_after)
    with contextlib.suppress(Enough):
        anaphor.train(task, out=folder / "run", callback=record, no_test=True, **{**SAME_EVERYWHERE, **settings})
    return record


def cases(recorded: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Kind, task, name and case of everything that is trained."""
    for kind in KINDS:
        for task, of_task in recorded.get(kind, {}).items():
            for name, case in of_task.items():
                yield kind, task, name, case


def record_case(task: str, case: dict[str, Any]) -> None:
    """Write the losses into the case; and the last validation, unless the case stops before it."""
    with tempfile.TemporaryDirectory() as folder:
        stop_after = case["settings"]["steps"] if case.get("stop") else None
        record = train(Path(folder), task, case["settings"], stop_after=stop_after)
    case["losses"] = record.losses
    if record.valid is not None:
        case["valid"] = record.valid


def to_text(recorded: Any, levels: int = 3, indent: str = "\n") -> str:
    """JSON with so many levels broken into lines: a line for each case."""
    if levels == 0 or not isinstance(recorded, dict | list):
        return json.dumps(recorded)
    deeper = indent + " "
    if isinstance(recorded, dict):
        items = [f"{json.dumps(name)}: {to_text(value, levels - 1, deeper)}" for name, value in recorded.items()]
    else:
        items = [to_text(value, levels - 1, deeper) for value in recorded]
    opening, closing = "{}" if isinstance(recorded, dict) else "[]"
    return opening + deeper + f",{deeper}".join(items) + indent + closing


def main(wanted: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ANAPHOR_CACHE"] = cache
        for path, recorded in read_recorded(FILE_NAME).items():
            for kind, task, name, case in cases(recorded):
                if not wanted or any(word in f"{kind} {task} {name}" for word in wanted):
                    sys.stdout.write(f"{kind} {task} {name}\n")
                    record_case(task, case)
            path.write_text(to_text(recorded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

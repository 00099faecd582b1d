"""Verbs, options with their defaults, and keys of JSON, as `--help` and `--json` say them and nothing behind these.

`python tests/against/recorded_commands.py` writes what this version has into `recorded_commands.json`, which has the
commands; its `needs` has those that ask for another shelf than that of their folder. The benchmarks are not among the
verbs.
"""

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from recorded_runs import RUNS, write_inputs
from recording import read_recorded, to_text, write_pairs

from anaphor.cli.main import main

FILE_NAME = "recorded_commands.json"
EXCEPTED = "bench"
WIDTH = "80"  # of the help
STUDY = """
base: {data: text.txt, batch_size: 2, bptt: 4, steps: 2, width: 8, layers: 1, device: cpu}
parameters:
  model: {values: [lstm, gru]}
seeds: 2
samples: {birds: birds sing .}
train_score: true
long_lines: 2
lengths: [4, 8]
"""


def say(words: Sequence[str], code: int = 0) -> str:
    """What a command prints on stdout."""
    torch.set_default_dtype(torch.float32)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(words) == code, words
    return printed.getvalue()


def read_verbs() -> list[str]:
    """The verbs that the command lists."""
    listed = next(part for part in say(["--help"]).split("\n\n") if part.startswith("  train "))
    verbs = [line.split()[0] for line in listed.splitlines()]
    return [verb for verb in verbs if verb != EXCEPTED]


def read_options(words: Sequence[str]) -> dict[str, str | None]:
    """The options that the help of a command lists, each with the default that stands there."""
    found: dict[str, str | None] = {}
    entry, flags = "", list[str]()
    for line in [*say([*words, "--help"]).splitlines(), ""]:
        text = line.strip("│").rstrip()
        if text.startswith("      "):
            entry += f" {text.strip()}"
            continue
        default = re.search(r"\(default: (.*?)\)", entry)
        found |= dict.fromkeys(flags, None if default is None else default[1])
        entry = text.strip()
        flags = re.findall(r"--[a-z][\w-]*", re.split(r"\s{2,}", entry)[0]) if entry.startswith("-") else []
    return found


def keys_of(value: Any, place: str = "") -> Iterator[str]:
    """Places of all values in JSON. Items of a list share theirs, and so do those of layers, questions and numbers."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = key if re.fullmatch(r"[a-z][a-z0-9_]*", key) else "*"
            yield f"{place}.{name}"
            yield from keys_of(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner, f"{place}[]")


def read_file(path: Path) -> Any:
    """Values of a JSON file, of one with a value in each line, or of a YAML file in whatever section they are."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if path.suffix == ".json":
        return json.loads(text)
    values = yaml.safe_load(text)
    return {name: inner for value in values.values() if isinstance(value, dict) for name, inner in value.items()}


def prepare(folder: Path) -> None:
    """What commands read: old runs, inputs, translations, a function and a study."""
    for name, run in RUNS.items():
        shutil.copytree(run, folder / "runs" / name)
    write_inputs(folder)
    (folder / "pairs").mkdir()
    write_pairs(folder / "pairs")
    for name, text in {
        "translated.txt": "the cat sat on a mat\na dog ate the very old rat\n",
        "reference.txt": "the cat sat on the mat\nthe dog ate the very old rat\n",
        "examples.txt": "birds sing .\n\nAda thinks .\n\n" * 20,
        "function.py": "def product(x=2.0, y=3.0):\n    z = x * y\n    return z\n",
        "study.yaml": STUDY,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")


def keys_of_case(case: dict[str, Any]) -> dict[str, list[str]]:
    """Keys of what the last command of a case prints, and of the files it has written, in the current folder."""
    for words in case["commands"]:
        printed = json.loads(say([*words, "--json"]))
    keys = {"printed": sorted(set(keys_of(printed)))}
    for name in case.get("files", {}):
        keys[name] = sorted(set(keys_of(read_file(Path(name)))))
    return keys


def record(recorded: dict[str, Any]) -> None:
    for words, options in recorded["options"].items():
        now = read_options(words.split())
        recorded["options"][words] = {name: now.get(name) for name in options}
    for case in recorded["keys"].values():
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            prepare(Path(folder))
            found = keys_of_case(case)
        case["printed"] = found.pop("printed")
        if found:
            case["files"] = found


def main_of_recording() -> None:
    os.environ["COLUMNS"] = WIDTH
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ANAPHOR_CACHE"] = cache
        for path, recorded in read_recorded(FILE_NAME).items():
            record(recorded)
            path.write_text(to_text(recorded, levels=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main_of_recording()

"""Gigabytes of text in a gigabyte of memory: killed while it is tokenized, trained on and scored, and resumed.

`ANAPHOR_LARGE_BYTES` is the size of the text, which is made from a seed; 4 GB if it is not set.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from anaphor.data import streamed_text
from anaphor.data.bpe import BPE
from anaphor.data.parallel_parts import count_cores, map_parts
from anaphor.data.text import split_parts
from faults.runs import hashes

BYTES = int(os.environ.get("ANAPHOR_LARGE_BYTES") or 4_000_000_000)
MOST = 1_500_000_000  # bytes of memory of all processes together
PAUSE = 0.2  # seconds between two looks at the memory


def write_text(path, size):
    """Lines of made-up words, frequent and rare ones, from a seed."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmwfgypbvk"))
    words = np.array(sorted({"".join(generator.choice(letters, generator.integers(1, 11))) for _ in range(60_000)}))
    generator.shuffle(words)
    ranks = np.minimum(np.exp(generator.random(2_000_000) * np.log(len(words))), len(words) - 1).astype(int)
    ends = np.where(generator.random(len(ranks)) < 1 / 18, "\n", " ")
    block = "".join(np.char.add(words[ranks], ends).tolist()).encode()
    with path.open("wb") as file:
        for number in range(-(-size // len(block))):
            file.write(f"part {number} of the text\n".encode())
            file.write(block[: size - file.tell()])


def processes(number):
    """A process and those that it started, as far as they are there."""
    found = [number]
    for path in Path(f"/proc/{number}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            found += processes(int(child))
    return found


def memory(number):
    """Bytes that a process has of its own, with its share of what it has together with others."""
    try:
        lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


class Run:
    """A command that ran, and how much memory it took."""

    def __init__(self, folder, *words, kill_when=lambda number: False):
        self.peak, self.was_killed = 0, False
        environment = os.environ | {"ANAPHOR_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        log = folder / "log.txt"
        with log.open("w") as errors:
            command = [sys.executable, "-P", "-m", "anaphor", *words]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)
            while process.poll() is None:
                self.peak = max(self.peak, sum(map(memory, processes(process.pid))))
                if not self.was_killed and kill_when(process.pid):
                    process.send_signal(signal.SIGKILL)
                    self.was_killed = True
                try:
                    process.wait(PAUSE)
                except subprocess.TimeoutExpired:
                    continue
            self.output = process.stdout.read()
            process.stdout.close()
        self.code, self.errors = process.returncode, log.read_text()
        assert self.peak < MOST, self.peak


def train_twice(folder, train):
    """Train `run`, which is killed while it tokenizes and while it trains, and `other`, which is not disturbed. Both
    have the same weights. The four commands that ran."""

    def count_shards():
        return len(list((folder / "cache").glob("shards/*/tokens/*.bin")))

    first = Run(folder, *train, "run", kill_when=lambda number: count_shards() >= 3)
    assert first.was_killed
    made = {path: path.stat().st_mtime_ns for path in (folder / "cache").glob("shards/*/tokens/0000[01].bin")}
    checkpoint = folder / "run" / "checkpoints" / "step-30" / "manifest.json"
    second = Run(folder, *train, "run", "--overwrite", kill_when=lambda number: checkpoint.is_file())
    assert "from byte" in second.errors
    assert second.was_killed
    assert {path: path.stat().st_mtime_ns for path in made} == made
    third = Run(folder, *train[:2], "--resume", "--out", "run")
    assert third.code == 0, third.errors
    assert "prepared" not in third.errors
    other = Run(folder, *train, "other")
    assert other.code == 0, other.errors
    names = [name for name in hashes(folder / "run")["files"] if name.endswith(".safetensors")]
    assert names
    for name in names:
        assert hashes(folder / "run")["files"][name] == hashes(folder / "other")["files"][name]
    return first, second, third, other


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of processes is read from /proc")
def test_a_text_larger_than_memory(tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text" / "train.txt", BYTES)
    for split in ("valid", "test"):
        write_text(tmp_path / "text" / f"{split}.txt", 500_000)
    size = "--data text --vocabulary 20000 --model lstm --width 32 --layers 1 --bptt 35 --batch-size 20 --device cpu"
    train = ["train", "lm", *size.split(), "--steps", "60", "--eval-every", "30", "--out"]
    runs = train_twice(tmp_path, train)
    evaluate = ["evaluate", "run", "--split", "valid", "--json"]
    killed = Run(tmp_path, *evaluate, kill_when=has_tokens)
    assert killed.was_killed
    again, twin = (Run(tmp_path, *evaluate[:1], out, *evaluate[2:]) for out in ("run", "other"))
    assert json.loads(again.output)[0]["loss"] == json.loads(twin.output)[0]["loss"]
    seconds = seconds_to_first_step(tmp_path)
    record_property("peaks", [run.peak for run in (*runs, killed, again)])
    record_property("seconds to the first step", seconds)
    assert seconds < 5


def has_tokens(number):
    """Whether a process has mapped a shard, so that it is scoring."""
    try:
        return "/tokens/00000.bin" in Path(f"/proc/{number}/maps").read_text()
    except OSError:
        return False


def seconds_to_first_step(folder):
    """CPU time of a process from its start to the end of the first step, when the text is in the cache."""
    code = (
        "import time\n"
        "from anaphor.tasks.lm import LanguageRunSpec\n"
        "from anaphor.tasks.lm.build import build\n"
        "spec = LanguageRunSpec(data='text', vocabulary=20000, model='lstm', width=32, layers=1, bptt=35, "
        "batch_size=20, device='cpu')\n"
        "experiment = build(spec)\n"
        "experiment.validate(test=False)\n"
        "experiment.fingerprint()\n"
        "loss, _ = experiment.loss(experiment.batches(0)[0], experiment.initial_carry())\n"
        "loss.total.backward()\n"
        "print(time.process_time())\n"
    )
    environment = os.environ | {"ANAPHOR_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def cpu_seconds():
    """Of this process and those that it started and that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


@pytest.mark.slow
def test_tokenizing_is_as_fast_as_the_library_on_each_core(tmp_path, monkeypatch, record_property):
    """All processes together take no more time of the processor than the library on one core, for the same tokens."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    write_text(tmp_path / "text.txt", 30_000_000)
    raw = (tmp_path / "text.txt").read_bytes()
    tokenizer = BPE.train(raw[:3_000_000].decode(), 4096)
    lines = raw.decode().split("\n")
    before = cpu_seconds()
    library = tokenizer._encoder
    assert isinstance(library, tokenizers.Tokenizer)
    plain = np.concatenate([np.array(one.ids, np.int32) for one in library.encode_batch_fast(lines)]) + 1
    of_library = cpu_seconds() - before
    setup = {"work": "encode", "tokenizer": tokenizer.to_plain(), "where": "the text", "offset": 0}
    before = cpu_seconds()
    parts = split_parts([raw], BPE.find_cut, streamed_text.PART)
    found = np.concatenate([answer.arrays[0] for _, answer in map_parts(setup, parts, max(count_cores(), 2))])
    ours = cpu_seconds() - before
    np.testing.assert_array_equal(found[found != 0], plain)
    record_property("megabytes per second", [len(raw) / of_library / 1e6, len(raw) / ours / 1e6])
    assert ours < of_library


def write_labeled(path, size):
    """Such lines as texts, each with one of three labels, as a TSV file."""
    plain = path.with_suffix(".lines")
    write_text(plain, size)
    with plain.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as file:
        file.write("text\tlabel\n")
        file.writelines(f"{line.rstrip()}\tlabel{len(line) % 3}\n" for line in lines if line.strip())
    plain.unlink()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of processes is read from /proc")
def test_labeled_texts_larger_than_memory(tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    write_labeled(tmp_path / "texts" / "train.tsv", min(BYTES, 350_000_000))
    for split in ("valid", "test"):
        write_labeled(tmp_path / "texts" / f"{split}.tsv", 500_000)
    size = "--data texts --vocabulary 20000 --width 32 --layers 1 --batch-size 20 --device cpu"
    train = ["train", "classify", *size.split(), "--steps", "60", "--eval-every", "30", "--out"]
    runs = train_twice(tmp_path, train)
    result = json.loads((tmp_path / "other" / "result.json").read_text())
    assert result["test"]["overlap"]["in_train"] > 0
    scored = Run(tmp_path, "evaluate", "run", "--data", "texts/test.tsv", "--device", "cpu", "--json")
    assert json.loads(scored.output)[0]["loss"] == result["test"]["loss"]
    record_property("peaks", [run.peak for run in (*runs, scored)])

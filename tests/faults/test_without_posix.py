"""What only POSIX has is not needed: a run is trained, resumed, scored and listed without it, as on Windows.

No Windows was asked: this shows that no code path assumes what Windows does not have, and nothing more.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
import anaphor, torch, platformdirs, pooch, matplotlib.pyplot, rich.console, scipy.stats  # what they need is theirs
import anaphor.file_locks  # it asks which system this is, and has locks for both

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("pread", "pwrite", "statvfs", "sched_getaffinity", "nice", "getuid", "geteuid", "killpg", "setsid"):
    delattr(os, name)
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL"):
    delattr(signal, name)

from anaphor.cli.main import main

text, out, above = sys.argv[1:]
train = ["train", "lm", "--data", text, "--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "2"]
train += ["--bptt", "8", "--device", "cpu", "--threads", "1", "--no-test", "--out", out, "--json"]
for words in (
    [*train, "--steps", "4"],
    [*train, "--steps", "6", "--resume", "--force"],
    ["evaluate", out, "--split", "valid", "--device", "cpu", "--json"],
    ["runs", above, "--json"],
):
    assert main(words) == 0, words
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has nothing to take away")
def test_a_run_is_trained_resumed_scored_and_listed(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog sat on the log\n" * 40, encoding="utf-8")
    out = tmp_path / "run"
    environment = {"ANAPHOR_CACHE": str(tmp_path / "cache"), "ANAPHOR_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(tmp_path / "text.txt"), str(out), str(tmp_path)],
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, resumed, scores, runs = map(json.loads, done.stdout.splitlines())
    assert (first["status"], resumed["steps"]) == ("finished", 6)
    assert scores[0]["loss"] == pytest.approx(resumed["valid"]["loss"])
    assert [row["status"] for row in runs] == ["finished"]
    assert Path(out, "checkpoints", "step-6").is_dir()

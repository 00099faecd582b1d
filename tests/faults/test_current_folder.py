"""Python files of the current folder are never executed, whatever their names."""

import subprocess
import sys

from faults.trap import trap


def test_the_package_as_a_command(tmp_path, monkeypatch):
    words = ["train", "lm", "--data", str(tmp_path / "text.txt"), "--width", "4", "--bptt", "8", "--steps", "1"]
    with trap(tmp_path, monkeypatch):
        done = subprocess.run(
            [sys.executable, "-m", "anaphor", *words, "--out", str(tmp_path / "run"), "--device", "cpu"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr

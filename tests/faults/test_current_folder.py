"""Python files of the current folder are never executed, whatever their names."""

import importlib.metadata
import subprocess
import sys

import pytest

from anaphor.cli.main import main

STUDY = """
base: {data: %s, layers: 1, width: 4, batch_size: 2, bptt: 8, steps: 2, device: cpu}
parameters: {dropout: {values: [0]}}
seeds: 1
test: none
"""


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A current folder with a file for every installed package; an import leaves a mark and fails."""
    folder, mark = tmp_path / "here", tmp_path / "executed"
    folder.mkdir()
    for name in filter(str.isidentifier, importlib.metadata.packages_distributions()):
        if name != "anaphor":  # which `python -m anaphor` would find before anything of ours is executed
            text = f"open({str(mark)!r}, 'a').write({name + ' '!r})\nraise SystemExit(99)\n"
            (folder / f"{name}.py").write_text(text)
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 20)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    yield folder
    executed = mark.read_text() if mark.exists() else ""
    assert executed == ""


def test_workers_of_a_study(trap, tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY % (tmp_path / "text.txt"))
    assert (trap / "torch.py").exists()
    assert (trap / "safetensors.py").exists()
    (trap / "anaphor.py").write_text((trap / "torch.py").read_text())
    assert main(["study", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out")]) == 0


def test_the_package_as_a_command(trap, tmp_path):
    words = ["train", "lm", "--data", str(tmp_path / "text.txt"), "--width", "4", "--bptt", "8", "--steps", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "anaphor", *words, "--out", str(tmp_path / "run"), "--device", "cpu"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr

"""Evaluating a long text needs memory for its tokens and for one batch, not for all losses."""

import os
import re
from pathlib import Path

import pytest

from anaphor.cli.main import main

TOKENS = 1_500_000  # of a byte each
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def memory(name):
    """Bytes of this process: VmRSS now, VmHWM at most since it was reset."""
    return int(re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())[1]) * 1024


@pytest.mark.skipif(not os.access(RESET, os.W_OK), reason="the peak of the memory cannot be reset")
def test_a_long_text(text, tmp_path, capsys, single_precision):
    words = ["train", "lm", "--data", "text", "--tokenizer", "byte", "--width", "4", "--layers", "1", "--bptt", "16"]
    assert main([*words, "--steps", "1", "--device", "cpu", "--no-test", "--out", "run"]) == 0
    evaluate = ["evaluate", "run", "--device", "cpu", "--bptt", "100", "--batch-size", "50"]
    assert main(evaluate) == 0  # so that nothing is loaded for the first time below
    (tmp_path / "text" / "valid.txt").write_bytes(b"the cat sat on the mat, a dog\n" * (TOKENS // 30))
    RESET.write_text("5")
    before = memory("VmRSS")
    assert main(evaluate) == 0
    assert f"tokens:{TOKENS}" in capsys.readouterr().out
    # A token is a number of 8 bytes, which may be there twice; all losses and targets were 165 bytes for each.
    assert memory("VmHWM") - before < 24 * TOKENS + 30_000_000

"""A small run of a language model."""

import pytest

from anaphor.cli.main import main


@pytest.fixture
def run(tmp_path, capsys, own_cache):
    """A function that trains a run of two steps with some flags and returns its folder."""

    def train(*words):
        text = "a b c d e f\nb c d e f a\n\nc d e f a b\nd e f a b c\n\n" * 8
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        small = ["--width", "8", "--layers", "1", "--batch-size", "2", "--steps", "2"]
        segments = [] if "padded" in words else ["--bptt", "5"]
        out = tmp_path / "run"
        place = ["--data", str(tmp_path / "text.txt"), "--out", str(out), "--device", "cpu", "--json"]
        assert main(["train", "lm", *place, *small, *segments, *words]) == 0
        capsys.readouterr()
        return str(out)

    return train

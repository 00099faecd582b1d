"""A run that several commands are given."""

import pytest

from anaphor.cli.main import main


@pytest.fixture
def run(tmp_path, own_cache, single_precision, capsys):
    (tmp_path / "text.txt").write_text("a b c d e\n" * 40)
    words = ["train", "lm", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run"), "--width", "8"]
    assert main([*words, "--steps", "1", "--no-test", "--device", "cpu", "--json"]) == 0
    capsys.readouterr()
    return str(tmp_path / "run")

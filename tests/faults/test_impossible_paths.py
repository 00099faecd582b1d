"""Names that no file can have, and home folders of nobody: one line and exit code 2, wherever a path is given."""

from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.user_paths import user_path
from faults.paths import IMPOSSIBLE, assert_refused

PLACES = [
    "train lm --data PATH", "train lm --data text --out PATH", "train lm --data text --config PATH",
    "train lm --resume --out PATH", "train lm --data text --import PATH", "train lm --recipe PATH",
    "train translate --data PATH", "train translate --data PATH,PATH", "evaluate PATH", "generate PATH", "score PATH a",
    "translate PATH a", "bleu PATH PATH", "look PATH a --out o", "look run a --out PATH", "check-mixer PATH",
    "data where PATH", "models --import PATH",
]  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
@pytest.mark.parametrize("place", PLACES)
def test_one_line(text, tmp_path, capsys, place, name):
    assert_refused(place, name, tmp_path, capsys)


@pytest.mark.parametrize("variable", ["ANAPHOR_DATA", "ANAPHOR_CACHE"])
@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_folders_of_the_environment(monkeypatch, error_of, variable, name):
    monkeypatch.setenv(variable, name)
    line = error_of(["data", "list"])
    assert name[:50] in line


def test_a_path_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/run") == tmp_path / "run"
    assert user_path("missing/run") == Path("missing/run")
    with pytest.raises(ConfigError, match="NUL"):
        user_path("a\0b")


def test_two_files_whose_names_are_long_together(text, tmp_path, capsys):
    names = [f"{letter * 200}.{letter}" for letter in "de"]
    for name in names:
        (tmp_path / name).write_text("ein Haus\n" * 40)
    words = ["train", "translate", "--data", ",".join(names), "--source", "d", "--dry-run", "--device", "cpu"]
    assert main(words) == 0, capsys.readouterr().err

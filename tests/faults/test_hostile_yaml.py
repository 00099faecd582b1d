"""Small YAML files that would grow without bound: refused in no time, in one short line."""

import pytest

from anaphor.errors import AnaphorError, ConfigError
from anaphor.yaml_files import read_mapping
from faults.bombs import BOMBS, LONG_VALUES


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_grows_is_refused(tmp_path, error_of, name):
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name])
    line = error_of(["train", "lm", "--config", str(path)])
    assert name.split()[0] in line
    assert len(line) < 500


def test_plain_aliases_are_read(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("a: &a [1, 2]\nb: *a\n")
    assert read_mapping(path) == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("text", LONG_VALUES, ids=range(len(LONG_VALUES)))
def test_a_message_never_repeats_a_long_value(tmp_path, error_of, text):
    path = tmp_path / "long.yaml"
    path.write_text(text)
    message = error_of(["train", "lm", "--config", str(path)])
    assert len(message) < 2500


def test_every_error_has_a_bound():
    text = str(ConfigError("begin " + "x" * 1_000_000 + " end"))
    assert text.startswith("begin xxx")
    assert text.endswith(" end")
    assert len(text) < 2500
    assert str(AnaphorError("short")) == "short"

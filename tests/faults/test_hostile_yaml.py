"""Small YAML files that would grow without bound: refused in no time, in one short line."""

import pytest

from anaphor.cli.main import main
from anaphor.config import MAX_FILE_BYTES, read_mapping
from anaphor.errors import AnaphorError, ConfigError

MERGES = "m0: &m0 {a: 1}\n" + "".join(f"m{n + 1}: &m{n + 1} {{<<: [*m{n}, *m{n}]}}\n" for n in range(30))
ALIASES = "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40))
LONG = f"a: &a '{'x' * 100_000}'\nb: [{', '.join(['*a'] * 5000)}]\n"
CYCLE = "a: &a [1, *a]\n"


@pytest.mark.parametrize(
    ("text", "reason"), [(MERGES, "merge"), (ALIASES, "values"), (LONG, "values"), (CYCLE, "values")]
)
def test_a_file_that_grows_is_refused(tmp_path, capsys, text, reason):
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    for words in (["train", "lm", "--config", str(path)], ["study", str(path)]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
        assert len(line) < 500


def test_the_same_in_a_flag(capsys):
    value = "x=[&a [x,x], " + ", ".join(f"&a{n} [*a{n - 1 if n else ''}, *a{n - 1 if n else ''}]" for n in range(40))
    assert main(["study", "mixing", "--set", value + "]"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 2500


def test_plain_aliases_are_read(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("a: &a [1, 2]\nb: *a\n")
    assert read_mapping(path) == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("line", ["'{0}': 1", "lr: '{0}'", "lr: 0x{1}", "model: [['{0}']]", "{0}: {{lr: 1}}"])
def test_a_message_never_repeats_a_long_value(tmp_path, capsys, line):
    path = tmp_path / "long.yaml"
    path.write_text(line.format("x" * (MAX_FILE_BYTES // 2), "f" * 10_000))
    for words in (["train", "lm", "--config", str(path)], ["study", str(path)]):
        assert main(words) == 2
        (message,) = capsys.readouterr().err.splitlines()
        assert len(message) < 2500


def test_every_error_has_a_bound():
    text = str(ConfigError("begin " + "x" * 1_000_000 + " end"))
    assert text.startswith("begin xxx")
    assert text.endswith(" end")
    assert len(text) < 2500
    assert str(AnaphorError("short")) == "short"

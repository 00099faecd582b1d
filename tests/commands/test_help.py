"""`--help` begins with two examples, and says defaults in words."""

import re
import shlex
from dataclasses import dataclass, field

import pytest

from anaphor.cli.main import main
from anaphor.flags import parse
from anaphor.registry import TASKS, VERBS
from commands.pages import stripped

EXAMPLES = re.compile(r"examples:\n  (anaphor .*)\n  (anaphor .*)\n\nusage: anaphor ")
OURS = [name for name in VERBS if str(VERBS[name].function).startswith("anaphor.")]
COMMANDS = ["", "train", *(f"train {task}" for task in TASKS), *(verb for verb in OURS if verb != "train")]


def help_of(words, capsys):
    assert main([*words.split(), "--help"]) == 0
    return stripped(capsys.readouterr().out)


@pytest.mark.parametrize("words", COMMANDS)
def test_help_begins_with_two_examples_of_options_that_exist(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    examples = EXAMPLES.match(help_of(words, capsys))
    assert examples is not None
    for example in examples.groups():
        _, *given = shlex.split(example)
        assert words.split() == given[: len(words.split())]
        verb, *rest = given
        options = help_of(" ".join([verb, *(rest[:1] if verb == "train" else [])]), capsys)
        flags = [word for word in rest if word.startswith("--")]
        assert not [flag for flag in flags if not re.search(rf"{flag}[ ,\n]", options)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options."""

    minutes: float = 5.0
    """Minutes."""
    small: float = 1e-5
    """Small."""
    kept: bool = True
    """Kept."""
    lost: bool = False
    """Lost."""
    width: int | None = None
    """Width; None means that of the layer."""
    inner: int | None = None
    """Inner width; 0 means none, None four times the width."""
    depth: int | None = field(default=None, metadata={"unset": "the model's own"})
    """Depth; None means one for each name."""
    seed: int | None = None
    """Seed."""


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--minutes FLOAT", "Minutes. (default: 5)"),
        ("--small FLOAT", "Small. (default: 1e-05)"),
        ("--kept, --no-kept", "Kept. (default: on)"),
        ("--lost, --no-lost", "Lost."),
        ("--width INT", "Width. (default: that of the layer)"),
        ("--inner INT", "Inner width; 0 means none. (default: four times the width)"),
        ("--depth INT", "Depth. (default: the model's own, or one for each name)"),
        ("--seed INT", "Seed."),
    ],
)
def test_defaults_are_said_in_words(option, text, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse(Options, ["--help"], program="anaphor x")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"{option} {text}" in [re.sub(r"\s{2,}", " ", line) for line in lines]

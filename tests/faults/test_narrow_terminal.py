"""Help ends on a terminal of any width."""

import pytest

from anaphor.cli.main import main
from anaphor.registry import VERBS


@pytest.mark.parametrize("columns", ["1", "5", "8"])
@pytest.mark.parametrize("verb", [*(verb for verb in VERBS if verb != "train"), "train lm", "train translate"])
def test_help_ends(monkeypatch, capsys, verb, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main([*verb.split(), "--help"]) == 0
    assert capsys.readouterr().out.strip()

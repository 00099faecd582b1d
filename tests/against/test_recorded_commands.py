"""Every verb, every option with its default and every key of JSON that an earlier version had is still there."""

import pytest
from recorded_commands import FILE_NAME, WIDTH, keys_of_case, prepare, read_options, read_verbs
from recording import read_recorded

RECORDED = read_recorded(FILE_NAME)
"""Of the core and of each shelf."""


def options_and_cases(kind):
    """Of all files, each skipped where a shelf that it needs is missing."""
    for path, recorded in RECORDED.items():
        for name, value in recorded[kind].items():
            marks = [pytest.mark.needs(*recorded.get("needs", {}).get(name, ()))]
            if kind == "keys" and value.get("slow"):
                marks.append(pytest.mark.slow)
            yield pytest.param(name, value, id=f"{path.parent.name}: {name}", marks=marks)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("COLUMNS", WIDTH)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_every_verb_is_still_there():
    assert {verb for recorded in RECORDED.values() for verb in recorded["verbs"]} <= set(read_verbs())


@pytest.mark.parametrize(("words", "recorded"), [*options_and_cases("options")])
def test_every_option_is_still_there_with_its_default(words, recorded):
    now = read_options(words.split())
    assert [name for name in recorded if name not in now] == []
    assert {name: now[name] for name, default in recorded.items() if default is not None} == {
        name: default for name, default in recorded.items() if default is not None
    }


@pytest.mark.parametrize(("name", "case"), [*options_and_cases("keys")])
def test_every_key_of_json_is_still_there(tmp_path, name, case):
    prepare(tmp_path / "here")
    now = keys_of_case(case)
    recorded = {"printed": case["printed"], **case.get("files", {})}
    assert [(name, key) for name, keys in recorded.items() for key in keys if key not in now[name]] == []

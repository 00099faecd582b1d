"""Every verb, every option with its default and every key of JSON that an earlier version had is still there."""

import json

import pytest
from recorded_commands import FILE, WIDTH, keys_of_case, prepare, read_options, read_verbs

RECORDED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", WIDTH)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_every_verb_is_still_there():
    assert set(RECORDED["verbs"]) <= set(read_verbs())


@pytest.mark.parametrize("words", RECORDED["options"])
def test_every_option_is_still_there_with_its_default(words):
    now = read_options(words.split())
    recorded = RECORDED["options"][words]
    assert [name for name in recorded if name not in now] == []
    assert {name: now[name] for name, default in recorded.items() if default is not None} == {
        name: default for name, default in recorded.items() if default is not None
    }


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if case.get("slow") else [])
        for name, case in RECORDED["keys"].items()
    ],
)
def test_every_key_of_json_is_still_there(tmp_path, case):
    prepare(tmp_path / "here")
    now = keys_of_case(case)
    recorded = {"printed": case["printed"], **case.get("files", {})}
    assert [(name, key) for name, keys in recorded.items() for key in keys if key not in now[name]] == []

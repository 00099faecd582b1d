"""Files that come with the program are found by name from any folder, and pages name no file that a reader lacks."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.imported_files import IMPORTED
from anaphor.shipped_files import EXAMPLES, find_file

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "results")]
TITLE = re.compile(r'^```\{ \.\w+ title="([\w.-]+)" \}', re.MULTILINE)
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`]+)`", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"[\w./-]+\.(?:py|yaml)(?=::|$)")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["leaky_mixer.py", "leaky_mixer"])
def test_an_import_finds_an_example_by_name(name, capsys):
    assert main(["check-mixer", "leaky", "--import", name]) == 0
    assert "leaky keeps all" in capsys.readouterr().out
    assert EXAMPLES / "leaky_mixer.py" in IMPORTED


def test_a_file_of_the_current_folder_comes_first(empty_folder, error_of):
    (empty_folder / "leaky_mixer.py").write_text("x = 1\n")
    assert "registers nothing" in error_of(["check-mixer", "leaky", "--import", "leaky_mixer.py"])


@pytest.mark.parametrize("name", ["nowhere/leaky_mixer.py", "leaky.py", "__init__.py", "__init__"])
def test_nothing_else_is_found(name, error_of):
    assert "No such file" in error_of(["check-mixer", "leaky", "--import", name])


def test_a_run_that_was_trained_with_an_example_names_it_as_it_is_typed(empty_folder, error_of, monkeypatch):
    small = ["--data", "grammar", "--width", "8", "--steps", "1", "--no-test", "--device", "cpu"]
    assert main(["train", "lm", "--import", "leaky_mixer.py", "--model", "leaky", *small, "--out", "run"]) == 0
    monkeypatch.setattr("anaphor.training.run_folder.IMPORTED", {})
    assert error_of(["generate", "run"]).endswith("pass --import leaky_mixer.py")


@pytest.mark.needs("trace")
def test_trace_finds_an_example_by_name(capsys):
    assert main(["trace", "two_heads.py::layer", "--level", "names"]) == 0
    out = capsys.readouterr().out
    assert "(1.762, 4.881)" in out
    assert "(−1.762, 5.953)" in out


@pytest.mark.needs("studies")
def test_study_finds_presets_and_examples_by_name():
    from anaphor.studies.study_file import PRESETS, find_study_file

    assert find_study_file("echo") == find_study_file("echo.yaml") == PRESETS / "echo.yaml"
    assert find_study_file("diversify") == EXAMPLES / "diversify.yaml"


def commands(page: str) -> list[list[str]]:
    """Commands that a page shows in its blocks and between its words."""
    found = []
    for block, inline in CODE.findall(page):
        text = (block or inline).replace("\\\n", " ")
        for line in text.splitlines() if block else [" ".join(text.split())]:
            line = re.sub(r"^(\$|>) ", "", line.strip())
            if re.match(r"(anaphor|python) [a-z-]", line):
                try:
                    found.append(shlex.split(line, comments=True))
                except ValueError:  # a quote that another line closes
                    found.append(line.split())
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_page_says_to_type_is_there(path):
    page = path.read_text(encoding="utf-8")
    shown = {*TITLE.findall(page), *re.findall(r'Path\("([\w.]+)"\)\.write_text', page)}
    presets = Path(anaphor.__file__).parent / "studies" / "presets"
    for words in commands(page):
        if "[OPTIONS]" in words or words[:2] == ["anaphor", "check"]:  # how it is used, or the reader's own file
            continue
        if words[:2] == ["python", "-m"] and words[2].startswith("anaphor"):
            assert importlib.util.find_spec(words[2]), words
        if words[:2] == ["python", "-m"] and words[2] == "benchmarks":
            assert "checkout of the" in page, words
        if words[0] == "python" and words[1].endswith(".py"):
            assert words[1] in shown, words
        for word in words[1:]:
            name = FILE.match(word)
            if words[0] == "anaphor" and name and "/" not in name[0]:
                found = find_file(name[0], Path(name[0]).suffix, EXAMPLES, presets)
                assert name[0] in shown or found.is_file(), words
            assert not word.startswith("examples/"), words

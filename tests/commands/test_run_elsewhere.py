"""A run is used from any folder, and without its data where no text of theirs is read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from anaphor.training.place import at_hand, place_of

from anaphor.cli.main import main
from anaphor.registry import DATASETS

TINY = "--width 8 --layers 1 --batch-size 2 --steps 4 --device cpu --no-test --json"
LANGUAGE = ["train", "lm", "--data", "d", "--model", "lstm", "--bptt", "5", *TINY.split()]
TEXT = "the cat sat on the mat\na dog sat on a log\n" * 20


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A folder with data, where runs are begun, beside another one."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    project = tmp_path / "project"
    for folder in (project / "d", project / "pairs", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    for split in ("train", "valid"):
        (project / "d" / f"{split}.txt").write_text(TEXT)
    for language in ("en", "de"):
        (project / "pairs" / f"train.{language}").write_text("the cat sat\na dog\n" * 40)
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    return lambda: monkeypatch.chdir(tmp_path / "elsewhere")


def told(capsys, *words):
    """Exit code, what is said of mistakes, and the answer."""
    capsys.readouterr()
    code = main([*map(str, words), "--device", "cpu", "--json"])
    captured = capsys.readouterr()
    return code, captured.err.removeprefix("anaphor: ").strip(), json.loads(captured.out) if captured.out else None


def uses(run):
    return (["generate", run, "--tokens", "3"], ["score", run, "the cat"])


def test_a_run_is_used_from_another_folder_as_from_its_own(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    run = project / "run"
    here = [told(capsys, *words) for words in (*uses(run), ["evaluate", run])]
    assert [code for code, _, _ in here] == [0] * 3
    elsewhere()
    assert [told(capsys, *words) for words in (*uses(run), ["evaluate", run])] == here


def test_who_reads_no_text_of_the_data_does_not_need_them(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    run = project / "run"
    here = [told(capsys, *words) for words in uses(run)]
    shutil.rmtree(project / "d")
    elsewhere()
    assert [told(capsys, *words) for words in uses(run)] == here
    assert told(capsys, "look", run, "the cat", "--out", "seen")[0] == 0


def test_who_reads_them_is_told_what_is_missing(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    (project / "d").rename(project / "e")
    elsewhere()
    code, line, _ = told(capsys, "evaluate", project / "run")
    assert (code, line) == (2, f"the data of the run are gone: there is no d in this folder, and no {project / 'd'}")


def test_a_run_goes_on_exactly_from_another_folder(project, elsewhere):
    for out in ("whole", "parted"):
        assert main([*LANGUAGE, "--out", out]) == 0
    more = ["--steps", "8", "--force", "--no-test", "--json"]
    assert main(["train", "lm", "--resume", "--out", "whole", *more]) == 0
    elsewhere()
    assert main(["train", "lm", "--resume", "--out", str(project / "parted"), *more]) == 0
    whole, parted = (
        json.loads((project / out / "checkpoints" / "step-8" / "manifest.json").read_text())["files"]
        for out in ("whole", "parted")
    )
    parts = [name for name in whole if name.endswith(".safetensors")]
    assert {name: whole[name] for name in parts} == {name: parted[name] for name in parts}
    assert (project / "whole" / "spec.yaml").read_text() == (project / "parted" / "spec.yaml").read_text()


def test_what_would_go_on_is_told_from_another_folder(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    elsewhere()
    assert told(capsys, "train", "lm", "--resume", "--dry-run", "--out", project / "run")[0] == 0


@pytest.mark.parametrize(
    "path", ["x" * 9000, "a\0b", "", "\n", "," * 50], ids=["long", "nul", "empty", "line", "commas"]
)
def test_a_note_that_is_no_path_is_no_place(project, elsewhere, capsys, path):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    (project / "run" / "data-path.txt").write_text(path)
    elsewhere()
    code, line, _ = told(capsys, "evaluate", project / "run")
    assert code == 2
    assert line.startswith("the data of the run are gone: there is no d in this folder")
    assert "\n" not in line


def test_a_name_that_was_mistyped_is_not_taken_for_the_old_data(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    capsys.readouterr()
    elsewhere()
    assert main(["train", "lm", "--resume", "--force", "--out", str(project / "run"), "--data", "dd"]) == 2
    assert "unknown data set 'dd'" in capsys.readouterr().err


def test_a_folder_that_was_moved_with_its_data_still_works(project, monkeypatch, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    before = told(capsys, "evaluate", "run")
    moved = project.rename(project.with_name("moved"))
    monkeypatch.chdir(moved)
    assert told(capsys, "evaluate", "run") == before
    assert main(["train", "lm", "--resume", "--out", "run", "--no-test", "--json"]) == 0
    monkeypatch.chdir("/")
    assert told(capsys, "evaluate", moved / "run") == before, "whoever went on has noted where the data are now"


def test_what_is_found_where_one_stands_comes_first(project, tmp_path, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    shutil.copytree(project / "d", tmp_path / "elsewhere" / "d")
    Path(tmp_path / "elsewhere" / "d" / "valid.txt").write_text(TEXT[::-1])
    elsewhere()
    code, line, _ = told(capsys, "evaluate", project / "run")
    assert (code, line) == (0, f"the text of valid is another one than {project / 'run'} was trained with")


def test_a_run_from_before_paths_were_kept_works_where_its_data_are(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    (project / "run" / "data-path.txt").unlink()
    assert told(capsys, "evaluate", "run")[0] == 0
    elsewhere()
    assert [told(capsys, *words)[0] for words in uses(project / "run")] == [0, 0]
    code, line, _ = told(capsys, "evaluate", project / "run")
    assert (code, line) == (2, "the data of the run are gone: there is no d in this folder")


@pytest.mark.parametrize("data", ["pairs/train.en,pairs/train.de", "pairs"])
def test_translations_likewise(project, elsewhere, capsys, data):
    if data == "pairs":
        for language in ("en", "de"):
            shutil.copy(f"pairs/train.{language}", f"pairs/valid.{language}")
    words = ["train", "translate", "--data", data, "--source", "en", "--model", "luong", *TINY.split()]
    assert main([*words, "--out", "run"]) == 0
    run = project / "run"
    here = [told(capsys, *words) for words in (["evaluate", run], ["translate", run, "the cat"])]
    assert [code for code, _, _ in here] == [0, 0]
    elsewhere()
    assert [told(capsys, *words) for words in (["evaluate", run], ["translate", run, "the cat"])] == here
    shutil.rmtree(project / "pairs")
    assert told(capsys, "translate", run, "the cat") == here[1]
    code, line, _ = told(capsys, "evaluate", run)
    assert code == 2
    assert line.startswith(f"the data of the run are gone: there is no {data} in this folder, and no {project}/pairs")


def test_data_with_a_whole_path_need_no_note(project):
    assert main([*LANGUAGE, "--data", str(project / "d"), "--out", "run"]) == 0
    assert not (project / "run" / "data-path.txt").exists()


def test_data_with_a_name_are_not_looked_for_in_a_folder_of_that_name(project):
    (project / "grammar").mkdir()
    assert place_of("grammar", DATASETS) is None
    assert place_of("./grammar", DATASETS) == str(project / "grammar")
    assert at_hand("grammar", None, DATASETS) == "grammar"

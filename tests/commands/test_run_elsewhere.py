"""A run is used from any folder, and without its data where no text of theirs is read."""

import json
import shutil
from pathlib import Path

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.training.paths import absolute_path, resolve_data_path
from anaphor.training.run_folder import RunFolder
from anaphor.yaml_files import dump_yaml
from command_line import override

TINY = "--width 8 --layers 1 --batch-size 2 --steps 4 --device cpu --no-test --json"
LANGUAGE = ["train", "lm", "--data", "d", "--model", "lstm", "--bptt", "5", *TINY.split()]
TEXT = "the cat sat on the mat\na dog sat on a log\n" * 20


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch, single_precision, own_cache):
    """A folder with data, where runs are trained, beside another one."""
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


def call(capsys, *words):
    """Exit code, stderr, and the JSON value."""
    capsys.readouterr()
    code = main([*map(str, words), "--device", "cpu", "--json"])
    captured = capsys.readouterr()
    return code, captured.err.removeprefix("anaphor: ").strip(), json.loads(captured.out) if captured.out else None


def rewrite_environment(run, **values):
    document = RunFolder(run).read_document()
    (run / "spec.yaml").write_text(dump_yaml({**document, "environment": values}))


def uses(run):
    return (["generate", run, "--tokens", "3"], ["score", run, "the cat"])


def test_a_run_is_used_from_another_folder_as_from_its_own(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    run = project / "run"
    here = [call(capsys, *words) for words in (*uses(run), ["evaluate", run])]
    assert [code for code, _, _ in here] == [0] * 3
    elsewhere()
    assert [call(capsys, *words) for words in (*uses(run), ["evaluate", run])] == here


def test_a_verb_that_reads_no_data_does_not_need_them(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    run = project / "run"
    here = [call(capsys, *words) for words in uses(run)]
    shutil.rmtree(project / "d")
    elsewhere()
    assert [call(capsys, *words) for words in uses(run)] == here
    assert call(capsys, "look", run, "the cat", "--out", "seen")[0] == 0


def test_missing_data_are_named(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    (project / "d").rename(project / "e")
    elsewhere()
    code, line, _ = call(capsys, "evaluate", project / "run")
    assert (code, line) == (2, f"the data of the run are missing: there is no d in this folder, and no {project / 'd'}")


def test_a_run_is_resumed_exactly_from_another_folder(project, elsewhere):
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


def test_a_dry_run_of_a_resume_works_from_another_folder(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    elsewhere()
    assert call(capsys, "train", "lm", "--resume", "--dry-run", "--out", project / "run")[0] == 0


def test_the_spec_of_a_run_trains_another_one_from_another_folder(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    first = json.loads((project / "run" / "result.json").read_text())
    elsewhere()
    config = project / "run" / "spec.yaml"
    for words in (["--out", "same"], ["--out", "other", "--seed", "1"], ["--dry-run"]):
        assert call(capsys, "train", "lm", "--config", config, "--no-test", *words)[0] == 0
    again = anaphor.train("lm", config=config, out="again", no_test=True, progress=False)
    assert again.result["valid"] == first["valid"]
    assert again.spec.data == str(project / "d")
    assert anaphor.train("lm", config=config, resume=True, out=project / "run", progress=False).spec.data == "d"


def test_the_spec_of_a_run_whose_data_are_gone_says_so_to_another_one(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    (project / "d").rename(project / "e")
    elsewhere()
    words = ["train", "lm", "--config", project / "run" / "spec.yaml", "--no-test", "--dry-run"]
    code, line, _ = call(capsys, *words)
    assert (code, line) == (2, f"the data of the run are missing: there is no d in this folder, and no {project / 'd'}")
    assert call(capsys, *words, "--data", project / "e")[0] == 0
    assert "unknown data set 'dd'" in call(capsys, *words, "--data", "dd")[1]


@pytest.mark.parametrize(
    "path", ["x" * 9000, "a\0b", "", "\n", "," * 50], ids=["long", "nul", "empty", "line", "commas"]
)
def test_a_data_path_that_is_no_path_is_ignored(project, elsewhere, capsys, path):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    rewrite_environment(project / "run", data_path=path)
    elsewhere()
    code, line, _ = call(capsys, "evaluate", project / "run")
    assert code == 2
    assert line.startswith("the data of the run are missing: there is no d in this folder")
    assert "\n" not in line


def test_a_name_that_was_mistyped_is_not_taken_for_the_old_data(project, elsewhere, error_of):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    elsewhere()
    line = error_of(["train", "lm", "--resume", "--force", "--out", str(project / "run"), "--data", "dd"])
    assert "unknown data set 'dd'" in line


def test_a_folder_that_was_moved_with_its_data_still_works(project, monkeypatch, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    before = call(capsys, "evaluate", "run")
    moved = project.rename(project.with_name("moved"))
    monkeypatch.chdir(moved)
    assert call(capsys, "evaluate", "run") == before
    assert main(["train", "lm", "--resume", "--out", "run", "--no-test", "--json"]) == 0
    monkeypatch.chdir("/")
    assert call(capsys, "evaluate", moved / "run") == before, "resuming has noted where the data are now"


def test_data_found_from_the_current_folder_come_first(project, tmp_path, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    shutil.copytree(project / "d", tmp_path / "elsewhere" / "d")
    Path(tmp_path / "elsewhere" / "d" / "valid.txt").write_text(TEXT[::-1])
    elsewhere()
    code, line, _ = call(capsys, "evaluate", project / "run")
    assert (code, line) == (0, f"valid has changed since {project / 'run'} was trained")


def test_without_a_data_path_a_run_works_where_its_data_are(project, elsewhere, capsys):
    assert main([*LANGUAGE, "--out", "run"]) == 0
    rewrite_environment(project / "run")
    assert call(capsys, "evaluate", "run")[0] == 0
    elsewhere()
    assert [call(capsys, *words)[0] for words in uses(project / "run")] == [0, 0]
    code, line, _ = call(capsys, "evaluate", project / "run")
    assert (code, line) == (2, "the data of the run are missing: there is no d in this folder")


@pytest.mark.parametrize("data", ["pairs", pytest.param("pairs/train.en,pairs/train.de", marks=pytest.mark.slow)])
def test_translation_runs_likewise(project, elsewhere, capsys, data):
    if data == "pairs":
        for language in ("en", "de"):
            shutil.copy(f"pairs/train.{language}", f"pairs/valid.{language}")
    words = ["train", "translate", "--data", data, "--source", "en", "--model", "luong", *TINY.split()]
    assert main([*words, "--out", "run"]) == 0
    run = project / "run"
    here = [call(capsys, *words) for words in (["evaluate", run], ["translate", run, "the cat"])]
    assert [code for code, _, _ in here] == [0, 0]
    elsewhere()
    assert [call(capsys, *words) for words in (["evaluate", run], ["translate", run, "the cat"])] == here
    shutil.rmtree(project / "pairs")
    assert call(capsys, "translate", run, "the cat") == here[1]
    code, line, _ = call(capsys, "evaluate", run)
    assert code == 2
    assert line.startswith(
        f"the data of the run are missing: there is no {data} in this folder, and no {project}/pairs"
    )


def test_data_with_an_absolute_path_need_no_other(project):
    assert main(override(LANGUAGE, "--data", str(project / "d"), "--out", "run")) == 0
    assert RunFolder(project / "run").read_data_path() is None
    assert main([*LANGUAGE, "--out", "relative"]) == 0
    assert RunFolder(project / "relative").read_data_path() == str(project / "d")


def test_data_with_a_name_are_not_looked_for_in_a_folder_of_that_name(project):
    (project / "grammar").mkdir()
    assert absolute_path("grammar") is None
    assert absolute_path("./grammar") == str(project / "grammar")
    assert resolve_data_path("grammar", None) == "grammar"


FIRST = [*override(LANGUAGE, "--model", "transformer"), "--heads", "2"]
TUNED = ["train", "lm", "--data", "d", "--init", "first", "--bptt", "5", "--batch-size", "2", "--steps", "4"]
TUNED += ["--device", "cpu", "--no-test", "--json"]


def test_the_spec_of_a_run_finds_its_initial_weights_from_another_folder(project, elsewhere, capsys):
    assert main([*FIRST, "--out", "first"]) == 0
    assert main([*TUNED, "--out", "run"]) == 0
    result = json.loads((project / "run" / "result.json").read_text())
    elsewhere()
    config = project / "run" / "spec.yaml"
    for words in (["--out", "same"], ["--dry-run"], ["--dry-run", "--data", project / "d"]):
        assert call(capsys, "train", "lm", "--config", config, "--no-test", *words)[0] == 0
    assert RunFolder(Path("same")).read_settings()["init"] == str(project / "first")
    again = anaphor.train("lm", config=config, out="again", no_test=True, progress=False)
    assert again.result["valid"] == result["valid"]
    code, line, _ = call(capsys, "train", "lm", "--config", config, "--no-test", "--dry-run", "--init", "second")
    assert (code, line) == (2, "init=second: there is no such folder")


def test_a_run_without_a_checkpoint_finds_its_initial_weights_from_another_folder(project, elsewhere, capsys):
    assert main([*FIRST, "--out", "first"]) == 0
    for out in ("whole", "run"):
        assert main([*TUNED, "--out", out]) == 0
    shutil.rmtree("run/checkpoints")
    Path("run/result.json").unlink()
    elsewhere()
    words = ["train", "lm", "--resume", "--out", project / "run", "--no-test"]
    assert call(capsys, *words, "--dry-run")[0] == 0
    assert call(capsys, *words)[0] == 0
    whole, resumed = (json.loads((project / out / "result.json").read_text()) for out in ("whole", "run"))
    assert resumed["valid"] == whole["valid"]
    environments = [RunFolder(project / out).read_environment() for out in ("whole", "run")]
    assert [environment["init_path"] for environment in environments] == [str(project / "first")] * 2
    assert RunFolder(project / "run").read_settings()["init"] == "first"


def test_initial_weights_found_from_the_current_folder_come_first(project, elsewhere, capsys):
    assert main([*FIRST, "--out", "first"]) == 0
    assert main([*TUNED, "--out", "run"]) == 0
    elsewhere()
    Path("first").mkdir()
    code, line, _ = call(capsys, "train", "lm", "--config", project / "run" / "spec.yaml", "--no-test", "--dry-run")
    assert code == 2
    assert line.startswith("init=first: there is no run in this folder")


def test_initial_weights_that_are_gone_are_named(project, elsewhere, capsys):
    assert main([*FIRST, "--out", "first"]) == 0
    assert main([*TUNED, "--out", "run"]) == 0
    (project / "first").rename(project / "other")
    elsewhere()
    code, line, _ = call(capsys, "train", "lm", "--config", project / "run" / "spec.yaml", "--no-test", "--dry-run")
    assert (code, line) == (2, f"init=first: there is no such folder, and no {project / 'first'}")

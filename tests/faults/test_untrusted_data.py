"""A run that came from someone else may name any file of the user as its data: none is read because it says so."""

import json
import shutil

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.errors import DataError
from anaphor.training.trained_runs import STATE_VARIABLE

SECRET = "the key to the vault is under the mat\n"
TRAIN = ["train", "lm", "--data", "secret.txt", "--model", "lstm", "--width", "8", "--batch-size", "2", "--bptt", "8",
         "--steps", "3", "--device", "cpu", "--out", "run"]  # fmt: skip

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A run on a file, trained here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    (tmp_path / "secret.txt").write_text(SECRET * 60)
    (tmp_path / "other.txt").write_text("a cat sat on a mat\n" * 60)
    assert main(TRAIN) == 0
    capsys.readouterr()
    return tmp_path / "run"


@pytest.fixture
def foreign(run, monkeypatch):
    """The same run in the hands of someone else, whose own file has its name and path."""
    monkeypatch.setenv(STATE_VARIABLE, str(run.parent / "state-of-someone-else"))
    return run


def is_read(out):
    return json.loads((out / "result.json").read_text())["test"] is not None


@pytest.mark.parametrize("more", [[], ["--split", "train"], ["--split", "test"]])
@pytest.mark.usefixtures("foreign")
def test_its_data_are_not_evaluated(error_of, more):
    line = error_of(["evaluate", "run", *more, "--device", "cpu"])
    assert "run was not trained here" in line
    assert "secret.txt" in line
    assert "--data" in line


@pytest.mark.needs("web")
@pytest.mark.parametrize(
    "options",
    [{"verb": "look", "example": 0}, {"verb": "groups", "split": "valid"}, {"verb": "groups", "split": "train"}],
)
def test_its_data_are_not_on_the_page(foreign, options):
    from anaphor.web.inference import Cache, answer

    with pytest.raises(DataError, match="was not trained here"):
        answer({"run": str(foreign), **options}, Cache())


@pytest.mark.needs("web")
def test_its_data_are_not_in_a_report(foreign, capsys):
    (foreign / "samples.txt").unlink()  # what the model wrote came with the run
    assert main(["report", "run", "--out", "page.html", "--device", "cpu"]) == 0
    assert "was not trained here" in capsys.readouterr().out
    assert "vault" not in (foreign.parent / "page.html").read_text()
    assert main(["report", "run", "--out", "page.html", "--device", "cpu", "--trust"]) == 0
    assert "vault" in (foreign.parent / "page.html").read_text()


def test_what_needs_no_data_works(foreign, capsys):
    assert main(["score", "run", "the key", "--device", "cpu"]) == 0
    assert main(["generate", "run", "--tokens", "2", "--device", "cpu"]) == 0
    assert main(["evaluate", "run", "--data", "other.txt", "--device", "cpu"]) == 0
    assert anaphor.load_run(foreign).spec.data == "secret.txt"
    assert "not trained here" not in capsys.readouterr().err


def test_trust_is_given_once(foreign):
    assert main(["evaluate", "run", "--trust", "--device", "cpu"]) == 0
    assert main(["evaluate", "run", "--device", "cpu"]) == 0
    shutil.rmtree(foreign.parent / "state-of-someone-else")
    with pytest.raises(DataError, match="was not trained here"):
        anaphor.load_run(foreign).evaluate()
    assert anaphor.load_run(foreign, trust=True).evaluate()["loss"] > 0


def test_a_run_trained_here_may_be_moved_copied_and_resumed(run, monkeypatch, capsys):
    elsewhere = run.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(run, elsewhere / "copy")
    monkeypatch.chdir(elsewhere)
    assert main(["evaluate", "copy", "--device", "cpu"]) == 0
    assert main(["train", "lm", "--resume", "--out", "copy", "--steps", "5", "--force"]) == 0
    assert main(["evaluate", "copy", "--device", "cpu"]) == 0
    assert "not trained here" not in capsys.readouterr().err


def test_data_in_the_folder_of_a_run_are_read_but_no_links(foreign, error_of):
    content = foreign / "data"
    content.mkdir()
    for split in ("train", "valid", "test"):
        (content / f"{split}.txt").write_text(SECRET * 20)
    spec = foreign / "spec.yaml"
    assert main([*TRAIN[:3], "run/data", *TRAIN[4:-1], "own"]) == 0
    shutil.rmtree(foreign / "checkpoints")
    shutil.copytree(foreign.parent / "own" / "checkpoints", foreign / "checkpoints")
    shutil.copy(foreign.parent / "own" / "spec.yaml", spec)
    shutil.rmtree(foreign.parent / "state-of-someone-else")
    assert main(["evaluate", "run", "--device", "cpu"]) == 0
    (content / "valid.txt").unlink()
    (content / "valid.txt").symlink_to(foreign.parent / "secret.txt")
    assert "was not trained here" in error_of(["evaluate", "run", "--device", "cpu"])


def test_an_own_run_of_an_earlier_version_is_resumed(foreign, capsys):
    assert main(["train", "lm", "--resume", "--out", "run", "--steps", "5", "--force"]) == 0
    assert main(["evaluate", "run", "--device", "cpu"]) == 0
    assert "not trained here" not in capsys.readouterr().err


RESUME = ["train", "lm", "--resume", "--force", "--out", "run", "--steps", "5"]


def test_a_run_without_a_checkpoint_is_not_trained_on_data_that_it_names(foreign, error_of):
    shutil.rmtree(foreign / "checkpoints")
    (foreign / "result.json").unlink()
    assert "was not trained here" in error_of(RESUME)
    assert main([*RESUME, "--data", "secret.txt"]) == 0


def test_a_run_is_not_trained_on_other_data_than_before(foreign, error_of):
    (foreign.parent / "secret.txt").write_text("the vault to the key is under the mat\n" * 60)
    assert "was not trained here" in error_of(RESUME)
    assert main([*RESUME, "--data", "secret.txt"]) == 0


def test_without_a_folder_for_the_record_training_works(run, monkeypatch, error_of):
    (run.parent / "file").touch()
    monkeypatch.setenv(STATE_VARIABLE, str(run.parent / "file"))
    assert main([*TRAIN[:-1], "another"]) == 0
    assert "was not trained here" in error_of(["evaluate", "another", "--device", "cpu"])
    assert main(["evaluate", "another", "--trust", "--device", "cpu"]) == 0


def test_data_with_a_name_are_read(run, monkeypatch):
    assert main([*TRAIN[:3], "grammar", *TRAIN[4:-1], "named"]) == 0
    monkeypatch.setenv(STATE_VARIABLE, str(run.parent / "state-of-someone-else"))
    assert main(["evaluate", "named", "--device", "cpu"]) == 0


CONFIG = ["train", "lm", "--config", "run/spec.yaml", "--steps", "2", "--no-test", "--out", "new"]


def test_a_new_run_with_its_settings_does_not_read_its_data(foreign, error_of):
    line = error_of(CONFIG)
    assert "run was not trained here" in line
    assert "secret.txt" in line
    with pytest.raises(DataError, match="was not trained here"):
        anaphor.train("lm", config="run/spec.yaml", steps=2, out="new", progress=False)
    assert not (foreign.parent / "new").exists()
    assert main([*CONFIG, "--data", "other.txt"]) == 0


@pytest.mark.usefixtures("foreign")
def test_without_a_checkpoint_neither(error_of):
    shutil.rmtree("run/checkpoints")
    assert "run was not trained here" in error_of(CONFIG)


def test_a_new_run_with_the_settings_of_one_that_was_trained_here_reads_its_data(run, monkeypatch):
    assert main(CONFIG) == 0
    shutil.copytree("run", "copy")
    assert main([*CONFIG[:3], "copy/spec.yaml", *CONFIG[4:-1], "other"]) == 0
    monkeypatch.setenv(STATE_VARIABLE, str(run.parent / "state-of-someone-else"))
    shutil.copy("run/spec.yaml", "mine.yaml")  # a file that is looked at, and no run's
    assert main([*CONFIG[:3], "mine.yaml", *CONFIG[4:-1], "third"]) == 0

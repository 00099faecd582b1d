"""`--log`: trackers get the lines of the run's own files, whatever happens to them, and change no number.

Stand-ins take the place of programs that are not installed here; those that are, are used.
"""

import importlib
import json
import sys
import types
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

import anaphor
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.registry import TRACKERS
from anaphor.training.run_folder import RunFolder

WORDS = ["train", "lm", "--width", "8", "--layers", "1", "--batch-size", "2", "--bptt", "8", "--eval-every", "3"]
END = ["--device", "cpu", "--no-test", "--json"]


class Calls:
    """A tracker that keeps what it gets."""

    made: ClassVar[list] = []

    def __init__(self, run):
        self.run, self.steps, self.validations, self.is_closed = run, [], [], False
        Calls.made.append(self)

    def add_step(self, line):
        self.steps.append(line)

    def add(self, step, line, sample):
        self.validations.append((step, line, sample))

    def close(self):
        self.is_closed = True


@pytest.fixture
def train(tmp_path, own_cache, single_precision, capsys):
    """A function that trains with these flags and returns the exit code, the folder and stderr."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog sat on the log\n" * 20, encoding="utf-8")
    Calls.made = []

    def train(*more, out="run", steps="6"):
        words = [*WORDS, "--data", str(tmp_path / "text.txt"), "--steps", steps, "--out", str(tmp_path / out)]
        code = main([*words, *END, *more])
        return code, RunFolder(tmp_path / out), capsys.readouterr().err

    return train


def test_a_tracker_of_ones_own_gets_the_lines_of_the_files(train):
    anaphor.register_tracker("calls", Calls)
    code, folder, _ = train("--log", "calls")
    assert code == 0
    (calls,) = Calls.made
    assert calls.steps == folder.read_steps()
    assert [{"step": step, **line} for step, line, _ in calls.validations] == [
        json.loads(line) for line in folder.metrics.read_text().splitlines()
    ]
    assert calls.validations[0][2], "the sample"
    assert calls.is_closed
    assert calls.run.settings["width"] == 8
    assert (calls.run.name, calls.run.metrics[0], calls.run.after) == ("run", "loss", 0)


def test_a_resumed_run_has_the_id_that_it_had_and_a_new_one_another(train):
    anaphor.register_tracker("calls", Calls)
    train("--log", "calls")
    train("--log", "calls", "--resume", "--force", steps="9")
    train("--log", "calls", "--overwrite")
    first, resumed, new = Calls.made
    assert first.run.id == resumed.run.id != new.run.id
    assert resumed.run.after == 6
    assert [step for step, _, _ in resumed.validations] == [9]


def test_a_tracker_changes_no_number(train):
    class Draws(Calls):
        def add_step(self, line):
            torch.rand(3)

        def add(self, step, line, sample):
            torch.manual_seed(step)

    anaphor.register_tracker("draws", Draws)
    _, plain, _ = train("--dropout", "0.3")
    _, logged, _ = train("--dropout", "0.3", "--log", "draws", out="logged")
    losses = [
        [json.loads(line)["valid"] for line in folder.metrics.read_text().splitlines()] for folder in (plain, logged)
    ]
    assert losses[0] == losses[1]


def test_a_tracker_that_fails_is_left_out_with_one_warning(train):
    class Fails(Calls):
        def add(self, step, line, sample):
            raise OSError("the server\nis gone")

    anaphor.register_tracker("fails", Fails)
    code, folder, errors = train("--log", "fails")
    assert code == 0
    assert errors.count("anaphor: --log fails failed and logs no more: OSError: the server is gone") == 1
    assert folder.read_result()["status"] == "finished"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--log", "wandbb"], "unknown tracker 'wandbb'; did you mean 'wandb'?"),
        (["--log", "mlflow"], "--log mlflow needs a package that is not installed: pip install 'anaphor[mlflow]'"),
    ],
)
def test_a_tracker_that_is_not_there_is_refused_before_training(train, monkeypatch, words, message):
    monkeypatch.setattr("anaphor.registry.find_spec", lambda name: None)
    code, folder, errors = train(*words)
    assert code == 2
    assert message in errors.splitlines()[-1]
    assert not folder.exists


def test_from_python(tmp_path, own_cache, single_precision):
    anaphor.register_tracker("calls", Calls)
    Calls.made = []
    settings = {"data": "grammar", "model": "lstm", "width": 8, "layers": 1, "steps": 2, "device": "cpu"}
    anaphor.train("lm", out=tmp_path / "run", log=("calls",), no_test=True, **settings)
    assert len(Calls.made) == 1
    with pytest.raises(ConfigError, match="unknown tracker 'x'"):
        anaphor.train("lm", out=tmp_path / "other", log=("x",), no_test=True, **settings)


# Programs of others ---------------------------------------------------------------------------------------------------


class Recorder:
    """Stands for any object of a program: it keeps the calls, and returns itself."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            return self

        return call


def stand_in(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def has(name):
    return importlib.util.find_spec(name) is not None


@pytest.mark.skipif(has("wandb"), reason="wandb is installed: the next tests use it")
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_wandb_and_trackio_get_curves_by_step_and_no_network(train, monkeypatch, name):
    run = Recorder()
    module = stand_in(monkeypatch, name, init=lambda **options: run.calls.append(("init", (), options)) or run)
    module.Settings, module.finish = lambda **options: options, run.finish
    monkeypatch.setattr("anaphor.registry.find_spec", lambda name: module)
    for variable in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "TRACKIO_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    code, folder, errors = train("--log", name)
    assert code == 0, errors
    (_, _, options), *logged, (last, _, _) = run.calls
    assert (options["project"], options["config"]["width"], last) == ("anaphor", 8, "finish")
    if name == "wandb":
        assert (options["mode"], options["dir"]) == ("offline", str(folder.folder))
    values = {call[2]["step"]: call[1][0] for call in logged if "perplexity/valid" in call[1][0]}
    assert list(values) == [3, 6]
    assert values[6]["sample"]
    assert any("step/loss" in call[1][0] for call in logged)


@pytest.mark.skipif(has("mlflow"), reason="mlflow is installed: the next test uses it")
def test_mlflow_gets_settings_and_curves_and_finds_a_resumed_run(train, monkeypatch):
    stored = {}

    class Client:
        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return name

        def search_runs(self, places, filter_string, max_results):
            run_id = filter_string.split("'")[1]
            return [SimpleNamespace(info=SimpleNamespace(run_id=run_id))] if run_id in stored else []

        def create_run(self, place, run_name, tags):
            stored[tags["anaphor"]] = {"params": {}, "metrics": {}, "ends": 0}
            return SimpleNamespace(info=SimpleNamespace(run_id=tags["anaphor"]))

        def update_run(self, run_id, status):
            assert status == "RUNNING"

        def log_batch(self, run_id, metrics=(), params=(), tags=()):
            assert len(params) <= 100
            stored[run_id]["params"].update(dict(params))
            stored[run_id]["metrics"].update({(key, step): value for key, value, _, step in metrics})

        def log_text(self, run_id, text, file):
            assert text
            assert file.startswith("samples/step-")

        def set_terminated(self, run_id):
            stored[run_id]["ends"] += 1

    def made(*values):
        return values

    stand_in(monkeypatch, "mlflow")
    stand_in(monkeypatch, "mlflow.entities", Metric=made, Param=made, RunTag=made)
    stand_in(monkeypatch, "mlflow.tracking", MlflowClient=Client)
    monkeypatch.setattr("anaphor.registry.find_spec", lambda name: object())
    assert train("--log", "mlflow")[0] == 0
    assert train("--log", "mlflow", "--resume", "--force", steps="9")[0] == 0
    (run,) = stored.values()
    assert run["params"]["width"] == "8"
    assert {step for name, step in run["metrics"] if name == "perplexity/valid"} == {3, 6, 9}
    assert run["ends"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
@pytest.mark.filterwarnings("ignore")
def test_the_program_itself_takes_what_it_gets(train, monkeypatch, tmp_path, name):
    """Where it is installed: offline, in folders of its own."""
    if not has(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    code, folder, errors = train("--log", name)
    assert code == 0
    assert "logs no more" not in errors
    written = {
        "wandb": lambda: [path for path in folder.folder.rglob("*.wandb") if path.stat().st_size > 100],
        "trackio": lambda: list((tmp_path / "trackio").glob("*.db")),
        "mlflow": lambda: list(tmp_path.glob("mlflow.db")),
    }
    assert written[name]()
    assert name in TRACKERS

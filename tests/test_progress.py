"""Long scoring reports its progress and can be cancelled, and text that was scored is not translated again."""

import dataclasses
import itertools
import re
import signal
from types import SimpleNamespace

import pytest
import torch

from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.metrics.result import Result
from anaphor.progress import Bar, SecondBar
from anaphor.progress_listener import progress_listener
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.tasks.translate.experiment import TranslationExperiment
from anaphor.training.build import build_experiment
from anaphor.training.callbacks import NullCallback

pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


def step(progress, loss, count, number=1):
    return SimpleNamespace(progress=progress, loss=loss, count=count, step=number)


def evaluation(epoch, result):
    return SimpleNamespace(epoch=epoch, train_loss=2.0, result=result, is_best=False)


def twice(tmp_path, test="one two\nthree four\n"):
    """A folder whose splits are all the same, unless test is given."""
    for split in ("train", "valid", "test"):
        for side in ("en", "de"):
            (tmp_path / f"{split}.{side}").write_text(test if split == "test" else "one two\nthree four\n")
    return TranslationRunSpec(
        data=str(tmp_path), source="en", target="de", width=8, layers=1, beam=2, batch_size=1, steps=1, device="cpu"
    )


def stream(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("one two three four five six seven eight\n" * 4)
    return LanguageRunSpec(data=str(tmp_path), width=8, layers=1, batch_size=1, bptt=5, steps=1, device="cpu")


@pytest.fixture
def searched(monkeypatch):
    """How many texts were searched, each time."""
    seen, original = [], TranslationExperiment.translate_batches

    def counted(self, batches, beam, models):
        found = original(self, batches, beam, models)
        seen.append(len(found))
        return found

    monkeypatch.setattr(TranslationExperiment, "translate_batches", counted)
    return seen


def test_the_same_text_is_translated_once(tmp_path, searched):
    experiment = build_experiment(twice(tmp_path))
    valid = experiment.score("valid")
    test = experiment.score_test(valid).to_plain()
    assert searched == [2]
    assert test == experiment.score("test").to_plain()
    assert test.pop("overlap")["in_train"] == 2
    assert valid.to_plain() == test


def test_other_weights_translate_anew(tmp_path, searched):
    experiment = build_experiment(twice(tmp_path))
    before = experiment.score("valid")
    with torch.no_grad():
        experiment.model.head.weight.mul_(3)
    assert experiment.score("test").values["loss"] != before.values["loss"]
    assert searched == [2, 2]


def test_other_text_is_translated_anew(tmp_path, searched):
    experiment = build_experiment(twice(tmp_path, test="one two\nthree\n"))
    valid = experiment.score("valid")
    assert valid.values["loss"] != experiment.score_test(valid).values["loss"]
    assert searched == [2, 2]


def test_a_listener_gets_the_fraction_done(tmp_path):
    experiment, reports = build_experiment(twice(tmp_path)), []
    with progress_listener(lambda what, share: reports.append((what, share))):
        experiment.score("valid")
    experiment.score("test")
    shares = [share for what, share in reports if what == "translating"]
    assert shares == sorted(shares)
    assert set(shares) == {0, 0.5, 1}
    assert {what for what, _ in reports} == {"scoring", "translating"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", [TranslationRunSpec, LanguageRunSpec])
def test_a_signal_during_the_last_scoring_cancels_it(tmp_path, number, kind):
    out, reports, over = tmp_path / "run", [], []
    spec = twice(tmp_path) if kind is TranslationRunSpec else stream(tmp_path)

    class Over(NullCallback):
        def on_evaluation(self, *what):
            over.append(True)

    def send_signal(what, share):
        if over:
            reports.append(share)
            if len(reports) == 2:
                signal.raise_signal(number)

    with progress_listener(send_signal):
        result, code = execute(spec, out, Over())
    assert (result["status"], code) == ("stopped", 128 + number)
    assert len(reports) == 2, "nothing more was done"
    result, code = execute(spec, out, NullCallback(), resume=True)
    assert (result["status"], code) == ("finished", 0)
    assert result["test"]["loss"] > 0


def test_an_interrupted_run_is_still_scored(tmp_path):
    class Stopper(NullCallback):
        def on_step(self, info):
            signal.raise_signal(signal.SIGINT)

    result, code = execute(dataclasses.replace(twice(tmp_path), steps=9), tmp_path / "run", Stopper())
    assert (result["status"], code) == ("interrupted", 130)
    assert result["test"]["loss"] > 0


def test_the_command_prints_the_progress_of_long_translations_without_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("anaphor.progress.LINE_SECONDS", 0.0)
    twice(tmp_path)
    words = "train translate --source en --target de --width 8 --layers 1 --steps 1 --batch-size 1 --no-test"
    assert main([*words.split(), "--data", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    assert "translating: 50%, " in capsys.readouterr().err


class Time:
    """A clock for the bar; each look at it takes a hundredth of a second."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        for name in ("monotonic", "perf_counter"):
            monkeypatch.setattr(f"anaphor.progress.time.{name}", self.look)

    def look(self):
        self.now += 0.01
        return self.now


def valid(loss):
    return Result({"loss": loss}, "signature")


def test_without_a_terminal_there_is_one_line_in_ten_seconds(monkeypatch, capsys):
    clock = Time(monkeypatch)
    with Bar("training") as bar:
        listen = SecondBar(bar)
        for number in range(60):  # a validation each second, whose scoring reports ten times
            bar.on_step(step(number / 60, 2.0, number))
            for part in range(1, 11):
                clock.now += 0.1
                listen("scoring", part / 10)
            bar.on_evaluation(evaluation(number, valid(float(number))))
    lines = capsys.readouterr().err.splitlines()
    assert 6 <= len(lines) <= 9
    assert lines[0].startswith("epoch 0: ")
    assert lines[-1].startswith("epoch 59: "), "the last validation is printed"


def test_without_a_terminal_training_is_seen_before_the_first_validation(monkeypatch, capsys):
    clock = Time(monkeypatch)
    with Bar("training") as bar:
        for number in range(1, 3601):  # a step each second
            clock.now += 1
            bar.on_step(step(number / 3600, 2.0, 100 * number, number))
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"step 4: training loss 2\.0000; \d+ items/s, .* left", lines[0])
    numbers = [int(line.partition(":")[0].removeprefix("step ").replace(",", "")) for line in lines]
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    assert gaps == sorted(gaps), "lines become rarer"
    assert (10 <= gaps[0] <= 12, 55 <= gaps[-1] <= 61) == (True, True)


def test_lines_about_steps_delay_no_validation(monkeypatch, capsys):
    clock = Time(monkeypatch)
    with Bar("training") as bar:
        for number in range(1, 61):
            clock.now += 1
            bar.on_step(step(number / 60, 2.0, number, number))
            if number % 15 == 0:
                bar.on_evaluation(evaluation(number // 15, valid(1.0)))
                shown = capsys.readouterr().err.splitlines()
                assert shown[-1].startswith(f"epoch {number // 15}: ")
                assert len(shown) <= 3


@pytest.mark.parametrize(("epoch", "shown"), [(3, "3"), (1.254, "1.25"), (0.0038, "0.004"), (0.00011, "0.0001")])
def test_the_epoch_of_a_validation_is_never_rounded_to_nothing(capsys, epoch, shown):
    with Bar("training") as bar:
        bar.on_evaluation(evaluation(epoch, valid(1.0)))
    assert capsys.readouterr().err.startswith(f"epoch {shown}: ")


def test_long_scoring_has_an_estimate_of_its_own(monkeypatch, capsys):
    clock = Time(monkeypatch)
    with Bar("training") as bar:
        listen = SecondBar(bar)
        for part in range(1, 101):
            clock.now += 1
            listen("scoring", part / 100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 10
    left = [line.partition(", ")[2].removesuffix(" left") for line in lines]
    assert left[0] == "1 min 30 s"
    assert lines[-1].startswith("scoring: 9")


def test_scoring_that_begins_anew_is_estimated_anew(monkeypatch, capsys):
    clock = Time(monkeypatch)
    with Bar("training") as bar:
        listen = SecondBar(bar)
        listen("scoring", 0.01)
        listen("scoring", 0.02)  # and there it was given up
        clock.now += 1000  # of training
        for part in range(1, 21):
            listen("scoring", part / 200)
            clock.now += 1
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("scoring: 6%, 3 min "), "not the hours that the first attempt would suggest"


def test_rich_is_imported_where_there_is_a_terminal_or_is_said_to_be_one(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert Bar("training").progress is None
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bar("training") as bar:
        assert bar.progress is not None
        bar.on_step(step(0.5, 2.0, 10))
        listen = SecondBar(bar)
        listen("scoring", 0.5)
        assert [task.completed for task in bar.progress.tasks] == [0.5, 0.5]
        listen("scoring", 1.0)
        assert len(bar.progress.tasks) == 1

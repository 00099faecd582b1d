"""`--minutes` limits the whole command: time for validation and scoring is estimated and reserved."""

import dataclasses
import signal
import time

import pytest
import torch

import anaphor.evaluation
from anaphor.api import execute
from anaphor.progress_listener import Cancelled, progress_listener, report_progress
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training.budget import Budget
from anaphor.training.callbacks import NullCallback
from anaphor.training.experiment import Experiment
from anaphor.training.optimizers import Optimizer
from anaphor.training.progress import Progress
from anaphor.training.run_folder import RunFolder
from anaphor.training.time_limit import TimeIsUp, estimate_duration

CPU = torch.device("cpu")


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def counting(clock, seconds, parts, name="scoring"):
    """A computation in parts; the first takes five times as long, as it does when memory is allocated."""

    def call():
        for number in range(parts):
            clock.now += seconds * (5 if number == 0 else 1)
            report_progress(name, number + 1, parts)

    return call


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_a_short_computation_is_measured_to_its_end(clock):
    assert estimate_duration(counting(clock, 0.01, 10), 1.0, CPU) == pytest.approx(0.14)


def test_a_long_computation_is_extrapolated_from_its_first_parts(clock):
    assert estimate_duration(counting(clock, 0.5, 100), 4.0, CPU) == pytest.approx(52.0)
    assert clock.now < 106, "it was cancelled"


def test_a_second_kind_of_work_is_extrapolated_on_its_own(clock):

    def both():
        counting(clock, 0.1, 10)()
        counting(clock, 1.0, 50, "translating")()

    assert estimate_duration(both, 8.0, CPU) == pytest.approx(1.4 + 54)


def test_a_signal_while_estimating_is_not_taken_for_the_end_of_it(clock):
    def cancel(name, fraction):
        raise Cancelled

    with progress_listener(cancel), pytest.raises(Cancelled):
        estimate_duration(counting(clock, 1.0, 5), 1.0, CPU)


def test_estimating_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    estimate_duration(lambda: torch.rand(3), 1.0, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_minutes_are_those_of_the_whole_command():

    def spent(step, seconds, other=0.0, reserve=0.0):
        return Budget(None, 60.0).spent(Progress(step, seconds=seconds, elapsed=seconds + other, reserve=reserve))

    assert spent(9, 30.0) == 0.5
    assert spent(9, 24.0, other=16.0, reserve=20.0) == 1
    assert spent(9, 3.0, reserve=1e9) == 0.5, "a tenth is never reserved"
    assert spent(9, 3.0, other=1e9) == 1
    assert spent(0, 0.0, other=1e9) == 0, "there is one step at least"
    assert 0 < spent(1, 0.0) < 0.01, "nobody knows how long the first step will take"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("the cat sat on the mat\nthe dog sat on the log\n" * 200)
    return str(path)


def spec_of(text, seconds):
    return LanguageRunSpec(
        data=text, model="lstm", width=8, layers=1, batch_size=4, bptt=6, minutes=seconds / 60, device="cpu",
        eval_batch_size=1,
    )  # fmt: skip


@pytest.fixture
def passing(monkeypatch):
    """Time passes only while a batch is evaluated (`validating` seconds in all) and at each look at the clock."""
    clock, report = Clock(), anaphor.evaluation.report_progress
    cost = {"seconds": 0.0}

    def listen(name, done, total):
        clock.now += cost["seconds"] / total
        report(name, done, total)

    def look():
        clock.now += 0.02
        return clock.now

    monkeypatch.setattr(anaphor.evaluation, "report_progress", listen)
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, look)
    torch.set_default_dtype(torch.float32)
    return clock, cost


def test_validation_and_scoring_fit_into_the_minutes(text, tmp_path, passing):
    clock, cost = passing
    cost["seconds"], start, warnings = 2.0, clock.now, []
    result, code = execute(spec_of(text, 30), tmp_path / "run", warn=warnings.append)
    assert (code, result["status"]) == (0, "finished")
    assert 20 <= clock.now - start <= 30, "the time is used, and not exceeded"
    assert result["test"] is not None
    assert result["reserved_seconds"] >= 3 * cost["seconds"]
    assert len(RunFolder(tmp_path / "run").read_metrics()) == 2
    assert [line for line in warnings if line.startswith("--minutes 0.5: ")]
    steps = result["steps"]
    result, code = execute(spec_of(text, 30), tmp_path / "run", resume=True, warn=warnings.append)
    assert (code, result["status"], result["steps"]) == (0, "finished", steps), "a finished run stays finished"


@pytest.mark.parametrize("budget", [{"steps": 20}, {"minutes": 0.1}])
def test_no_step_of_a_warmup_is_wasted(budget, text, tmp_path, passing, monkeypatch):
    rates, set_lr = [], Optimizer.set_lr

    def keep(self, lr):
        rates.append(lr)
        set_lr(self, lr)

    monkeypatch.setattr(Optimizer, "set_lr", keep)
    spec = dataclasses.replace(spec_of(text, 6), minutes=None, lr=0.5, warmup=0.5, schedule="constant")
    execute(dataclasses.replace(spec, **budget), tmp_path / "run", test=False, warn=lambda line: None)
    assert 0 < rates[0] < rates[1] < max(rates) == 0.5
    if "steps" in budget:
        assert rates[:11] == pytest.approx([0.5 * (step + 1) / 10 for step in range(10)] + [0.5])


def test_minutes_that_one_validation_exceeds_end_unscored_and_resuming_scores(text, tmp_path, passing):
    clock, cost = passing
    cost["seconds"], start, warnings = 100.0, clock.now, []
    result, code = execute(spec_of(text, 30), tmp_path / "run", warn=warnings.append)
    assert (code, result) == (0, {"status": "stopped", "run": str(tmp_path / "run"), "valid": None, "test": None})
    assert clock.now - start < 1.2 * 30
    assert [line for line in warnings if line.startswith("--minutes 0.5 is too short to score the model: ")]
    assert (
        warnings[-1] == "saved, but not scored within --minutes 0.5: `--resume` scores the run, however long it takes"
    )
    assert not (tmp_path / "run" / "result.json").exists()
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    result, code = execute(spec_of(text, 30), tmp_path / "run", resume=True, warn=warnings.append)
    assert (code, result["status"], f"step-{result['steps']}") == (0, "finished", saved.name)
    assert result["valid"]["loss"] > 0
    assert result["test"]["loss"] > 0


def test_in_python_minutes_that_end_before_the_score_give_the_run_unscored(text, tmp_path, passing, capsys):
    _, cost = passing
    cost["seconds"], settings = 100.0, {"out": tmp_path / "run", "progress": False}
    run = anaphor.train("lm", **{**vars(spec_of(text, 30)), **settings})
    assert "saved, but not scored within --minutes 0.5" in capsys.readouterr().err
    assert run.step > 0
    assert run.generate("a", tokens=1)
    with pytest.raises(anaphor.DataError, match="is not finished"):
        _ = run.result
    assert anaphor.train("lm", resume=True, **settings).result["valid"]["loss"] > 0


def test_a_score_is_kept_where_no_time_is_left_for_figures(text, tmp_path, passing, monkeypatch):
    def draw(self, folder, valid):
        raise TimeIsUp

    monkeypatch.setattr(Experiment, "draw", draw)
    warnings = []
    result, code = execute(spec_of(text, 30), tmp_path / "run", test=False, warn=warnings.append)
    assert (code, result["status"]) == (0, "finished")
    assert result["valid"]["loss"] > 0
    assert "some figures are not drawn: the minutes are over" in warnings


def test_an_old_result_does_not_outlive_the_weights(text, tmp_path, single_precision):
    few = LanguageRunSpec(data=text, model="lstm", width=8, layers=1, batch_size=4, bptt=6, steps=2, device="cpu")
    execute(few, tmp_path / "run", test=False)
    assert (tmp_path / "run" / "result.json").exists()

    class Stop(NullCallback):
        def on_step(self, info):
            signal.raise_signal(signal.SIGTERM)

    more = dataclasses.replace(few, steps=9)
    result, _ = execute(more, tmp_path / "run", Stop(), resume=True, force=True, test=False, warn=lambda line: None)
    assert result["status"] == "stopped"
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_stopped_run_has_the_rest_of_its_minutes_when_it_is_resumed(text, tmp_path, passing):
    clock, _ = passing

    class Stop(NullCallback):
        def on_step(self, info):
            if info.progress > 0.5:
                signal.raise_signal(signal.SIGTERM)

    start = clock.now
    result, _ = execute(spec_of(text, 3), tmp_path / "run", Stop(), test=False, warn=lambda line: None)
    assert result["status"] == "stopped"
    clock.now += 1000
    between = clock.now
    result, _ = execute(spec_of(text, 3), tmp_path / "run", resume=True, test=False, warn=lambda line: None)
    assert result["status"] == "finished"
    assert clock.now - between + (between - 1000 - start) <= 3.5

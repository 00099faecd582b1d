"""What the step log costs a training is below the limit that is promised."""

import itertools
from types import SimpleNamespace

import pytest

from anaphor.training.step import StepMetrics
from anaphor.training.step_log import StepLog
from benchmarks import step_log
from benchmarks.our_loop import OurLoop
from benchmarks.step_log import Cost, describe_steps, measure, time_steps


def test_the_log_takes_less_than_a_hundredth_of_a_step_of_a_millisecond():
    assert measure(steps=500, lines=20).share(0.001) < 0.01


def test_the_share_has_both_costs(capsys, monkeypatch):
    cost = Cost(step=1e-6, line=2e-5)
    assert abs(cost.share(0.001) - (0.001 + 0.00001)) < 1e-9
    monkeypatch.setattr(step_log, "measure", lambda: cost)
    step_log.main([1.0])
    assert capsys.readouterr().out.splitlines() == [
        "adding a step: 1.00 µs; with a line: 20 µs, every 2 s",
        "of a training with steps of 1 ms: 0.1010%",
    ]


def test_steps_are_timed_with_the_log_and_without_it(monkeypatch):
    """Four timings warm up, two of each kind; then each pair has one of each kind."""
    added, add = [], StepLog.add
    monkeypatch.setattr(StepLog, "add", lambda log, *values: added.append(values) or add(log, *values))
    read = SimpleNamespace(read=lambda: StepMetrics(2.0, {"weight": 1.0}))

    def step_once(batches, carry):
        return read, carry

    step_once.lag = False
    times = time_steps(OurLoop(step_once, itertools.repeat(None)), count=3, pairs=5, on_gpu=False)
    assert len(times) == 5
    assert len(added) == (2 + 5) * 3
    assert {values[3].loss for values in added} == {2.0}


@pytest.mark.parametrize(
    ("logged", "said"), [((1.0, 1.02, 0.99), "no measurable difference"), ((1.1, 1.11, 1.12), ": a difference")]
)
def test_a_difference_is_told_from_noise(logged, said):
    text = describe_steps("recipe", "cuda", [(0.001, value / 1000) for value in logged])
    assert text.startswith("recipe on cuda: a step takes 1.0000 ms without the log and 1.")
    assert text.endswith(said)


def test_without_a_gpu_one_line_says_so(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="--device cuda: torch finds no GPU here"):
        step_log.main(argv=["--device", "cuda"])

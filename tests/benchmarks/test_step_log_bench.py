"""What the step log costs a training is below the limit that is promised."""

from benchmarks import step_log
from benchmarks.step_log import Cost, measure


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

"""A search learns from settings that went wrong, and not from machines that did."""

import json
import math

import pytest

from anaphor.studies.cell import JOB, STOP
from anaphor.studies.engines import JobResult
from studies.pretended import Pretending, finish
from studies.test_repeats import Drawn

HIGHEST = 1e-3  # rates above it diverge, which is a good part of the range


def worked(job):
    lr = json.loads((job.folder / JOB).read_text())["spec"]["lr"]
    if lr <= HIGHEST:
        finish(job.folder, perplexity=(math.log10(lr) + 4.2) ** 2 + 2)
        return JobResult(0)
    (job.folder / "result.json").write_text(json.dumps({"status": "diverged", "reason": "training diverged"}))
    return JobResult(3)


def stopped(job):
    (job.folder / STOP).touch()
    return JobResult(143)


@pytest.mark.parametrize(
    ("ends", "told"), [(worked, math.inf), (stopped, math.inf), (lambda job: JobResult(1, "no room"), None)]
)
def test_a_setting_that_went_wrong_is_the_worst_and_one_that_crashed_is_unknown(begin, monkeypatch, ends, told):
    study = begin(Pretending(ends=ends), "parameters: {lr: {values: [1.0]}}\nseeds: 2")
    plan = Drawn(study.spec.settings())
    monkeypatch.setattr("anaphor.studies.study.make_proposals", lambda spec, folder, is_shared: plan)
    study.run()
    assert [value for _, value in plan.told] == [told]


def test_one_seed_that_diverges_spoils_a_setting_where_more_is_better_too(begin, monkeypatch):
    def one(job):
        lucky = not json.loads((job.folder / JOB).read_text())["spec"]["seed"]
        return finish(job.folder, bleu=30.0) or JobResult(0) if lucky else worked(job)

    study = begin(
        Pretending(ends=one), "task: translate\nmetric: valid.bleu\nparameters: {lr: {values: [1.0]}}\nseeds: 2"
    )
    study.spec = study.spec.with_base(data="echo")
    plan = Drawn(study.spec.settings())
    monkeypatch.setattr("anaphor.studies.study.make_proposals", lambda spec, folder, is_shared: plan)
    study.run()
    assert [value for _, value in plan.told] == [-math.inf]


SEARCH = """
method: bayes
trials: %d
parameters: {lr: {min: 1.0e-5, max: 1.0, distribution: log_uniform}}
seeds: 1
"""


def test_a_search_leaves_the_values_that_diverge_and_goes_on_so_when_it_is_resumed(begin):
    pytest.importorskip("optuna", reason="`pip install anaphor[search]` for is_search")
    rates = []
    for trials in (20, 40):
        study = begin(engine := Pretending(ends=worked), SEARCH % trials)
        study.run()
        assert len(engine.jobs) == trials - len(rates), "nothing is trained again"
        assert [cell.setting.run.lr for cell in study.cells][: len(rates)] == rates
        rates = [cell.setting.run.lr for cell in study.cells]
    assert len(set(rates)) == 40
    first, last = rates[:10], rates[20:]
    assert sum(rate > HIGHEST for rate in first) >= 4, "drawn at random, many diverge"
    assert sum(rate > HIGHEST for rate in last) <= 3

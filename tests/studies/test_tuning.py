"""Nested selection: what a study with `tune` chooses and compares is what a brute-force search over its cells gives."""

import itertools
import json
import statistics

import numpy as np
import pytest

from anaphor.errors import ConfigError
from anaphor.metrics.statistics import confidence_interval
from anaphor.studies.cell import MEASURES
from anaphor.studies.engines import JobResult
from anaphor.studies.groups import Group, compare_best
from anaphor.studies.report import report
from anaphor.studies.study import Study, validate_sealed
from anaphor.studies.study_file import read_study
from anaphor.studies.validation import validate_study
from studies.here import Silent, logged
from studies.pretended import Pretending, finish

MODELS, WIDTHS, RATES = ("lstm", "gru", "rnn-tanh"), (8, 16), (0.001, 0.003, 0.01, 0.03)
LINES = """
parameters: {model: {values: [lstm, gru, rnn-tanh]}, width: {values: [8, 16]}}
tune: {lr: {values: [0.001, 0.003, 0.01, 0.03]}}
metric: perplexity
"""


def draw(generator):
    """A perplexity for every cell that a study may train, by model, width, learning rate and seed."""
    keys = itertools.product(MODELS, WIDTHS, RATES, range(6))
    return {key: float(generator.normal(20 + 3 * MODELS.index(key[0]), 1.0)) for key in keys}


class Known(Pretending):
    """Ends every cell with the value that a table has for it; on test with another one."""

    def __init__(self, values, fails=lambda key: False):
        super().__init__()
        self.values, self.fails = values, fails

    def _end(self, job):
        written = json.loads((job.folder / "job.json").read_text())
        spec, wanted = written["spec"], written["measures"]
        key = (spec["model"], spec["width"], spec["lr"], spec["seed"])
        if self.fails(key):
            return JobResult(1, "no memory")
        if job.action == "test":
            (job.folder / "test.json").write_text(json.dumps({"perplexity": 100 + self.values[key], "wanted": wanted}))
            return JobResult(0)
        finish(job.folder, perplexity=self.values[key])
        (job.folder / MEASURES).write_text(
            json.dumps({"wanted": json.loads((job.folder / MEASURES).read_text())["wanted"]})
        )
        return JobResult(0)


def brute_force(values, tuning, seeds):
    """By hand: the best rate of every setting by its mean over the seeds that tune, and its values over the seeds."""
    chosen = {}
    for model, width in itertools.product(MODELS, WIDTHS):
        means = {rate: statistics.fmean(values[model, width, rate, seed] for seed in tuning) for rate in RATES}
        rate = min(means, key=means.get)
        half = confidence_interval([values[model, width, rate, seed] for seed in tuning]).half_width
        close = [one for one in RATES if one != rate and half is not None and abs(means[one] - means[rate]) <= half]
        chosen[model, width] = rate, close, [values[model, width, rate, seed] for seed in seeds]
    return chosen


@pytest.mark.parametrize(
    ("lines", "tuning", "seeds"),
    [
        ("seeds: 3", [0, 1, 2], [0, 1, 2]),
        pytest.param("seeds: 4\ntune_seeds: 1", [0], [0, 1, 2, 3], marks=pytest.mark.slow),
        pytest.param("seeds: [0, 1, 2]\ntune_seeds: [3, 4]", [3, 4], [0, 1, 2], marks=pytest.mark.slow),
        ("seeds: [2, 5, 1]\ntune_seeds: 2", [2, 5], [2, 5, 1]),
    ],
    ids=["all", "first", "others", "two"],
)
@pytest.mark.parametrize("number", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2))])
def test_nested_selection_is_what_brute_force_finds(lines, tuning, seeds, number, begin):
    values = draw(np.random.default_rng(number))
    expected = brute_force(values, tuning, seeds)
    study = begin(engine := Known(values), f"{LINES}test: all\n{lines}")
    study.run()
    result = report(study)
    # Only what tunes, and what was chosen, is trained; only what was chosen is compared and tested, after the seal.
    wanted = {(*key, rate, seed) for key in expected for rate in RATES for seed in tuning}
    wanted |= {(*key, rate, seed) for key, (rate, _, _) in expected.items() for seed in seeds}
    found = [(*cell["parameters"].values(), cell["seed"]) for cell in result["cells"]]
    assert sorted(found) == sorted(wanted)
    assert sum(action == "train" for action, _ in engine.jobs) == len(wanted)
    compared = {(*key, rate, seed) for key, (rate, _, _) in expected.items() for seed in seeds}
    for cell, key in zip(result["cells"], found, strict=True):
        assert cell["chosen"] == ("test" in cell) == (key in compared)
    events = [line["event"] for line in logged(study)]
    assert events.index("sealed") > max(place for place, event in enumerate(events) if event == "finished")
    assert events.index("sealed") < events.index("test")
    # The table has the choice, its flatness, and mean and interval over the seeds that compare.
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result["table"].splitlines()[2:]]
    for (model, width), (rate, close, of) in expected.items():
        row = next(row for row in rows if row[:2] == [model, str(width)])
        assert row[2] == str(confidence_interval(of)).split(" ")[0]
        assert row[4:6] == [str(len(seeds)), f"{rate:g}"]
        assert row[6] == ("" if len(tuning) == 1 else "; ".join(f"{one:g}" for one in close) or "none")
    # The best, and the corrected p-value of the second best.
    groups = [
        Group(
            {"model": model, "width": width},
            tuple(sorted(seeds)),
            tuple(of[seeds.index(seed)] for seed in sorted(seeds)),
        )
        for (model, width), (_, _, of) in expected.items()
    ]
    best, *others = sorted(groups, key=lambda group: group.mean)
    assert result["best"]["parameters"] == {**best.parameters, "lr": expected[tuple(best.parameters.values())][0]}
    second = compare_best(best, others)[0]
    (sentence,) = [line for line in result["findings"] if line.startswith("Second best: ")]
    assert str(second.second) in sentence
    assert second.p < 0.001 or f"p = {second.p:.{3 if second.p < 0.1 else 2}f}" in sentence


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_a_frozen_choice_stays(begin):
    values = draw(np.random.default_rng(1))
    lines = f"{LINES}seeds: 3\ntune_seeds: 1"
    study = begin(Known(values), lines)
    study.run()
    first = report(study)
    again = begin(engine := Known(values), lines)
    validate_sealed(again.spec, again.folder, 1)
    again.run()
    assert report(again) == first
    assert engine.jobs == []
    seal = json.loads((study.folder / "seal.json").read_text())
    assert len(seal["tuned"]) == 6
    assert seal["chosen"] == first["best"]["parameters"]
    more = begin(Known(values), f"{LINES}seeds: 3\ntune_seeds: 2")
    with pytest.raises(ConfigError, match="frozen with other cells"):
        validate_sealed(more.spec, more.folder, 1)


def test_values_without_a_result_for_a_seed_are_not_chosen_and_a_setting_without_any_is_named(begin):
    values = {key: float(key[2]) for key in draw(np.random.default_rng(0))}

    def fails(key):
        return key[0] == "gru" or (key[2] == 0.001 and key[3] == 1)

    study = begin(Known(values, fails), f"{LINES}seeds: 2")
    study.run()
    result = report(study)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result["table"].splitlines()[2:]]
    assert {row[0]: row[5] for row in rows} == {"lstm": "0.003", "gru": "", "rnn-tanh": "0.003"}
    assert [row[4] for row in rows if row[0] == "gru"] == ["0 of 2"] * 2
    text = " ".join(result["findings"])
    assert "model gru, width 8: none has a result for all seeds" in text
    assert "model gru, width 8 (2 of 2 seeds)" in text


def test_a_choice_at_an_end_of_its_values_is_said_to_be_there(begin):
    values = {
        key: 10 * abs(np.log(key[2] / (0.1 if key[0] == "gru" else 0.003))) for key in draw(np.random.default_rng(0))
    }
    study = begin(Known(values), f"{LINES}seeds: 1")
    study.run()
    lines = [line for line in report(study)["findings"] if "at an end" in line]
    assert lines == [
        "The best lr is at an end of its values for model gru, width 8 (0.03); model gru, width 16 (0.03): better ones "
        "may lie beyond."
    ]
    assert {path.name for path in (study.folder / "tuning").iterdir()} >= {"table.csv", "table.tex", "study.pdf"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("tune: {lr: {min: 1, max: 2}}", "tune: lr needs a list of values, and not a range"),
        ("tune: [lr]", "tune=\\['lr'\\]: it must be a mapping"),
        ("tune: {width: {values: [1, 2]}}", "width is tuned and varied"),
        ("tune: {size: {settings: {small: {width: 4}}}}", "width is tuned and varied"),
        ("tune: {lr: {values: [0.1]}, rate: {settings: {a: {lr: 1}}}}", "tune: lr is set twice"),
        ("tune: {seed: {values: [0, 1]}}", "seed is no axis"),
        ("tune: {learning_rate: {values: [0.1]}}", "learning_rate"),
        ("tune_seeds: 1", "tune_seeds=1 has no effect without `tune`"),
        ("tune: {lr: {values: [0.1]}}\ntune_seeds: 4", "give so many of the 3 seeds, or a list"),
        ("tune: {lr: {values: [0.1]}}\ntune_seeds: 0", "give so many of the 3 seeds, or a list"),
        ("tune: {lr: {values: [0.1]}}\ntune_seeds: []", "give at least one seed"),
        ("tune: {lr: {values: [0.1]}}\ntune_seeds: [1, 1]", "without duplicates"),
        ("tune: {lr: {values: [0.1]}}\ntune_seeds: many", "tune_seeds"),
        ("tune: {lr: {values: [0.1]}}\nmethod: random", "method random searches itself"),
        ("tune: {tokenizer: {values: [word, character]}}", "tune cannot vary tokenizer by metric=valid.perplexity"),
    ],
)
def test_what_cannot_be_tuned_is_refused(lines, message, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(f"base: {{data: grammar, device: cpu}}\nparameters: {{width: {{values: [4, 8]}}}}\n{lines}\n")
    with pytest.raises(ConfigError, match=message):
        validate_study(spec := read_study(file), spec.settings())


def test_what_is_tuned_is_no_setting_of_all_runs(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(f"base: {{data: grammar}}\n{LINES}")
    spec = read_study(file)
    assert spec.find_axis_of("lr") == "lr"
    assert (len(spec.settings()), spec.count_cells()) == (24, 72)
    plain = spec.to_plain()
    assert plain["tune"] == {"lr": {"values": list(RATES)}}
    assert "tune_seeds" not in plain
    assert isinstance(Study(spec, tmp_path, Known({}), Silent()).spec.tune, tuple)

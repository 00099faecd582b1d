"""Against numbers that an earlier version recorded: losses of presets, recipes and settings, sizes and signatures."""

import dataclasses
import os

import pytest
import torch
from recording import FILE_NAME, cases, read_recorded, train

from anaphor.beam_search import Hypothesis
from anaphor.flags import from_yaml
from anaphor.metrics.losses import LossTotal
from anaphor.registry import PRESETS, TASKS
from anaphor.training.build import build_experiment
from anaphor.training.task import recipes_of
from installed import recipes_with_extras

RECORDED = list(read_recorded(FILE_NAME).values())
BUILT = {name: built for recorded in RECORDED for name, built in recorded.get("built", {}).items()}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    """Tokenizers of these tests, none of which another version has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(
    ("task", "case"),
    [
        # Every preset and recipe each time; those with other settings take as long as both together.
        pytest.param(
            task,
            case,
            id=f"{kind}-{task}-{name}",
            marks=[pytest.mark.slow] if case.get("slow") or kind == "settings" else [],
        )
        for recorded in RECORDED
        for kind, task, name, case in cases(recorded)
    ],
)
def test_ten_steps_have_the_recorded_losses(tmp_path, task, case):
    stop_after = case["settings"]["steps"] if case.get("stop") else None
    record = train(tmp_path, task, case["settings"], stop_after=stop_after)
    assert record.losses == pytest.approx(case["losses"], abs=1e-6, rel=1e-6)
    assert len(record.losses) == case["settings"]["steps"] == 10
    if stop_after is None:
        assert record.valid.keys() == case["valid"].keys()
        for name, value in case["valid"].items():
            assert record.valid[name] == (pytest.approx(value, 1e-6, 1e-6) if isinstance(value, float) else value), name


@pytest.mark.parametrize("task", ["lm", "translate", "images", "classify"])
def test_every_preset_and_recipe_has_recorded_losses(task):
    """So that none is lost, and a new one is recorded."""
    found = [(kind, name, case) for recorded in RECORDED for kind, of, name, case in cases(recorded) if of == task]
    recipes = {case["settings"]["recipe"] for kind, _, case in found if kind == "recipes"}
    assert recipes == set(recipes_with_extras(TASKS[task]))
    assert {name for kind, name, _ in found if kind == "presets"} == set(PRESETS[task])


@pytest.mark.slow
@pytest.mark.skipif("ANAPHOR_DATA" not in os.environ, reason="recipes need real data: set ANAPHOR_DATA")
@pytest.mark.parametrize("name", BUILT)
def test_every_recipe_builds_the_recorded_model_and_signature(name, monkeypatch, single_precision):
    recorded = BUILT[name]
    task = TASKS[recorded["task"]]
    spec = dataclasses.replace(from_yaml(task.run_spec, recipes_of(task)[name]), device="cpu")
    experiment = build_experiment(spec)
    assert sum(weight.numel() for weight in experiment.model.parameters()) == recorded["parameters"]
    if recorded["task"] == "lm":
        batches = experiment.eval_batches("valid", experiment.protocol)
        result = experiment.result_of(
            "valid", experiment.protocol, ((batch, torch.zeros(batch.targets.shape)) for batch in batches)
        )
        assert result.signature == recorded["signature"]
        return
    split = experiment.split("valid")
    total = LossTotal(0.0, sum(batch.count for batch in split.batches.by_length()), split.pairs.bytes)
    empty = [Hypothesis(tokens=[], log_probability=0.0, score=0.0, finished=True) for _ in split.pairs.indices.tolist()]
    monkeypatch.setattr(experiment, "total", lambda split: total)
    monkeypatch.setattr(experiment, "translate_split", lambda split, beam: empty)
    result = experiment.score("valid")
    assert result.signature == recorded["signature"]
    assert result.to_plain()["bleu_signature"] == recorded["bleu_signature"]

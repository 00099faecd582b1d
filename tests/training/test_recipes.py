"""Recipes are complete, belong to a task, and say so where one is asked for with another."""

from pathlib import Path

import pytest

import anaphor
from anaphor.errors import ConfigError
from anaphor.flags import from_yaml
from anaphor.registry import TASKS
from anaphor.training.task import recipe_file
from installed import recipes_with_extras

ALL = [(task, name) for task in ("lm", "translate") for name in recipes_with_extras(TASKS[task])]


@pytest.mark.parametrize(("task", "name"), ALL, ids=[name for _, name in ALL])
def test_every_recipe_is_a_run(task, name):
    run = from_yaml(TASKS[task].run_spec, recipe_file(name, TASKS[task]))
    assert run.model
    assert sum(budget is not None for budget in (run.epochs, run.steps, run.minutes)) == 1


def test_a_recipe_of_another_task_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"'word-language-model-lstm' is for `train lm`, not for `train translate`"):
        recipe_file("word-language-model-lstm", TASKS["translate"])
    with pytest.raises(ConfigError, match=r"unknown recipe 'word-language-model'; did you mean"):
        recipe_file("word-language-model", TASKS["lm"])


@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--device", "auto"], ["--minutes", "60"]])
def test_a_recipe_for_a_gpu_is_refused_at_once_where_there_is_none(words, monkeypatch, tmp_path, error_of):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    line = error_of(["train", "images", "--recipe", "cifar-10-90s", *words])
    assert line.startswith("recipe 'cifar-10-90s' is made for one NVIDIA H200, and torch finds no GPU here: ")
    assert "--device cpu" in line
    with pytest.raises(ConfigError, match="is made for one NVIDIA H200"):
        anaphor.train("images", recipe="cifar-10-90s")
    assert not [*Path().rglob("spec.yaml")]


def test_a_recipe_for_a_gpu_may_be_tried_on_a_cpu_that_is_asked_for(monkeypatch, answer_of, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ["--recipe", "cifar-10-90s", "--device", "cpu", "--data", "shapes", "--layers", "1", "--max-examples", "64"]
    plan = answer_of(["train", "images", *words, "--dry-run", "--json"])
    assert (plan["device"], plan["image_size"]) == ("cpu", 32)

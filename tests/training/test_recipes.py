"""Recipes are complete, belong to a task, and say so where one is asked for with another."""

import pytest

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

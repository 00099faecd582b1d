"""Recipes are complete, belong to a task, and say so where one is asked for with another."""

import pytest
from anaphor.training.recipes import recipe_file, recipes

from anaphor.config import from_yaml
from anaphor.errors import ConfigError
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec

ALL = [(spec, name) for spec in (LanguageRunSpec, TranslationRunSpec) for name in recipes(spec.task)]


@pytest.mark.parametrize(("spec", "name"), ALL, ids=[name for _, name in ALL])
def test_every_recipe_is_a_run(spec, name):
    run = from_yaml(spec, recipe_file(name, spec.task))
    assert run.model
    assert sum(budget is not None for budget in (run.epochs, run.steps, run.minutes)) == 1


def test_a_recipe_of_another_task_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"'word-language-model-lstm' is for `train lm`, not for `train translate`"):
        recipe_file("word-language-model-lstm", "translate")
    with pytest.raises(ConfigError, match=r"unknown recipe 'word-language-model'; did you mean"):
        recipe_file("word-language-model", "lm")

"""Recipes with settings of extras are runs, and flags may change them."""

from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.registry import TASKS
from anaphor.training.run_folder import RunFolder
from anaphor.training.task import recipes_of
from installed import recipes_with_extras


@pytest.mark.parametrize("task", ["lm", "translate", "images", "classify"])
def test_every_recipe_has_its_extras(task):
    assert [*recipes_with_extras(TASKS[task])] == [*recipes_of(TASKS[task])]


@pytest.fixture
def words(text):
    return ["train", "lm", "--data", "text", "--width", "8", "--device", "cpu", "--out", "run", "--recipe"]


def test_a_flag_may_make_a_setting_of_a_recipe_unused(words, capsys):
    more = ["--heads", "2", "--position", "sinusoidal"]  # the recipe has max_positions
    assert main([*words, "shakespeare-character", *more, "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


def test_another_optimizer_does_not_inherit_the_options_of_a_recipe(words):
    more = ["--layers", "1", "--layer-widths", "4", "--batch-size", "2", "--bptt", "5", "--steps", "1", "--no-test"]
    assert main([*words, "wikitext-2-lstm", "--optimizer", "sgd", *more]) == 0
    settings = RunFolder(Path("run")).read_settings()
    assert (settings["optimizer"], settings["momentum"]) == ("sgd", 0)
    assert "betas" not in settings

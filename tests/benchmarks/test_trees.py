"""Two source trees are compared by what every tree promises: here by packages that have nothing else."""

import json

import pytest
import torch

from anaphor.errors import ConfigError, DataError
from benchmarks import start, trees
from benchmarks.__main__ import main

CPU = torch.device("cpu")
PACKAGE = """
from pathlib import Path

def train(task, callback, out, steps, **settings):
    Path(out).write_text(f"{task} {sorted(settings)}")
    for step in range(steps):
        with open(out, "a") as file:
            file.write(".")
        callback.on_evaluation(step, None, None, False)
        callback.on_step(step / steps, 1.0, step)
"""


@pytest.fixture
def two_trees(tmp_path, monkeypatch):
    sources = tmp_path / "this", tmp_path / "other" / "src"
    for source in sources:
        (source / "anaphor" / "cli").mkdir(parents=True)
        (source / "anaphor" / "__init__.py").write_text(PACKAGE)
        (source / "anaphor" / "cli" / "main.py").write_text("def main():\n    print('usage')\n")
    monkeypatch.setattr(trees, "THIS_TREE", sources[0])
    monkeypatch.setattr(trees, "locate_data", lambda name, folder: (name, f"drawn like {name}"))
    monkeypatch.setattr(start, "import_torch", lambda: None)
    return sources


def test_a_training_does_as_many_steps_as_it_is_told(two_trees, tmp_path):
    out = tmp_path / "run"
    with trees.steps_of_tree(two_trees[1], "lm", {"out": str(out), "steps": 1000, "lr": 1}) as run_steps:
        assert out.read_text() == "lm ['lr']."
        run_steps(3)
        run_steps(2)
        assert out.read_text() == "lm ['lr']......"


@pytest.mark.slow
def test_this_package_is_one_that_can_be_measured(tmp_path):
    settings = {
        "data": "grammar",
        "model": "lstm",
        "width": 8,
        "device": "cpu",
        "steps": 9,
        "out": str(tmp_path / "run"),
    }
    with trees.steps_of_tree(trees.THIS_TREE, "lm", settings) as run_steps:
        run_steps(3)
        assert (tmp_path / "run" / "spec.yaml").is_file()
        assert not (tmp_path / "run" / "result.json").is_file()


def test_a_training_that_ends_by_itself_is_an_error(two_trees, tmp_path):
    with (
        pytest.raises(DataError, match=r"training with the package of .*src ended"),
        trees.steps_of_tree(two_trees[1], "lm", {"out": str(tmp_path / "run"), "steps": 2}) as run_steps,
    ):
        run_steps(5)


def test_every_recipe_has_a_ratio_of_the_two(two_trees):
    ticks = []
    findings = trees.measure(two_trees[1], ["training"], [], 2, CPU, ticks.append)
    assert [finding.what.partition(":")[0] for finding in findings] == list(trees.RECIPES["cpu"])
    assert len(ticks) == trees.count_ticks(["training"], [], 2, CPU) == 4
    assert all(finding.value > 0 and "drawn like wikitext-2" in finding.detail for finding in findings)


def test_the_command_compares_the_start_of_both(two_trees, capsys, tmp_path):
    main(["--against", str(tmp_path / "other"), "--parts", "start", "--pairs", "2", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["against"] == f"{two_trees[1]} at unknown"
    assert len(report["findings"]) == len(start.HELPS + start.TRAININGS)
    for finding in report["findings"]:
        assert finding["kept"] == (finding["value"] >= trees.MIN_RATIO)
        assert finding["peer"] == f"the same with {two_trees[1]}"


def test_a_folder_without_the_package_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither it nor its folder src contains the package anaphor"):
        trees.find_source(tmp_path)


def test_parts_with_a_peer_of_their_own_are_refused_with_another_tree(capsys):
    assert main(["--against", "elsewhere", "--parts", "packing"]) == 2
    assert "unknown part 'packing' (known: start, training)" in capsys.readouterr().err

"""Loading a run: which files are read, what is left alone, and what is refused."""

import json
import random

import numpy as np
import pytest
import torch

from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.errors import CheckpointError
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training import checkpoint, loop
from anaphor.training.load import load_run
from anaphor.training.run_folder import RunFolder
from command_line import without_start_lines

SPEC = {
    "data": "text", "model": "transformer-xl", "memory": 16, "width": 8, "heads": 2, "layers": 1, "batch_size": 2,
    "bptt": 5, "steps": 4, "eval_every": 2, "device": "cpu", "dropout": 0.1, "average": "ema",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("text")


@pytest.fixture
def run(tmp_path, single_precision):
    """The folder of a run whose best checkpoint is not the newest."""
    execute(LanguageRunSpec(**SPEC), tmp_path / "run", test=False)
    for step, best in ((2, 2), (4, 2)):
        saved = checkpoint.read(tmp_path / "run" / "checkpoints" / f"step-{step}")
        saved.metadata["progress"]["best_step"] = best
        checkpoint.write(tmp_path / "run" / "checkpoints", step, saved.parts, saved.metadata)
    return tmp_path / "run"


@pytest.mark.parametrize("best", [2, 4])
def test_the_best_weights_are_loaded_and_no_other_part_of_a_checkpoint(run, best):
    saved = checkpoint.read(run / "checkpoints" / "step-4")
    saved.metadata["progress"]["best_step"] = best
    checkpoint.write(run / "checkpoints", 4, saved.parts, saved.metadata)
    for name in ("optimizer", "random", "carry"):
        for step in (2, 4):
            (run / "checkpoints" / f"step-{step}" / f"{name}.safetensors").write_bytes(b"damaged")
    assert load_run(run, device="cpu").step == best


def test_another_checkpoint_is_loaded_where_it_is_asked_for(run, capsys, error_of):
    weights = {
        step: checkpoint.read(run / "checkpoints" / f"step-{step}", ("average",)).parts["average"] for step in (2, 4)
    }
    for wanted, step in (("best", 2), ("last", 4), (4, 4), ("2", 2)):
        loaded = load_run(run, device="cpu", checkpoint=wanted)
        assert loaded.step == step
        state, tensors = loaded.model.state_dict(), weights[step]
        pairs = [(state[name], tensors[f"weights/{name}"]) for name in state if f"weights/{name}" in tensors]
        assert pairs
        assert all(torch.equal(*pair) for pair in pairs)
    printed = []
    for wanted in ("best", "last", "4"):
        words = ["score", str(run), "the cat sat on a log", "--checkpoint", wanted, "--json", "--device", "cpu"]
        assert main(words) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] != printed[1] == printed[2]
    words = ["generate", str(run), "--device", "cpu", "--checkpoint"]
    assert error_of([*words, "3"]) == f"{run} has no checkpoint of step 3 (those that are kept: 2, 4)"
    assert error_of([*words, "newest"]) == "checkpoint='newest': it must be best, last or the step of a checkpoint"


def test_an_old_best_checkpoint_of_a_finished_run_has_its_weights_alone(tmp_path, single_precision, monkeypatch):
    losses = iter([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(loop, "select_value", lambda metric, result: next(losses))
    result, _ = execute(LanguageRunSpec(**{**SPEC, "steps": 6}), tmp_path / "run", test=False)
    assert result["best_step"] == 2
    kept = {path.name: checkpoint.read(path).names for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept.keys() == {"step-2", "step-6"}
    assert kept["step-2"] == {"model", "average"}
    assert {"optimizer", "random"} <= kept["step-6"]
    assert load_run(tmp_path / "run", device="cpu").step == 2
    more = LanguageRunSpec(**{**SPEC, "steps": 8})
    result, _ = execute(more, tmp_path / "run", resume=True, force=True, test=False, warn=lambda line: None)
    assert (result["steps"], result["best_step"]) == (8, 2)


def test_the_global_random_state_is_left_alone(run):
    torch.manual_seed(123)
    torch.randn(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    loaded = load_run(run, device="cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    loaded.evaluate("valid")
    loaded.generate(tokens=5)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


def test_the_weights_do_not_depend_on_the_global_random_state(run):
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        weights.append(load_run(run, device="cpu").model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not load_run(run, device="cpu").model.training


def edit(run, old, new):
    path = run / "spec.yaml"
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("  memory: 16\n", "  memory: 2\n", "memory was 16 and is 2"),
        ("  bptt: 5\n", "  bptt: 4\n", "bptt was 5 and is 4"),
        ("  lr: 0.001\n", "  lr: 0.5\n", "lr was 0.001 and is 0.5"),
        ("  dropout: 0.1\n", "  dropout: 0.2\n", "dropout was 0.1 and is 0.2"),
        ("  memory: 16\n", "", "memory was 16 and is not set"),
    ],
)
def test_a_spec_that_was_edited_by_hand_is_refused_with_both_values(run, old, new, difference, error_of):
    edit(run, old, new)
    with pytest.raises(CheckpointError) as caught:
        load_run(run, device="cpu")
    newest = run / "checkpoints" / "step-4"
    assert str(caught.value) == f"{run / 'spec.yaml'} differs from {newest}: {difference}; restore the file as it was"
    for words in ("evaluate run --device cpu", "generate run --tokens 1", "score run cat", "look run cat --out seen"):
        assert difference in error_of(words.split())


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("  memory: 16\n", "  memory: 2\n", "memory was 16 and is 2"),
        ("  seed: 0\n", "  seed: 1\n", "seed was 0 and is 1"),
        ("  memory: 16\n", "", "memory was 16 and is 128"),  # what the preset has
    ],
)
def test_a_spec_that_was_edited_by_hand_does_not_resume(run, old, new, difference, capsys):
    edit(run, old, new)
    edited = (run / "spec.yaml").read_bytes()
    assert main(["train", "lm", "--resume", "--out", "run", "--no-test"]) == 2
    message = f"settings differ from the checkpoint: {difference}; use --force to resume anyway"
    assert without_start_lines(capsys.readouterr().err) == [f"anaphor: {message}"]
    assert (run / "spec.yaml").read_bytes() == edited


def test_comments_and_order_of_the_spec_do_not_matter(run):
    before = load_run(run, device="cpu").evaluate("valid")
    path = run / "spec.yaml"
    path.write_text("# mine\n" + path.read_text().replace("  lr: 0.001\n", "  lr: 1e-3 # small\n"))
    assert load_run(run, device="cpu").evaluate("valid") == before


def test_a_run_that_was_resumed_by_force_is_loaded_with_its_new_settings(run, capsys):
    words = ["train", "lm", "--resume", "--out", "run", "--no-test", "--json"]
    assert main([*words, "--force", "--steps", "6", "--memory", "3"]) == 0
    capsys.readouterr()
    assert load_run(run, device="cpu").model.spec.memory == 3
    assert main(words) == 0, "nothing has changed since"


class Killed(Exception):
    pass


def test_a_run_that_was_killed_right_after_a_forced_resume_is_consistent(run, monkeypatch):
    def killed(*arguments):
        raise Killed

    spec = LanguageRunSpec(**{**SPEC, "steps": 6, "seed": 9})
    with monkeypatch.context() as patch:
        patch.setattr("anaphor.training.loop.fit", killed)
        with pytest.raises(Killed):
            execute(spec, run, test=False, resume=True, force=True)
    assert RunFolder(run).read_settings()["seed"] == 9
    assert load_run(run, device="cpu").step == 2
    assert execute(spec, run, test=False, resume=True)[0]["steps"] == 6


def test_a_run_of_an_unknown_task_names_it(run, error_of):
    edit(run, "task: lm\n", "task: chess\n")
    assert "chess" in error_of(["evaluate", "run", "--device", "cpu"])


def test_a_checkpoint_of_another_format_is_refused_in_one_line(run, capsys):
    for path in (run / "checkpoints").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "format": 1}))
    for words in (["evaluate", "run", "--device", "cpu"], ["generate", "run"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "manifest.json has format 1, but this version of anaphor reads format 2" in error
    assert main(["train", "lm", "--resume", "--out", "run"]) == 2
    assert "has format 1, but this version of anaphor reads format 2" in capsys.readouterr().err

"""Checkpoints with a valid manifest that lack a part: one line names the file and the part."""

import json
import os
import shutil
from unittest import mock

import pytest
import torch

from anaphor.cli.main import main
from anaphor.training import checkpoint
from command_line import without_start_lines

TINY = "--width 8 --layers 1 --batch-size 2 --device cpu --steps 4 --eval-every 2 --no-test --json"
RUNS = {
    "lm": "--data text.txt --model lstm --bptt 5 --average ema",
    "translate": "--data pairs --source en --model luong",
}
USES = {
    "evaluate": ["evaluate", "run", "--device", "cpu"],
    "generate": ["generate", "run", "--tokens", "2", "--device", "cpu"],
    "score": ["score", "run", "the cat", "--device", "cpu"],
    "look": ["look", "run", "the cat", "--device", "cpu", "--out", "seen"],
    "translate": ["translate", "run", "the cat", "--device", "cpu"],
    "resume": ["train", "lm", "--resume", "--out", "run"],
    "resume a translation": ["train", "translate", "--resume", "--out", "run"],
}
OF_TRANSLATION = ("translate", "resume a translation")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of each task, with one checkpoint each."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("the cat sat on the mat\na dog sat on a log\n" * 40)
    (folder / "pairs").mkdir()
    for name in ("train", "valid"):
        for language in ("en", "de"):
            (folder / "pairs" / f"{name}.{language}").write_text("the cat sat\na dog\n" * 4)
    before, here = torch.get_default_dtype(), os.getcwd()
    torch.set_default_dtype(torch.float32)
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, {"ANAPHOR_CACHE": str(folder / "cache")}):
            for task, settings in RUNS.items():
                assert main(["train", task, *settings.split(), *TINY.split(), "--out", task]) == 0
                for older in (folder / task / "checkpoints").glob("step-[!4]"):
                    shutil.rmtree(older)
    finally:
        os.chdir(here)
        torch.set_default_dtype(before)
    return folder


@pytest.fixture
def spoil(trained, tmp_path, monkeypatch, capsys):
    """Change the checkpoint of a copy of the run and use it. Returns the exit code and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANAPHOR_CACHE", str(trained / "cache"))
    torch.set_default_dtype(torch.float32)

    def spoiled(use, change):
        shutil.copytree(trained / ("translate" if use in OF_TRANSLATION else "lm"), "run")
        shutil.copytree(trained / "pairs", "pairs")
        shutil.copy(trained / "text.txt", "text.txt")
        folder = tmp_path / "run" / "checkpoints"
        saved = checkpoint.read(folder / "step-4")
        parts, metadata = dict(saved.parts), json.loads(json.dumps(saved.metadata))
        change(parts, metadata)
        shutil.rmtree(folder / "step-4")
        checkpoint.write(folder, 4, parts, metadata)
        capsys.readouterr()
        code = main(USES[use])
        lines = without_start_lines(capsys.readouterr().err)
        return code, "\n".join(lines)

    return spoiled


def without(part):
    return lambda parts, metadata: (parts if part in parts else metadata).pop(part)


def with_metadata(**changes):
    return lambda parts, metadata: metadata.update(changes)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("model", "run/checkpoints/step-4 lacks model.safetensors"),
        ("tokenizer", "run/checkpoints/step-4/facts.json lacks tokenizer"),
        ("progress", "run/checkpoints/step-4/facts.json lacks progress"),
    ],
)
def test_a_part_that_every_use_needs_is_required(spoil, use, part, message):
    assert spoil(use, without(part)) == (2, f"anaphor: {message}")


@pytest.mark.parametrize("use", ["resume", "resume a translation"])
@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("optimizer", "run/checkpoints/step-4 lacks optimizer.safetensors"),
        ("random", "run/checkpoints/step-4 lacks random.safetensors"),
        ("schedule", "run/checkpoints/step-4/facts.json lacks schedule"),
        ("spec", "run/checkpoints/step-4/facts.json lacks spec"),
        ("data", "run/checkpoints/step-4/facts.json lacks data"),
    ],
)
def test_a_part_that_resuming_needs_is_required(spoil, use, part, message):
    assert spoil(use, without(part)) == (2, f"anaphor: {message}")


@pytest.mark.parametrize("use", ["generate", "score", "evaluate"])
@pytest.mark.parametrize("part", ["optimizer", "random", "schedule", "carry"])
def test_inference_needs_no_part_of_training(spoil, use, part):
    assert spoil(use, without(part)) == (0, "")


@pytest.mark.parametrize(
    ("use", "part"), [("resume", "carry"), ("resume", "average"), ("generate", "average"), ("evaluate", "average")]
)
def test_the_carry_and_the_average_of_a_run_are_required(spoil, use, part):
    assert spoil(use, without(part)) == (2, f"anaphor: run/checkpoints/step-4 lacks {part}.safetensors")


@pytest.mark.parametrize("use", ["resume", "evaluate", "generate"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "x"}, "step='x': it must be a whole number"),
        ({"step": None}, "step=None: it must be a whole number"),
        ({"step": -3}, "step=-3: it must be 0 or more"),
        ({"seconds": float("nan")}, "seconds=nan: it must be finite"),
        ({"best_step": "../../.."}, "best_step='../../..': it must be a whole number"),
        ({"best_value": [1]}, "best_value=[1]: it must be a number"),
    ],
)
def test_progress_of_a_wrong_type_is_refused_with_its_file(spoil, monkeypatch, use, change, message):
    # The writer refuses what is no JSON; a file from elsewhere may hold it.
    monkeypatch.setattr(checkpoint, "_to_json", lambda value: json.dumps(value).encode())
    found = spoil(use, lambda parts, metadata: metadata["progress"].update(change))
    assert found == (2, f"anaphor: run/checkpoints/step-4/facts.json: {message}")


@pytest.mark.parametrize("use", ["resume", "evaluate", "generate"])
@pytest.mark.parametrize("name", ["progress", "tokenizer", "data"])
def test_facts_that_are_no_names_and_values_are_refused(spoil, use, name):
    message = f"{name} must hold names and values, but it is a list"
    if name == "tokenizer" and use != "resume":  # the task reads it
        message = "the description of a tokenizer must be a mapping, not a list"
    assert spoil(use, with_metadata(**{name: [1]})) == (2, f"anaphor: run/checkpoints/step-4/facts.json: {message}")


@pytest.mark.parametrize(
    "state", [torch.zeros(3), torch.zeros(5056, dtype=torch.uint8), torch.get_rng_state()[:-8].clone()]
)
def test_a_random_generator_of_another_kind_is_refused(spoil, state):
    code, line = spoil("resume", lambda parts, metadata: parts.update(random={"cpu": state}))
    assert code == 2
    assert line == "anaphor: run/checkpoints/step-4/random.safetensors does not hold the state of a random generator"


def test_a_model_that_does_not_fit_is_refused_with_its_file(spoil):
    def lose(parts, metadata):
        parts["model"] = {
            name: tensor for name, tensor in parts["model"].items() if name != "embedder.embedding.weight"
        }

    code, line = spoil("generate", lose)
    assert code == 2
    assert line.startswith(
        "anaphor: run/checkpoints/step-4/model.safetensors does not fit: missing: embedder.embedding.weight ("
    )

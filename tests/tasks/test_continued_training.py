"""`train lm --init`: a language model goes on from the weights of another, with its tokenizer."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from anaphor import load_run
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training import checkpoint, loop
from anaphor.training.build import build_experiment
from anaphor.training.run_folder import RunFolder

SMALL = {"data": "grammar", "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    torch.set_default_dtype(torch.float32)
    out = tmp_path_factory.mktemp("lm") / "first"
    size = {"model": "transformer", "width": 16, "layers": 2, "heads": 2}
    execute(LanguageRunSpec(**SMALL, **size, steps=3, lr=0.01), out, test=False)
    return str(out)


pytestmark = pytest.mark.usefixtures("own_folder", "single_precision")


def test_the_model_and_its_tokenizer_are_those_of_the_run(pretrained):
    run = load_run(pretrained, device="cpu")
    experiment = build_experiment(LanguageRunSpec(**SMALL, init=pretrained))
    one, other = run.model.state_dict(), experiment.model.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert experiment.tokenizer == run.tokenizer
    assert experiment.evaluate("valid").values == run.experiment.evaluate("valid").values


def test_adapters_of_a_language_model_are_trained_saved_and_loaded(pretrained):
    result, _ = execute(LanguageRunSpec(**SMALL, init=pretrained, lora=2, steps=2, lr=0.01), "tuned", test=False)
    run = load_run("tuned", device="cpu")
    assert run.evaluate("valid")["loss"] == result["valid"]["loss"]
    before = load_run(pretrained, device="cpu").model.state_dict()
    after = run.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name in after)
    assert any(name.endswith(".0.b") and bool(after[name].any()) for name in after)


@pytest.mark.parametrize(("flag", "setting"), [("--width=8", "width=8"), ("--no-tied", "tied=False")])
def test_flags_for_what_comes_with_the_weights_are_refused(pretrained, error_of, flag, setting):
    line = error_of(["train", "lm", "--init", pretrained, flag, "--dry-run"])
    assert f"{setting} has no effect: it comes with init=" in line


def test_adapters_of_random_weights_are_refused(pretrained, error_of):
    line = error_of(["train", "lm", "--data", "grammar", "--model", "transformer", "--lora", "2", "--dry-run"])
    assert "lora=2 adapts pretrained weights: give them with --init, or leave out --lora" in line
    words = ["train", "lm", "--data", "grammar", "--init", pretrained, "--lora", "2", "--device", "cpu", "--dry-run"]
    assert main(words) == 0


@pytest.mark.parametrize("settings", [{"lora": 2}, {"freeze": 1, "dropout": 0.3, "average": "ema"}])
def test_a_run_is_resumed_to_the_same_bits_where_its_initial_weights_are_gone(settings, text, pretrained, monkeypatch):
    shutil.copytree(pretrained, "first")
    budget = {"steps": 4, "eval_every": 2, "lr": 0.01, "batch_size": 2, "bptt": 8, "device": "cpu", "dtype": "float32"}
    spec = LanguageRunSpec(data="text", init="first", **budget, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "prune_finished", lambda run: None)  # so that both checkpoints stay whole
        for out in ("whole", "run"):
            execute(spec, out, test=False)
    shutil.rmtree("run/checkpoints/step-4")
    shutil.rmtree("first")
    os.mkdir("elsewhere")
    monkeypatch.chdir("elsewhere")
    words = ["train", "lm", "--resume", "--out", "../run"]
    assert main([*words, "--dry-run"]) == 0
    assert main([*words, "--threads", str(torch.get_num_threads())]) == 0
    assert load_run("../run", device="cpu").spec.init == "first"
    assert RunFolder(Path("../run")).read_environment()["init_path"] == str(Path("../first").resolve())
    one, other = (checkpoint.newest(Path("..", name, "checkpoints"))[0] for name in ("whole", "run"))
    assert one.step == other.step == 4
    for part in one.parts.keys() - {"random"}:
        assert one.parts[part].keys() == other.parts[part].keys()
        assert all(torch.equal(tensor, other.parts[part][name]) for name, tensor in one.parts[part].items())


def test_a_run_without_a_checkpoint_needs_its_initial_weights(text, pretrained, error_of):
    spec = LanguageRunSpec(data="text", device="cpu", init=pretrained, steps=1, batch_size=2, bptt=8)
    execute(spec, "run", test=False)
    shutil.rmtree("run/checkpoints")
    Path("run/result.json").unlink()
    Path("run/spec.yaml").write_text(Path("run/spec.yaml").read_text().replace(pretrained, "first"))
    assert "init=first: there is no such folder" in error_of(["train", "lm", "--resume", "--out", "run"])


def test_a_classifier_is_no_language_model(tmp_path):
    rows = "".join(f"{text}\t{label}\n" for text in ("one", "two", "three", "four") for label in "ab")
    (tmp_path / "data.tsv").write_text("text\tlabel\n" + rows)
    words = ["--data", "data.tsv", "--width", "8", "--steps", "1", "--device", "cpu", "--no-test", "--out", "labels"]
    assert main(["train", "classify", "--mixers", "attention", *words]) == 0
    with pytest.raises(ConfigError, match=r"init=labels: its model is no language model"):
        build_experiment(LanguageRunSpec(**SMALL, init="labels"))

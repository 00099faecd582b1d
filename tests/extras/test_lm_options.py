"""Partial shuffling, n-gram embeddings and a pointer in a run: exact resume, scores of a loaded run, refusals."""

import json

import pytest
import torch

from anaphor import LanguageRunSpec
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.models import Embedding
from anaphor.tasks.lm.protocol import Protocol
from anaphor.training import checkpoint
from anaphor.training.build import build_experiment
from anaphor.training.callbacks import NullCallback
from anaphor.training.load import load_run
from anaphor.training.run_folder import RunFolder

SPEC = {
    "data": "text", "model": "lstm", "width": 8, "layers": 1, "batch_size": 4, "bptt": 5, "steps": 24, "eval_every": 8,
    "device": "cpu", "dropout": 0.2, "lr": 0.01, "tied": True,
}  # fmt: skip
OPTIONS = {
    "n-grams": {"ngram_embedding": True},
    "n-grams, average, not tied": {"ngram_embedding": True, "average": "ema", "tied": False},
    "pointer": {"pointer_memory": 8, "pointer_eval_memory": 20, "pointer_eval_bias": 0.5},
    "stream orders": {"random_offset": True, "partial_shuffle": True},
}

pytestmark = pytest.mark.usefixtures("text")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("anaphor.extras.ngram_embedding.embedding.MIN_WORDS", 2)


class Killer(NullCallback):
    steps = 0

    def on_step(self, info):
        self.steps += 1
        if self.steps == 13:
            raise SystemError("killed")


def files_of(out):
    found, warnings = checkpoint.newest(out / "checkpoints")
    assert warnings == []
    manifest = json.loads((found.path / "manifest.json").read_text())["files"]
    return found.step, {name: entry for name, entry in manifest.items() if name.endswith(".safetensors")}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_run_resumes_with_the_same_bits_and_scores_the_same_when_loaded(tmp_path, case, single_precision):
    spec, out = LanguageRunSpec(**SPEC | OPTIONS[case]), tmp_path / "parts"
    execute(spec, tmp_path / "whole", test=False)
    with pytest.raises(SystemError):
        execute(spec, out, Killer(), test=False)
    execute(spec, out, test=False, resume=True)
    assert files_of(out) == files_of(tmp_path / "whole")
    last = RunFolder(out).read_metrics()[-1]["valid"]
    run = load_run(out, device="cpu")
    if run.step == 24:
        assert run.evaluate("valid")["loss"] == pytest.approx(last["loss"], rel=1e-5)
    assert run.generate("the", tokens=5)


def test_a_run_with_ngrams_is_used_without_its_data(tmp_path, single_precision):
    """The words come from the checkpoint."""
    execute(LanguageRunSpec(**SPEC, ngram_embedding=True), tmp_path / "run", test=False)
    expected = load_run(tmp_path / "run", device="cpu").model.embed.weight
    for file in (tmp_path / "text").iterdir():
        file.unlink()
    run = load_run(tmp_path / "run", device="cpu")
    assert type(run.model.embed) is Embedding
    assert torch.equal(run.model.embed.weight, expected)
    assert run.generate("the", tokens=3)


def test_a_run_with_extras_can_be_continued_with_its_weights(tmp_path, single_precision):
    """The embeddings of words and n-grams are one plain table by then; the pointer is a new one."""
    execute(LanguageRunSpec(**SPEC, ngram_embedding=True, pointer_memory=8), tmp_path / "first", test=False)
    first = load_run(tmp_path / "first", device="cpu").model
    settings = {"data": "text", "device": "cpu", "steps": 1, "init": str(tmp_path / "first")}
    experiment = build_experiment(LanguageRunSpec(**settings))
    assert torch.equal(experiment.model.embed.weight, first.embed.weight)
    assert torch.equal(experiment.model.head.weight, first.head.weight)
    assert experiment.model.pointer.train_memory == 8
    assert main(["train", "lm", "--init", "first", "--pointer-memory", "4", "--dry-run"]) == 2


def test_tokens_without_common_ngrams_are_refused(error_of):
    words = ["train", "lm", "--data", "text", "--tokenizer", "character", "--ngram-embedding", "--dry-run"]
    assert "no character n-gram is shared by 2 to 400 of the" in error_of(words)


def test_the_signature_names_the_pointer_as_it_is_in_evaluation():
    options = {"pointer_memory": 8, "pointer_eval_memory": 20}
    signatures = [
        build_experiment(LanguageRunSpec(**SPEC | more)).evaluate("valid").signature
        for more in ({}, {"pointer_memory": 8}, options, options | {"pointer_eval_bias": 0.5})
    ]
    assert [signature.partition("pointer:")[2].split("|")[0] for signature in signatures] == ["", "8", "20", "20,+0.5"]


def test_memory_and_bias_of_the_evaluation_change_no_training():
    def loss_of(**more):
        experiment = build_experiment(LanguageRunSpec(**SPEC, pointer_memory=8, **more))
        torch.manual_seed(0)
        loss, _ = experiment.loss(experiment.batches(0)[0], None)
        return loss.total.item(), experiment.evaluate("valid").total.loss

    plain, other = loss_of(), loss_of(pointer_eval_memory=20, pointer_eval_bias=0.5)
    assert plain[0] == other[0]
    assert plain[1] != other[1]


def test_the_pointer_is_scored_the_same_in_any_segments():
    experiment = build_experiment(LanguageRunSpec(**SPEC, pointer_memory=8))
    losses = [experiment.evaluate_with("valid", Protocol(2, bptt, carry=True)).total.loss for bptt in (3, 7, 1000)]
    assert losses == pytest.approx([losses[-1]] * 3, rel=1e-9)


def test_options_that_are_off_leave_no_setting(tmp_path, single_precision):
    """So that runs from before these options can be resumed."""
    execute(LanguageRunSpec(**{**SPEC, "steps": 1}), tmp_path / "run", test=False)
    settings = RunFolder(tmp_path / "run").read_settings()
    assert not [name for name in settings if name.startswith(("partial", "ngram", "words", "pointer"))]

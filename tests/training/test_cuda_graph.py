"""A captured step does what a plain one does. It needs a GPU; the plain step is tested everywhere."""

import dataclasses
import json
import math
from typing import ClassVar

import numpy as np
import pytest
import torch

from anaphor.api import execute
from anaphor.cuda_graphs import WARM_UP
from anaphor.errors import Diverged
from anaphor.registry import TASKS, has_shelf
from anaphor.tasks.classify import ClassifyRunSpec
from anaphor.tasks.images import ImageRunSpec
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.build import build_experiment, build_step
from anaphor.training.callbacks import NullCallback
from anaphor.training.step import StepMetrics, StepReport

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")


pytestmark = pytest.mark.usefixtures("single_precision")


SMALL = LanguageRunSpec(data="grammar", width=32, steps=120, eval_every=40, batch_size=8, bptt=16, dtype="float32")
MODELS = {
    "lstm": {"model": "lstm", "optimizer": "sgd", "lr": 1.0},
    "qrnn": {"model": "qrnn", "layer_kernel_sizes": (2, 1), "layers": 2},
    "transformer": {"model": "transformer", "carry": False},
    "memory": {"model": "transformer-xl", "memory": 40, "optimizer": "muon"},
    "hybrid": {"model": "hybrid", "memory": 24},
    "gated-delta": {"model": "gated-delta", "layers": 2},
    "rwkv7": {"model": "rwkv7", "layers": 2},
    "mlstm": {"model": "mlstm", "layers": 2},
    "slstm": {"model": "slstm", "layers": 1},
    "rg-lru": {"model": "rg-lru", "layers": 2},
    "min-gru": {"model": "min-gru", "layers": 2},
    "accumulated": {"model": "gru", "accumulate": 2},
    "averaged": {"model": "lstm", "average": "ema"},
}


def losses(spec, out):
    execute(spec, out, NullCallback(), test=False)
    return [json.loads(line)["valid"]["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def assert_learns_the_same(spec, folder, tolerance):
    """By captured steps as by plain ones."""
    spec = dataclasses.replace(spec, dtype="float32")
    plain = losses(dataclasses.replace(spec, cuda_graph=False), folder / "plain")
    captured = losses(spec, folder / "captured")
    assert captured == pytest.approx(plain, rel=tolerance)
    assert captured[-1] < captured[0]


@on_gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_learns_the_same(name, tmp_path):
    assert_learns_the_same(dataclasses.replace(SMALL, **MODELS[name]), tmp_path, 2e-3)


PAIRS = TranslationRunSpec(data="reverse", width=32, steps=120, eval_every=40, batch_size=16, pad_to=8, beam=1)
TRANSLATORS = {
    "luong": {"model": "luong", "layers": 2},
    "gru": {"model": "gru-attention"},
    "transformer": {"model": "transformer-translation", "layers": 2, "feedforward": 64},
    "mixed": {"model": "mixed", "heads": 2},
    "state": {"model": "luong", "condition": "state"},
}


@on_gpu
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_captured_step_on_padded_pairs_learns_the_same(name, tmp_path):
    assert_learns_the_same(dataclasses.replace(PAIRS, **TRANSLATORS[name]), tmp_path, 5e-3)


LABELS = ClassifyRunSpec(data="texts.csv", width=32, dropout=0.0, batch_size=16, steps=240, eval_every=80, lr=1e-4)
CLASSIFIERS = {
    "transformer": {"model": "transformer", "heads": 2},
    "bert": {"model": "bert-tiny", "heads": 2, "layers": 2, "lr": 5e-4},
    "mpnet": {"model": "bert-tiny", "heads": 2, "position": "relative-buckets", "absolute_positions": True,
              "pooling": "mean", "pooler": "none", "lr": 2e-4},
    "lstm": {"model": "bidirectional-lstm", "lr": 2e-3},
    "weighted": {"model": "hybrid", "heads": 2, "class_weights": "balanced", "label_smoothing": 0.1, "lr": 1e-4},
}  # fmt: skip


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Texts of many lengths with one word that says the label."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    rows = [[f"w{word}" for word in random.integers(20, size=random.integers(3, 40))] for _ in range(2000)]
    labels = random.integers(2, size=len(rows)).tolist()
    for words, label in zip(rows, labels, strict=True):
        words[random.integers(len(words))] = ("bad", "good")[label]
    lines = [f"{' '.join(words)},{label}" for words, label in zip(rows, labels, strict=True)]
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(lines) + "\n")


@on_gpu
@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_captured_step_on_labeled_texts_learns_the_same(name, tmp_path):
    assert_learns_the_same(dataclasses.replace(LABELS, **CLASSIFIERS[name]), tmp_path, 1e-2)


@on_gpu
@pytest.mark.usefixtures("texts")
def test_texts_of_all_lengths_have_few_captured_shapes():
    """Lengths are padded to multiples of 8: after some steps nearly every batch finds its graph."""
    experiment = build_experiment(dataclasses.replace(LABELS, model="transformer", heads=2, device="cuda"))
    experiment.model.train()
    assert experiment.chosen_settings()["pad_to"] == 8
    step, batches = build_step(experiment), experiment.batches(0)
    for batch in batches:
        step([batch], None)
    shapes = {batch.tokens.shape for batch in batches}
    assert {shape[1] % 8 for shape in shapes} == {0}
    often = [shape for shape in shapes if sum(batch.tokens.shape == shape for batch in batches) > WARM_UP]
    assert 1 < len(often) == len(step.captured.graphs)


AUGMENTED = {
    "none": {},
    "all": {"crop_padding": 4, "flip": True, "color_jitter": 0.2, "random_ops": 2, "cutout": 8, "mixup": 0.8,
            "cutmix": 1.0, "label_smoothing": 0.1, "average": "ema", "optimizer": "muon"},
    "lstm": {"mixers": ("bidirectional-lstm", "attention"), "width": 32, "flip": True},
}  # fmt: skip


@on_gpu
@pytest.mark.parametrize("name", AUGMENTED)
def test_a_captured_step_on_augmented_images_learns_the_same(name, tmp_path):
    assert_learns_the_same(ImageRunSpec(steps=120, eval_every=40, max_examples=1000, **AUGMENTED[name]), tmp_path, 2e-2)


@on_gpu
def test_images_are_augmented_anew_in_every_epoch_of_a_captured_step(tmp_path):
    """The epoch is a tensor that is copied to where the graph reads it."""
    spec = ImageRunSpec(
        max_examples=64, batch_size=64, steps=8, eval_every=8, translation=0.4, dtype="float32", lr=1e-9
    )
    execute(spec, tmp_path / "run", Losses(), test=False)
    assert len({round(loss, 6) for loss in Losses.seen[4:]}) == len(Losses.seen[4:])


class Losses(NullCallback):
    seen: ClassVar[list[float]] = []

    def on_step(self, info):
        self.seen.append(info.loss)


@on_gpu
@pytest.mark.skipif(not has_shelf("extras"), reason="R-Drop is an extra")
def test_the_two_passes_of_rdrop_are_drawn_anew_at_every_replay(tmp_path):
    options = {"dtype": "float32", "dropout": 0.1, "rdrop": 1.0, **TRANSLATORS["transformer"]}
    spec = TASKS["translate"].run_spec(**vars(PAIRS) | options)
    once = losses(spec, tmp_path / "once")
    assert once[-1] < once[0]
    assert once == pytest.approx(losses(spec, tmp_path / "again"), rel=1e-3)
    assert once != pytest.approx(losses(dataclasses.replace(spec, seed=5), tmp_path / "other"), rel=1e-4)


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_is_drawn_anew_at_every_replay(dtype, tmp_path):
    options = {"dropout": 0.2, "weight_drop": 0.3, "dropout_kind": "locked", "word_dropout": 0.1}
    spec = dataclasses.replace(SMALL, model="lstm", dtype=dtype, **options)
    once = losses(spec, tmp_path / "once")
    assert once[-1] < once[0]
    assert once == pytest.approx(losses(spec, tmp_path / "again"), rel=1e-3)
    assert once != pytest.approx(losses(dataclasses.replace(spec, seed=5), tmp_path / "other"), rel=1e-4)


class Leaves(NullCallback):
    """Ends a run in its midst."""

    def on_step(self, info):
        if info.progress > 0.5:
            raise InterruptedError


@on_gpu
def test_a_run_resumes_with_any_number_of_threads(tmp_path, monkeypatch):
    spec = dataclasses.replace(SMALL, model="lstm", dropout=0.2)
    whole = losses(spec, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        execute(spec, tmp_path / "parts", Leaves(), test=False)
    other = torch.get_num_threads() + 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: other)
    execute(spec, tmp_path / "parts", NullCallback(), test=False, resume=True)
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["valid"]["loss"] for line in lines] == pytest.approx(whole, rel=2e-3)


@on_gpu
def test_a_run_that_diverges_is_stopped_a_step_later(tmp_path):
    with pytest.raises(Diverged, match=r"diverged at step \d+: loss"):
        execute(dataclasses.replace(SMALL, model="lstm", lr=1e38), tmp_path, NullCallback())


def test_a_report_has_the_loss_the_norm_and_the_first_nonfinite_gradient():
    metrics = StepReport(torch.tensor([2.5, 3.0, 4.0]), ["first", "second"]).read()
    assert metrics == StepMetrics(2.5, {"first": 3.0, "second": 4.0})
    assert metrics.norm == 5
    assert metrics.is_finite()
    assert not metrics.is_finite(largest_loss=2.5)
    assert metrics.first_nonfinite is None
    bad = StepMetrics(math.nan, {"first": 1.0, "second": math.inf})
    assert not bad.is_finite()
    assert bad.first_nonfinite == "second"

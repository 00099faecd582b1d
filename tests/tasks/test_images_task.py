"""`train images`: results, scores, augmentation and exact resume, on few small images."""

import json
import os
import signal
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

import forked
from anaphor import load_run, register_dataset
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.data import InMemoryImages
from anaphor.errors import ConfigError, Diverged
from anaphor.inspect.image_maps import mean_box_ratios
from anaphor.metrics.accuracy import calibration_error, score_classes
from anaphor.tasks.images import ImageRunSpec
from anaphor.tasks.images.experiment import ImageExperiment
from anaphor.tasks.metrics import ACCURACY, describe_classes
from anaphor.training import loop
from anaphor.training.build import build_experiment, build_step
from anaphor.training.callbacks import NullCallback
from anaphor.training.curves import draw_curves

SMALL = {"data": "bars", "width": 16, "layers": 1, "batch_size": 16, "device": "cpu", "dtype": "float32"}
EVERYTHING = {
    "crop_padding": 1, "flip": True, "color_jitter": 0.2, "random_ops": 1, "mixup": 0.4, "cutmix": 1.0,
    "label_smoothing": 0.1, "drop_path": 0.2, "dropout": 0.1, "average": "ema",
}  # fmt: skip


def bars(height=8, width=8):
    """Horizontal and vertical bars, and both."""
    random = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 60), ("valid", 21), ("test", 12)):
        labels = np.arange(count) % 3
        images = random.integers(0, 60, (count, 3, height, width), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            place = random.integers(0, 8)
            image[:, place if label != 1 else slice(0), :] = 255
            image[:, :, place if label != 0 else slice(0)] = 255
        splits[split] = (images, labels)
    return InMemoryImages("bars", splits, ["across", "down", "cross"])


@pytest.fixture(autouse=True)
def _data(monkeypatch, tmp_path, single_precision):
    monkeypatch.chdir(tmp_path)
    register_dataset("bars", bars)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on bars with two augmentations, and its result."""
    from anaphor import registry

    torch.set_default_dtype(torch.float32)
    entries = dict(registry.DATASETS._entries)
    registry.DATASETS._entries["bars"] = bars
    out = tmp_path_factory.mktemp("images") / "run"
    spec = ImageRunSpec(**SMALL, steps=160, lr=0.01, crop_padding=1, eval_every=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", draw_curves)
        result, code = execute(spec, out)
    registry.DATASETS._entries = entries
    assert code == 0
    return out, result


def test_a_ruined_model_has_diverged_however_finite_its_loss_is(tmp_path):
    # Which of the two comes first depends on the processor; the loss is a finite number in both cases.
    with pytest.raises(Diverged, match=r"loss \S+( \(too large to be a loss\)|, gradient norm inf)"):
        execute(ImageRunSpec(**SMALL, steps=4, lr=1e5), tmp_path / "run", test=False)


def test_a_small_model_learns_and_its_result_has_all_scores(trained):
    out, result = trained
    valid = result["valid"]
    assert result["run"] == str(out)
    assert result["images_per_second"] > 0
    assert valid["accuracy"] > 0.9
    assert 0 <= result["test"]["accuracy"] <= 1
    assert valid["loss"] < 0.5
    assert valid["top5"] is None  # of three classes
    assert valid["signature"] == "images:21|classes:3|size:8"
    assert list(valid["accuracy_by_class"]) == valid["confusion"]["classes"] == ["across", "down", "cross"]
    counts = np.array(valid["confusion"]["counts"])
    assert counts.sum() == 21
    assert counts.trace() / 21 == pytest.approx(valid["accuracy"])


def test_figures_are_drawn_into_the_run(trained):
    out, result = trained
    names = {path.rpartition("/")[2] for path in result["figures"]}
    assert {"curves.png", "curves-loss.png", "confusion.png", "confusion.svg"} <= names
    assert all((out / name).stat().st_size > 1000 for name in names)


def test_a_run_is_used_without_its_training_images(trained, monkeypatch):
    out, result = trained
    run = load_run(out, device="cpu")
    assert run.evaluate("valid")["accuracy"] == result["valid"]["accuracy"]
    assert run.experiment.metadata.classes == ("across", "down", "cross")


def test_flips_are_averaged_only_when_asked_for_and_in_the_signature(trained, answer_of):
    out, result = trained
    (plain,) = answer_of(["evaluate", str(out), "--device", "cpu", "--json"])
    assert {name: plain[name] for name in ("accuracy", "loss", "signature")} == {
        name: result["valid"][name] for name in ("accuracy", "loss", "signature")
    }
    (flipped,) = answer_of(["evaluate", str(out), "--device", "cpu", "--flips", "--json"])
    assert flipped["signature"] == f"{plain['signature']}|flips:averaged"
    assert flipped["loss"] != plain["loss"]


def test_one_file_or_folder_of_classes_is_scored_as_a_whole(trained, capsys, error_of, tmp_path):
    out, _ = trained
    names, pixels = ["across", "cross", "down"], np.zeros((6, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "own.npz", images=pixels, labels=np.arange(6) % 3, classes=names)
    np.savez(tmp_path / "parts.npz", x_train=pixels, y_train=np.arange(6) % 3, x_valid=pixels[:3], y_valid=np.arange(3))
    for name in names:
        (tmp_path / "folder" / name).mkdir(parents=True)
        Image.fromarray(pixels[0]).save(tmp_path / "folder" / name / "1.png")
    for data, count in (("own.npz", 6), ("folder", 3)):
        assert main(["evaluate", str(out), "--data", data, "--device", "cpu"]) == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith("all: accuracy ")
        assert f"(images:{count}|" in first
        line = error_of(["evaluate", str(out), "--data", data, "--split", "valid", "--device", "cpu"])
        assert "too few to be split" in line
    with np.load(tmp_path / "parts.npz") as parts:
        np.savez(tmp_path / "parts.npz", classes=names, **parts)
    assert main(["evaluate", str(out), "--data", "parts.npz", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("valid: accuracy ")


def test_the_overlap_of_other_data_is_that_with_the_images_of_training(trained, answer_of, capsys, tmp_path):
    out, result = trained
    assert result["test"]["overlap"] == {"unit": "images", "test": 12, "in_train": 0}
    images = bars().arrays("train").images[:4].transpose(0, 2, 3, 1)
    for place, image in enumerate([*images, np.zeros_like(images[0])]):
        name = ("across", "down", "cross")[place % 3]
        (tmp_path / "folder" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "folder" / name / f"{place}.png")
    words = ["evaluate", str(out), "--data", "folder", "--device", "cpu"]
    (row,) = answer_of([*words, "--json"])
    assert row["overlap"] == {"unit": "images", "test": 5, "in_train": 4, "split": "all"}
    assert main(words) == 0
    assert "all/train overlap: 4 of 5 images" in capsys.readouterr().out
    experiment = build_experiment(ImageRunSpec(**SMALL, max_examples=1))
    experiment.use_data(str(tmp_path / "folder"))
    assert experiment.score("all").details["overlap"]["in_train"] <= 1, "only what was trained on counts"


def test_images_of_one_class_can_be_scored_but_not_split(trained, capsys, error_of, tmp_path):
    out, _ = trained
    pixels = np.zeros((5, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "one.npz", images=pixels, labels=np.array(["cross"] * 5))
    (tmp_path / "alone" / "cross").mkdir(parents=True)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "alone" / "cross" / f"{number}.png")
    for data in ("one.npz", "alone"):
        assert main(["evaluate", str(out), "--data", data, "--device", "cpu"]) == 0
        assert "(images:5|" in capsys.readouterr().out.splitlines()[0]
        line = error_of(["evaluate", str(out), "--data", data, "--split", "valid", "--device", "cpu"])
        assert "has one class only, cross: give at least two" in line


def test_people_get_accuracy_by_class_and_the_figures(trained, capsys):
    out, _ = trained
    assert main(["evaluate", str(out), "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("valid: accuracy ")
    assert "accuracy by class: " in text


def test_a_class_with_a_number_for_a_name_is_told_from_its_accuracy():
    result = {"accuracy": 0.5, "signature": "texts:4", "accuracy_by_class": {"0": 1.0, "1": 0.0}}
    _, line = describe_classes([ACCURACY], result)
    assert line == "accuracy by class: 1: 0.0000, 0: 1.0000"


class Crash(NullCallback):
    """Ends a run at a step, as a kill would: nothing is saved."""

    def __init__(self, step):
        self.left = step

    def on_step(self, info):
        self.left -= 1
        if not self.left:
            raise RuntimeError("killed")


def digests(out):
    (last,) = (out / "checkpoints").glob("step-15")
    files = json.loads((last / "manifest.json").read_text())["files"]
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}


def test_figures_are_drawn_from_the_scores_without_the_model(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("anaphor.tasks.images.experiment.draw_confusion", lambda *given: drawn.append(given[0]) or [])
    monkeypatch.setattr("anaphor.tasks.images.experiment.draw_mistakes", lambda *given: [])
    experiment = build_experiment(ImageRunSpec(**SMALL, steps=1))
    valid = experiment.score("valid")
    experiment.model = None
    experiment.draw(tmp_path, valid)
    assert [counts.tolist() for counts in drawn] == [valid.to_plain()["confusion"]["counts"]]


def test_resume_is_exact_with_augmentation_mixup_and_ema(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageExperiment, "draw", lambda self, folder, valid: [])
    spec = ImageRunSpec(**SMALL, **EVERYTHING, steps=15, eval_every=5)
    whole, _ = execute(spec, tmp_path / "whole", test=False)
    with pytest.raises(RuntimeError, match="killed"):
        execute(spec, tmp_path / "killed", Crash(8), test=False)
    resumed, _ = execute(spec, tmp_path / "killed", resume=True, test=False)
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert resumed["valid"] == whole["valid"]
    assert "average.safetensors" in digests(tmp_path / "whole")


def kill_at_step_8():
    from anaphor.progress import Bar

    left = iter(range(7))

    def on_step(self, info):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    Bar.on_step = on_step


@pytest.mark.slow
def test_a_killed_process_is_resumed_to_the_same_bits(tmp_path):
    splits = {f"{split}_{what}": part for split, parts in bars()._given.items()
              for what, part in zip(("images", "labels"), parts, strict=True)}  # fmt: skip
    np.savez(tmp_path / "bars.npz", **splits)
    settings = {**SMALL, **EVERYTHING, "data": tmp_path / "bars.npz", "steps": 15, "eval_every": 5, "flip": ""}
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value)) if word]
    words, threads = ["train", "images", *flags, "--no-test", "--json", "--out"], os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked.start([*words, str(tmp_path / "killed")], threads, first=kill_at_step_8, **pipes) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert forked.run([*words, str(tmp_path / "killed"), "--resume"], threads).returncode == 0
    assert forked.run([*words, str(tmp_path / "whole")], threads).returncode == 0
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


def test_order_and_augmentation_depend_on_seed_and_epoch():
    losses = {}
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        experiment = build_experiment(ImageRunSpec(**SMALL, crop_padding=2, seed=seed))
        first, again = (experiment.batches(epoch)[0] for _ in range(2))
        assert torch.equal(first.index, again.index)
        losses[seed, epoch] = first.index.tolist()
        assert sorted(index for batch in experiment.batches(epoch) for index in batch.index.tolist()) == list(range(60))
    assert len({tuple(order) for order in losses.values()}) == 3


def test_the_loss_is_that_of_soft_targets():
    experiment = build_experiment(ImageRunSpec(**SMALL, label_smoothing=0.3))
    batch, train = experiment.batches(0)[0], experiment.split("train")
    total = experiment.loss(batch, None)[0].total
    logits = experiment.model(experiment.augment.normalize(train.images[batch.index]))
    expected = torch.nn.functional.cross_entropy(
        logits, train.labels[batch.index], reduction="sum", label_smoothing=0.3
    )
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize(
    "mixers", [("lstm",), ("bidirectional-lstm",), ("attention",), ("lstm", "attention"), ("bidirectional-linear",)]
)
def test_recurrent_and_hybrid_models_train(mixers):
    spec = ImageRunSpec(**{**SMALL, "layers": None}, mixers=mixers, lr=0.01)
    experiment = build_experiment(spec)
    step, batch = build_step(experiment), experiment.batches(0)[0]
    losses = [step([batch], None)[0].read().loss for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]


def test_a_run_has_all_settings_in_its_spec_and_repeats_from_it(trained, answer_of):
    out, result = trained
    settings = (out / "spec.yaml").read_text()
    for line in ("patch_size: 4", "image_size: 8", "pooling: class", "position: sinusoidal", "crop_padding: 1"):
        assert line in settings
    assert "magnitude" not in settings  # has no effect without random_ops
    found = answer_of(["train", "images", "--config", str(out / "spec.yaml"), "--out", "again", "--json"])
    assert found["valid"] == result["valid"]


def test_images_that_are_not_square_are_cropped():
    register_dataset("wide", lambda: bars(8, 12))
    experiment = build_experiment(ImageRunSpec(**{**SMALL, "data": "wide"}))
    assert experiment.split("valid").images.shape == (21, 3, 8, 8)


def write_folder(folder, sizes, count=8):
    """Two classes of random images, each split with its own size in pixels."""
    random = np.random.default_rng(0)
    for split, size in sizes.items():
        for name in ("a", "b"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return {**SMALL, "data": str(folder)}


def test_other_splits_are_resized_to_the_size_of_training(tmp_path):
    settings = write_folder(tmp_path / "images", {"train": 8, "valid": 16})
    experiment = build_experiment(ImageRunSpec(**settings))
    assert experiment.split("valid").images.shape[2:] == (8, 8)
    again = build_experiment(ImageRunSpec(**settings, image_size=8))  # as its spec file has it
    assert experiment.fingerprint()["data"] == again.fingerprint()["data"]


def test_few_examples_of_a_folder_are_of_all_classes(tmp_path):
    settings = write_folder(tmp_path / "images", {"train": 8, "valid": 8})
    labels = build_experiment(ImageRunSpec(**settings, max_examples=8)).split("train").labels
    assert len(labels) == 8
    assert set(labels.tolist()) == {0, 1}
    assert len(build_experiment(ImageRunSpec(**settings, max_examples=100)).split("train")) == 16


def test_large_images_are_scored_a_few_at_a_time(monkeypatch):
    experiment = build_experiment(ImageRunSpec(**SMALL))
    monkeypatch.setattr("anaphor.tasks.images.experiment.EVAL_PATCHES", 20)
    rows = []
    experiment.model.register_forward_pre_hook(lambda model, given: rows.append(len(given[0])))
    few = experiment.compute_logits(experiment.split("valid").images)
    assert rows == [5, 5, 5, 5, 1]
    monkeypatch.undo()
    torch.testing.assert_close(few, experiment.compute_logits(experiment.split("valid").images))


def test_another_image_size_resizes_the_data():
    experiment = build_experiment(ImageRunSpec(**SMALL, image_size=12))
    assert experiment.model.spec.grid == 3
    assert "size:12" in experiment.evaluate("valid").signature


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--patch-size", "5"], "patch_size=5 does not divide image_size=8; sizes that do: 1, 2, 4, 8"),
        (["--pooling", "clas"], "unknown pooling 'clas'; did you mean 'class'?"),
        (["--model", "vit-nan"], "unknown model 'vit-nan'; did you mean 'vit-nano'?"),
        (["--magnitude", "0.3"], "magnitude=0.3 has no effect: set --random-ops"),
        (["--mix-prob", "0.3"], "mix_prob=0.3 has no effect: set --mixup or --cutmix"),
        (["--label-smoothing", "1"], "label_smoothing=1.0: it must be at least 0 and below 1"),
        (["--mixup", "-1"], "mixup=-1.0"),
        (["--select", "top5"], "select='top5': it needs more than 5 classes, but the data have 3"),
        (["--select", "accurracy"], "unknown metric 'accurracy'; did you mean 'accuracy'?"),
    ],
)
def test_bad_settings_are_one_line(flags, message, error_of):
    line = error_of(["train", "images", "--data", "bars", "--steps", "1", "--out", "run", *flags])
    assert line.startswith(message)


def test_label_smoothing_is_checked_in_python_too():
    with pytest.raises(ConfigError, match="label_smoothing"):
        ImageRunSpec(label_smoothing=-0.1)


def test_scores_against_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    logits, labels = torch.randn(200, 8), torch.randint(0, 8, (200,))
    scores, p = score_classes(logits, labels), logits.double().softmax(-1)
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(labels, p.argmax(-1)))
    assert scores.loss == pytest.approx(metrics.log_loss(labels, p))
    assert scores.top5 == pytest.approx(metrics.top_k_accuracy_score(labels, p, k=5))
    assert scores.confusion.tolist() == metrics.confusion_matrix(labels, p.argmax(-1)).tolist()
    assert scores.accuracy_by_class == pytest.approx(metrics.recall_score(labels, p.argmax(-1), average=None))


def test_calibration_error_of_known_cases():
    right = torch.tensor([True, True, False, True])
    assert calibration_error(torch.full((4,), 0.75), right) == pytest.approx(0.0)
    assert calibration_error(torch.full((4,), 1.0), right) == pytest.approx(0.25)
    # Two bins: half of the images at confidence 0.5, all wrong; half at 1.0, all right.
    halves = torch.tensor([0.5, 1.0, 0.5, 1.0])
    assert calibration_error(halves, torch.tensor([False, True, False, True])) == pytest.approx(0.25)


@pytest.mark.slow
def test_train_images_without_any_flag_reaches_97_percent_and_attends_to_the_true_box(capsys):
    """In two minutes on two cores: the time is that of the processor, which does not depend on what else runs."""
    import time

    torch.set_num_threads(1)
    start = time.process_time()
    assert main(["train", "images", "--out", "run", "--device", "cpu", "--json"]) == 0
    seconds = time.process_time() - start
    result = json.loads(capsys.readouterr().out)
    assert result["valid"]["accuracy"] >= 0.97
    assert result["test"]["accuracy"] >= 0.95
    assert seconds < 150, "one thread; two need two thirds of it"
    looks = load_run("run", device="cpu").look(examples=50)
    assert max((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in (look.box for look in looks)) <= 0.15 * 32 * 32
    ratios = mean_box_ratios(looks)
    assert ratios["rollout"] >= 3, "times the box's share of the area"
    assert ratios["attention"] >= 3

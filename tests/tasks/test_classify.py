"""`train classify`: results, predictions, fine-tuning, exact resume and refusals, on few short texts."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anaphor import load_run, registry
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.data import InMemory
from anaphor.data.dataset import LABELED_COLUMNS
from anaphor.data.negation import Negation
from anaphor.errors import AnaphorError, ConfigError, DataError, Diverged
from anaphor.metrics.result import training_metric
from anaphor.models.presets import build_text_encoder
from anaphor.progress_listener import progress_listener
from anaphor.tasks.classify import ClassifyRunSpec
from anaphor.tasks.classify.experiment import ClassifyExperiment, class_names
from anaphor.tasks.classify.look import describe
from anaphor.training import checkpoint
from anaphor.training.build import build_experiment, build_step
from anaphor.training.callbacks import NullCallback
from anaphor.training.curves import draw_curves
from anaphor.training.finetune import check_vocabulary, initialize_from, load_initial, merged_weights
from anaphor.training.optimizers import OptimizerSpec
from anaphor.training.run_folder import RunFolder

SMALL = {"data": "colors", "width": 16, "batch_size": 16, "device": "cpu", "dtype": "float32"}
FULL = {**SMALL, "model": "transformer", "layers": 2, "heads": 2}
DRAW = ClassifyExperiment.draw
WARM, COLD = ("red", "orange", "pink"), ("blue", "green", "gray")


def colors():
    """Warm and cold colors among other words; the first and the last word say nothing."""
    random = np.random.default_rng(0)
    rows = {}
    for split, count in (("train", 120), ("valid", 30), ("test", 20)):
        rows[split] = [
            (" ".join(["a", *["very"] * random.integers(5), (COLD, WARM)[number % 2][number % 3], "house"]), label)
            for number in range(count)
            for label in [("cold", "warm")[number % 2]]
        ]
    return InMemory("colors", rows, LABELED_COLUMNS)


def read_metrics(out):
    return RunFolder(out).read_metrics()


@pytest.fixture(autouse=True)
def _data(monkeypatch, tmp_path, single_precision):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.DATASETS._entries, "colors", colors)
    monkeypatch.setattr(
        ClassifyExperiment, "draw", lambda self, folder, valid: []
    )  # figures take longer than the steps


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with attention, and its result."""
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.DATASETS._entries, "colors", colors)
        patch.setattr("anaphor.training.loop.draw_curves", draw_curves)
        out = tmp_path_factory.mktemp("classify") / "run"
        result, code = execute(ClassifyRunSpec(**FULL, epochs=4, lr=0.01), out)
    assert code == 0
    return out, result


def test_the_confusion_matrix_is_drawn_from_the_scores_without_the_model(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(ClassifyExperiment, "draw", DRAW)
    monkeypatch.setattr("anaphor.tasks.classify.experiment.draw_confusion", lambda *given: drawn.append(given[0]) or [])
    monkeypatch.setattr("anaphor.tasks.classify.experiment.draw_learning", lambda *given: [])
    experiment = build_experiment(ClassifyRunSpec(**SMALL, steps=1))
    valid = experiment.score("valid")
    experiment.model = None
    experiment.draw(tmp_path, valid)
    assert [counts.tolist() for counts in drawn] == [valid.to_plain()["confusion"]["counts"]]


def test_a_ruined_model_has_diverged_however_finite_its_loss_is(tmp_path):
    with pytest.raises(Diverged, match="too large to be a loss"):
        execute(ClassifyRunSpec(**SMALL, steps=4, lr=1e30), tmp_path / "run", test=False)
    with pytest.raises(Diverged, match=r"validation loss \d\.\d+e\+\d+, learning rate"):
        execute(ClassifyRunSpec(**SMALL, steps=1, lr=1e30, schedule="constant"), tmp_path / "one", test=False)


def test_a_metric_that_few_classes_do_not_have_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(ConfigError, match=r"^select='top5': it needs more than 5 classes, but the data have 2$"):
        execute(ClassifyRunSpec(**SMALL, steps=1, select="top5"), tmp_path / "run", test=False)
    assert not (tmp_path / "run").exists()


def test_a_small_model_learns_and_its_result_has_all_scores(trained):
    out, result = trained
    valid = result["valid"]
    assert result["run"] == str(out)
    assert result["parameters"] > 0
    assert result["sentences_per_second"] > 0
    assert valid["accuracy"] == 1.0
    assert 0 <= result["test"]["accuracy"] <= 1
    assert valid["signature"] == "texts:30|classes:2|tokenizer:word|vocab:11"
    assert valid["confusion"] == {"classes": ["cold", "warm"], "counts": [[15, 0], [0, 15]]}
    assert result["test"]["overlap"]["test"] == 20
    assert 0 < result["padding_share"] < result["padding_share_at_max_length"] < 1
    names = {path.rpartition("/")[2] for path in result["figures"]}
    assert {"curves.png", "curves-loss.png", "learning.png", "learning.svg", "confusion.png"} <= names
    lines = read_metrics(out)
    assert all(0 <= line["train_accuracy"] <= 1 for line in lines)
    assert lines[-1]["train_accuracy"] > 0.9


def test_predictions_have_labels_and_probabilities(trained, capsys, answer_of, error_of):
    out, _ = trained
    rows = answer_of(["predict", str(out), "a red house", "a very very blue house", "--json", "--device", "cpu"])
    assert [row["label"] for row in rows] == ["warm", "cold"]
    assert [row["text"] for row in rows] == ["a red house", "a very very blue house"]
    assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in rows)
    assert main(["predict", str(out), "red", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("warm ")
    assert captured.err == ""
    assert main(["predict", str(out), "red zebra", "a quagga", "zebra", "--device", "cpu", "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 3
    assert captured.err == "anaphor: not in the vocabulary, replaced by <unk>: zebra, quagga\n"
    assert "text 2 is empty" in error_of(["predict", str(out), "red", " ", "--device", "cpu"])


def test_texts_of_a_file_are_predicted_line_by_line(trained, tmp_path, capsys, error_of):
    out, _ = trained
    file = tmp_path / "texts.txt"
    file.write_text("a red house\na very very blue house\n")
    command = ["predict", str(out), "--device", "cpu", "--json"]
    assert main([*command, "a red house", "a very very blue house"]) == 0
    given = capsys.readouterr().out
    assert main([*command, "--file", str(file)]) == 0
    assert capsys.readouterr().out == given
    for wrong in ([], ["red", "--file", str(file)]):
        assert "--file" in error_of([*command, *wrong])


def test_each_text_file_of_a_folder_is_a_text(trained, tmp_path, capsys, answer_of, error_of):
    out, _ = trained
    (tmp_path / "texts" / "more").mkdir(parents=True)
    words = ["predict", str(out), "--device", "cpu", "--file", str(tmp_path / "texts")]
    assert error_of(words) == f"{tmp_path / 'texts'} has no .txt files"
    (tmp_path / "texts" / "a.txt").write_text("a red\nhouse\n")
    (tmp_path / "texts" / "more" / "b.txt").write_text("a blue house\n")
    rows = answer_of([*words, "--json"])
    names = [str(tmp_path / "texts" / "a.txt"), str(tmp_path / "texts" / "more" / "b.txt")]
    assert [(row["file"], row["label"]) for row in rows] == [(names[0], "warm"), (names[1], "cold")]
    assert main(words) == 0
    assert [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()] == names
    (tmp_path / "texts" / "c.txt").write_text(" \n")
    assert error_of(words) == f"{tmp_path / 'texts' / 'c.txt'} is empty: there is nothing to classify"


def test_empty_lines_of_a_file_stay_empty(trained, tmp_path, capsys, answer_of):
    out, _ = trained
    command = ["predict", str(out), "--device", "cpu", "--file", str(tmp_path / "texts.txt")]
    (tmp_path / "texts.txt").write_text("\na red house\n  \na blue house\n\n")
    assert main(command) == 0
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert [line.partition(" ")[0] for line in lines] == ["", "warm", "", "cold", ""]
    rows = answer_of([*command, "--json"])
    assert [(row["text"], row["label"]) for row in rows[:4]] == [
        ("", None), ("a red house", "warm"), ("  ", None), ("a blue house", "cold"),
    ]  # fmt: skip
    assert rows[4] == {"text": "", "label": None, "probabilities": {}}
    for text, printed in (("\n", "\n"), ("", "")):
        (tmp_path / "texts.txt").write_text(text)
        assert main(command) == 0
        assert capsys.readouterr().out == printed
    assert answer_of([*command, "--json"]) == []


def test_a_prediction_does_not_depend_on_the_other_texts(trained):
    run = load_run(trained[0], device="cpu")
    texts = ["a red house", "a " + "very " * 40 + "blue house", "gray"]
    together = run.experiment.predict(texts)
    for text, row in zip(texts, together, strict=True):
        (alone,) = run.experiment.predict([text])
        assert alone["probabilities"] == pytest.approx(row["probabilities"], abs=1e-6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a red house", "texts='a red house': it must be a list of strings"),
        (["red", None], "texts[1]=None: it must be a string"),
        ([], "no text was given: there is nothing to classify"),
    ],
)
def test_only_a_list_of_texts_is_classified(texts, message, trained):
    with pytest.raises(AnaphorError) as caught:
        load_run(trained[0], device="cpu").predict(texts)
    assert str(caught.value) == message


def test_texts_of_an_iterator_are_classified(trained):
    run = load_run(trained[0], device="cpu")
    assert run.predict(iter(["a red house", "a blue house"])) == run.predict(["a red house", "a blue house"])


def test_other_data_are_scored_by_columns_of_any_name(trained, answer_of, error_of, tmp_path):
    out, _ = trained
    (tmp_path / "more.csv").write_text("words,kind\n" + 'a red house,warm\n"a blue, blue house",cold\n' * 10)
    flags = ["--data", "more.csv", "--text-column", "words", "--label-column", "kind", "--split", "train"]
    (row,) = answer_of(["evaluate", str(out), *flags, "--json", "--device", "cpu"])
    assert row["accuracy"] == 1.0
    assert row["texts"] == 16
    (tmp_path / "train.tsv").write_text("text\tlabel\na red house\twarm\na house\tneutral\n")
    line = error_of(["evaluate", str(out), "--data", str(tmp_path), "--split", "train", "--device", "cpu"])
    assert "too few to be split" in line or "has the label 'neutral'" in line


def test_one_file_or_folder_of_classes_is_scored_as_a_whole(trained, capsys, error_of, tmp_path):
    out, _ = trained
    (tmp_path / "own.tsv").write_text("text\tlabel\na very red house\twarm\nno color\tcold\n")
    for label, text in (("warm", "a red house"), ("cold", "a blue house")):
        (tmp_path / "folder" / label).mkdir(parents=True)
        (tmp_path / "folder" / label / "1.txt").write_text(text)
    for data in ("own.tsv", "folder"):
        assert main(["evaluate", str(out), "--data", data, "--device", "cpu"]) == 0
        first, *others = capsys.readouterr().out.splitlines()
        assert first.startswith("all: accuracy ")
        assert "(texts:2|" in first
        assert others[-1].strip().startswith("all/train overlap: ")
    line = error_of(["evaluate", str(out), "--data", "own.tsv", "--split", "valid", "--device", "cpu"])
    assert "too few to be split" in line


def test_the_overlap_of_other_data_is_that_with_the_texts_of_training(tmp_path):
    rows = {"train": ["good\t1", "bad\t0"], "valid": ["good\t1", "bad\t0"], "test": ["good\t1", "fine\t1"]}
    for name, seen in (("own", "good"), ("other", "fine")):
        (tmp_path / name).mkdir()
        for split, lines in rows.items():
            text = "".join(f"{line}\n" for line in lines)
            text = text if split == "test" else text.replace("good", seen) * 4
            (tmp_path / name / f"{split}.tsv").write_text(
                f"text\tlabel\n{text}{'bad' if split == 'test' else 'poor'}\t0\n"
            )
    experiment = build_experiment(ClassifyRunSpec(**{**SMALL, "data": str(tmp_path / "own")}))
    own = experiment.score("test").details["overlap"]
    assert own == {"unit": "texts", "test": 3, "in_train": 2}
    experiment.use_data(str(tmp_path / "other"), None, None)
    assert experiment.score("test").details["overlap"] == own


def test_a_label_that_training_did_not_have_is_named_with_its_row(tmp_path):
    for split in ("train", "valid", "test"):
        rows = ["good\t1", "bad\t0"] * 4 + (["odd\t2"] if split == "valid" else [])
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + "".join(f"{row}\n" for row in rows))
    experiment = build_experiment(ClassifyRunSpec(**{**SMALL, "data": str(tmp_path)}))
    with pytest.raises(DataError, match=r"row 10 of .*valid.tsv has the label '2', which is not in train \(0, 1\)"):
        experiment.validate(test=True)
    experiment.use_data("negation", None, None)
    with pytest.raises(DataError, match=r"^row 1 of the valid split of negation has the label"):
        experiment.score("valid")


def test_long_texts_are_truncated_and_counted(tmp_path):
    for split in ("train", "valid"):
        long = "red " * 100_000 if split == "train" else "red"
        (tmp_path / f"{split}.tsv").write_text(f"text\tlabel\n{long}\twarm\nblue\tcold\n" * 1 + "gray\tcold\n")
    experiment = build_experiment(ClassifyRunSpec(**{**SMALL, "data": str(tmp_path)}, max_length=20))
    assert experiment.notes() == ["truncated to 20 tokens: 1 of 3 texts of train"]
    assert experiment.statistics()["truncated"] == 1
    assert experiment.signature_metadata("train")["truncated"] == "1@20"
    (row,) = experiment.predict(["red " * 100_000])
    assert row["label"] in ("warm", "cold")


def test_look_shows_attention_and_gradient_times_input(trained, capsys, tmp_path):
    out, _ = trained
    words = ["look", str(out), "a very red house", "--out", str(tmp_path / "look"), "--json", "--device", "cpu"]
    reports = []
    with progress_listener(lambda what, share: reports.append((what, share))):
        assert main(words) == 0
    assert [share for what, share in reports if what == "drawing"] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    plain = json.loads(capsys.readouterr().out)
    assert plain["model"].endswith(" parameters")
    assert plain["tokens"] == ["<eos>", "a", "very", "red", "house"]
    assert plain["contributions_to"] == plain["label"] == "warm"
    assert len(plain["contributions"]) == 5
    assert any(plain["contributions"])
    assert all(np.array(maps).shape == (2, 5, 5) for maps in plain["weights"].values())
    page = (tmp_path / "look" / "attention.html").read_text()
    assert '"contributions":[' in page
    assert (tmp_path / "look" / "contributions.png").stat().st_size > 1000


def test_gradient_times_input_is_the_derivative_along_the_embeddings(trained):
    """Oracle: scale the embedding of one token by 1 ± h, and see what the logit does."""
    from anaphor.inspect.look import gradient_times_input

    model = load_run(trained[0], device="cpu").experiment.model.double()
    batch = torch.tensor([[0, 1, 2, 4, 3]])
    found = gradient_times_input(model, batch, 1)
    for place in range(5):
        values = []
        for h in (1e-5, -1e-5):
            factor = torch.ones(1, 5, 1, dtype=torch.float64)
            factor[0, place] += h
            handle = model.embedder.register_forward_hook(lambda _, __, x, factor=factor: x * factor)
            values.append(model(batch)[0, 1].item())
            handle.remove()
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(found[place]), abs=1e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["lstm", "bidirectional-lstm", "hybrid"])
def test_on_a_gpu_recurrent_layers_have_gradient_times_input(name):
    from anaphor.inspect.look import gradient_times_input

    model, batch = build_text_encoder(name, vocabulary=9, classes=2, width=16), torch.tensor([[0, 1, 2, 4, 3]])
    expected = gradient_times_input(model, batch, 1)
    torch.testing.assert_close(gradient_times_input(model.cuda(), batch.cuda(), 1), expected, rtol=1e-3, atol=1e-4)


def test_classes_that_no_training_text_has_are_named(tmp_path):
    """The first texts of a folder of classes are all of one class."""
    for name in ("bad", "fair", "good"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "texts" / name / f"{number}.txt").write_text(f"{name} {number}")
    notes = {
        limit: build_experiment(ClassifyRunSpec(data="texts", max_examples=limit, device="cpu")).notes()
        for limit in (None, 8, 17)
    }
    assert notes[None] == notes[17] == []
    assert notes[8] == [
        "max_examples=8: the first 8 texts of train have no example of fair, good: use more, or shuffle the data"
    ]


@pytest.fixture
def draw_axes(tmp_path, monkeypatch):
    """Draws the learning curves of rows of metrics; gives the axes of the figure."""
    from anaphor.tasks.classify import figures

    drawn = []
    monkeypatch.setattr(figures, "save_all", lambda figure, paths, remark: drawn.append(figure))

    def draw(*rows):
        figures.draw_learning(rows, tmp_path / "learning")
        return drawn[-1].axes

    return draw


def test_one_validation_is_drawn_at_its_epoch_and_step(draw_axes):
    """A single point has no range: its axes have that epoch and that step, no fractions of them around it."""
    row = {"step": 60, "epoch": 1.0, "train_loss": 0.7, "valid": {"loss": 0.6, "accuracy": 0.5}}
    for axes in draw_axes(row):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1"]
        (top,) = axes.child_axes
        assert [label.get_text() for label in top.get_xticklabels()] == ["60"]


def test_ticks_of_few_steps_are_whole_numbers(draw_axes):
    valid = {"loss": 0.6, "accuracy": 0.5}
    rows = [{"step": step, "epoch": step / 10, "train_loss": 0.7, "valid": valid} for step in (3, 6, 12, 20)]
    for axes in draw_axes(*rows):
        (top,) = axes.child_axes
        assert all(tick == round(tick) for tick in top.get_xticks())


def test_ticks_of_whole_epochs_are_whole_numbers(draw_axes):
    valid = {"loss": 0.6, "accuracy": 0.5}
    rows = [{"step": 10 * epoch, "epoch": epoch, "train_loss": 0.7, "valid": valid} for epoch in (1, 2, 3)]
    for axes in draw_axes(*rows):
        assert all(tick == round(tick) for tick in axes.get_xticks())
    for axes in draw_axes({**rows[0], "epoch": 0.5}, *rows):  # validations between epochs have fractions
        assert 0.5 in axes.get_xticks()


def test_a_validation_before_a_countable_part_of_an_epoch_is_drawn_by_steps(draw_axes):
    """One step of a hundred thousand is epoch 0.0, as metrics round it."""
    row = {"step": 1, "epoch": 0.0, "train_loss": 0.7, "valid": {"loss": 0.6, "accuracy": 0.5}}
    for axes in draw_axes(row):
        assert axes.get_xlabel() == "step"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1"]
        assert not axes.child_axes


def test_labels_of_equal_numbers_have_one_order_in_every_process():
    labels = ["0" * zeros + "1" for zeros in range(8)] + ["-3", "10", "2"]
    data = InMemory("numbers", {"train": [("a text", one) for one in labels]}, LABELED_COLUMNS)
    expected = ("-3", *sorted(labels[:8]), "2", "10")
    assert class_names(data) == expected


class Crash(NullCallback):
    """Ends a run at a step, as a kill would: nothing is saved."""

    def __init__(self, step):
        self.left = step

    def on_step(self, info):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("setting", [{"lora": 2}, {"layer_lr": (0.5, 0.9)}, {"freeze": 1, "average": "ema"}])
def test_a_killed_fine_tuning_is_resumed_to_the_same_bits(trained, tmp_path, setting):
    spec = ClassifyRunSpec(
        data="colors", init=str(trained[0]), steps=8, eval_every=3, lr=0.01, batch_size=16, device="cpu",
        dtype="float32", dropout=0.1, **setting,
    )  # fmt: skip
    execute(spec, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path / "killed", Crash(5))
    execute(spec, tmp_path / "killed", resume=True)
    one, other = (load_run(tmp_path / name, device="cpu").model.state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    before = load_run(trained[0], device="cpu").model.state_dict()
    changed = {name for name in before if name in one and not torch.equal(one[name], before[name])}
    if "lora" in setting:
        assert all(name.startswith("head.") for name in changed)
        assert any(".parametrizations.weight.0.b" in name and bool(one[name].any()) for name in one)
    if "freeze" in setting:
        assert not any(name.startswith(("embedder.", "layers.0.")) for name in changed)
        assert any(name.startswith("layers.1.") for name in changed)


def test_the_training_accuracy_of_a_run_that_was_stopped_between_validations_counts_all_texts(tmp_path):
    spec = ClassifyRunSpec(**SMALL, steps=9, eval_every=6, accumulate=2, lr=0.01)
    execute(spec, tmp_path / "whole", test=False)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path / "killed", Crash(5), test=False, save_minutes=1e-6)  # saved at every step
    execute(spec, tmp_path / "killed", test=False, resume=True)
    whole, killed = ([line["train_accuracy"] for line in read_metrics(tmp_path / name)] for name in ("whole", "killed"))
    assert len(whole) == 2
    assert killed == whole


def test_the_training_accuracy_is_that_of_the_batches_as_they_were_trained_on(tmp_path):
    """Nothing of it is kept in the experiment: to look at a batch or to validate in between changes nothing."""
    spec = ClassifyRunSpec(**SMALL, steps=3, eval_every=3, lr=0.01)
    experiment = build_experiment(spec)
    step, correct = build_step(experiment), 0
    batches = [experiment.batches(0)[place] for place in range(3)]
    experiment.model.train()
    for batch in batches:
        logits = experiment.model(batch.tokens, batch.lengths)
        correct += int((logits.argmax(-1) == batch.labels).sum())
        experiment.loss(batch, None)
        experiment.evaluate("valid")
        report, _ = step([batch], None)
        assert report.read().correct == int((logits.argmax(-1) == batch.labels).sum())
    execute(spec, tmp_path / "run", test=False)
    (line,) = read_metrics(tmp_path / "run")
    assert line["train_accuracy"] == correct / sum(batch.count for batch in batches)


def test_a_checkpoint_without_a_count_of_correct_texts_is_resumed_and_gives_the_accuracy_after_its_next_validation(
    tmp_path,
):
    spec = ClassifyRunSpec(**SMALL, steps=9, eval_every=3, lr=0.01)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path / "run", Crash(6), test=False, save_minutes=1e-6)
    saved, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    progress = {name: value for name, value in saved.metadata["progress"].items() if name != "recent_correct"}
    checkpoint.write(saved.path.parent, saved.step, saved.parts, saved.metadata | {"progress": progress})
    execute(spec, tmp_path / "run", test=False, resume=True)
    assert ["train_accuracy" in line for line in read_metrics(tmp_path / "run")] == [True, False, True]


@pytest.mark.parametrize("line", [{"train_accuracy": 0.75, "valid": {}}, {"valid": {"train_accuracy": 0.75}}])
def test_the_training_accuracy_is_found_where_earlier_runs_have_it(line):
    assert training_metric(line, "accuracy") == 0.75
    assert training_metric(line, "perplexity") is None


def test_initial_weights_are_those_of_the_run_and_the_head_is_new(trained):
    initial = load_initial(str(trained[0]))
    experiment = build_experiment(ClassifyRunSpec(data="colors", init=str(trained[0]), device="cpu", seed=5))
    own = experiment.model.state_dict()
    kept = [name for name in own if name.startswith(("embedder.", "layers."))]
    assert len(kept) > 10
    assert all(torch.equal(own[name], initial.weights[name]) for name in kept)
    assert not torch.equal(own["head.own"], initial.weights["head.own"])
    assert experiment.spec.model == "transformer"
    assert experiment.spec.layers == 2
    assert experiment.tokenizer == initial.tokenizer


def test_a_pooler_may_be_added_to_initial_weights_and_left_out_again(trained, tmp_path):
    initial = ClassifyRunSpec(data="colors", init=str(trained[0]), device="cpu")
    added = replace(initial, pooler="tanh", steps=1)
    assert set(build_experiment(added).model.state_dict()) - set(build_experiment(initial).model.state_dict()) == {
        "pooler.weight", "pooler.bias",
    }  # fmt: skip
    execute(added, tmp_path / "pooled")
    kept = build_experiment(replace(initial, init=str(tmp_path / "pooled")))
    assert torch.equal(kept.model.pooler.weight, load_run(tmp_path / "pooled", device="cpu").model.pooler.weight)
    assert build_experiment(replace(initial, init=str(tmp_path / "pooled"), pooler="none")).model.pooler is None


@pytest.mark.parametrize(
    ("settings", "lr"),
    [
        ({"model": "lstm"}, 2e-3),
        ({"model": "hybrid"}, 5e-4),
        ({"model": "bag-of-words"}, 2e-3),
        ({"model": "transformer"}, 5e-4),
        ({"model": "lstm", "mixers": ("attention",)}, 5e-4),
        ({"init": "run"}, 5e-5),
        ({"model": "transformer", "lr": 0.1}, 0.1),
    ],
)
def test_the_default_learning_rate_is_that_of_the_layers(settings, lr):
    assert OptimizerSpec.of(ClassifyRunSpec(**settings)).peak_lr == lr


def test_the_same_flags_resume_a_run_of_another_optimizer():
    words = ["--data", "colors", "--model", "transformer", "--width", "16", "--heads", "2", "--steps", "2"]
    command = ["train", "classify", *words, "--optimizer", "sgd", "--device", "cpu", "--no-test", "--out", "run"]
    assert main(command) == 0
    assert main([*command, "--resume"]) == 0


@pytest.mark.parametrize("flags", [{"optimizer": "sgd"}, {"mixers": "attention"}, {"init": "run"}])
@pytest.mark.parametrize("written", ["settings", "run"])
def test_flags_over_a_file_have_the_default_learning_rate_of_the_flags(tmp_path, trained, flags, written):
    """The file may be a run's own, with the learning rate that was used, or one that leaves it open."""
    flags = {name: str(trained[0]) if name == "init" else value for name, value in flags.items()}
    file = tmp_path / "settings.yaml"
    if written == "settings":
        file.write_text("data: colors\nmodel: lstm\ndevice: cpu\n")
    else:
        execute(ClassifyRunSpec(data="colors", model="lstm", steps=1, device="cpu"), tmp_path / "lstm", test=False)
        file = tmp_path / "lstm" / "spec.yaml"
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    assert main(["train", "classify", "--config", str(file), *words, "--steps", "1", "--no-test", "--out", "new"]) == 0
    alone = ClassifyRunSpec(**{name: (value,) if name == "mixers" else value for name, value in flags.items()})
    assert RunFolder(Path("new")).read_settings()["lr"] == OptimizerSpec.of(alone).peak_lr


@pytest.mark.parametrize(("seed", "is_told"), [(0, False), (1, True)])
def test_initial_weights_of_another_split_of_the_same_file_are_told(tmp_path, seed, is_told):
    rows = "".join(f"a {word} house,{label}\n" for label, words in enumerate((WARM, COLD)) for word in words * 7)
    (tmp_path / "colors.csv").write_text(f"text,label\n{rows}")
    spec = ClassifyRunSpec(data="colors.csv", width=8, steps=1, device="cpu")
    execute(spec, "first", test=False)
    result, _ = execute(replace(spec, width=None, init="first", split_seed=seed), "second", test=False)
    note = "init=first was trained on another split of the same data: its training texts are among those of valid and "
    assert [line for line in result["notes"] if "split" in line] == [f"{note}test; use --split-seed 0"] * is_told


def test_a_language_model_becomes_a_classifier(tmp_path):
    words = ["--model", "transformer", "--width", "16", "--layers", "1", "--heads", "2", "--steps", "2"]
    assert main(["train", "lm", "--data", "grammar", *words, "--device", "cpu", "--no-test", "--out", "lm"]) == 0
    experiment = build_experiment(ClassifyRunSpec(data="colors", init="lm", device="cpu"))
    weights = load_run("lm", device="cpu").model.state_dict()
    own = experiment.model.state_dict()
    assert experiment.model.spec.pooling == "last"
    assert all(torch.equal(own[name], weights[name]) for name in own if name.startswith(("embedder.", "layers.")))
    with torch.no_grad():
        ids = experiment.encode("a red house")
        hidden_states = load_run("lm", device="cpu").model.compute_hidden_states(ids)[0]
        torch.testing.assert_close(experiment.model.compute_hidden_states(ids), hidden_states)


def test_adapters_change_nothing_at_first_and_are_merged_as_they_act(trained):
    spec = ClassifyRunSpec(data="colors", init=str(trained[0]), lora=3, device="cpu")
    experiment = build_experiment(spec)
    plain = build_experiment(ClassifyRunSpec(data="colors", init=str(trained[0]), device="cpu"))
    batch = experiment.batches(0)[0]
    with torch.no_grad():
        plain.model.head.load_state_dict(experiment.model.head.state_dict())
        assert torch.equal(
            experiment.model.eval()(batch.tokens, batch.lengths), plain.model.eval()(batch.tokens, batch.lengths)
        )
        for name, weight in experiment.model.named_parameters():
            if name.endswith(".0.b"):
                weight.normal_()
        adapted = experiment.model(batch.tokens, batch.lengths)
        plain.model.load_state_dict(merged_weights(experiment.model))
        torch.testing.assert_close(plain.model(batch.tokens, batch.lengths), adapted)
    trainable = {name for name, weight in experiment.model.named_parameters() if weight.requires_grad}
    assert all(".parametrizations.weight.0." in name or name.startswith("head.") for name in trainable)


def test_a_tokenizer_of_another_model_is_refused_with_both_sizes(trained):
    initial = load_initial(str(trained[0]))
    other = build_experiment(ClassifyRunSpec(**SMALL, tokenizer="byte")).tokenizer
    with pytest.raises(ConfigError, match=r"the tokenizer has 256 tokens and the embeddings have 11 rows"):
        check_vocabulary(replace(initial, tokenizer=other))


def test_class_weights_make_the_total_weight_of_every_class_equal(tmp_path):
    rows = ["good\t1"] * 30 + ["bad\t0"] * 10
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + "".join(f"{row}\n" for row in rows))
    spec = ClassifyRunSpec(**{**SMALL, "data": str(tmp_path)}, class_weights="balanced")
    experiment = build_experiment(spec)
    assert experiment.class_weights().tolist() == pytest.approx([2.0, 2 / 3])
    batch = experiment.batches(0)[0]
    with torch.no_grad():
        logits = experiment.model(batch.tokens, batch.lengths)
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        expected = (losses * torch.tensor([2.0, 2 / 3])[batch.labels]).sum()
        assert float(experiment.loss(batch, None)[0].total) == pytest.approx(float(expected))


def test_batches_hold_every_text_once_with_its_label():
    experiment = build_experiment(ClassifyRunSpec(**SMALL))
    rows = experiment.split("train").values
    for epoch in (0, 1):
        batches = experiment.batches(epoch)
        labels = torch.cat([batch.labels for batch in batches])
        assert torch.equal(labels, experiment.split("train").labels[batches.order])
        lengths = torch.cat([batch.lengths for batch in batches]).tolist()
        assert lengths == [len(rows[index][0].split()) + 1 for index in batches.order.tolist()]
        assert sorted(batches.order.tolist()) == list(range(len(rows)))
    assert experiment.batches(0).order.tolist() != experiment.batches(1).order.tolist()


def test_a_bag_of_words_counts_words_and_bigrams():
    """Oracle: a dictionary of counts."""
    experiment = build_experiment(ClassifyRunSpec(data="colors", model="bag-of-words", device="cpu"))
    model = experiment.model
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
        (batch,) = experiment.split("valid").batches.by_length()
        logits = model(batch.tokens, batch.lengths)
        weights = dict(zip(model.keys.tolist(), model.bigrams.weight.tolist(), strict=False))
        for row, length, found in zip(batch.tokens.tolist(), batch.lengths.tolist(), logits, strict=True):
            ids = row[:length]
            total = model.bias + sum(model.words.weight[word] for word in ids)
            for one, other in pairwise(ids):
                total = total + torch.tensor(weights.get(one * len(experiment.tokenizer) + other, [0.0, 0.0]))
            torch.testing.assert_close(found, total)


def test_a_bag_of_words_is_trained_saved_and_looked_at(tmp_path, capsys, answer_of, error_of):
    words = ["--data", "colors", "--model", "bag-of-words", "--steps", "30", "--lr", "0.1", "--device", "cpu"]
    result = answer_of(["train", "classify", *words, "--out", "bag", "--json"])
    assert result["valid"]["accuracy"] == 1.0
    assert main(["look", "bag", "a red house", "--out", "look", "--device", "cpu"]) == 0
    assert "contributions to the logit of warm" in capsys.readouterr().out
    line = error_of(["train", "classify", *words, "--width", "4", "--out", "no"])
    assert "width=4 does not apply to model='bag-of-words'" in line


@pytest.mark.parametrize(
    ("contributions", "expected"),
    [((1.25, -0.5), ["+1.2500", "-0.5000"]), ((3e-5, -2e-6), ["+0.0000300", "-0.0000020"])],
)
def test_small_contributions_are_printed_with_their_digits(contributions, expected):
    look = SimpleNamespace(tokens=("a", "film"), contributions=contributions, label="warm")
    assert [line.split()[-1] for line in describe(look)[2:]] == expected


def test_a_bag_of_words_learns_nothing_of_negation(monkeypatch):
    monkeypatch.setitem(registry.DATASETS._entries, "some-negation", lambda: Negation(1600))
    spec = ClassifyRunSpec(data="some-negation", model="bag-of-words", device="cpu", lr=0.01, steps=100)
    experiment = build_experiment(spec)
    step = build_step(experiment)
    for epoch in range(2):
        for batch in experiment.batches(epoch):
            step([batch], None)
    assert 0.4 < experiment.evaluate("valid").values["accuracy"] < 0.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": 2}, r"lora=2: no layer has a linear map"),
        ({"freeze": 3}, r"freeze=3: the model has 1 layer$"),
        ({"init": "nowhere"}, r"init=nowhere: there is no such folder"),
    ],
)
def test_impossible_fine_tuning_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_experiment(ClassifyRunSpec(**SMALL, **settings))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--class-weights", "balance"], "did you mean 'balanced'"),
        (["--freeze", "-1"], "freeze=-1"),
        (["--split-seed", "-1"], "split_seed=-1: it must be from 0"),
        (["--lora", "0"], "lora=0"),
        (["--model", "transformer", "--lora", "2"], "lora=2 adapts pretrained weights: give them with --init"),
        (["--pooling", "cls", "--model", "lstm"], "pooling='cls' needs a layer that sees later tokens"),
        (["--data", "colors", "--text-column", "words"], "--text-column and --label-column are for files"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(flags, message, error_of):
    assert message in error_of(["train", "classify", *flags, "--dry-run"])


def test_options_of_the_model_come_with_the_weights(trained, error_of):
    line = error_of(["train", "classify", "--data", "colors", "--init", str(trained[0]), "--width", "8", "--dry-run"])
    assert "width=8 has no effect: it comes with init=" in line


OPTIMIZERS = [
    ({"optimizer": "adamw", "betas": (0.8, 0.9)}, {"betas": (0.8, 0.9)}),
    ({"optimizer": "sgd"}, {"momentum": 0.0}),
    ({"optimizer": "sgd", "momentum": 0.7}, {"momentum": 0.7}),
    ({"optimizer": "adagrad"}, {}),
    ({"optimizer": "muon", "momentum": 0.6}, {"momentum": 0.6}),
]


@pytest.mark.parametrize(("settings", "expected"), OPTIMIZERS)
def test_every_argument_reaches_the_optimizer(settings, expected):
    spec = ClassifyRunSpec(**FULL, lr=0.02, weight_decay=0.03, layer_lr=(0.5, 1.0), **settings)
    experiment = build_experiment(spec)
    optimizer = build_step(experiment).optimizer
    first = optimizer.parts[0]
    assert type(first).__name__.lower() == settings["optimizer"]
    for name, value in expected.items():
        assert all(group[name] == value for group in first.param_groups)
    groups = optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.0, 0.03}
    assert {float(group["lr"]) for group in groups} == {0.01, 0.02}
    slow = {weight for group in groups if group["factor"] == 0.5 for weight in group["params"]}
    assert slow == set(experiment.model.blocks[0].parameters())
    vectors = {weight for group in groups if group["weight_decay"] == 0.0 for weight in group["params"]}
    assert all(weight.ndim == 1 for weight in vectors)


def test_initial_weights_of_another_shape_are_named(trained):
    model = build_experiment(ClassifyRunSpec(**{**FULL, "width": 8})).model
    with pytest.raises(Exception, match=r"does not fit: wrong: embedder.embedding.weight is 11 × 16"):
        initialize_from(model, load_initial(str(trained[0])))


def test_padded_lengths_are_multiples_of_a_number_that_depends_on_the_device():
    experiment = build_experiment(ClassifyRunSpec(**SMALL))
    assert (experiment.pad_to, experiment.chosen_settings()["pad_to"]) == (1, 1)
    experiment.device = torch.device("cuda")
    assert experiment.pad_to == 8
    for number in (4, 8):
        given = build_experiment(ClassifyRunSpec(**SMALL, pad_to=number))
        assert {batch.tokens.shape[1] % number for batch in given.batches(0)} == {0}
        assert given.chosen_settings()["pad_to"] == number

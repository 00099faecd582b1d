"""Converted text encoders: they predict as transformers does, are evaluated on given data, and are fine-tuned."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peers import load, tokenizer_of
from safetensors.torch import load_file, save_file
from test_runs import save

from anaphor import load_run
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.interchange.pretrained import NoInitialization
from anaphor.tasks.classify import ClassifyRunSpec, page
from anaphor.tasks.classify.experiment import ClassifyExperiment
from anaphor.training.build import build_experiment
from anaphor.training.optimizers import OptimizerSpec

TEXTS = ["The statement is executed.", "no", "The value of an expression is its own, or that of another one."]


@pytest.fixture(autouse=True)
def _single_precision(tmp_path, monkeypatch, single_precision):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{text},{label}\n" for text in ("the statement", "a value") for label in ("good", "bad"))
    (tmp_path / "data.csv").write_text("text,label\n" + rows * 6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A classifier and an encoder of transformers, and the runs they become."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("bert")
    for kind in ("bert", "bert base"):
        name = kind.replace(" ", "-")
        save(folder / name, kind, "bert", **({"num_labels": 3} if kind == "bert" else {}))
        assert main(["convert", str(folder / name), "--out", str(folder / f"{name}-run")]) == 0
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type='multi_label_classification'"),
        ({"problem_type": "regression"}, "problem_type='regression'"),
        ({"id2label": {"0": "score"}, "label2id": {"score": 0}}, "one output"),
    ],
)
def test_a_head_that_does_not_choose_among_classes_is_refused(folders, tmp_path, error_of, change, reason):
    """Its outputs would become probabilities of classes that exclude each other; `--init` needs no head."""
    shutil.copytree(folders / "bert", tmp_path / "peer")
    config = json.loads((tmp_path / "peer" / "config.json").read_text())
    (tmp_path / "peer" / "config.json").write_text(json.dumps({**config, **change}))
    if "id2label" in change:
        tensors = load_file(tmp_path / "peer" / "model.safetensors")
        head = {name: tensors[name][:1].clone() for name in ("classifier.weight", "classifier.bias")}
        save_file({**tensors, **head}, tmp_path / "peer" / "model.safetensors")
    assert reason in error_of(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()
    spec = ClassifyRunSpec(data="data.csv", init=str(tmp_path / "peer"), device="cpu")
    assert build_experiment(spec).classes == ("bad", "good")


def test_a_converted_classifier_predicts_as_transformers_does(folders, answer_of):
    rows = answer_of(["predict", str(folders / "bert-run"), *TEXTS, "--json", "--device", "cpu"])
    peer, tokenizer = load(folders / "bert", torch.float32), tokenizer_of("bert")
    for text, row in zip(TEXTS, rows, strict=True):
        with torch.no_grad():
            expected = peer(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0].tolist()
        assert list(row["probabilities"]) == ["sad", "glad", "mad"]
        assert list(row["probabilities"].values()) == pytest.approx(expected, abs=1e-5)


def test_truncation_keeps_the_special_token_at_the_end(folders):
    experiment = load_run(folders / "bert-run", device="cpu").experiment
    whole, _ = experiment.encode_text(TEXTS[2])
    experiment.spec = experiment.spec.__class__(**{**vars(experiment.spec), "max_length": 5})
    ids, was_cut = experiment.encode_text(TEXTS[2])
    assert was_cut
    assert ids.tolist() == [*whole[:4].tolist(), whole[-1]]


def test_a_converted_run_is_scored_on_given_data_only(folders, answer_of, error_of, tmp_path):
    (tmp_path / "own.csv").write_text("text,label\n" + "the value,sad\nno value,glad\n" * 10)
    run = str(folders / "bert-run")
    (row,) = answer_of(["evaluate", run, "--data", "own.csv", "--json", "--device", "cpu"])
    assert 0 <= row["accuracy"] <= 1
    assert "has no data of its own: give --data" in error_of(["evaluate", run, "--device", "cpu"])


def test_an_encoder_without_classes_says_how_to_train_it(folders):
    run = load_run(folders / "bert-base-run", device="cpu")
    with pytest.raises(ConfigError, match=r"converted without a head: train one with"):
        run.experiment.predict(["text"])


def test_look_shows_the_attention_of_an_encoder_without_classes(folders, capsys, answer_of, error_of, tmp_path):
    run, out = str(folders / "bert-base-run"), tmp_path / "look"
    assert main(["look", run, TEXTS[0], "--out", str(out), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run}: 1 × attention; width ")
    assert "no head" in lines[1]
    assert lines[-3:] == [str(out / name) for name in ("attention.html", "attention.png", "attention.svg")]
    assert '"contributions":null' in (out / "attention.html").read_text()
    plain = answer_of(["look", run, TEXTS[0], "--out", str(out), "--device", "cpu", "--json"])
    assert plain["label"] is plain["contributions_to"] is plain["probabilities"] is None
    size = len(plain["tokens"])
    assert plain["contributions"] == []
    assert all(np.array(maps).shape[1:] == (size, size) for maps in plain["weights"].values())
    line = error_of(["look", run, TEXTS[0], "--label", "good", "--out", str(out), "--device", "cpu"])
    assert "converted without a head" in line


def test_the_live_page_looks_into_an_encoder_without_classes(folders):
    experiment = load_run(folders / "bert-base-run", device="cpu").experiment
    found = page.look(experiment, text=TEXTS[0]).plain
    assert found["contributions"] is found["probabilities"] is found["losses"] is None
    assert found["layers"]
    assert found["model"].startswith("1 × attention; width ")


@pytest.mark.parametrize("name", ["bert-base", "bert-base-run", "bert-run"])
def test_fine_tuning_starts_from_a_folder_or_a_run(folders, name):
    spec = ClassifyRunSpec(data="data.csv", init=str(folders / name), lora=2, device="cpu")
    experiment = build_experiment(spec)
    assert experiment.classes == ("bad", "good")
    assert experiment.tokenizer.kind == "pretrained"
    assert OptimizerSpec.of(spec).peak_lr == 5e-5
    peer = load(folders / ("bert" if name == "bert-run" else "bert-base"), torch.float32)
    encoder = getattr(peer, "bert", peer)
    with torch.no_grad():
        ids = experiment.encode(TEXTS[0])
        expected = encoder(ids).last_hidden_state
        torch.testing.assert_close(experiment.model.eval().compute_hidden_states(ids), expected, atol=1e-5, rtol=1e-5)


def test_the_command_fine_tunes_saves_and_predicts(folders, answer_of):
    flags = ["--data", "data.csv", "--steps", "2", "--device", "cpu", "--out", "tuned", "--json", "--freeze", "0"]
    result = answer_of(["train", "classify", "--init", str(folders / "bert-base"), *flags])
    assert result["valid"]["signature"].startswith("texts:2|classes:2|tokenizer:pretrained|vocab:")
    assert answer_of(["predict", "tuned", "the value", "--json", "--device", "cpu"])[0]["label"] in ("bad", "good")


FINE_TUNING = {"fine-tuning-optimizers": 3, "fine-tuning-grid": 18}


@pytest.mark.needs("studies")
@pytest.mark.parametrize(("name", "count"), FINE_TUNING.items())
def test_a_study_of_fine_tuning_needs_initial_weights(folders, name, count, error_of):
    from anaphor.studies.study_file import find_study_file, read_study

    line = error_of(["study", name, "--device", "cpu"])
    assert line.startswith(f"study {name!r} has no init of its own: give it with --init, a run or a folder")
    line = error_of(["study", name, "--device", "cpu", "--init", "nowhere", "--data", "data.csv"])
    assert "init=nowhere: there is no such folder" in line
    spec = read_study(find_study_file(name)).with_base(init=str(folders / "bert-base"))
    settings = spec.settings()
    assert (len(settings), spec.seeds, spec.test, spec.base["data"]) == (count, (0, 1, 2), "best", "sst2")
    assert {(setting.run.init, setting.run.pooling) for setting in settings} == {(str(folders / "bert-base"), "mean")}
    if name == "fine-tuning-optimizers":
        assert {(setting.run.optimizer, setting.run.lr) for setting in settings} == {
            ("adamw", 5e-5), ("adagrad", 5e-5), ("sgd", 5e-5)
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs("studies")
def test_a_study_of_optimizers_tests_its_best_and_draws_learning_curves(folders, tmp_path, monkeypatch):
    from anaphor.studies.cell import TEST
    from anaphor.studies.report import report
    from anaphor.studies.study import Study
    from anaphor.studies.study_file import find_study_file, read_study
    from studies.here import Here, Silent

    monkeypatch.setattr(ClassifyExperiment, "draw", lambda self, folder, valid: [])
    spec = replace(read_study(find_study_file("fine-tuning-optimizers"), data="data.csv"), seeds=(0, 1))
    spec = spec.with_base(init=str(folders / "bert-base"), epochs=2, batch_size=8, device="cpu", lr=0.01)
    study = Study(spec, tmp_path / "study", Here(), Silent())
    study.folder.mkdir()
    study.run()
    result = report(study)
    assert [Path(figure).name for figure in result["figures"]] == [
        "study.png", "study.svg", "study.pdf", "learning.png", "learning.svg", "learning.pdf"
    ]  # fmt: skip
    assert (tmp_path / "study" / "learning.png").read_bytes().startswith(b"\x89PNG")
    best = result["best"]["parameters"]["optimizer"]
    for cell in study.cells:
        assert bool(cell.read(TEST)) == (cell.setting.parameters["optimizer"] == best)
    header, _, *rows = result["table"].splitlines()
    column = [word.strip() for word in header.split("|")].index("training accuracy")
    for setting, row in zip(spec.settings(), rows, strict=True):
        cells = [cell for cell in study.cells if cell.setting == setting]
        shown = float(row.split("|")[column].split("±")[0])
        lines = [
            json.loads(line)
            for cell in cells
            for line in (cell.folder / "metrics.jsonl").read_text().splitlines()
            if json.loads(line)["step"] == cell.result["best_step"]
        ]
        mean = sum(line["train_accuracy"] for line in lines) / len(cells)
        assert shown == pytest.approx(mean, abs=0.06)  # as rounded to its interval


@pytest.mark.needs("studies")
def test_other_initial_weights_are_other_cells(folders, tmp_path):
    from anaphor.studies.cell import weights_digest

    copy = tmp_path / "copy"
    shutil.copytree(folders / "bert-base", copy)
    assert weights_digest(str(copy)) == weights_digest(str(folders / "bert-base"))
    (copy / "tokenizer.json").write_text("{}")
    weights_digest.cache_clear()
    assert weights_digest(str(copy)) != weights_digest(str(folders / "bert-base"))
    assert weights_digest(str(folders / "bert-base-run")) != weights_digest(str(folders / "bert-run"))


def test_weights_that_will_be_read_are_not_drawn_first():
    weight = torch.full((3, 4), 7.0)
    with NoInitialization():
        torch.nn.init.normal_(weight)
        torch.nn.init.kaiming_uniform_(weight, a=1)
        assert torch.nn.init.uniform_(tensor=weight) is weight
    assert (weight == 7).all()
    with torch.device("meta"), NoInitialization():
        assert torch.nn.Embedding(3, 4).weight.is_meta
    assert (torch.nn.init.normal_(weight) != 7).all()

"""Converted text encoders: they predict as transformers does, are evaluated on given data, and are fine-tuned."""

import json

import pytest
import torch
from peers import load, tokenizer_of
from test_runs import save

from anaphor import load_run
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.tasks.classify import ClassifyRunSpec
from anaphor.tasks.classify.experiment import build_experiment

TEXTS = ["The statement is executed.", "no", "The value of an expression is its own, or that of another one."]


@pytest.fixture(autouse=True)
def _single_precision(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as outside of tests
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


def test_a_converted_classifier_predicts_as_transformers_does(folders, capsys):
    capsys.readouterr()
    assert main(["predict", str(folders / "bert-run"), *TEXTS, "--json", "--device", "cpu"]) == 0
    rows = json.loads(capsys.readouterr().out)
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


def test_a_converted_run_is_scored_on_given_data_only(folders, capsys, tmp_path):
    capsys.readouterr()
    (tmp_path / "own.csv").write_text("text,label\n" + "the value,sad\nno value,glad\n" * 10)
    run = str(folders / "bert-run")
    assert main(["evaluate", run, "--data", "own.csv", "--json", "--device", "cpu"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert 0 <= row["accuracy"] <= 1
    assert main(["evaluate", run, "--device", "cpu"]) == 2
    assert "has no data of its own: give --data" in capsys.readouterr().err


def test_an_encoder_without_classes_says_how_to_train_it(folders):
    run = load_run(folders / "bert-base-run", device="cpu")
    with pytest.raises(ConfigError, match=r"converted without a head: train one with"):
        run.experiment.predict(["text"])


@pytest.mark.parametrize("name", ["bert-base", "bert-base-run", "bert-run"])
def test_fine_tuning_starts_from_a_folder_or_a_run(folders, name):
    spec = ClassifyRunSpec(data="data.csv", init=str(folders / name), lora=2, device="cpu")
    experiment = build_experiment(spec)
    assert experiment.classes == ("bad", "good")
    assert experiment.tokenizer.kind == "pretrained"
    assert spec.lr == 5e-5
    peer = load(folders / ("bert" if name == "bert-run" else "bert-base"), torch.float32)
    encoder = getattr(peer, "bert", peer)
    with torch.no_grad():
        ids = experiment.encode(TEXTS[0])
        expected = encoder(ids).last_hidden_state
        torch.testing.assert_close(experiment.model.eval().features(ids), expected, atol=1e-5, rtol=1e-5)


def test_the_command_fine_tunes_saves_and_predicts(folders, capsys):
    capsys.readouterr()
    flags = ["--data", "data.csv", "--steps", "2", "--device", "cpu", "--out", "tuned", "--json", "--freeze", "0"]
    assert main(["train", "classify", "--init", str(folders / "bert-base"), *flags]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["valid"]["signature"].startswith("texts:2|classes:2|tokenizer:pretrained|vocab:")
    assert main(["predict", "tuned", "the value", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["label"] in ("bad", "good")

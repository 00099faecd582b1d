"""Weights that are not finite, under a manifest that matches them: one line and exit code 3, in every command."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from anaphor.cli.main import main
from anaphor.errors import Diverged
from anaphor.generate import Sampler

TEXT = ["train", "lm", "--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2"]
PAIRS = ["train", "translate", "--data", "pairs", "--source", "de", "--target", "en", "--width", "8"]


def spoil(run, value):
    """Put a value into one weight of every checkpoint, and make the manifest match."""
    for folder in (run / "checkpoints").iterdir():
        file, manifest = folder / "model.safetensors", folder / "manifest.json"
        tensors = load_file(file)
        next(iter(tensors.values())).view(-1)[3] = value
        save_file(tensors, file)
        content = json.loads(manifest.read_text())
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        content["files"][file.name] = {"bytes": file.stat().st_size, "sha256": digest}
        manifest.write_text(json.dumps(content))


@pytest.fixture
def trained(text, tmp_path):
    def trained(words, value):
        assert main([*words, "--steps", "1", "--device", "cpu", "--no-test", "--out", "run"]) == 0
        spoil(tmp_path / "run", value)
        return tmp_path / "run"

    torch.set_default_dtype(torch.float32)
    return trained


def assert_one_line(capsys, words):
    capsys.readouterr()
    assert main(words) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert "model.safetensors" in line
    assert "not finite" in line


def test_a_language_model(trained, capsys):
    run = trained(TEXT, torch.nan)
    for words in (["generate"], ["evaluate"], ["score", "the cat"], ["look", "the cat", "--out", "seen"]):
        assert_one_line(capsys, [words[0], "run", *words[1:], "--device", "cpu"])
    assert_one_line(capsys, ["train", "lm", "--resume", "--out", "run", "--device", "cpu"])
    assert json.loads((run / "result.json").read_text())["status"] == "diverged"


def test_a_translation_model(trained, tmp_path, capsys):
    (tmp_path / "pairs").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "pairs" / f"{split}.de").write_text("der Hund schläft\nein Haus brennt\n" * 10)
        (tmp_path / "pairs" / f"{split}.en").write_text("the dog sleeps\na house burns\n" * 10)
    trained(PAIRS, -torch.inf)
    assert_one_line(capsys, ["translate", "run", "der Hund schläft", "--device", "cpu"])
    assert_one_line(capsys, ["evaluate", "run", "--device", "cpu"])


def test_logits_that_overflow_are_no_traceback():
    with pytest.raises(Diverged, match="not finite"):
        Sampler()(torch.tensor([[0.0, torch.nan]]), [torch.Generator()])

"""Weights and logits that are not finite, under a manifest that matches them: one line and exit code 3, in every
command."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from anaphor.beam_search import Beam, search_rows
from anaphor.cli.main import main
from anaphor.errors import Diverged
from anaphor.generate import Sampler
from anaphor.training.loop import record_steps
from command_line import without_start_lines

TEXT = ["train", "lm", "--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2"]
PAIRS = ["train", "translate", "--data", "pairs", "--source", "de", "--target", "en", "--width", "8"]


def spoil(run, change, steps="step-*"):
    """Change the weights of every checkpoint, or of those of some steps, and make the manifest match."""
    for folder in (run / "checkpoints").glob(steps):
        file, manifest = folder / "model.safetensors", folder / "manifest.json"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        content = json.loads(manifest.read_text())
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        content["files"][file.name] = {"bytes": file.stat().st_size, "sha256": digest}
        manifest.write_text(json.dumps(content))


def put(value):
    """Put a value into one weight."""

    def change(tensors):
        next(iter(tensors.values())).view(-1)[3] = value

    return change


def enlarge(tensors):
    """Finite weights with which every sum overflows."""
    for tensor in tensors.values():
        tensor.fill_(3e38)


@pytest.fixture
def trained(text, tmp_path):
    def trained(words, change):
        assert main([*words, "--steps", "1", "--device", "cpu", "--no-test", "--out", "run"]) == 0
        spoil(tmp_path / "run", change)
        return tmp_path / "run"

    torch.set_default_dtype(torch.float32)
    return trained


def assert_one_line(capsys, words, where="model.safetensors"):
    capsys.readouterr()
    assert main(words) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = without_start_lines(printed.err)
    assert where in line
    assert "not finite" in line


def test_a_language_model(trained, capsys):
    run = trained(TEXT, put(torch.nan))
    for words in (["generate"], ["evaluate"], ["score", "the cat"], ["look", "the cat", "--out", "seen"]):
        assert_one_line(capsys, [words[0], "run", *words[1:], "--device", "cpu"])
    assert_one_line(capsys, ["train", "lm", "--resume", "--out", "run", "--device", "cpu"])
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished", "these scores are of weights that were good"
    assert result["resumed"]["status"] == "diverged"


def steps_of(run):
    return sorted(int(path.name.partition("-")[2]) for path in (run / "checkpoints").iterdir())


@pytest.mark.usefixtures("single_precision")
def test_weights_that_are_not_finite_are_never_saved(text, tmp_path, monkeypatch, capsys):
    def record_and_spoil(run, *arguments, **options):
        record_steps(run, *arguments, **options)
        if run.state.progress.step == 5:
            next(run.experiment.model.parameters()).data.view(-1)[3] = torch.nan

    words = [*TEXT, "--steps", "9", "--device", "cpu", "--no-test", "--save-minutes", "0.000001", "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr("anaphor.training.loop.record_steps", record_and_spoil)
        assert main(words) == 3
    line = capsys.readouterr().err.splitlines()[-1]
    assert "training diverged at step 5" in line
    assert "embedding.weight" in line
    assert "the last good checkpoint is kept" in line
    assert steps_of(tmp_path / "run") == [3, 4]
    assert main(["train", "lm", "--resume", "--out", "run"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


def test_a_run_whose_newest_weights_are_not_finite_is_resumed_from_those_before(trained, capsys):
    run = trained([*TEXT, "--eval-every", "1"], put(0.5))
    longer = ["train", "lm", "--resume", "--force", "--out", "run", "--steps"]
    assert main([*longer, "3"]) == 0
    spoil(run, put(torch.nan), "step-3")
    capsys.readouterr()
    assert main([*longer, "4"]) == 0
    assert "resuming from the weights of run/checkpoints/step-2" in capsys.readouterr().err
    assert json.loads((run / "result.json").read_text())["steps"] == 4
    spoil(run, put(torch.nan), "step-4")
    assert main(["score", "run", "the cat", "--device", "cpu"]) == 0


def test_scores_of_a_finished_run_survive_when_it_diverges_later(trained, capsys):
    run = trained(TEXT, put(0.5))
    before = json.loads((run / "result.json").read_text())
    assert main(["train", "lm", "--resume", "--force", "--out", "run", "--steps", "9", "--lr", "1e30"]) == 3
    assert "diverged" in capsys.readouterr().err
    after = json.loads((run / "result.json").read_text())
    later = after.pop("resumed")
    assert after == before
    assert later["status"] == "diverged"
    assert (
        main(["train", "lm", *TEXT[2:], "--steps", "9", "--lr", "1e30", "--no-test", "--out", "run", "--overwrite"])
        == 3
    )
    assert json.loads((run / "result.json").read_text())["status"] == "diverged"


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "pairs").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "pairs" / f"{split}.de").write_text("der Hund schläft\nein Haus brennt\n" * 10)
        (tmp_path / "pairs" / f"{split}.en").write_text("the dog sleeps\na house burns\n" * 10)


@pytest.mark.usefixtures("pairs")
def test_a_translation_model(trained, capsys):
    trained(PAIRS, put(-torch.inf))
    assert_one_line(capsys, ["translate", "run", "der Hund schläft", "--device", "cpu"])
    assert_one_line(capsys, ["evaluate", "run", "--device", "cpu"])


def test_logits_of_a_language_model_that_overflow(trained, capsys):
    trained(TEXT, enlarge)
    for options in ([], ["--temperature", "0"], ["--beam", "2"], ["--samples", "2"]):
        assert_one_line(capsys, ["generate", "run", "--device", "cpu", *options], "the logits of the model")


@pytest.mark.usefixtures("pairs")
def test_logits_of_a_translation_model_that_overflow(trained, capsys):
    trained(PAIRS, enlarge)
    for beam in ("1", "3"):
        words = ["translate", "run", "der Hund schläft", "--device", "cpu", "--beam", beam]
        assert_one_line(capsys, words, "the logits of the model")


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("logits", [[0.0, torch.nan], [torch.inf, 0.0], [-torch.inf, -torch.inf]])
def test_logits_that_overflow_are_no_traceback(logits, temperature):
    with pytest.raises(Diverged, match="not finite"):
        Sampler(temperature=temperature)(torch.tensor([[1.0, 2.0], logits]), [torch.Generator(), torch.Generator()])


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("end", [None, 1])
@pytest.mark.parametrize("width", [1, 2])
def test_a_search_notices_logits_that_overflow_at_any_length(width, end, length):
    def step(tokens, state):
        logits = torch.zeros(len(tokens), 4) if int(state[0]) < length else torch.full((len(tokens), 4), torch.nan)
        return logits.log_softmax(-1), state + 1

    beam = Beam(width=width, max_length=length + (end is None), end=end)
    with pytest.raises(Diverged, match="not finite"):
        search_rows(step, torch.tensor([0, 0]), torch.zeros(2), beam)

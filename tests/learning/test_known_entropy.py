"""Text whose exact entropy is known: a model may come close to it, and none may beat it."""

import math

import pytest
import torch

from anaphor.data.batches import EvaluationStream
from anaphor.evaluation import losses_by_batch
from anaphor.training.load import load_run

# Chosen on the validation text.
SETTINGS = ["--data", "grammar", "--model", "lstm", "--layers", "2", "--width", "128", "--epochs", "8",
            "--dropout", "0.2", "--device", "cpu"]  # fmt: skip


def in_order(batches, losses):
    """The loss of each token, in the order of the text. [N]"""
    rows = torch.cat(losses, dim=1)  # [B, longest]
    return torch.cat([row[:length] for row, length in zip(rows, batches.lengths.tolist(), strict=True)])


@pytest.mark.slow
def test_a_recurrent_model_comes_close_to_the_grammar_and_never_beats_it(tmp_path, monkeypatch, answer_of):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)
    result = answer_of(["train", "lm", *SETTINGS, "--out", str(tmp_path / "run"), "--json"])
    assert result["seconds"] < 300
    experiment = load_run(tmp_path / "run", device="cpu").experiment
    protocol, text = experiment.protocol, experiment.split("test")
    batches = EvaluationStream(text.tokens, experiment.tokenizer.boundary, protocol.rows, protocol.bptt)
    losses = in_order(batches, [values for _, values in losses_by_batch(experiment.model, batches, protocol.carry)])
    best = torch.from_numpy(experiment.source.losses(experiment.source.text("test")))
    above = losses.double() - best
    assert above.mean().item() == pytest.approx(result["test"]["loss"] - result["test"]["source_loss"], abs=1e-6)
    error = above.std().item() / math.sqrt(len(above))
    assert error < 0.01
    assert -3 * error <= above.mean().item() <= math.log(1.05)

"""A model that sees later tokens may be trained, to show what comes of it; nothing of it is called a perplexity."""

import json
import math

import pytest
import torch

from anaphor.beam_search import beam_search
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.generate import Sampler, generate
from anaphor.metrics.losses import LossTotal, format_perplexity
from anaphor.models import build
from anaphor.tasks.lm.protocol import choose_carry


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "seeing"
    words = "train lm --data grammar --model transformer --merge reweight-matrix --no-causal --width 16 --layers 1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(run.parent / "cache"))
        assert main([*words.split(), "--steps", "20", "--device", "cpu", "--out", str(run), "--json"]) == 0
    return run


def test_its_scores_are_losses_and_say_so(folder):
    result = json.loads((folder / "result.json").read_text())
    for split in ("valid", "test"):
        score = result[split]
        assert score["perplexity"] is None
        assert score["bits_per_byte"] is None
        assert math.isfinite(score["loss"])
        assert "|causal:no" in score["signature"]


@pytest.mark.parametrize("verb", ["evaluate", "score"])
def test_no_verb_calls_it_a_perplexity(folder, verb, capsys):
    more = {"evaluate": [], "score": ["the dogs swim ."]}[verb]
    assert main([verb, str(folder), *more, "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "no perplexity (later tokens were seen)" in told
    assert "perplexity" not in told.replace("no perplexity", "")


def test_it_cannot_write(folder, error_of):
    assert "cannot generate" in error_of(["generate", str(folder), "--device", "cpu"])
    model = build("transformer", vocabulary=5, width=8, merge="reweight-matrix", causal=False)
    for write in (lambda: list(generate(model, [1], 2, Sampler())), lambda: beam_search(model, [1], 2, 2)):
        with pytest.raises(ConfigError, match="cannot generate"):
            write()


def test_it_carries_nothing():
    model = build("transformer", vocabulary=5, width=8, merge="reweight-matrix", causal=False)
    assert not choose_carry(model, None, 8)
    with pytest.raises(ConfigError, match="carries no state"):
        choose_carry(model, True, 8)


def test_a_later_token_changes_what_is_predicted_before_it():
    model = build("transformer", vocabulary=5, width=8, merge="reweight-matrix", causal=False).eval()
    tokens = torch.tensor([[1, 2, 3, 4]])
    other = torch.tensor([[1, 2, 3, 0]])
    assert not torch.allclose(model(tokens)[0][:, 0], model(other)[0][:, 0])


def test_totals_that_saw_later_tokens_spoil_a_sum():
    both = LossTotal(2.0, 2) + LossTotal(2.0, 2, causal=False)
    assert both.perplexity is None
    assert both.loss == 1
    assert "no perplexity" in format_perplexity(both.perplexity)

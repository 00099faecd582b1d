"""What the course shows with `reverse`: each way to condition on the source learns more of it than the one before."""

import pytest
import torch

import anaphor


@pytest.mark.slow
def test_attention_learns_what_the_last_state_cannot_hold_and_no_source_cannot_tell(tmp_path):
    torch.set_default_dtype(torch.float32)
    common = {"data": "reverse", "model": "luong", "width": 64, "lr": 0.01, "steps": 350, "eval_every": 350, "beam": 1}
    perplexity = {}
    for condition in ("none", "state", "attention"):
        out = tmp_path / condition
        run = anaphor.train(
            "translate", condition=condition, no_test=True, device="cpu", out=out, progress=False, **common
        )
        perplexity[condition] = run.result["valid"]["perplexity"]
    assert perplexity["attention"] < 2 < perplexity["state"] < 8 < perplexity["none"]

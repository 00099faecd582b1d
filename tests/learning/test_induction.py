"""Two layers of attention learn to continue what was said before, one layer cannot; the summary of heads shows it."""

import pytest
import torch
from torch.nn import functional as F

from anaphor.inspect import attention_maps, rank_heads, summarize_heads
from anaphor.models import build
from anaphor.training.optimizers import OptimizerSpec, build_optimizer

WORDS, LENGTH, ROWS, STEPS, RATE = 64, 64, 32, 750, 0.01


def repeated(generator):
    """Random words, repeated with a period that is drawn for each batch."""
    period = int(torch.randint(LENGTH // 4, LENGTH // 2 + 1, (1,), generator=generator))
    once = torch.randint(WORDS, (ROWS, period), generator=generator)
    return once.repeat(1, -(-LENGTH // period))[:, :LENGTH], period


def trained(layers):
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(0)
    model = build("transformer", vocabulary=WORDS, width=64, layers=layers, heads=2, feedforward=0)
    optimizer = build_optimizer(OptimizerSpec(optimizer="muon", lr=RATE), model)
    for step in range(STEPS):
        cooling = 1 - 0.9 * max(0, step / STEPS - 0.6) / 0.4
        optimizer.set_lr(RATE * min(1, (step + 1) / 50) * cooling)
        tokens, period = repeated(generator)
        optimizer.zero_grad()
        logits, _ = model(tokens[:, :-1])
        # What was never said before cannot be known: only repeats are learnt from.
        F.cross_entropy(logits[:, period - 1 :].flatten(0, 1), tokens[:, period:].flatten()).backward()
        optimizer.step()
    return model.eval()


def best_head(model):
    """The head that comes first in the summary of a text that is said twice."""
    torch.manual_seed(1)
    tokens = torch.randperm(WORDS)[: LENGTH // 2].repeat(2)
    return rank_heads(summarize_heads(attention_maps(model, tokens[None]), tokens.tolist()))[0]


@pytest.mark.slow
def test_two_layers_have_an_induction_head_and_the_summary_ranks_it_first():
    head = best_head(trained(layers=2))
    assert head.layer == 1, "the first layer finds the previous token, the second what followed it"
    assert head.induction > 0.5
    assert "induction" in head.pattern


@pytest.mark.slow
def test_one_layer_has_none():
    assert best_head(trained(layers=1)).induction < 0.5

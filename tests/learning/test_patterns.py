"""Tiny tasks that must be learnt in seconds: gradients flow through every preset, and carried state carries."""

import math

import pytest
import torch
from torch.nn import functional as F

from anaphor.mixers import detach
from anaphor.models import build

RECURRENT = ("rnn-tanh", "rnn-relu", "gru", "lstm", "qrnn")
FAMILIES = [*RECURRENT, "transformer", "transformer-xl", "linear", "hybrid", "gpt-nano"]


def step(model, optimizer, tokens, state=None):
    """One update on next-token prediction; the loss before it, and the state after the tokens."""
    logits, state = model(tokens[:, :-1], state)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item(), detach(state)


def fresh(name, vocabulary, **more):
    recurrent = name in RECURRENT
    options = {"layers": 1} if recurrent else {"layers": 2, "heads": 4}
    model = build(name, vocabulary=vocabulary, width=48, **options, **more).to(torch.float32)
    return model, torch.optim.Adam(model.parameters(), lr=3e-2 if recurrent else 5e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_learns_a_rule(name):
    """A random first token, then each token follows from the one before it."""
    model, optimizer = fresh(name, vocabulary=6)
    losses = [step(model, optimizer, (torch.randint(0, 6, (32, 1)) + 5 * torch.arange(12)) % 6)[0] for _ in range(60)]
    assert losses[0] > 1
    assert sum(losses[-5:]) / 5 < 0.05


LATE = [pytest.param(name, marks=pytest.mark.slow) for name in ("linear", "transformer-xl")]


@pytest.mark.parametrize("name", ["gru", "lstm", "qrnn", "hybrid", *LATE])
def test_carried_state_knows_what_a_fresh_start_cannot(name):
    """Each row repeats a number of its own between question marks. A segment starts with a question mark, so what its
    first answer must be stands in the segment before."""
    numbers, question = 4, 4
    model, optimizer = fresh(
        name, vocabulary=5, init_scheme="uniform"
    )  # at this width it learns sooner than GPT-2's draw

    def first_answers(carry: bool, learn: bool) -> float:
        rows = torch.randint(0, numbers, (64, 1))
        segment = torch.cat((torch.full_like(rows, question), rows), 1).repeat(1, 3)[:, :5]  # ? n ? n ?
        _, state = step(model, optimizer, segment) if learn else (None, model(segment[:, :-1])[1])
        if learn:
            step(model, optimizer, segment, state)
        with torch.no_grad():
            logits, _ = model(segment[:, :1], state if carry else None)
        return F.cross_entropy(logits[:, 0], rows[:, 0]).item()

    for _ in range(250):
        if first_answers(carry=True, learn=True) < 0.02:
            break  # it has learned
    assert first_answers(carry=True, learn=False) < 0.1
    assert first_answers(carry=False, learn=False) > 0.9 * math.log(numbers)

"""Known results about what a layer can track, in small: each model trains for seconds on a synthetic task."""

import pytest
import torch
from torch.nn import functional as F

from anaphor.data import open_dataset
from anaphor.models import build


def accuracy_after_training(data, name, *, steps, lr=0.01, rows=64, width=32, layers=1, **options):
    """Accuracy of the answers on sequences of the length of training, and on those four times as long."""
    torch.manual_seed(0)
    dataset = open_dataset(data)
    model = build(name, vocabulary=len(dataset.words), width=width, layers=layers, **options).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
    drawn = dataset.make_sequences("train")
    tokens, answers = torch.from_numpy(drawn.tokens.copy()), torch.from_numpy(drawn.answers.copy())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, 20 * (step + 1) / steps, 3 * (steps - step) / steps)
        chosen = torch.randint(len(tokens), (rows,))
        logits, _ = model(tokens[chosen])
        loss = F.cross_entropy(logits.flatten(0, 1), answers[chosen].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return tuple(score(model, dataset.make_sequences("valid", times)) for times in (1, 4))


@torch.no_grad()
def score(model, drawn):
    logits, _ = model(torch.from_numpy(drawn.tokens.copy()))
    answers = torch.from_numpy(drawn.answers.copy())
    return (logits.argmax(-1) == answers)[answers >= 0].double().mean().item()


PARITY = "parity:length=8,sequences=1000"
SWAPS = "permutations:group=S5,swaps=true,length=12,sequences=30000"
INDUCTION = "induction:length=12,vocabulary=6,sequences=6000"
FLIP_FLOP = "flip-flop:length=16,sequences=6000"


def test_a_delta_rule_with_negative_eigenvalues_solves_parity():
    options = {"allow_neg_eigval": True, "short_conv": 0, "heads": 2}
    short, long = accuracy_after_training(PARITY, "delta", steps=200, rows=32, **options)
    assert short > 0.99
    assert long > 0.9


def test_an_lstm_solves_parity():
    assert min(accuracy_after_training(PARITY, "lstm", steps=200)) > 0.99


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gla", "mamba2", "rg-lru", "retention", "mlstm")]


@pytest.mark.parametrize("name", ["min-gru", *SLOW])
def test_decays_alone_do_not_solve_parity(name):
    _, long = accuracy_after_training(PARITY, name, steps=200)
    assert long < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("steps_a_token", [1, 4])
def test_a_delta_rule_with_negative_eigenvalues_solves_the_word_problem_of_s5(steps_a_token):
    """From swaps: one reflection each."""
    options = {"allow_neg_eigval": True, "num_householder": steps_a_token, "short_conv": 0, "heads": 2}
    assert min(accuracy_after_training(SWAPS, "delta", steps=1500, width=64, **options)) > 0.98


@pytest.mark.slow
def test_an_lstm_solves_the_word_problem_of_s5_and_decays_alone_do_not():
    assert min(accuracy_after_training(SWAPS, "lstm", steps=2000, width=128)) > 0.9
    assert accuracy_after_training(SWAPS, "mamba2", steps=1500, width=64)[1] < 0.4


@pytest.mark.slow
def test_without_the_short_convolution_mamba2_loses_induction():
    assert accuracy_after_training(INDUCTION, "mamba2", steps=500, short_conv=4)[0] > 0.95
    assert accuracy_after_training(INDUCTION, "mamba2", steps=500, short_conv=0)[0] < 0.6


def test_an_lstm_keeps_a_bit_without_an_error():
    assert min(accuracy_after_training(FLIP_FLOP, "lstm", steps=250)) > 0.999


@pytest.mark.slow
def test_attention_keeps_a_bit_with_errors_where_the_text_is_longer():
    options = {"layers": 2, "heads": 2, "position": "rotary", "lr": 0.005}
    short, long = accuracy_after_training(FLIP_FLOP, "transformer", steps=500, **options)
    assert short > 0.8
    assert long < 0.95

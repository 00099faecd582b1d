"""Loss terms: several passes of a batch are rows of one, loss and penalties are their means."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.registry import TASKS, register_loss_term
from anaphor.training.build import build_experiment
from anaphor.training.loss_terms import LossTerm, count_passes

PAIRS = {"data": "reverse", "width": 8, "max_examples": 20, "batch_size": 5, "device": "cpu"}


class ThreePasses(LossTerm):
    passes = 3

    def __call__(self, hidden_states, head, batch):
        assert len(hidden_states) == len(batch.targets)
        return hidden_states.square().sum()


def translation(*terms):
    for number, term in enumerate(terms):
        register_loss_term(f"term-{number}", lambda term=term: term, tasks=("translate",))
    experiment = build_experiment(TASKS["translate"].run_spec(**PAIRS))
    return experiment, experiment.batches(0)[0]


def test_passes_without_dropout_have_the_loss_and_the_penalty_of_one():
    experiment, batch = translation(ThreePasses())
    loss, _ = experiment.loss(batch, None)
    plain, _ = translation()
    plain.loss_terms, plain.passes = [lambda x, head, read: x.square().sum()], 1
    once, _ = plain.loss(batch, None)
    torch.testing.assert_close(loss.total, once.total)
    torch.testing.assert_close(loss.penalty, once.penalty)


def test_a_function_beside_it_reads_all_passes_too():
    experiment, batch = translation(ThreePasses(), lambda x, head, read: x.new_tensor(len(read.targets)))
    both, _ = experiment.loss(batch, None)
    experiment.loss_terms.pop()
    alone, _ = experiment.loss(batch, None)
    torch.testing.assert_close(both.total, alone.total)
    torch.testing.assert_close(both.penalty, alone.penalty + len(batch.targets))


def test_terms_that_want_other_numbers_of_passes_are_refused():
    two = LossTerm()
    two.passes = 2
    assert count_passes([ThreePasses(), ThreePasses(), len]) == 3
    with pytest.raises(ConfigError, match="loss terms want 2 and 3 passes of a batch: use one of them"):
        translation(ThreePasses(), two)


def test_a_language_model_makes_one_pass():
    register_loss_term("three-passes", ThreePasses, tasks=("lm",))
    with pytest.raises(ConfigError, match="several passes of a batch, which language models do not make"):
        build_experiment(TASKS["lm"].run_spec(data="grammar", width=8, device="cpu"))

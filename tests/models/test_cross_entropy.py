"""The cross_entropy loss by its readable code against the whole one: values, gradients, padding, precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loss_promises
from anaphor.models import build
from anaphor.models import cross_entropy as losses_of_a_head
from anaphor.models.cross_entropy import cross_entropy, full_cross_entropy, token_losses
from anaphor.operations import OFF_VARIABLE


@pytest.fixture(autouse=True, scope="module")
def _readable():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OFF_VARIABLE, "1")
        yield


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 4),
    tokens=st.integers(1, 6),
    vocabulary=st.integers(1, 9),
    at_once=st.integers(1, 60),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_chunked_agrees_with_whole(rows, tokens, vocabulary, at_once, bias, seed):
    loss_promises.chunks_agree_with_the_whole(rows, tokens, vocabulary, at_once, bias, seed)


def test_improbable_tokens_keep_their_exact_loss():
    loss_promises.improbable_tokens_keep_their_exact_loss()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_give_no_finite_loss(bad):
    loss_promises.logits_that_are_no_numbers_give_no_finite_loss(bad)


@pytest.mark.parametrize("bias", [True, False])
def test_a_batch_without_tokens_has_no_loss_and_no_gradient(bias):
    loss_promises.a_batch_without_tokens_has_no_loss_and_no_gradient(bias)


def test_a_token_that_is_nearly_known_is_still_learned_in_half_precision():
    loss_promises.a_token_that_is_nearly_known_is_still_learned_in_half_precision()


@pytest.mark.parametrize("target", [-1, 5])
def test_a_target_that_is_no_word_is_refused(target):
    loss_promises.a_target_that_is_no_word_is_refused(target)


def test_autocast_stays_close_to_single_precision():
    loss_promises.autocast_stays_close_to_single_precision()


@pytest.mark.parametrize("tied", [True, False])
def test_tied_gradients_reach_the_word_vectors(tied):
    model = build("lstm", vocabulary=11, width=4, tied=tied)
    tokens, targets = torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 5))
    gradients = []
    for loss in (full_cross_entropy, cross_entropy):
        model.zero_grad()
        loss(model.compute_hidden_states(tokens)[0], model.head, targets).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected)


def test_a_narrow_head_is_scored_in_short_chunks_with_the_same_losses(monkeypatch):
    torch.manual_seed(0)
    narrow = loss_promises.head_of(8, 20_000, True)
    hidden_states, targets = torch.randn(2, 60, 8), torch.randint(0, 20_000, (2, 60))
    tokens, compute = [], losses_of_a_head.compute_losses
    monkeypatch.setattr(losses_of_a_head, "compute_losses", lambda x, *rest: tokens.append(len(x)) or compute(x, *rest))
    losses = token_losses(hidden_states, narrow, targets)
    whole = token_losses(hidden_states, narrow, targets, logits_per_chunk=8_000_000)
    assert tokens == [50, 50, 20, 120]
    torch.testing.assert_close(losses, whole)


def test_a_matrix_that_is_computed_from_embeddings_gets_its_gradient_from_all_chunks():
    """It is computed once for all of them."""
    embeddings, computed = torch.randn(7, 3, requires_grad=True), []
    head = loss_promises.head_of(3, 7, False)

    class Tied(type(head)):
        @property
        def weight(self):
            computed.append(1)
            return 2 * embeddings if len(computed) == 1 else None

    head.__class__ = Tied
    hidden_states, targets = torch.randn(1, 4, 3), torch.tensor([[0, 2, 6, 6]])
    (gradient,) = torch.autograd.grad(cross_entropy(hidden_states, head, targets, logits_per_chunk=7), embeddings)
    logits = (hidden_states @ (2 * embeddings).T).flatten(0, 1)
    (expected,) = torch.autograd.grad(
        torch.nn.functional.cross_entropy(logits, targets[0], reduction="sum"), embeddings
    )
    torch.testing.assert_close(gradient, expected)

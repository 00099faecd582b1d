"""What every way to compute the loss of a head promises: the readable one, and each kernel."""

import pytest
import torch

from anaphor.models.cross_entropy import IGNORE_INDEX, cross_entropy, full_cross_entropy, token_losses
from anaphor.models.head import Head


def head_of(width, vocabulary, bias):
    head = Head(width, vocabulary, bias, None)
    torch.nn.init.normal_(head.own)
    return head


def value_and_gradients(loss, hidden_states, head, targets):
    value = loss(hidden_states, head, targets)
    return [value, *torch.autograd.grad(value, [hidden_states, *head.parameters()])]


def chunks_agree_with_the_whole(rows, tokens, vocabulary, at_once, bias, seed):
    torch.manual_seed(seed)
    head, hidden_states = head_of(3, vocabulary, bias), torch.randn(rows, tokens, 3, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows, tokens))
    targets[torch.rand(rows, tokens) < 0.3] = IGNORE_INDEX
    wanted = [hidden_states, *head.parameters()]
    slow = full_cross_entropy(hidden_states, head, targets)
    fast = cross_entropy(hidden_states, head, targets, at_once)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(0.5 * fast, wanted), torch.autograd.grad(0.5 * slow, wanted), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    by_token = token_losses(hidden_states, head, targets, at_once)
    torch.testing.assert_close(by_token.sum(), slow)
    assert not by_token[targets == IGNORE_INDEX].any()


def improbable_tokens_keep_their_exact_loss():
    """A probability that is zero in the number's type still has a logarithm."""
    head = Head(1, 2, True, None)
    with torch.no_grad():
        head.own.zero_()
        head.bias.copy_(torch.tensor([0.0, 2000.0]))
    loss = cross_entropy(torch.zeros(1, 1, 1, requires_grad=True), head, torch.zeros(1, 1, dtype=torch.long))
    assert loss.item() == 2000


def logits_that_are_no_numbers_give_no_finite_loss(bad):
    head, hidden_states = head_of(1, 5, True), torch.zeros(1, 2, 1)
    with torch.no_grad():
        head.bias[3] = bad
    for target in (3, 4):
        assert not cross_entropy(hidden_states, head, torch.full((1, 2), target)).isfinite()


def a_batch_without_tokens_has_no_loss_and_no_gradient(bias):
    head, hidden_states = head_of(3, 5, bias), torch.zeros(2, 0, 3, requires_grad=True)
    loss = cross_entropy(hidden_states, head, torch.zeros(2, 0, dtype=torch.long))
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, list(head.parameters())))


def a_token_that_is_nearly_known_is_still_learned_in_half_precision():
    """One minus a probability near one is lost where the probability itself is rounded first."""
    head = Head(2, 3, True, None).float()
    with torch.no_grad():
        head.own.copy_(torch.tensor([[4.0, 0.0], [-3.0, 0.0], [-4.0, 1.0]]))
    hidden_states = torch.tensor([[[1.0, 0.0]]], dtype=torch.float32, requires_grad=True)
    targets = torch.zeros(1, 1, dtype=torch.long)
    wanted = [hidden_states, *head.parameters()]
    slow = full_cross_entropy(hidden_states, head, targets)
    with torch.autocast("cpu", torch.bfloat16):
        fast = cross_entropy(hidden_states, head, targets)
    torch.testing.assert_close(fast, slow, rtol=0.02, atol=0)
    for one, other in zip(torch.autograd.grad(fast, wanted), torch.autograd.grad(slow, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-8)


def weights_in_half_precision_lose_no_token():
    """Each of many tokens adds little to a sum that is already large."""
    head = Head(1, 2, True, None).to(torch.bfloat16)
    with torch.no_grad():
        head.own.zero_()
    hidden_states = torch.ones(1, 4096, 1, dtype=torch.bfloat16, requires_grad=True)
    loss = cross_entropy(hidden_states, head, torch.zeros(1, 4096, dtype=torch.long), logits_per_chunk=64)
    grad_weight, grad_bias = torch.autograd.grad(loss, [head.own, head.bias])
    assert grad_bias.tolist() == [-2048, 2048]
    assert grad_weight.flatten().tolist() == [-2048, 2048]


def a_target_that_is_no_word_is_refused(target):
    head, hidden_states = head_of(3, 5, True), torch.randn(1, 2, 3, requires_grad=True)
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        cross_entropy(hidden_states, head, torch.tensor([[1, target]]))


def autocast_stays_close_to_single_precision():
    head = head_of(16, 50, True).to(torch.float32)
    hidden_states, targets = (
        torch.randn(4, 8, 16, dtype=torch.float32, requires_grad=True),
        torch.randint(0, 50, (4, 8)),
    )
    exact = cross_entropy(hidden_states, head, targets)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = cross_entropy(hidden_states, head, targets)
    assert reduced.dtype == torch.float32
    torch.testing.assert_close(reduced, exact, rtol=2e-2, atol=0)
    reduced.backward()
    assert hidden_states.grad.isfinite().all()

"""The cross_entropy loss against the whole one: values, gradients, padding, precision."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.models import head as head_module
from anaphor.models import vocabulary_blocks
from anaphor.models.head import IGNORE_INDEX, Head, cross_entropy, full_cross_entropy, token_losses


def head_of(width, vocabulary, bias):
    head = Head(width, vocabulary, bias, None)
    torch.nn.init.normal_(head.own)
    return head


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 4),
    tokens=st.integers(1, 6),
    vocabulary=st.integers(1, 9),
    at_once=st.integers(1, 60),
    block=st.integers(1, 8),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_chunked_agrees_with_whole(rows, tokens, vocabulary, at_once, block, bias, seed):
    """In blocks of the vocabulary, as on a CPU, and without, as on a GPU."""
    with (
        patch.object(vocabulary_blocks, "TOKENS_PER_BLOCK", block),
        patch.object(head_module, "MAX_VOCABULARY_WITHOUT_BLOCKS", 0),
    ):
        check_agreement(rows, tokens, vocabulary, at_once, bias, seed)
    check_agreement(rows, tokens, vocabulary, at_once, bias, seed)


def check_agreement(rows, tokens, vocabulary, at_once, bias, seed):
    torch.manual_seed(seed)
    head, features = head_of(3, vocabulary, bias), torch.randn(rows, tokens, 3, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows, tokens))
    targets[torch.rand(rows, tokens) < 0.3] = IGNORE_INDEX
    wanted = [features, *head.parameters()]
    slow = full_cross_entropy(features, head, targets)
    fast = cross_entropy(features, head, targets, at_once)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(0.5 * fast, wanted), torch.autograd.grad(0.5 * slow, wanted), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    by_token = token_losses(features, head, targets, at_once)
    torch.testing.assert_close(by_token.sum(), slow)
    assert not by_token[targets == IGNORE_INDEX].any()


@pytest.mark.parametrize("smallest", [0, head_module.MAX_VOCABULARY_WITHOUT_BLOCKS])
def test_improbable_tokens_keep_their_exact_loss(smallest, monkeypatch):
    """A probability that is zero in the number's type still has a logarithm, with blocks and without."""
    monkeypatch.setattr(head_module, "MAX_VOCABULARY_WITHOUT_BLOCKS", smallest)
    head = Head(1, 2, True, None)
    with torch.no_grad():
        head.own.zero_()
        head.bias.copy_(torch.tensor([0.0, 2000.0]))
    loss = cross_entropy(torch.zeros(1, 1, 1, requires_grad=True), head, torch.zeros(1, 1, dtype=torch.long))
    assert loss.item() == 2000


@pytest.mark.parametrize("logits", [8_000_000, head_module.LOGITS_PER_CHUNK_IN_BLOCKS])
def test_blocks_of_the_sizes_that_are_used_agree(logits, monkeypatch):
    """Several blocks, with several chunks and one, in double precision and, less closely, in single precision."""
    monkeypatch.setattr(head_module, "LOGITS_PER_CHUNK_IN_BLOCKS", logits)
    torch.manual_seed(0)
    vocabulary = head_module.MAX_VOCABULARY_WITHOUT_BLOCKS + 7
    head = head_of(8, vocabulary, True)
    features, targets = torch.randn(2, 500, 8, requires_grad=True), torch.randint(0, vocabulary, (2, 500))
    exact = value_and_gradients(full_cross_entropy, features, head, targets)
    for one, other in zip(value_and_gradients(cross_entropy, features, head, targets), exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    narrow = features.detach().float().requires_grad_()
    for one, other in zip(value_and_gradients(cross_entropy, narrow, head.float(), targets), exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("blocks")
def test_memory_that_is_kept_changes_no_result():
    """Calls of any size and type one after the other, in inference mode too, and of two threads at once."""
    head = head_of(3, 7, True)
    head_module._kept_memory.buffer = torch.empty(0)
    cases = [(torch.randn(1, tokens, 3, requires_grad=True), torch.randint(0, 7, (1, tokens))) for tokens in (4, 9, 2)]
    with torch.inference_mode():
        cross_entropy(cases[0][0], head, cases[0][1])
    kept = []
    for features, targets in cases:
        found, expected = (value_and_gradients(loss, features, head, targets) for loss in LOSSES)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        kept.append(head_module._kept_memory.buffer)
    assert [len(buffer) for buffer in kept] == [4 * 7, 9 * 7, 9 * 7]
    assert kept[1] is kept[2], "used again"
    with ThreadPoolExecutor(1) as other:
        other.submit(cross_entropy, *cases[1][:1], head, cases[1][1]).result()
        assert other.submit(lambda: head_module._kept_memory.buffer).result() is not kept[2]
    narrow = cases[0][0].detach().float()
    assert cross_entropy(narrow, head.float(), cases[0][1]).dtype == torch.float32
    assert head_module._kept_memory.buffer.dtype == torch.float32


LOSSES = (cross_entropy, full_cross_entropy)


def value_and_gradients(loss, features, head, targets):
    value = loss(features, head, targets)
    return [value, *torch.autograd.grad(value, [features, *head.parameters()])]


@pytest.fixture
def blocks(monkeypatch):
    """A block for every two words."""
    monkeypatch.setattr(vocabulary_blocks, "TOKENS_PER_BLOCK", 2)
    monkeypatch.setattr(head_module, "MAX_VOCABULARY_WITHOUT_BLOCKS", 0)


@pytest.mark.usefixtures("blocks")
def test_a_token_that_is_nearly_certain_keeps_the_digits_of_its_loss():
    """In single precision its probability is one, but its loss and gradient are not zero."""
    head = Head(1, 3, True, None).float()
    with torch.no_grad():
        head.own.zero_()
        head.bias.copy_(torch.tensor([30.0, 0.0, 0.0]))
    loss = cross_entropy(torch.zeros(1, 1, 1, dtype=torch.float32), head, torch.zeros(1, 1, dtype=torch.long))
    (gradient,) = torch.autograd.grad(loss, [head.bias])
    tiny = torch.tensor(-30.0).exp().item()
    assert loss.item() == pytest.approx(2 * tiny, rel=1e-5)
    assert gradient.tolist() == pytest.approx([-2 * tiny, tiny, tiny], rel=1e-5)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_give_no_finite_loss(bad):
    head, features = head_of(1, 5, True), torch.zeros(1, 2, 1)
    with torch.no_grad():
        head.bias[3] = bad
    for target in (3, 4):
        assert not cross_entropy(features, head, torch.full((1, 2), target)).isfinite()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("bias", [True, False])
def test_a_batch_without_tokens_has_no_loss_and_no_gradient(bias):
    head, features = head_of(3, 5, bias), torch.zeros(2, 0, 3, requires_grad=True)
    loss = cross_entropy(features, head, torch.zeros(2, 0, dtype=torch.long))
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, list(head.parameters())))


@pytest.mark.parametrize("narrow_room", [False, True])
def test_a_token_that_is_nearly_known_is_still_learned_in_half_precision(narrow_room, monkeypatch):
    """One minus a probability near one is lost where the probability itself is rounded first."""
    if not narrow_room:
        monkeypatch.setattr(head_module, "MAX_VOCABULARY_WITHOUT_BLOCKS", 0)
    else:  # as on a GPU
        monkeypatch.setattr("anaphor.models.head._buffer_dtype", lambda matrix: matrix.dtype)
    head = Head(2, 3, True, None).float()
    with torch.no_grad():
        head.own.copy_(torch.tensor([[4.0, 0.0], [-3.0, 0.0], [-4.0, 1.0]]))
    features = torch.tensor([[[1.0, 0.0]]], dtype=torch.float32, requires_grad=True)
    targets = torch.zeros(1, 1, dtype=torch.long)
    wanted = [features, *head.parameters()]
    slow = full_cross_entropy(features, head, targets)
    with torch.autocast("cpu", torch.bfloat16):
        fast = cross_entropy(features, head, targets)
    torch.testing.assert_close(fast, slow, rtol=0.02, atol=0)
    for one, other in zip(torch.autograd.grad(fast, wanted), torch.autograd.grad(slow, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-8)


@pytest.mark.usefixtures("blocks")
def test_weights_in_half_precision_lose_no_token():
    """Each of many tokens adds little to a sum that is already large."""
    head = Head(1, 2, True, None).to(torch.bfloat16)
    with torch.no_grad():
        head.own.zero_()
    features = torch.ones(1, 4096, 1, dtype=torch.bfloat16, requires_grad=True)
    loss = cross_entropy(features, head, torch.zeros(1, 4096, dtype=torch.long), logits_per_chunk=64)
    grad_weight, grad_bias = torch.autograd.grad(loss, [head.own, head.bias])
    assert grad_bias.tolist() == [-2048, 2048]
    assert grad_weight.flatten().tolist() == [-2048, 2048]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("target", [-1, 5])
def test_a_target_that_is_no_word_is_refused(target):
    head, features = head_of(3, 5, True), torch.randn(1, 2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="out of bounds"):
        cross_entropy(features, head, torch.tensor([[1, target]]))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_gradients_reach_the_word_vectors(tied):
    from anaphor.models import build

    model = build("lstm", vocabulary=11, width=4, tied=tied)
    tokens, targets = torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 5))
    gradients = []
    for loss in (full_cross_entropy, cross_entropy):
        model.zero_grad()
        loss(model.features(tokens)[0], model.head, targets).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected)


@pytest.mark.usefixtures("blocks")
def test_autocast_stays_close_to_single_precision():
    head, features = (
        head_of(16, 50, True).to(torch.float32),
        torch.randn(4, 8, 16, dtype=torch.float32, requires_grad=True),
    )
    targets = torch.randint(0, 50, (4, 8))
    exact = cross_entropy(features, head, targets)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = cross_entropy(features, head, targets)
    assert reduced.dtype == torch.float32
    torch.testing.assert_close(reduced, exact, rtol=2e-2, atol=0)
    reduced.backward()
    assert features.grad.isfinite().all()


def test_a_narrow_head_is_scored_in_short_chunks_with_the_same_losses(monkeypatch):
    torch.manual_seed(0)
    head = head_of(8, 20_000, True)
    features, targets = torch.randn(2, 60, 8), torch.randint(0, 20_000, (2, 60))
    tokens, forward = [], Head.forward
    monkeypatch.setattr(Head, "forward", lambda self, x: tokens.append(len(x)) or forward(self, x))
    losses = token_losses(features, head, targets)
    whole = token_losses(features, head, targets, logits_per_chunk=8_000_000)
    assert tokens == [50, 50, 20, 120]
    torch.testing.assert_close(losses, whole)

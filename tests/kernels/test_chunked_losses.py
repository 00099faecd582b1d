"""The loss in chunks, and in blocks of the vocabulary, against the whole one: values, gradients, precision, memory."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loss_promises
from anaphor.kernels import vocabulary_blocks
from anaphor.kernels.chunked_losses import ChunkMethod, compute_chunks, compute_losses
from anaphor.models.cross_entropy import cross_entropy, full_cross_entropy
from anaphor.models.head import Head
from loss_promises import head_of, value_and_gradients


@pytest.fixture
def blocks(monkeypatch):
    """A block for every two words."""
    monkeypatch.setattr(vocabulary_blocks, "WORDS_PER_BLOCK", 2)
    monkeypatch.setattr(vocabulary_blocks, "MAX_VOCABULARY_WITHOUT_BLOCKS", 0)


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
def test_chunks_with_and_without_blocks_agree_with_the_whole(rows, tokens, vocabulary, at_once, block, bias, seed):
    with (
        patch.object(vocabulary_blocks, "WORDS_PER_BLOCK", block),
        patch.object(vocabulary_blocks, "MAX_VOCABULARY_WITHOUT_BLOCKS", 0),
    ):
        loss_promises.chunks_agree_with_the_whole(rows, tokens, vocabulary, at_once, bias, seed)
    loss_promises.chunks_agree_with_the_whole(rows, tokens, vocabulary, at_once, bias, seed)


@pytest.mark.parametrize("logits", [8_000_000, vocabulary_blocks.LOGITS_PER_CHUNK])
def test_blocks_of_the_sizes_that_are_used_agree(logits, monkeypatch):
    """Several blocks, with several chunks and one, in double precision and, less closely, in single precision."""
    monkeypatch.setattr(vocabulary_blocks, "LOGITS_PER_CHUNK", logits)
    torch.manual_seed(0)
    vocabulary = vocabulary_blocks.MAX_VOCABULARY_WITHOUT_BLOCKS + 7
    head = head_of(8, vocabulary, True)
    hidden_states, targets = torch.randn(2, 500, 8, requires_grad=True), torch.randint(0, vocabulary, (2, 500))
    exact = value_and_gradients(full_cross_entropy, hidden_states, head, targets)
    for one, other in zip(value_and_gradients(cross_entropy, hidden_states, head, targets), exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    narrow = hidden_states.detach().float().requires_grad_()
    for one, other in zip(value_and_gradients(cross_entropy, narrow, head.float(), targets), exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("blocks")
def test_memory_that_is_kept_changes_no_result():
    """Calls of any size and type one after the other, and of two threads at once."""
    head = head_of(3, 7, True)
    vocabulary_blocks._kept.buffer = torch.empty(0)
    cases = [(torch.randn(1, tokens, 3, requires_grad=True), torch.randint(0, 7, (1, tokens))) for tokens in (4, 9, 2)]
    kept = []
    for hidden_states, targets in cases:
        losses = (cross_entropy, full_cross_entropy)
        found, expected = (value_and_gradients(loss, hidden_states, head, targets) for loss in losses)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        kept.append(vocabulary_blocks._kept.buffer)
    assert [len(buffer) for buffer in kept] == [4 * 7, 9 * 7, 9 * 7]
    assert kept[1] is kept[2], "used again"
    with ThreadPoolExecutor(1) as other:
        other.submit(cross_entropy, *cases[1][:1], head, cases[1][1]).result()
        assert other.submit(lambda: vocabulary_blocks._kept.buffer).result() is not kept[2]
    narrow = cases[0][0].detach().float()
    assert cross_entropy(narrow, head.float(), cases[0][1]).dtype == torch.float32
    assert vocabulary_blocks._kept.buffer.dtype == torch.float32


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


PROMISES = {
    "improbable": (loss_promises.improbable_tokens_keep_their_exact_loss, ()),
    "nan": (loss_promises.logits_that_are_no_numbers_give_no_finite_loss, (float("nan"),)),
    "infinity": (loss_promises.logits_that_are_no_numbers_give_no_finite_loss, (float("inf"),)),
    "empty": (loss_promises.a_batch_without_tokens_has_no_loss_and_no_gradient, (False,)),
    "empty with a bias": (loss_promises.a_batch_without_tokens_has_no_loss_and_no_gradient, (True,)),
    "nearly known": (loss_promises.a_token_that_is_nearly_known_is_still_learned_in_half_precision, ()),
    "half precision": (loss_promises.weights_in_half_precision_lose_no_token, ()),
    "target before": (loss_promises.a_target_that_is_no_word_is_refused, (-1,)),
    "target behind": (loss_promises.a_target_that_is_no_word_is_refused, (5,)),
    "autocast": (loss_promises.autocast_stays_close_to_single_precision, ()),
}


@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize("largest", [0, 10**9], ids=["blocks", "whole"])
def test_both_ways_keep_what_every_loss_promises(largest, name, monkeypatch):
    monkeypatch.setattr(vocabulary_blocks, "WORDS_PER_BLOCK", 2)
    monkeypatch.setattr(vocabulary_blocks, "MAX_VOCABULARY_WITHOUT_BLOCKS", largest)
    promise, arguments = PROMISES[name]
    promise(*arguments)


def test_memory_of_a_narrow_type_as_on_a_gpu_loses_no_nearly_known_token(monkeypatch):
    def in_narrow_memory(hidden_states, head, targets):
        method = ChunkMethod(compute_losses, lambda rows, matrix: matrix.new_empty(rows * len(matrix)))
        return compute_chunks(hidden_states, head.weight, head.bias, targets, 1, None, method)

    monkeypatch.setattr(loss_promises, "cross_entropy", in_narrow_memory)
    loss_promises.a_token_that_is_nearly_known_is_still_learned_in_half_precision()

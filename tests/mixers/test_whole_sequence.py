"""Mixers that read the whole sequence: pooled, low-rank, SVD, bidirectional."""

import pytest
import torch
from torch import nn

from anaphor.mixers import AttentionSpec, LowRankSpec, LSTMSpec, PooledSpec, Span, SVDSpec, mixer_spec
from anaphor.mixers.noncausal import linear_time_scores, quadratic_scores, reverse

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def run(mixer, x, lengths=None):
    return mixer(x, (), Span.whole(x, lengths))[0]


def test_pooled_attention_is_the_formula():
    mixer = PooledSpec(width=3).build()
    x = torch.randn(2, 5, 3)
    Q, K, V = mixer.query.weight, mixer.key.weight, mixer.value.weight
    for row in range(2):
        alpha = torch.stack([sum((Q @ x[row, t]) @ (K @ x[row, j]) for j in range(5)) / 5**0.5 for t in range(5)])
        weights = alpha.exp() / alpha.exp().sum()
        expected = sum(weights[j] * (V @ x[row, j]) for j in range(5))
        torch.testing.assert_close(run(mixer, x)[row, 0], expected, **TIGHT)


def test_pooled_output_is_the_same_for_every_token():
    y = run(PooledSpec(width=4).build(), torch.randn(3, 6, 4))
    assert torch.equal(y, y[:, :1].expand_as(y))


def test_pooled_scores_summed_first_agree_with_pair_by_pair():
    q, k = torch.randn(2, 50, 8, requires_grad=True), torch.randn(2, 50, 8, requires_grad=True)
    fast, slow = linear_time_scores(q, k), quadratic_scores(q, k)
    torch.testing.assert_close(fast, slow, **TIGHT)
    for one, other in zip(
        torch.autograd.grad(fast.square().sum(), (q, k)), torch.autograd.grad(slow.square().sum(), (q, k)), strict=True
    ):
        torch.testing.assert_close(one, other, **TIGHT)


def test_svd_of_full_rank_is_plain_attention():
    svd, plain = SVDSpec(width=8, heads=2, rank=6).build(), AttentionSpec(width=8, heads=2, mask="everything").build()
    plain.load_state_dict(svd.state_dict())
    x = torch.randn(2, 6, 8, requires_grad=True)
    torch.testing.assert_close(run(svd, x), run(plain, x), **TIGHT)
    gradients = [torch.autograd.grad(run(mixer, x).square().sum(), x)[0] for mixer in (svd, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)


def test_svd_is_the_best_approximation_of_its_rank():
    from anaphor.inspect import recorded

    x = torch.randn(1, 6, 8)
    cut, full = SVDSpec(width=8, heads=2, rank=2).build(), SVDSpec(width=8, heads=2, rank=6).build()
    full.load_state_dict(cut.state_dict())
    maps = []
    for mixer in (cut, full):
        with recorded(mixer, "weights") as seen:
            run(mixer, x)
        maps.append(seen["weights"])
    values = torch.linalg.svdvals(maps[1])
    error = torch.linalg.matrix_norm(maps[1] - maps[0])
    torch.testing.assert_close(error, values[..., 2:].square().sum(-1).sqrt(), **TIGHT)  # Eckart–Young
    assert (torch.linalg.matrix_rank(maps[0]) == 2).all()


def test_low_rank_looks_at_projected_keys_only():
    from anaphor.inspect import recorded

    mixer = LowRankSpec(width=8, heads=2, rank=3, tokens=10).build()
    x = torch.randn(2, 7, 8)
    with recorded(mixer, "weights") as seen:
        watched = run(mixer, x)
    assert seen["weights"].shape == (2, 2, 7, 3)
    torch.testing.assert_close(run(mixer, x), watched, **TIGHT)


@pytest.mark.parametrize("lengths", [None, [6, 2, 1]], ids=["full", "padded"])
def test_bidirectional_lstm_against_torch_nn(lengths):
    mixer = mixer_spec("bidirectional-lstm", width=4, width_out=10).build()
    peer = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
    for suffix, inner in (("", mixer.forward_layer), ("_reverse", mixer.backward_layer)):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(peer, f"{kind}_l0{suffix}").data.copy_(getattr(inner.kernel, f"{kind}_l0"))
    x = torch.randn(3, 6, 4)
    if lengths is None:
        expected = peer(x)[0]
    else:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
        expected = nn.utils.rnn.pad_packed_sequence(peer(packed)[0], batch_first=True)[0]
    torch.testing.assert_close(run(mixer, x, None if lengths is None else torch.tensor(lengths)), expected, **TIGHT)


def test_reverse_turns_real_tokens_and_leaves_padding():
    x = torch.arange(8.0).view(2, 4, 1)
    span = Span.whole(x, torch.tensor([3, 4]))
    assert reverse(x, span).flatten().tolist() == [2, 1, 0, 3, 7, 6, 5, 4]
    assert torch.equal(reverse(reverse(x, span), span), x)


def test_any_streaming_mixer_goes_both_ways():
    from anaphor.mixers import BidirectionalSpec

    mixer = BidirectionalSpec.of(AttentionSpec(width=8, heads=2, position="rotary")).build()
    x = torch.randn(2, 5, 8)
    y = run(mixer, x)
    assert y.shape == (2, 5, 16)
    assert LSTMSpec(width=8).streams
    assert not mixer.streams

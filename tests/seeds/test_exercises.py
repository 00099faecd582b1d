"""Course exercises with known answers, done with our parts."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import Attention, AttentionSpec, Span
from anaphor.mixers.attention.mask import matrix_mask
from anaphor.models import FFN, AttentionHead, AttentionResidual, MultiHeadedAttention, Transformer


def test_the_simplified_transformer_layer_by_hand():
    """Two heads of width one, dot score, the query added inside each head, identity matrices throughout."""
    layer = AttentionSpec(width=2, heads=2, score="dot", mask="everything", combine="query", bias=False).build()
    with torch.no_grad():
        layer.project.weight.copy_(torch.eye(2).repeat(3, 1))
        layer.out.weight.copy_(torch.eye(2))
    x = torch.tensor([[[1.0, 2.0], [-1.0, 3.0]]])
    z, _ = layer(x, layer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(z[0], torch.tensor([[1.7616, 4.8808], [-1.7616, 5.9526]]), rtol=0, atol=5e-5)


def itself_and_the_token_before(tokens):
    return torch.eye(tokens) + torch.eye(tokens).roll(-1, dims=1).tril()


@pytest.mark.parametrize("batched", [False, True], ids=["one-mask", "mask-per-row"])
def test_each_token_sees_itself_and_the_token_before(batched):
    mask = itself_and_the_token_before(6)
    model = Transformer(dim=8, attn_dim=4, mlp_dim=16, num_heads=3, num_layers=2)
    out, A = model(torch.randn(2, 6, 8), mask.expand(2, 6, 6) if batched else mask)
    assert out.shape == (2, 6, 8)
    assert A.shape == (2, 2, 3, 6, 6)
    assert not A[..., mask == 0].any()
    torch.testing.assert_close(A.sum(-1), torch.ones(2, 2, 3, 6))


def test_a_token_that_may_see_nothing_gets_zeros_and_no_nan():
    mask = itself_and_the_token_before(5)
    mask[2] = 0
    head = AttentionHead(dim=6, n_hidden=4)
    x = torch.randn(2, 5, 6, requires_grad=True)
    out, A = head(x, mask)
    assert not A[:, 2].any()
    assert not out[:, 2].any()
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_the_same_mask_through_the_mixer():
    mask = itself_and_the_token_before(6)
    mask[3] = 0
    layer = Attention(AttentionSpec(width=8, heads=2), matrix_mask(mask))
    x = torch.randn(2, 6, 8)
    with recorded(layer, "weights") as seen:
        watched, _ = layer(x, (), Span.whole(x))
    fused, _ = layer(x, (), Span.whole(x))
    torch.testing.assert_close(fused, watched)
    assert not seen["weights"][..., mask == 0].any()
    torch.testing.assert_close(seen["weights"].sum(-1)[..., [0, 1, 2, 4, 5]], torch.ones(2, 2, 5))
    assert fused.isfinite().all()


def test_a_head_is_softmax_of_scaled_products():
    head = AttentionHead(dim=6, n_hidden=4)
    x = torch.randn(3, 5, 6)
    out, A = head(x, torch.ones(5, 5))
    expected = torch.softmax(head.query(x) @ head.key(x).mT / 2, dim=-1)
    torch.testing.assert_close(A, expected)
    torch.testing.assert_close(out, expected @ head.value(x))
    torch.testing.assert_close(head(x, None)[0], out)


@pytest.mark.parametrize("shape", [(4, 4), (6, 6), (5,), (2, 3, 5, 5), (3, 5, 5)])
def test_masks_of_another_shape_are_refused(shape):
    with pytest.raises(ConfigError, match="the mask is"):
        MultiHeadedAttention(dim=6, n_hidden=4, num_heads=3)(torch.randn(2, 5, 6), torch.ones(shape))


def test_many_heads_are_concatenated_and_projected():
    attention = MultiHeadedAttention(dim=6, n_hidden=4, num_heads=3)
    x = torch.randn(2, 5, 6)
    out, A = attention(x, torch.ones(5, 5))
    heads = [head(x, None) for head in attention.heads]
    torch.testing.assert_close(out, attention.out(torch.cat([y for y, _ in heads], dim=-1)))
    assert torch.equal(A, torch.stack([a for _, a in heads], dim=1))
    assert attention.out.weight.shape == (6, 12)


def test_residuals_stand_after_attention_and_after_the_network():
    layer = AttentionResidual(dim=6, attn_dim=4, mlp_dim=10, num_heads=2)
    x, mask = torch.randn(2, 5, 6), torch.ones(5, 5).tril()
    out, A = layer(x, mask)
    found, expected_A = layer.attention(x, mask)
    torch.testing.assert_close(out, x + found + layer.ffn(x + found))
    assert torch.equal(A, expected_A)


def test_the_network_normalizes_first():
    ffn = FFN(dim=6, n_hidden=10)
    x = torch.randn(2, 5, 6)
    inner = torch.nn.functional.gelu(ffn.feedforward.up(ffn.norm(x)))
    torch.testing.assert_close(ffn(x), ffn.feedforward.down(inner))


def test_a_causal_textbook_transformer_equals_our_own_stack():
    """The same weights in one packed projection: the course's loop over heads and the library's layer are one thing."""
    textbook = MultiHeadedAttention(dim=6, n_hidden=3, num_heads=2)
    layer = AttentionSpec(width=6, heads=2).build()
    with torch.no_grad():
        parts = [[getattr(head, name) for head in textbook.heads] for name in ("query", "key", "value")]
        layer.project.weight.copy_(torch.cat([linear.weight for part in parts for linear in part]))
        layer.project.bias.copy_(torch.cat([linear.bias for part in parts for linear in part]))
        layer.out.load_state_dict(textbook.out.state_dict())
    x = torch.randn(2, 5, 6)
    ours, _ = layer(x, layer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(ours, textbook(x, torch.ones(5, 5).tril())[0])

"""Attention against `nn.MultiheadAttention`, the fused kernel and `nn.TransformerEncoder`: values and gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from anaphor.mixers import AttentionSpec, CrossAttentionSpec, Span
from anaphor.models import Backbone, BlockSpec

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def copy_attention(ours, peer: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        ours.project.weight.copy_(peer.in_proj_weight)
        ours.project.bias.copy_(peer.in_proj_bias)
        ours.out.weight.copy_(peer.out_proj.weight)
        ours.out.bias.copy_(peer.out_proj.bias)


def gradient(y, x):
    return torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0]


@pytest.mark.parametrize("mask", ["causal", "everything"])
@pytest.mark.parametrize("lengths", [None, [6, 3]], ids=["full", "padded"])
def test_against_multihead_attention(mask, lengths):
    ours, peer = AttentionSpec(width=12, heads=3, mask=mask).build(), nn.MultiheadAttention(12, 3, batch_first=True)
    copy_attention(ours, peer)
    x = torch.randn(2, 6, 12, requires_grad=True)
    span = Span.whole(x, None if lengths is None else torch.tensor(lengths))
    y, _ = ours(x, ours.initial_state(x), span)
    forbidden = None if mask == "everything" else torch.ones(6, 6, dtype=torch.bool).triu(1)
    z, _ = peer(x, x, x, attn_mask=forbidden, key_padding_mask=~span.valid, need_weights=False)
    z = span.zero_padding(z)
    torch.testing.assert_close(y, z, **TIGHT)
    for mine, theirs in ((x, x), (ours.project.weight, peer.in_proj_weight), (ours.out.bias, peer.out_proj.bias)):
        torch.testing.assert_close(gradient(y, mine), gradient(z, theirs), **TIGHT)


@pytest.mark.parametrize("score", ["scaled-dot", "dot"])
def test_against_the_fused_kernel(score):
    ours = AttentionSpec(width=8, heads=2, score=score, bias=False).build()
    x = torch.randn(3, 7, 8, requires_grad=True)
    y, _ = ours(x, ours.initial_state(x), Span.whole(x))
    q, k, v = (part.view(3, 7, 2, 4).transpose(1, 2) for part in (x @ ours.project.weight.T).chunk(3, -1))
    scale = None if score == "scaled-dot" else 1.0
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    z = context.transpose(1, 2).reshape(3, 7, 8) @ ours.out.weight.T
    torch.testing.assert_close(y, z, **TIGHT)
    torch.testing.assert_close(gradient(y, x), gradient(z, x), **TIGHT)


def test_cross_attention_against_multihead_attention():
    ours = CrossAttentionSpec(width=8, heads=2, source_width=6).build()
    peer = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    with torch.no_grad():
        ours.query.weight.copy_(peer.q_proj_weight)
        ours.project.weight.copy_(torch.cat((peer.k_proj_weight, peer.v_proj_weight)))
        ours.query.bias.copy_(peer.in_proj_bias[:8])
        ours.project.bias.copy_(peer.in_proj_bias[8:])
        ours.out.load_state_dict(peer.out_proj.state_dict())
    x, source = torch.randn(3, 4, 8), torch.randn(3, 5, 6, requires_grad=True)
    lengths = torch.tensor([5, 2, 1])
    y, _ = ours(x, ours.initial_state(source, lengths), Span.whole(x))
    hidden = torch.arange(5) >= lengths[:, None]
    z, _ = peer(x, source, source, key_padding_mask=hidden, need_weights=False)
    torch.testing.assert_close(y, z, **TIGHT)
    torch.testing.assert_close(gradient(y, source), gradient(z, source), **TIGHT)


@pytest.mark.parametrize("norm", ["after", "before"])
def test_a_relu_stack_against_transformer_encoder(norm):
    layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, activation="relu", batch_first=True, norm_first=norm == "before")
    peer = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train()
    spec = BlockSpec(mixer=AttentionSpec(width=12, heads=3), norm=norm, feedforward=20, activation="relu")
    ours = Backbone([spec] * 3)
    for block, other in zip(ours, peer.layers, strict=True):
        for parameter in other.parameters():  # norms start at one and zero: make them matter
            nn.init.normal_(parameter, std=0.3)
        copy_attention(block.mixer, other.self_attn)
        block.feedforward.up.load_state_dict(other.linear1.state_dict())
        block.feedforward.down.load_state_dict(other.linear2.state_dict())
        block.mixer_sublayer.norm.load_state_dict(other.norm1.state_dict())
        block.feedforward_sublayer.norm.load_state_dict(other.norm2.state_dict())
    x = torch.randn(2, 7, 12, requires_grad=True)
    y, _ = ours(x, ours.initial_state(x), Span.whole(x))
    z = peer(x, mask=nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64), is_causal=True)
    torch.testing.assert_close(y, z, **TIGHT)
    torch.testing.assert_close(gradient(y, x), gradient(z, x), **TIGHT)
    weights = [
        (block.mixer.project.weight, other.self_attn.in_proj_weight)
        for block, other in zip(ours, peer.layers, strict=True)
    ]
    weights += [
        (block.feedforward.up.weight, other.linear1.weight) for block, other in zip(ours, peer.layers, strict=True)
    ]
    for mine, theirs in weights:
        torch.testing.assert_close(gradient(y, mine), gradient(z, theirs), **TIGHT)

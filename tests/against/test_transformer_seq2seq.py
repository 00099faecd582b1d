"""An encoder-decoder transformer against `nn.Transformer`: values and gradients, with padding on both sides."""

import pytest
import torch
from torch import nn

from anaphor.models import Seq2SeqSpec

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
WIDTH, HEADS, HIDDEN, LAYERS = 12, 3, 20, 2


def peer_of(norm):
    options = {"dropout": 0.0, "activation": "relu", "batch_first": True, "norm_first": norm == "before"}
    encoder_layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options)
    decoder_layer = nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, **options)
    # The norm at the end belongs to stacks whose layers put theirs before.
    ends = [nn.LayerNorm(WIDTH) if norm == "before" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(encoder_layer, LAYERS, ends[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, LAYERS, ends[1])
    peer = nn.Transformer(WIDTH, HEADS, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    for parameter in peer.parameters():  # norms start at one and zero: make them matter
        nn.init.normal_(parameter, std=0.4)
    return peer


def pairs_of(model, peer, norm):
    """(ours, theirs) for every weight; those of cross-attention that we hold apart come as slices of theirs."""
    for block, layer in zip(model.encoder.layers, peer.encoder.layers, strict=True):
        yield from block_pairs(block, layer, norm, ("mixer", "feedforward"))
    for block, layer in zip(model.decoder.layers, peer.decoder.layers, strict=True):
        yield from block_pairs(block, layer, norm, ("mixer", "cross", "feedforward"))
        theirs = layer.multihead_attn
        for name in ("weight", "bias"):
            packed = getattr(theirs, f"in_proj_{name}")
            yield getattr(block.cross.query, name), packed, slice(None, WIDTH)
            yield getattr(block.cross.project, name), packed, slice(WIDTH, None)
            yield getattr(block.cross.out, name), getattr(theirs.out_proj, name), slice(None)
    if norm == "before":
        for ours, theirs in (
            (model.encoder.layers.norm, peer.encoder.norm),
            (model.decoder.layers.norm, peer.decoder.norm),
        ):
            yield ours.weight, theirs.weight, slice(None)
            yield ours.bias, theirs.bias, slice(None)


def block_pairs(block, layer, norm, sublayers):
    for name in ("weight", "bias"):
        yield getattr(block.mixer.project, name), getattr(layer.self_attn, f"in_proj_{name}"), slice(None)
        yield getattr(block.mixer.out, name), getattr(layer.self_attn.out_proj, name), slice(None)
        yield getattr(block.feedforward.up, name), getattr(layer.linear1, name), slice(None)
        yield getattr(block.feedforward.down, name), getattr(layer.linear2, name), slice(None)
        for number, sublayer in enumerate(sublayers, 1):
            part = getattr(block, f"{sublayer}_sublayer")
            yield getattr(part.norm, name), getattr(getattr(layer, f"norm{number}"), name), slice(None)


@pytest.mark.parametrize("norm", ["after", "before"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_against_nn_transformer(norm, padded):
    spec = Seq2SeqSpec(
        source_vocabulary=11,
        vocabulary=9,
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        feedforward=HIDDEN,
        activation="relu",
        norm=norm,
    )
    model, peer = spec.build(), peer_of(norm)
    pairs = list(pairs_of(model, peer, norm))
    with torch.no_grad():
        for ours, theirs, part in pairs:
            ours.copy_(theirs[part])
        nn.init.normal_(model.embed.weight)
        nn.init.normal_(model.encoder.embed.weight)
    source, tokens = torch.randint(0, 11, (3, 6)), torch.randint(0, 9, (3, 5))
    source_lengths, lengths = torch.tensor([6, 4, 1]), torch.tensor([5, 2, 3])
    if not padded:
        source_lengths, lengths = torch.full((3,), 6), torch.full((3,), 5)
    y, _ = model.compute_hidden_states(tokens, model.encode(source, source_lengths), lengths)
    # What the host already knows to be full goes another way than what is only found to be.
    if not padded:
        same, _ = model.compute_hidden_states(tokens, model.encode(source))
        torch.testing.assert_close(same, y, **TIGHT)
    source_padding, padding = torch.arange(6) >= source_lengths[:, None], torch.arange(5) >= lengths[:, None]
    z = peer(
        model.encoder.embed(source),
        model.embed(tokens),
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=source_padding,
        tgt_key_padding_mask=padding,
        memory_key_padding_mask=source_padding,
    )
    y, z = y[~padding], z[~padding]
    torch.testing.assert_close(y, z, **TIGHT)
    probe = torch.randn_like(y)
    embeddings = [model.embed.weight, model.encoder.embed.weight]
    ours = torch.autograd.grad((y * probe).sum(), [mine for mine, _, _ in pairs] + embeddings)
    theirs = torch.autograd.grad((z * probe).sum(), [other for _, other, _ in pairs] + embeddings)
    parts = [part for _, _, part in pairs] + [slice(None), slice(None)]
    for mine, other, part in zip(ours, theirs, parts, strict=True):
        torch.testing.assert_close(mine, other[part], **TIGHT)

"""Course exercises with known answers, done with our parts."""

import pytest
import torch

from anaphor.data.padded_batches import batch_examples
from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import Attention, AttentionSpec, Span
from anaphor.mixers.attention.mask import matrix_mask
from anaphor.models import (
    FFN,
    AttentionHead,
    AttentionResidual,
    DialogueGPT,
    DialogueLoss,
    MultiHeadedAttention,
    PatchEmbed,
    Transformer,
    image_preset,
)


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


def test_patches_are_those_of_our_image_models():
    spec = image_preset("vit-nano", classes=10, image_size=32, patch_size=4, width=128, position="learned")
    ours = spec.build().embedder
    embed = PatchEmbed(img_size=32, patch_size=4, in_chans=3, embed_dim=128)
    embed.proj.load_state_dict(ours.patches.state_dict())
    images = torch.randn(2, 3, 32, 32)
    positions = ours.position.weight
    torch.testing.assert_close(embed(images) + positions[1:], ours(images)[:, 1:])
    cut_out = torch.nn.functional.unfold(images, 4, stride=4).mT
    assert cut_out.shape == (2, embed.num_patches, 48)
    torch.testing.assert_close(embed(images), cut_out @ embed.proj.weight.flatten(1).T + embed.proj.bias)


def test_images_that_are_not_of_the_size_of_the_patches_are_refused():
    with pytest.raises(ConfigError, match="patch_size=5 does not divide"):
        PatchEmbed(img_size=32, patch_size=5, in_chans=3, embed_dim=8)
    with pytest.raises(ConfigError, match=r"must be \['B', 3, 8, 8\], but they are \[1, 3, 8, 9\]"):
        PatchEmbed(img_size=8, patch_size=4, in_chans=3, embed_dim=8)(torch.randn(1, 3, 8, 9))


@pytest.fixture
def gpt():
    return DialogueGPT(vocab_size=11, dim=6, attn_dim=4, mlp_dim=10, num_heads=3, num_layers=2, max_seq_len=8)


def test_a_dialogue_model_equals_a_stack_of_our_parts(gpt):
    ids = torch.randint(0, 11, (2, 7))
    x = gpt.token_embedding(ids) + gpt.position_embedding.weight[:7]
    for layer in gpt.transformer.layers:
        ours = AttentionSpec(width=6, heads=3, head_width=4).build()
        heads = layer.attention.heads
        parts = [getattr(head, name) for name in ("query", "key", "value") for head in heads]
        with torch.no_grad():
            ours.project.weight.copy_(torch.cat([linear.weight for linear in parts]))
            ours.project.bias.copy_(torch.cat([linear.bias for linear in parts]))
            ours.out.load_state_dict(layer.attention.out.state_dict())
        y, _ = ours(x, ours.initial_state(x), Span.whole(x))
        x = x + y
        x = x + layer.ffn(x)
    logits, A = gpt(ids)
    torch.testing.assert_close(logits, gpt.head(x))
    assert A.shape == (2, 2, 3, 7, 7)
    assert not A.triu(1).any()


def test_its_loss_is_that_of_our_batches_without_padding(gpt):
    examples = [torch.tensor([0, 5, 6, 7, 8, 2]), torch.tensor([0, 9, 3])]
    (batch,) = batch_examples(examples, pad=1, rows=2)
    # Our batches hold the inputs alone, without the last token: the course's have it.
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor([0, 9, 3]), examples[0]], batch_first=True, padding_value=1)
    mask = torch.arange(6) < torch.tensor([3, 6])[:, None]
    logits, _ = gpt(ids)
    ours, _ = gpt(batch.input_ids)
    expected = torch.nn.functional.cross_entropy(ours.flatten(0, 1), batch.targets.flatten())
    torch.testing.assert_close(DialogueLoss()(logits, ids, mask.int()), expected)
    changed = torch.where(mask, ids, 4)
    torch.testing.assert_close(DialogueLoss()(gpt(changed)[0], changed, mask), expected)


def test_it_writes_the_most_likely_token_at_each_step(gpt):
    prefix = torch.randint(0, 11, (2, 3))
    written = gpt.generate(prefix, num_tokens=4)
    assert torch.equal(written[:, :3], prefix)
    logits, _ = gpt(written[:, :-1])
    assert torch.equal(logits[:, 2:].argmax(-1), written[:, 3:])
    with pytest.raises(ConfigError, match="9 tokens are more than the 8 learned positions"):
        gpt.generate(prefix, num_tokens=7)

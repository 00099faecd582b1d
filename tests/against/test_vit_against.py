"""The vision transformer against those of `transformers` and timm with the same weights, values and gradients."""

import pytest
import torch
from torch.nn import functional as F

from anaphor.models import image_preset

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
SIZES = {"width": 24, "heads": 3, "layers": 3}


def build(**options):
    torch.manual_seed(0)
    model = image_preset("vit-tiny", classes=7, image_size=16, patch_size=4, **SIZES, **options).build().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def fill(target, *sources):
    """Copy a linear map, a norm or a convolution; several maps become one with all their outputs."""
    target.weight.data.copy_(torch.cat([source.weight for source in sources]))
    target.bias.data.copy_(torch.cat([source.bias for source in sources]))


def test_patch_embedding_equals_unfold_and_linear():
    embedder = build(pooling="mean", position="none").embedder
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    columns = F.unfold(images, kernel_size=4, stride=4).mT  # [B, patches, C · 4 · 4]
    expected = F.linear(columns, embedder.patches.weight.flatten(1), embedder.patches.bias)
    torch.testing.assert_close(embedder(images), expected, **TIGHT)


def compare_gradients(ours, ours_logits, theirs, theirs_logits, pairs):
    targets = torch.tensor([1, 4])
    for model, logits in ((ours, ours_logits), (theirs, theirs_logits)):
        model.zero_grad()
        F.cross_entropy(logits, targets).backward()
    for mine, peers in pairs:
        torch.testing.assert_close(mine.grad, torch.cat([peer.grad for peer in peers]), **TIGHT)


@pytest.fixture(scope="module")
def hugging_face():
    transformers = pytest.importorskip("transformers", reason="`pip install transformers` for this oracle")
    ours = build()
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96, image_size=16, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-6, num_labels=7,
    )  # fmt: skip
    peer = transformers.ViTForImageClassification(config).double().eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    embeddings = peer.vit.embeddings
    fill(ours.embedder.patches, embeddings.patch_embeddings.projection)
    ours.embedder.class_token.data.copy_(embeddings.cls_token)
    ours.embedder.position.weight.data.copy_(embeddings.position_embeddings[0])
    pairs = [(ours.embedder.patches.weight, [embeddings.patch_embeddings.projection.weight])]
    for block, other in zip(ours.layers, peer.vit.layers, strict=True):
        attention = [other.attention.q_proj, other.attention.k_proj, other.attention.v_proj]
        fill(block.mixer_sublayer.norm, other.layernorm_before)
        fill(block.mixer.project, *attention)
        fill(block.mixer.out, other.attention.o_proj)
        fill(block.feedforward_sublayer.norm, other.layernorm_after)
        fill(block.feedforward.up, other.mlp.fc1)
        fill(block.feedforward.down, other.mlp.fc2)
        pairs.append((block.mixer.project.weight, [part.weight for part in attention]))
        pairs.append((block.feedforward.down.weight, [other.mlp.fc2.weight]))
    fill(ours.head.norm, peer.vit.layernorm)
    ours.head.own.data.copy_(peer.classifier.weight)
    ours.head.bias.data.copy_(peer.classifier.bias)
    pairs += [(ours.head.own, [peer.classifier.weight]), (ours.head.norm.weight, [peer.vit.layernorm.weight])]
    return ours, peer, pairs


def test_logits_and_gradients_against_transformers(hugging_face):
    ours, peer, pairs = hugging_face
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    mine, theirs = ours(images), peer(images).logits
    torch.testing.assert_close(mine, theirs, **TIGHT)
    compare_gradients(ours, mine, peer, theirs, pairs)
    torch.testing.assert_close(
        ours.embedder.position.weight.grad, peer.vit.embeddings.position_embeddings.grad[0], **TIGHT
    )


def test_interpolated_positions_against_transformers(hugging_face):
    ours, peer, _ = hugging_face
    images = torch.randn(2, 3, 32, 24, dtype=torch.float64)
    with torch.no_grad():
        expected = peer(images, interpolate_pos_encoding=True).logits
        torch.testing.assert_close(ours(images), expected, **TIGHT)


def test_parameter_count_is_that_of_transformers(hugging_face):
    ours, peer, _ = hugging_face
    assert ours.count_parameters() == sum(parameter.numel() for parameter in peer.parameters())


@pytest.mark.parametrize("options", [{}, {"registers": 2}, {"pooling": "mean"}, {"layer_scale": 0.1}], ids=str)
def test_logits_and_gradients_against_timm(options):
    timm = pytest.importorskip("timm", reason="timm is not installed: `pip install -e '.[oracles]'`")
    ours = build(**options)
    mean = options.get("pooling") == "mean"
    peer = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=7,
        reg_tokens=options.get("registers", 0), init_values=options.get("layer_scale"),
        **({"global_pool": "avg", "class_token": False} if mean else {}),
    ).double().eval()  # fmt: skip
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        extra, position = ours.spec.extra_tokens, peer.pos_embed[0]
        fill(ours.embedder.patches, peer.patch_embed.proj)
        ours.embedder.position.weight[-16:] = position[extra:]
        if not mean:
            ours.embedder.class_token.copy_(peer.cls_token)
            ours.embedder.position.weight[0] = position[0]
        if ours.embedder.registers is not None:  # timm gives them positions as well
            ours.embedder.registers.copy_(peer.reg_token + position[1:extra])
        for block, other in zip(ours.layers, peer.blocks, strict=True):
            fill(block.mixer_sublayer.norm, other.norm1)
            fill(block.mixer.project, other.attn.qkv)
            fill(block.mixer.out, other.attn.proj)
            fill(block.feedforward_sublayer.norm, other.norm2)
            fill(block.feedforward.up, other.mlp.fc1)
            fill(block.feedforward.down, other.mlp.fc2)
            if block.mixer_sublayer.scale is not None:
                block.mixer_sublayer.scale.copy_(other.ls1.gamma)
                block.feedforward_sublayer.scale.copy_(other.ls2.gamma)
        fill(ours.head.norm, peer.fc_norm if mean else peer.norm)
        ours.head.own.copy_(peer.head.weight)
        ours.head.bias.copy_(peer.head.bias)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    mine, theirs = ours(images), peer(images)
    torch.testing.assert_close(mine, theirs, **TIGHT)
    pairs = [(ours.embedder.patches.weight, [peer.patch_embed.proj.weight]), (ours.head.own, [peer.head.weight])]
    pairs += [
        (mine, [other])
        for block, peers in zip(ours.layers, peer.blocks, strict=True)
        for mine, other in ((block.mixer.project.weight, peers.attn.qkv.weight),
                            (block.feedforward.up.bias, peers.mlp.fc1.bias))
    ]  # fmt: skip
    compare_gradients(ours, mine, peer, theirs, pairs)


@pytest.mark.parametrize(
    ("name", "parameters"), [("vit-tiny", 5_717_416), ("vit-small", 22_050_664), ("vit-base", 86_567_656)]
)
def test_presets_have_the_published_number_of_parameters(name, parameters):
    with torch.device("meta"):
        model = image_preset(name, classes=1000, image_size=224).build()
    assert model.count_parameters() == parameters

"""Image classifiers: patches, class token, registers, pooling, positions, and layers of every kind."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.models import IMAGE_PRESETS, ImageModelSpec, build_image_classifier, image_preset
from anaphor.models.backbone import drop_path_factors

SMALL = {"classes": 4, "image_size": 16, "width": 16, "layers": 2}


def build(**options):
    torch.manual_seed(0)
    return build_image_classifier("vit-nano", **{**SMALL, **options})


def test_patch_sizes_that_do_not_divide_are_refused_with_the_divisors():
    with pytest.raises(
        ConfigError, match=r"^patch_size=5 does not divide image_size=16; sizes that do: 1, 2, 4, 8, 16$"
    ):
        image_preset("vit-nano", **SMALL, patch_size=5)


def test_images_that_the_patches_do_not_tile_are_refused():
    model = build()
    with pytest.raises(ConfigError, match="patch_size=4 does not divide image_size=18"):
        model(torch.zeros(1, 3, 16, 18))
    with pytest.raises(
        ConfigError, match=r"images must be a tensor \[rows, 3, height, width\], but they are \[1, 1, 16"
    ):
        model(torch.zeros(1, 1, 16, 16))
    with pytest.raises(ConfigError, match="floating point"):
        model(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))


@pytest.mark.parametrize(("size", "patch"), [(28, 4), (32, 4), (124, 4), (128, 16), (224, 16)])
def test_the_patch_size_follows_the_image_size(size, patch):
    assert image_preset("vit-nano", classes=3, image_size=size).used_settings()["patch_size"] == patch


@pytest.mark.parametrize("options", [{}, {"registers": 3}, {"pooling": "mean"}, {"pooling": "mean", "registers": 1}])
def test_tokens_are_class_token_registers_and_patches(options):
    model = build(**options)
    assert model.compute_hidden_states(torch.zeros(2, 3, 16, 16)).shape == (2, 16 + model.spec.extra_tokens, 16)
    assert model.spec.extra_tokens == (options.get("pooling") != "mean") + options.get("registers", 0)


def test_mean_pooling_reads_the_patches_only():
    head = build(pooling="mean", registers=2).head
    x = torch.randn(3, 18, 16)
    torch.testing.assert_close(head.pool(x), x[:, 2:].mean(1))


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_positions_of_the_training_size_are_not_changed_and_others_are_between_them(position):
    embedder = build(position=position).embedder
    positions = embedder.learned_positions if position == "learned" else embedder.sinusoidal_positions
    own, finer = positions(4, 4).view(4, 4, -1), positions(12, 12).view(12, 12, -1)
    # The middle of three finer patches is where a patch of the training size is.
    torch.testing.assert_close(finer[1::3, 1::3], own, rtol=0, atol=1e-6 if position == "sinusoidal" else 2e-2)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none", "rotary", "alibi", "relative"])
def test_every_position_encoding_accepts_other_image_sizes(position):
    assert build(position=position)(torch.zeros(2, 3, 24, 8)).shape == (2, 4)


def test_sinusoidal_positions_tell_rows_from_columns():
    table = build(position="sinusoidal").embedder.sinusoidal_positions(4, 4).view(4, 4, 16)
    assert torch.equal(table[2, :, :8], table[2, :1, :8].expand(4, -1))  # one row
    assert len({tuple(row.tolist()) for row in table.flatten(0, 1)}) == 16


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "after"},
        {"merge": "reweight-matrix"},
        {"mask": "band(3, 3)"},
        {"position": "rotary"},
        {"bias": False},
        {"mixers": ("attention", "bidirectional-lstm")},
        {"layer_scale": 0.5, "registers": 2},
    ],
    ids=str,
)
def test_the_last_layer_computes_the_class_token_alone_with_the_same_result(options):
    model, images = build(**options), torch.randn(2, 3, 16, 16)
    whole = model.head(model.compute_hidden_states(images))
    torch.testing.assert_close(model(images), whole)
    grads = [torch.autograd.grad(y.square().sum(), model.embedder.patches.weight)[0] for y in (model(images), whole)]
    torch.testing.assert_close(*grads)


def test_recorded_attention_of_the_last_layer_is_whole():
    from anaphor import recorded

    model = build()
    with recorded(model) as record:
        model(torch.randn(2, 3, 16, 16))
    assert record["layers.1.mixer.weights"].shape == (2, 4, 17, 17)


@pytest.mark.parametrize(
    ("mixers", "pooling"),
    [(("lstm",), "mean"), (("linear",), "mean"), (("bidirectional-lstm",), "class"), (("attention",), "class"),
     (("lstm", "attention"), "class"), (("low-rank",), "class")],
)  # fmt: skip
def test_recurrent_and_hybrid_models_have_gradients_everywhere(mixers, pooling):
    model = build(mixers=mixers, layers=2)
    assert model.spec.pooled == pooling
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_class_token_that_sees_nothing_is_refused():
    with pytest.raises(ConfigError, match="pooling='class' needs a layer that sees later tokens"):
        build(mixers=("lstm",), layers=2, pooling="class")


def test_a_layer_scale_that_is_not_finite_is_refused():
    with pytest.raises(ConfigError, match="layer_scale=nan: it must be finite"):
        build(layer_scale=float("nan"))


def test_drop_path_grows_with_depth_and_keeps_the_mean():
    spec = image_preset("vit-nano", **{**SMALL, "layers": 3}, drop_path=0.4)
    assert [block.drop_path for block in spec.blocks()] == pytest.approx([0.0, 0.2, 0.4])
    dropped = drop_path_factors(torch.ones(4000, 1, 1), 0.25)
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert dropped.mean() == pytest.approx(1.0, abs=0.05)


def test_drop_path_is_for_training_only():
    model, images = build(drop_path=0.9), torch.randn(8, 3, 16, 16)
    assert not torch.equal(model.train()(images), model(images))
    assert torch.equal(model.eval()(images), model(images))


@pytest.mark.parametrize("name", IMAGE_PRESETS)
def test_a_resolved_spec_builds_the_same_model(name):
    spec = image_preset(name, classes=5, image_size=32)
    assert ImageModelSpec(**spec.used_settings()).used_settings() == spec.used_settings()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "unknown pooling 'max'"),
        ({"registers": -1}, "registers=-1"),
        ({"drop_path": 1.0}, "drop_path"),
        ({"classes": 0}, "classes=0"),
        ({"norm_eps": 0.0}, "norm_eps=0.0"),
        ({"position": "sinusoidal-unpaired"}, "two dim"),
        ({"width": 18, "position": "sinusoidal"}, "multiple of 4"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        image_preset("vit-nano", **{**SMALL, **options})

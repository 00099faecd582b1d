"""Where an image classifier looks: each map against a few lines of plain torch on tiny models."""

import pytest
import torch

from anaphor.errors import DataError
from anaphor.inspect import look, recorded
from anaphor.inspect.image_maps import ImageLook, box_area, image_maps, share_in_box
from anaphor.models import build_image_classifier

TINY = {"classes": 3, "image_size": 8, "patch_size": 2, "width": 8, "heads": 2, "layers": 3, "feedforward": 16}


@pytest.fixture
def image():
    return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1))


def tiny(**options):
    torch.manual_seed(0)
    given = {name: value for name, value in (TINY | options).items() if value is not None}
    model = build_image_classifier("vit-nano", **given)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # attention that is not even
    return model.eval()


def weights_of(model, image):
    """[layers, heads, T, T], and the logits, with their graph."""
    with recorded(model, "layers.*.mixer.weights") as taps:
        logits = model(image[None])[0]
    return list(taps.values()), logits


def grid(row, extra=1):
    return row[..., extra:].reshape(*row.shape[:-1], 4, 4)


@pytest.mark.parametrize("registers", [0, 2])
def test_attention_is_the_recorded_row_of_the_class_token(image, registers):
    model = tiny(registers=registers)
    recordings, logits = weights_of(model, image)
    found = image_maps(model, image)
    rows = [grid(weights[0, :, 0], 1 + registers).detach() for weights in recordings]
    for map_, row in zip(found.attention.values(), rows, strict=True):
        torch.testing.assert_close(map_, row)
    torch.testing.assert_close(found.average, torch.stack(rows).mean((0, 1)))
    torch.testing.assert_close(found.logits, logits.detach())


def test_rollout_is_the_product_of_all_layers_with_half_of_the_identity(image):
    model = tiny()
    recordings, _ = weights_of(model, image)
    first, second, third = (0.5 * weights[0].mean(0) + 0.5 * torch.eye(17) for weights in recordings)
    found = image_maps(model, image)
    torch.testing.assert_close(found.rollout, grid((third @ second @ first)[0]).detach())
    torch.testing.assert_close([*found.rollouts.values()][1], grid((second @ first)[0]).detach())


def test_gradient_weighted_attention_is_that_of_autograd(image):
    model = tiny()
    recordings, logits = weights_of(model, image)
    for label in (None, 2):
        chosen = logits.argmax() if label is None else label
        gradients = torch.autograd.grad(logits[chosen], recordings, retain_graph=True)
        found = image_maps(model, image, label)
        positive = [(weights * by)[0].clamp(min=0).detach() for weights, by in zip(recordings, gradients, strict=True)]
        for map_, layer in zip(found.weighted.values(), positive, strict=True):
            torch.testing.assert_close(map_, grid(layer[:, 0]))
        product = torch.eye(17)
        for layer in positive:
            product = product + layer.mean(0) @ product
        torch.testing.assert_close(found.relevance, grid(product[0]))
    assert all(parameter.grad is None for parameter in model.parameters()), "weights keep no gradient"


def test_saliency_is_gradient_times_input_by_patch(image):
    model = tiny()
    pixels = image.clone().requires_grad_()
    model(pixels[None])[0].max().backward()
    by_pixel = (pixels.grad * image).abs().sum(0)
    by_hand = [
        [by_pixel[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].sum() for column in range(4)] for row in range(4)
    ]
    torch.testing.assert_close(image_maps(model, image).saliency, torch.tensor(by_hand))


def test_mean_pooling_averages_the_rows_of_all_patches(image):
    model = tiny(pooling="mean", registers=1)
    recordings, _ = weights_of(model, image)
    found = image_maps(model, image)
    for map_, weights in zip(found.attention.values(), recordings, strict=True):
        torch.testing.assert_close(map_, grid(weights[0, :, 1:].mean(1)).detach())
    # Without the identity, which would be the same for all patches.
    assert found.relevance.min() < 0.2 * found.relevance.max()


@pytest.mark.parametrize("mixers", [("lstm",), ("bidirectional-lstm",)])
def test_a_model_without_attention_has_saliency_and_says_so(image, mixers):
    found = image_maps(tiny(mixers=mixers, heads=None), image)
    assert list(found.views()) == found.main_views() == ["saliency"]
    assert found.notes == ("No layer has attention: the map is saliency, |gradient × input| of the predicted class.",)
    assert found.saliency.sum() > 0


def test_a_hybrid_has_the_maps_of_its_attention_layers(image):
    found = image_maps(tiny(mixers=("bidirectional-lstm", "attention", "attention")), image)
    assert list(found.attention) == ["layers.1.mixer.weights", "layers.2.mixer.weights"]
    assert found.notes == ("The rollout skips layer 0: no attention.",)
    assert found.main_views() == ["attention", "rollout", "gradient-weighted"]


def test_a_larger_image_has_a_larger_map(image):
    found = image_maps(tiny(), image.repeat(1, 2, 1))
    assert found.average.shape == found.saliency.shape == found.rollout.shape == (8, 4)


def test_maps_that_would_not_fit_into_memory_are_refused(image, monkeypatch):
    monkeypatch.setattr(look, "MAX_WEIGHTS", 6 * 17**2 - 1)
    with pytest.raises(DataError, match="use larger patches or smaller images"):
        image_maps(tiny(), image)


def test_share_in_a_box_counts_parts_of_patches():
    even = torch.ones(4, 4)
    for box in ((0, 0, 8, 8), (1, 2, 6, 5), (3, 3, 4, 4)):
        assert share_in_box(even, box, 8, 8) == pytest.approx(box_area(box, 8, 8))
    point = torch.zeros(4, 4)
    point[1, 2] = 3.0  # pixels x 4 to 6, y 2 to 4
    assert share_in_box(point, (4, 2, 6, 4), 8, 8) == 1
    assert share_in_box(point, (5, 2, 8, 4), 8, 8) == 0.5
    assert share_in_box(point, (0, 0, 4, 8), 8, 8) == 0
    assert share_in_box(torch.zeros(4, 4), (0, 0, 8, 8), 8, 8) == 0


def test_ratio_of_a_box_is_one_where_the_map_is_even(image):
    maps = image_maps(tiny(), image)
    pixels = torch.zeros(3, 8, 8, dtype=torch.uint8)
    whole = ImageLook("one", pixels, {"a": 0.2, "b": 0.8}, "a", (0, 0, 8, 8), maps)
    assert whole.label == "b"
    assert whole.box_ratios() == pytest.approx(dict.fromkeys(maps.views(), 1.0))

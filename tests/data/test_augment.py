"""Augmentation against a twin in plain Python: one image, one pixel and one operation at a time."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import beta

from anaphor.data import augment
from anaphor.data.augment import LIMITS, OPERATIONS, Augmentation, hash32, uniforms
from anaphor.data.augment_spec import AugmentationSpec
from anaphor.errors import ConfigError

MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.2, 0.3)
HEIGHT, WIDTH = 6, 8
SEED, EPOCH, CLASSES = 5, 3, 4


@pytest.fixture(scope="module")
def batch():
    """Images [24, 3, 6, 8], labels, and the numbers they have in their split."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    return images, torch.arange(24) % CLASSES, torch.arange(24) * 7 + 100


def apply(batch, epoch=EPOCH, seed=SEED, mean=MEAN, std=STD, **options):
    augmentation = Augmentation(AugmentationSpec(**options), mean, std, CLASSES, seed)
    return augmentation(*batch, torch.tensor(epoch))


# The twin. An image is a function of (channel, row, column) on floats from 0 to 1, stored as an array.


def draw(index, stream, epoch=EPOCH, seed=SEED):
    """The hash in Python's integers."""

    def mix(x):
        x %= 1 << 32
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % (1 << 32)
        x = ((x ^ (x >> 15)) * 0x846CA68B) % (1 << 32)
        return x ^ (x >> 16)

    image = mix(index + epoch * 0x9E3779B1 + mix(seed))
    return (mix(image + stream * 0x9E3779B9) >> 8) / (1 << 24)


def signed(index, stream):
    return 2 * draw(index, stream) - 1


def sample(image, x, y):
    """Bilinear, the mean color outside; x and y in pixels."""
    result = 0.0
    for row, column in product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)):
        weight = (1 - abs(y - row)) * (1 - abs(x - column))
        is_inside = 0 <= row < image.shape[1] and 0 <= column < image.shape[2]
        result = result + weight * (image[:, row, column] if is_inside else np.array(MEAN))
    return result


def move(image, source):
    """`source` gives the place in the image for a place in the result, both from the center."""
    center_x, center_y = (image.shape[2] - 1) / 2, (image.shape[1] - 1) / 2
    result = np.empty_like(image)
    for row, column in product(range(image.shape[1]), range(image.shape[2])):
        x, y = source(column - center_x, row - center_y)
        result[:, row, column] = sample(image, x + center_x, y + center_y)
    return result


def crop(image, index, padding):
    left = math.floor(draw(index, augment.CROP_X) * (2 * padding + 1))
    top = math.floor(draw(index, augment.CROP_Y) * (2 * padding + 1))
    padded = np.empty((3, HEIGHT + 2 * padding, WIDTH + 2 * padding))
    padded[:] = np.array(MEAN)[:, None, None]
    padded[:, padding : padding + HEIGHT, padding : padding + WIDTH] = image
    return padded[:, top : top + HEIGHT, left : left + WIDTH]


def flip(image, index, _):
    return image[:, :, ::-1] if draw(index, augment.FLIP) < 0.5 else image


def rotate(image, index, degrees):
    angle = math.radians(signed(index, augment.ROTATE) * degrees)
    return turn(image, angle)


def turn(image, angle):
    cos, sin = math.cos(angle), math.sin(angle)
    return move(image, lambda x, y: (cos * x - sin * y, sin * x + cos * y))


def slide(image, index, share):
    across = signed(index, augment.TRANSLATE_X) * share * WIDTH
    down = signed(index, augment.TRANSLATE_Y) * share * HEIGHT
    return move(image, lambda x, y: (x + across, y + down))


def magnify(image, index, share):
    factor = 1 + signed(index, augment.ZOOM) * share
    return move(image, lambda x, y: (x / factor, y / factor))


def shear(image, index, share):
    along_x, along_y = signed(index, augment.SHEAR_X) * share, signed(index, augment.SHEAR_Y) * share
    return move(image, lambda x, y: (x + along_x * y, y + along_y * x))


def luma(image):
    return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def brighten(image, factor):
    return image * factor


def contrast(image, factor):
    return image * factor + luma(image).mean() * (1 - factor)


def saturate(image, factor):
    return image * factor + luma(image) * (1 - factor)


def jitter(image, index, strength):
    image = brighten(image, 1 + signed(index, augment.BRIGHTNESS) * strength)
    image = contrast(image, 1 + signed(index, augment.CONTRAST) * strength)
    return saturate(image, 1 + signed(index, augment.SATURATION) * strength).clip(0, 1)


def sharpen(image, factor):
    """Away from a smoothed image whose center counts 5 and whose neighbors count 1."""
    result = np.empty_like(image)
    for row, column in product(range(HEIGHT), range(WIDTH)):
        near = image[:, max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        smooth = (9 * near.mean(axis=(1, 2)) + 4 * image[:, row, column]) / 13
        result[:, row, column] = smooth + factor * (image[:, row, column] - smooth)
    return result


def autocontrast(image):
    low, high = image.min(axis=(1, 2), keepdims=True), image.max(axis=(1, 2), keepdims=True)
    return (image - low) / (high - low)


def solarize(image, threshold):
    return np.where(image > threshold, 1 - image, image)


def posterize(image, bits):
    step = 2**bits
    return np.floor(image * 255 / step + 1e-4) * step / 255 if bits else image


def random_operation(image, index, magnitude):
    """One operation of RandAugment."""
    name = OPERATIONS[math.floor(draw(index, augment.RANDOM_OPS) * len(OPERATIONS))]
    value = signed(index, augment.RANDOM_OPS + 1) * magnitude * LIMITS.get(name, 0)
    operations = {
        "identity": lambda: image,
        "brightness": lambda: brighten(image, 1 + value).clip(0, 1),
        "contrast": lambda: contrast(image, 1 + value).clip(0, 1),
        "saturation": lambda: saturate(image, 1 + value).clip(0, 1),
        "sharpness": lambda: sharpen(image, 1 + value).clip(0, 1),
        "posterize": lambda: posterize(image, round(abs(value))),
        "solarize": lambda: solarize(image, 1 - abs(value)),
        "autocontrast": lambda: autocontrast(image),
        "rotate": lambda: turn(image, math.radians(value)),
        "translate-x": lambda: move(image, lambda x, y: (x + value * WIDTH, y)),
        "translate-y": lambda: move(image, lambda x, y: (x, y + value * HEIGHT)),
        "shear-x": lambda: move(image, lambda x, y: (x + value * y, y)),
        "shear-y": lambda: move(image, lambda x, y: (x, y + value * x)),
    }
    return operations[name]()


def cutout(image, index, side):
    left = math.floor(draw(index, augment.CUTOUT_X) * WIDTH) - side // 2
    top = math.floor(draw(index, augment.CUTOUT_Y) * HEIGHT) - side // 2
    result = image.copy()
    for row, column in product(range(HEIGHT), range(WIDTH)):
        if left <= column < left + side and top <= row < top + side:
            result[:, row, column] = MEAN
    return result


TWINS = {
    "crop_padding": (crop, 2), "flip": (flip, True), "rotation": (rotate, 40.0), "translation": (slide, 0.4),
    "zoom": (magnify, 0.3), "shear": (shear, 0.4), "color_jitter": (jitter, 0.4), "cutout": (cutout, 3),
}  # fmt: skip


def twin_of(batch, operation, value):
    images, _, indices = batch
    results = [
        operation(image, int(index), value) for image, index in zip(images.double().numpy() / 255, indices, strict=True)
    ]
    return torch.from_numpy((np.stack(results) - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None])


@pytest.mark.parametrize("name", TWINS)
def test_each_operation_equals_its_twin(batch, name):
    operation, value = TWINS[name]
    images, targets = apply(batch, **{name: value})
    expected = twin_of(batch, operation, value)
    assert images.dtype == torch.float32
    assert torch.allclose(images.double(), expected, atol=2e-5)
    assert (images - Augmentation(AugmentationSpec(), MEAN, STD, CLASSES, SEED).normalize(batch[0])).abs().max() > 0.1
    assert (targets == torch.nn.functional.one_hot(batch[1], CLASSES)).all()


def test_every_random_operation_equals_its_twin():
    generator = torch.Generator().manual_seed(1)
    indices = torch.arange(100)
    images = torch.randint(0, 256, (100, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    names = {OPERATIONS[math.floor(draw(int(index), augment.RANDOM_OPS) * len(OPERATIONS))] for index in indices}
    assert names == set(OPERATIONS)
    found, _ = apply((images, indices % CLASSES, indices), random_ops=1, magnitude=1.0)
    expected = twin_of((images, None, indices), random_operation, 1.0)
    assert torch.allclose(found.double(), expected, atol=5e-5)


def test_changes_of_geometry_compose_to_one_interpolation(batch):
    """Rotation by 0 degrees aside: crop after flip moves whole pixels, so two steps equal one."""
    found, _ = apply(batch, flip=True, crop_padding=2)

    def both(image, index, _):
        return flip_after_crop(image, index)

    def flip_after_crop(image, index):
        moved = crop(image, index, 2)
        return moved[:, :, ::-1] if draw(index, augment.FLIP) < 0.5 else moved

    assert torch.allclose(found.double(), twin_of(batch, both, None), atol=2e-5)


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0, "mix_prob": 0.6}])
def test_mixup_and_cutmix_equal_their_twin(batch, options):
    """The partner is the image before in the batch."""
    plain, _ = apply(batch)
    found, targets = apply(batch, **options)
    alphas = options.get("mixup"), options.get("cutmix")
    kinds = set()
    for row, index in enumerate(batch[2].tolist()):
        place = (math.floor(draw(index, augment.MIX_LAMBDA) * 1024) + 0.5) / 1024
        is_mixup = alphas[0] is not None and (alphas[1] is None or draw(index, augment.MIX_KIND) < 0.5)
        weight = np.ones((HEIGHT, WIDTH))
        if draw(index, augment.MIX) >= options.get("mix_prob", 1.0):
            kinds.add("none")
        elif is_mixup:
            kinds.add("mixup")
            weight[:] = beta.ppf(place, alphas[0], alphas[0])
        else:
            kinds.add("cutmix")
            side = math.sqrt(1 - beta.ppf(place, alphas[1], alphas[1]))
            x, y = math.floor(draw(index, augment.MIX_X) * WIDTH), math.floor(draw(index, augment.MIX_Y) * HEIGHT)
            across, down = math.floor(side * WIDTH / 2), math.floor(side * HEIGHT / 2)
            weight[max(y - down, 0) : y + down, max(x - across, 0) : x + across] = 0
        weight = torch.from_numpy(weight)
        expected = weight * plain[row].double() + (1 - weight) * plain[row - 1].double()
        assert torch.allclose(found[row].double(), expected, atol=1e-5)
        share = torch.zeros(CLASSES, dtype=torch.float64)
        share[batch[1][row]] += weight.mean()
        share[batch[1][row - 1]] += 1 - weight.mean()
        assert torch.allclose(targets[row].double(), share, atol=1e-6), "labels weigh as pixels do"
    assert kinds == {
        1: {"mixup"} if alphas[0] else {"cutmix"}, 3: {"mixup", "cutmix", "none"},
    }[len(options)]  # fmt: skip


ALL = {
    "crop_padding": 2, "flip": True, "rotation": 20.0, "translation": 0.2, "zoom": 0.2, "shear": 0.2,
    "color_jitter": 0.3, "random_ops": 2, "cutout": 3,
}  # fmt: skip


def test_an_image_does_not_depend_on_its_batch(batch):
    together, _ = apply(batch, **ALL)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    shuffled, _ = apply(tuple(part[order] for part in batch), **ALL)
    assert torch.equal(shuffled, together[order])
    for row in (0, 9):
        alone, _ = apply(tuple(part[row : row + 1] for part in batch), **ALL)
        assert torch.allclose(alone[0], together[row], atol=1e-6)


def test_all_bits_of_a_seed_change_the_draws(batch):
    first, second = (apply(batch, seed=seed, flip=True, rotation=20.0)[0] for seed in (SEED, SEED + 2**32))
    assert not torch.equal(first, second)


def test_seed_and_epoch_change_the_draws_and_nothing_else_does(batch):
    images = [apply(batch, **ALL, **where)[0] for where in ({}, {}, {"epoch": 4}, {"seed": 6})]
    torch.manual_seed(123)
    assert torch.equal(images[0], images[1])
    assert not torch.allclose(images[0], images[2])
    assert not torch.allclose(images[0], images[3])


def test_an_option_does_not_change_the_draws_of_another(batch):
    """Cutout with and without a flip erases the same square."""
    plain, with_flip = apply(batch, cutout=3)[0], apply(batch, cutout=3, flip=True)[0]
    assert torch.equal((plain == 0).all(1), (with_flip == 0).all(1))


def test_draws_are_uniform_and_uncorrelated():
    numbers, later = (
        uniforms(torch.tensor(0), torch.tensor(epoch), torch.arange(20_000), torch.arange(24) * 0x9E3779B9).double()
        for epoch in (1, 2)
    )
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    assert (numbers.mean(0) - 0.5).abs().max() < 5 * (1 / 12 / 20_000) ** 0.5
    together = torch.cat([numbers, later], 1)
    correlation = torch.corrcoef(together.T).fill_diagonal_(0)
    assert correlation.abs().max() < 5 / 20_000**0.5
    assert (torch.corrcoef(torch.stack([numbers[1:, 0], numbers[:-1, 0]]))[0, 1]).abs() < 5 / 20_000**0.5


def test_the_hash_is_that_of_plain_integers_for_all_arguments():
    indices, streams = torch.tensor([0, 1, 49_999, 2**31, 2**40]), torch.arange(30)
    for seed, epoch in ((0, 0), (2**31 + 5, 7), (12345678901, 999)):
        key = hash32(torch.tensor(seed))
        found = uniforms(key, torch.tensor(epoch), indices, streams * 0x9E3779B9)
        expected = [[draw(int(index), int(stream), epoch, seed) for stream in streams] for index in indices]
        assert found.tolist() == expected
    values = torch.arange(100_000)
    assert len(hash32(values).unique()) == 100_000, "a permutation"


def test_nothing_is_read_on_the_host_or_drawn(batch):
    """Operations that a CUDA graph cannot hold, or whose results have a size that depends on values, do not occur."""
    augmentation = Augmentation(AugmentationSpec(**ALL, mixup=0.2, cutmix=1.0, mix_prob=0.5), MEAN, STD, CLASSES, SEED)
    epoch = torch.tensor(EPOCH)
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        augmentation(*batch, epoch)
    names = {event.name for event in profile.function_events}
    assert "aten::grid_sampler_2d" in names
    refused = "_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "rand", "bernoulli"
    assert not [name for name in names if any(part in name for part in refused)]


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 5, 7), (3, 1, 1), (1, 1, 1)])
def test_grayscale_and_tiny_images(channels, height, width):
    images = torch.full((4, channels, height, width), 200, dtype=torch.uint8)
    batch = images, torch.arange(4), torch.arange(4)
    found, targets = apply(batch, mean=(0.5,) * channels, std=(0.2,) * channels, **ALL, mixup=0.2, cutmix=1.0)
    assert found.shape == images.shape
    assert found.isfinite().all()
    assert torch.allclose(targets.double().sum(1), torch.ones(4).double(), atol=1e-6)


def test_normalize_centers_by_mean_and_std(batch):
    found = Augmentation(AugmentationSpec(), MEAN, STD, CLASSES, SEED).normalize(batch[0])
    assert torch.allclose(found[:, 1].double(), (batch[0][:, 1].double() / 255 - 0.45) / 0.2, atol=1e-6)
    assert torch.allclose(found, apply(batch)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_padding": -1}, "crop_padding=-1: it must be at least 0 and finite"),
        ({"mixup": math.inf}, "mixup=inf: it must be at least 0 and finite"),
        ({"color_jitter": 1.5}, "color_jitter=1.5: it must be from 0 to 1"),
        ({"magnitude": math.nan}, "magnitude=nan: it must be from 0 to 1"),
        ({"zoom": 1.0}, "zoom=1.0: it must be at least 0 and below 1"),
    ],
)
def test_strengths_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        AugmentationSpec(**options)

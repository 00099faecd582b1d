"""Data sets of images: shapes, folders, .npz files, CIFAR-10; and files that are broken or unusual."""

import io
import lzma
import os
import struct
import tarfile
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from anaphor.data import ImageDataset, InMemoryImages, load_images
from anaphor.data import shapes as drawing
from anaphor.data.cifar import ARRAY_FILES, Cifar10, find_cifar
from anaphor.data.files import StoredFile
from anaphor.data.image_files import MAX_PIXELS, read_image
from anaphor.data.shapes import OUTLINES, Shapes, cover_pixels
from anaphor.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def shapes():
    return Shapes(images=600)


def test_shapes_are_the_default_sizes_and_types(shapes):
    split = shapes.load("valid")
    assert split.images.shape == (75, 3, 32, 32)
    assert (split.images.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
    assert split.classes == shapes.classes
    assert len(split.classes) >= 4
    assert len(split) == 75
    assert load_images("shapes").sizes == {"train": 4000, "valid": 500, "test": 500}


def test_shapes_are_the_same_on_every_platform_and_differ_by_split_and_seed(shapes):
    assert shapes.digest("valid") == Shapes(images=600).digest("valid")
    assert shapes.digest("valid").startswith("34688cd96eef54b3")
    assert len({shapes.digest("valid"), shapes.digest("test"), Shapes(images=600, seed=1).digest("valid")}) == 3


def test_boxes_of_shapes_are_tight_and_small(shapes):
    """Against the outlines: the cover of a shape is positive at every edge of its box, and zero outside."""
    boxes = shapes.load("train").boxes.numpy()
    sides = boxes[:, 2:] - boxes[:, :2]
    assert (sides[:, 0] == sides[:, 1]).all()
    assert (sides.prod(axis=1) <= 0.15 * 32 * 32).all()
    assert (boxes >= 0).all()
    assert (boxes <= 32).all()
    for outline in OUTLINES.values():
        for side in range(8, 13):
            places = (np.arange(-2, side + 2) + 0.5 - side / 2) / (side / 2)
            x, y = places[None, :].astype(np.float32), places[:, None].astype(np.float32)
            covered = cover_pixels(outline, x, y, np.float32(side / 2)) > 1e-5
            for edge in (covered[2], covered[-3], covered[:, 2], covered[:, -3]):
                assert edge.any()
            assert not covered[:2].any()
            assert not covered[-2:].any()
            assert not covered[:, :2].any()
            assert not covered[:, -2:].any()


def test_only_the_outline_tells_the_label(shapes):
    """Size, position and color have the same means for every label, within chance."""
    split = shapes.load("train")
    boxes, labels = split.boxes.double(), split.labels
    corner = split.images[:, :, 0, 0].double()
    for feature in (boxes[:, 0], boxes[:, 1], boxes[:, 2] - boxes[:, 0], *corner.unbind(1)):
        groups = [feature[labels == label] for label in range(len(split.classes))]
        between = torch.stack([group.mean() for group in groups]).std()
        assert between < 3 * feature.std() / (len(labels) / len(groups)) ** 0.5
    assert torch.bincount(labels).min() > 60


def test_shapes_are_drawn_at_other_sizes(shapes):
    split = shapes.resize(48).load("valid")
    assert split.images.shape == (75, 3, 48, 48)
    sides = split.boxes[:, 2] - split.boxes[:, 0]
    assert (sides.min(), sides.max()) == (12, 18)
    with pytest.raises(ConfigError, match="image_size=8: shapes cannot be told apart below 16 pixels"):
        shapes.resize(8).load("valid")
    with pytest.raises(ConfigError, match="image_size=0: it must be from 1 to 4096"):
        shapes.resize(0)


def test_large_shapes_are_drawn_a_few_at_a_time_or_refused():
    peaks = []
    for count in (16, 64):
        data = drawing.Shapes(images=count).resize(256)
        tracemalloc.start()
        assert data.load("train").images.shape == (count, 3, 256, 256)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    with pytest.raises(DataError, match="4,000 images of 4096 × 4096 pixels take more than 8 GiB"):
        drawing.Shapes().resize(4096).load("train")


def test_mean_and_std_are_those_of_torch(shapes):
    split = shapes.load("valid")
    mean, std = split.mean_and_std()
    values = split.images.double() / 255
    assert torch.allclose(torch.tensor(mean).double(), values.mean((0, 2, 3)), atol=1e-7)
    assert torch.allclose(torch.tensor(std).double(), values.std((0, 2, 3), correction=0), atol=1e-7)


def test_a_split_moves_to_a_device_with_all_its_tensors(shapes):
    split = shapes.load("valid").to("meta")
    assert {split.images.device.type, split.labels.device.type, split.boxes.device.type} == {"meta"}
    assert split.classes == shapes.classes


def test_an_image_data_set_has_the_parts_of_every_data_set(shapes):
    """`read`, `rows` and the digest agree on the content."""
    split = shapes.load("valid")
    assert shapes.read("valid", "image") == split.images.numpy().tobytes()
    names = shapes.read("valid", "label").decode().split()
    assert names == [split.classes[label] for label in split.labels]
    rows = shapes.rows("valid")
    assert rows.values[3] == (split.images[3].numpy().tobytes(), names[3])
    assert rows.digest == split.digest
    with pytest.raises(ConfigError, match="unknown split 'tset'; did you mean 'test'"):
        shapes.load("tset")


def test_images_given_as_arrays_are_a_data_set():
    images = np.zeros((4, 1, 5, 5), np.uint8)
    data = InMemoryImages("mine", {"train": (images, np.array([0, 1, 0, 1]))}, ("a", "b"))
    assert isinstance(data, ImageDataset)
    assert data.load("train").images.shape == (4, 1, 5, 5)
    assert data.resize(8).load("train").images.shape == (4, 1, 8, 8)
    with pytest.raises(DataError, match="mine has no valid split"):
        data.load("valid")
    wrong = InMemoryImages("mine", {"train": (images, np.array([0, 1, 2, 1]))}, ("a", "b"))
    with pytest.raises(DataError, match=r"label 2 of image 2 is out of range: there are 2 classes.*from 0 to 1"):
        wrong.load("train")


# One image file.


def gradient(width=6, height=4):
    """RGB image whose pixels all differ."""
    values = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    return Image.fromarray(values), values.transpose(2, 0, 1)


@pytest.mark.parametrize("ending", ["png", "bmp", "tiff", "ppm", "webp"])
def test_lossless_files_give_their_pixels(tmp_path, ending):
    image, pixels = gradient()
    image.save(tmp_path / f"a.{ending}", **({"lossless": True} if ending == "webp" else {}))
    assert (read_image(tmp_path / f"a.{ending}") == pixels).all()


def test_the_content_decides_not_the_ending(tmp_path):
    image, pixels = gradient()
    image.save(tmp_path / "a.jpg", format="PNG")
    assert (read_image(tmp_path / "a.jpg") == pixels).all()


def test_unusual_modes_give_the_right_colors(tmp_path):
    path = tmp_path / "a.png"

    def pixel(image, **options):
        image.save(path, **options)
        return read_image(path)[:, 0, 0].tolist()

    assert pixel(Image.new("L", (1, 1), 7)) == [7, 7, 7], "grayscale, 1 × 1"
    assert pixel(Image.new("1", (2, 2), 1)) == [255, 255, 255]
    assert pixel(Image.new("RGBA", (2, 2), (10, 20, 30, 0))) == [255, 255, 255], "transparent is white"
    assert pixel(Image.new("RGBA", (2, 2), (10, 20, 30, 255))) == [10, 20, 30]
    assert pixel(Image.new("LA", (2, 2), (0, 255))) == [0, 0, 0]
    palette = Image.new("RGB", (2, 2), (200, 100, 50)).convert("P", palette=Image.Palette.ADAPTIVE)
    assert pixel(palette) == [200, 100, 50]
    assert pixel(palette, transparency=palette.getpixel((0, 0))) == [255, 255, 255]
    sixteen = Image.fromarray(np.full((2, 2), 128 * 257, np.uint16))
    assert pixel(sixteen) == [128, 128, 128], "16 bits are scaled, not cut off"
    path = tmp_path / "a.tiff"
    assert pixel(Image.new("CMYK", (2, 2), (0, 255, 255, 0))) == [255, 0, 0]
    assert pixel(Image.fromarray(np.full((2, 2), 0.5, np.float32))) == [128, 128, 128]
    with pytest.raises(DataError, match=r"a\.tiff has pixels from 3\.0 to 3\.0, not from 0 to 1"):
        pixel(Image.fromarray(np.full((2, 2), 3.0, np.float32)))
    path = tmp_path / "a.jpg"
    red = pixel(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    assert np.abs(np.array(red) - [255, 0, 0]).max() < 8


def test_an_image_is_upright_by_its_exif_orientation(tmp_path):
    image, pixels = gradient()
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise to show it
    image.save(tmp_path / "a.png", exif=exif)
    assert (read_image(tmp_path / "a.png") == np.rot90(pixels, -1, axes=(1, 2))).all()


def test_the_central_square_is_resized(tmp_path):
    """A wide image: red margins are cut off, the green center stays."""
    values = np.zeros((20, 40, 3), np.uint8)
    values[..., 0] = 255
    values[:, 10:30] = (0, 255, 0)
    Image.fromarray(values).save(tmp_path / "a.png")
    resized = read_image(tmp_path / "a.png", image_size=8)
    assert resized.shape == (3, 8, 8)
    assert (resized[1] == 255).all()
    assert (resized[0] == 0).all()
    assert read_image(tmp_path / "a.png", channels=1, image_size=3).shape == (1, 3, 3)
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "one.png")
    assert (read_image(tmp_path / "one.png", image_size=4)[2] == 3).all()


def png_header(width, height):
    """A PNG file that claims a size and has no pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def test_huge_images_are_refused_before_they_are_decoded(tmp_path):
    for size in (9000, 12000, 20000):  # below, at and above what Pillow warns of and refuses
        (tmp_path / "huge.png").write_bytes(png_header(size, size))
        tracemalloc.start()
        with pytest.raises(
            DataError, match=rf"huge\.png has .*pixels, more than the limit of {MAX_PIXELS:,}"
        ) as caught:
            read_image(tmp_path / "huge.png", image_size=32)
        assert tracemalloc.get_traced_memory()[1] < 20e6
        tracemalloc.stop()
        assert "\n" not in str(caught.value)


def broken_files(folder):
    """Files that are no images, each with a part of the message."""
    image, _ = gradient(64, 64)
    content = io.BytesIO()
    image.save(content, "PNG")
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG")
    files = {
        "truncated.png": (content.getvalue()[: len(content.getvalue()) // 2], "cannot be decoded"),
        "truncated.jpg": (jpeg.getvalue()[:-300], "cannot be decoded"),
        "html.jpg": (b"\n<!DOCTYPE html><html>404", "it is an HTML page"),
        "empty.png": (b"", "it is empty"),
        "text.png": (b"no image at all", "it begins with b'no image at all'"),
        "claims.png": (png_header(100, 100), "cannot be decoded"),
    }
    for name, (raw, message) in files.items():
        (folder / name).write_bytes(raw)
        yield folder / name, message
    (folder / "gone.png").symlink_to("nowhere.png")
    yield folder / "gone.png", "No such file"
    (folder / "folder.png").mkdir()
    yield folder / "folder.png", "is not a file"
    os.mkfifo(folder / "pipe.png")
    yield folder / "pipe.png", "is not a file"


def test_broken_files_are_named_in_one_line(tmp_path):
    for path, message in broken_files(tmp_path):
        with pytest.raises(DataError) as caught:
            read_image(path, image_size=8)
        assert str(path) in str(caught.value)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


# Folders.


def fill(folder, counts, size=4, ending="png"):
    """Class folders with images whose color tells the class and the number."""
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (size, size), (label, number, 7)).save(folder / name / f"{number:03}.{ending}")
    return folder


def load_all(path):
    data = load_images(path)
    return {split: data.load(split) for split in data.splits}


def test_a_folder_with_splits(tmp_path):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        fill(tmp_path / split, {"cat": count, "ant": count})
    data = load_images(str(tmp_path))
    assert data.classes == ("ant", "cat")
    assert data.splits == ("train", "valid", "test")
    split = data.load("valid")
    assert split.labels.tolist() == [0, 0, 1, 1]
    assert split.images[:, 0, 0, 0].tolist() == [1, 1, 0, 0], "images go with their labels"


def test_a_folder_of_classes_is_split_within_each_class(tmp_path):
    data = load_images(str(fill(tmp_path, {"a": 20, "b": 10})))
    sizes = {split: torch.bincount(data.load(split).labels).tolist() for split in data.splits}
    assert sizes == {"train": [16, 8], "valid": [2, 1], "test": [2, 1]}
    rows = [row for split in data.splits for row in data.rows(split).values]
    assert len(set(rows)) == 30, "every image is in one split"
    assert load_images(str(tmp_path)).digest("valid") == data.digest("valid")
    with pytest.raises(DataError, match=r"has 2 images of class c, too few to be split into train, valid, test"):
        load_images(str(fill(tmp_path, {"a": 1, "b": 1, "c": 2}))).load("train")


def test_without_valid_a_tenth_of_train_is_held_out(tmp_path):
    fill(tmp_path / "train", {"a": 20, "b": 20})
    fill(tmp_path / "test", {"a": 1, "b": 1})
    data = load_images(str(tmp_path))
    assert [len(data.load(split)) for split in data.splits] == [36, 4, 2]


def test_links_subfolders_and_other_files(tmp_path):
    data = tmp_path / "data"
    fill(data, {"a": 3, "b": 3})
    fill(tmp_path / "elsewhere", {"images": 3})
    (data / "c").symlink_to(tmp_path / "elsewhere")
    (data / "a" / "loop").symlink_to(data / "a")
    (data / "a" / ".DS_Store").write_bytes(b"\0")
    (data / "a" / "notes.txt").write_text("not an image")
    (data / "b" / "link.png").symlink_to(data / "b" / "000.png")
    loaded = load_images(str(data))
    assert loaded.classes == ("a", "b", "c")
    assert sum(len(loaded.load(split)) for split in loaded.splits) == 10


def test_unequal_sizes_need_an_image_size(tmp_path):
    fill(tmp_path, {"a": 4, "b": 4})
    fill(tmp_path, {"b": 4}, size=6)
    with pytest.raises(DataError, match=r"a/\d+\.png has 4 × 4 pixels and .*b/\d+\.png has 6 × 6: give --image-size"):
        load_images(str(tmp_path)).load("train")
    assert load_images(str(tmp_path), image_size=5).load("train").images.shape[1:] == (3, 5, 5)


def test_folders_that_cannot_be_used(tmp_path):
    def message(name):
        with pytest.raises(DataError) as caught:
            load_all(str(tmp_path / name))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "empty").mkdir()
    assert "empty has no folders: images go into train/CLASS/" in message("empty")
    fill(tmp_path / "one", {"only": 5})
    assert "has one class only, only: give at least two" in message("one")
    fill(tmp_path / "hollow", {"a": 5, "b": 0})
    assert "hollow/b has no image files" in message("hollow")
    (tmp_path / "hollow" / "b" / "a.xml").write_text("<a/>")
    assert "hollow/b has no image files, but 1 file with other endings, such as a.xml" in message("hollow")
    fill(tmp_path / "test-only" / "test", {"a": 5, "b": 5})
    assert "test-only has no train folder, but test" in message("test-only")
    (tmp_path / "flat" / "train").mkdir(parents=True)
    assert "flat/train has no class folders" in message("flat")
    fill(tmp_path / "twice" / "val", {"a": 1})
    fill(tmp_path / "twice" / "valid", {"a": 1})
    assert "twice has two folders for valid, val and valid" in message("twice")
    fill(tmp_path / "new" / "train", {"a": 5, "b": 5})
    fill(tmp_path / "new" / "test", {"a": 5, "z": 5})
    assert "new has images of class 'z' in test, but none in train" in message("new")
    fill(tmp_path / "broken", {"a": 5, "b": 5})
    (tmp_path / "broken" / "b" / "003.png").write_bytes(b"<html>")
    assert "broken/b/003.png is not an image that Pillow can read: it is an HTML page" in message("broken")
    with pytest.raises(ConfigError, match=r"unknown data set 'shape'; did you mean 'shapes'.*or a \.npz file"):
        load_images("shape")
    (tmp_path / "a.txt").write_text("text")
    assert "a.txt is not a .npz file" in message("a.txt")


def test_a_folder_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("anaphor.data.images.MAX_BYTES", 100)
    fill(tmp_path, {"a": 4, "b": 4})
    with pytest.raises(DataError, match="4 × 4 pixels take more than 0 GiB: give a smaller --image-size"):
        load_images(str(tmp_path)).load("train")


# .npz files.


def save(path, **arrays):
    np.savez_compressed(path, **arrays)
    return str(path)


@pytest.mark.parametrize("layout", ["N H W", "N H W C", "N C H W"])
def test_npz_layouts(tmp_path, layout):
    pixels = np.arange(20 * 3 * 4 * 5, dtype=np.uint8).reshape(20, 3, 4, 5)
    stored = {"N H W": pixels[:, 0], "N H W C": pixels.transpose(0, 2, 3, 1), "N C H W": pixels}[layout]
    path = save(tmp_path / "a.npz", images=stored, labels=np.arange(20) % 2)
    data = load_images(path)
    assert {split: len(data.load(split)) for split in data.splits} == {"train": 16, "valid": 2, "test": 2}
    channels = 1 if layout == "N H W" else 3
    found = {image.numpy().tobytes() for split in data.splits for image in data.load(split).images}
    assert found == {image[:channels].tobytes() for image in pixels}


def test_npz_with_splits_names_and_other_types(tmp_path):
    images = np.linspace(0, 1, 6 * 4 * 4, dtype=np.float32).reshape(6, 4, 4)
    labels = np.array(["dog", "cat"] * 3)
    path = save(tmp_path / "a.npz", train_images=images, train_labels=labels, val_images=images, val_labels=labels)
    data = load_images(path)
    assert data.classes == ("cat", "dog")
    assert data.splits == ("train", "valid")
    split = data.load("train")
    assert split.labels.tolist() == [1, 0] * 3
    assert (split.images.flatten() == torch.from_numpy(images).flatten().mul(255).round()).all()
    path = save(
        tmp_path / "b.npz", x_train=np.full((20, 4, 4, 4), 65535, np.uint16), y_train=np.arange(20)[:, None] % 2,
        x_test=np.zeros((2, 4, 4, 4), bool), y_test=np.array([1, 1]), classes=np.array(["no", "yes", "maybe"]),
    )  # fmt: skip
    data = load_images(path, image_size=8)
    assert data.classes == ("no", "yes", "maybe")
    assert {split: len(data.load(split)) for split in data.splits} == {"train": 18, "valid": 2, "test": 2}
    assert data.load("test").images.unique().tolist() == [255], "transparent is white"


def test_npz_files_that_cannot_be_used(tmp_path):
    images, labels = np.zeros((8, 4, 4), np.uint8), np.arange(8) % 2
    number = iter(range(100))

    def message(**arrays):
        path = tmp_path / f"{next(number)}.npz"
        path.write_bytes(arrays.pop("raw")) if "raw" in arrays else save(path, **arrays)
        with pytest.raises(DataError) as caught:
            load_images(str(path)).load("train")
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "label -1 of image 0 is out of range" in message(images=images, labels=labels - 1)
    assert "label 9 of image 7 is out of range" in message(images=images, labels=np.array([0] * 7 + [9]))
    out = message(images=images, labels=labels + 1, classes=np.array(["a", "b"]))
    assert "label 2 of image 1 is out of range: there are 2 classes" in out
    later = message(x_train=images, y_train=labels, x_val=images, y_val=labels + 4)
    assert "'y_val': label 4 of image 0 is out of range" in later
    assert "has one class only" in message(images=images, labels=labels * 0)
    assert "has 8 images in 'images', but 9 labels" in message(images=images, labels=np.arange(9) % 2)
    assert "must be from 0 to 1" in message(images=images + 2.5, labels=labels)
    assert "must be from 0 to 1" in message(images=np.full((8, 4, 4), np.nan), labels=labels)
    assert "must be from 0 to 255" in message(images=images.astype(int) - 1, labels=labels)
    assert "labels are integers or strings of shape [N]" in message(images=images, labels=np.eye(8))
    assert "images are numbers of shape [N, H, W]" in message(images=images[0], labels=labels)
    assert "it must have images and labels, or x_train and y_train" in message(photos=images)
    assert "two arrays for the same, 'x_train' and 'X_train'" in message(x_train=images, X_train=images, y_train=labels)
    assert "has the class 'c' (known: a, b)" in message(
        x_train=images, y_train=np.array(["a", "b"] * 4), x_val=images, y_val=np.array(["c"] * 8)
    )
    assert "cannot be read as .npz" in message(raw=b"<html>not a zip file")
    assert "cannot be read as .npz" in message(raw=(tmp_path / "0.npz").read_bytes()[:-30])
    assert "allow_pickle" in message(images=images, labels=np.array([object()] * 8))


def test_npz_that_expands_without_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_MAX_FILE_BYTES", "1000")
    path = save(tmp_path / "a.npz", images=np.zeros((100, 8, 8), np.uint8), labels=np.arange(100) % 2)
    with pytest.raises(DataError, match="has more than 1,000 bytes, decompressed"):
        load_images(path)


# CIFAR-10.


@pytest.fixture
def cifar_parts(monkeypatch):
    """Ten images to a file instead of 10,000, and 5 of them valid."""
    monkeypatch.setattr("anaphor.data.cifar.PART", 10)
    monkeypatch.setattr("anaphor.data.cifar.VALID_IMAGES", 5)
    records = np.random.default_rng(0).integers(0, 256, (60, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    return records


def binary_folder(folder, records):
    for number, part in enumerate(np.split(records, 6), 1):
        name = "test_batch.bin" if number == 6 else f"data_batch_{number}.bin"
        (folder / name).write_bytes(part.tobytes())
    return folder


def array_folder(folder, records):
    """The same images as `.npy.xz` files."""
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    for number, part in enumerate(np.split(pixels, 6), 1):
        name = "test_images" if number == 6 else f"train_images_{number}"
        with lzma.open(folder / f"{name}.npy.xz", "wb") as file:
            np.save(file, part)
    np.save(folder / "train_labels.npy", records[:50, 0])
    np.save(folder / "test_labels.npy", records[50:, 0])
    return folder


def test_the_three_forms_of_cifar_hold_the_same(tmp_path, cifar_parts, cache):
    folders = [tmp_path / name for name in ("binary", "arrays", "archive")]
    for folder in folders:
        folder.mkdir()
    binary_folder(folders[0], cifar_parts)
    array_folder(folders[1], cifar_parts)
    with tarfile.open(folders[2] / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(folders[0], arcname="cifar-10-batches-bin")
    loaded = [load_images(str(folder)) for folder in folders]
    for split, rows in (("train", slice(0, 45)), ("valid", slice(45, 50)), ("test", slice(50, 60))):
        for data in loaded:
            found = data.load(split)
            assert (found.images.numpy().reshape(-1, 3072) == cifar_parts[rows, 1:]).all()
            assert (found.labels.numpy() == cifar_parts[rows, 0]).all()
        assert len({data.digest(split) for data in loaded}) == 1
    assert loaded[0].classes[3] == "cat"
    kept = sorted((cache / "images").iterdir())
    assert len(kept) == 6, "train and test of each form"
    for file in kept:
        file.write_bytes(b"broken")
    assert load_images(str(folders[1])).digest("test") == loaded[1].digest("test"), "a broken cache is replaced"


def test_broken_files_of_cifar_are_named(tmp_path, cifar_parts):
    def message(folder, name, raw):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(raw(kept))
        with pytest.raises(DataError) as caught:
            find_cifar("mine", folder).load("train")
        (folder / name).write_bytes(kept)
        return str(caught.value)

    folder = binary_folder(tmp_path, cifar_parts)
    assert "data_batch_2.bin has 30,000 bytes: a file of CIFAR-10 has 30,730" in message(
        folder, "data_batch_2.bin", lambda raw: raw[:30000]
    )
    assert "label 77 of image 10 is out of range" in message(folder, "data_batch_2.bin", lambda raw: b"M" + raw[1:])
    (tmp_path / "arrays").mkdir()
    folder = array_folder(tmp_path / "arrays", cifar_parts)
    assert "train_images_1.npy.xz is not a complete .xz file" in message(
        folder, "train_images_1.npy.xz", lambda raw: raw[:99]
    )
    assert "not uint8 [10, 32, 32, 3]" in message(
        folder, "train_images_1.npy.xz", lambda _: lzma.compress((folder / "test_labels.npy").read_bytes())
    )
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is not a complete \.tar\.gz file"):
        Cifar10("mine", {archive.name: StoredFile(archive)}).load("test")
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "test_batch.bin")
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz has no complete file data_batch_1\.bin"):
        Cifar10("mine", {archive.name: StoredFile(archive)}).load("train")


def test_the_name_cifar_10_finds_both_forms(tmp_path, monkeypatch, real_data):
    from anaphor.data.datasets import find_dataset

    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    assert [file.upstream.file for file in find_dataset("cifar-10").files] == ["cifar-10-binary.tar.gz"]
    if (real_data / "cifar10").is_dir():
        monkeypatch.setenv("ANAPHOR_DATA", str(real_data))
        assert {file.upstream.file for file in find_dataset("cifar-10").files} == set(ARRAY_FILES)


@pytest.mark.slow
def test_the_published_mean_and_std_of_cifar_10(real_data):
    """The values in common use are those of all 50,000 training images."""
    if not (real_data / "cifar10").is_dir():
        pytest.skip("CIFAR-10 is not in the shared data")
    data = load_images("cifar-10")
    train, valid = data.load("train"), data.load("valid")
    assert (len(train), len(valid), len(data.load("test"))) == (45000, 5000, 10000)
    values = torch.cat([train.images, valid.images]).double().div_(255)
    assert values.mean((0, 2, 3)).tolist() == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-8)
    assert values.std((0, 2, 3), correction=0).tolist() == pytest.approx([0.24703223, 0.24348513, 0.26158784], abs=1e-8)

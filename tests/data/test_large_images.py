"""Image folders that are larger than memory: the same images, digests and runs from shards on the disk."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from anaphor.cli.main import main
from anaphor.data import image_files, shards
from anaphor.data.datasets import load_images
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.data.images import count_image_overlap
from anaphor.data.stored_images import StoredImages
from anaphor.errors import DataError
from faults.runs import hashes

SIDE = 8


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_files, "SHARD", 6 * SIDE * SIDE * 3)
    generator = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(30):
            pixels = generator.integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def both(folder, monkeypatch):
    """Each split in memory, and from shards."""
    plain = {split: load_images(str(folder)).load(split) for split in ("train", "valid", "test", "all")}
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    return plain, {split: load_images(str(folder)).load(split) for split in plain}


def test_images_from_shards_against_those_in_memory(both):
    for split, plain in both[0].items():
        stored = both[1][split]
        assert isinstance(stored.images, StoredImages)
        assert (stored.digest, stored.classes) == (plain.digest, plain.classes)
        assert torch.equal(stored.images[:], plain.images)
        assert torch.equal(stored.labels, plain.labels)
        assert stored.mean_and_std() == plain.mean_and_std()
        assert stored.images.shape == plain.images.shape


def test_what_is_asked_for_is_read(both):
    plain, stored = (splits["train"] for splits in both)
    chosen = torch.tensor([5, 0, 5, 40])
    assert torch.equal(stored.images[chosen], plain.images[chosen])
    assert torch.equal(stored.images[7], plain.images[7])
    assert torch.equal(stored.images[3:9], plain.images[3:9])
    assert torch.equal(torch.stack(list(stored.images)), plain.images)
    assert torch.equal(torch.cat(list(stored.images.split(7))), plain.images)
    assert len(stored.images.split(7)) == len(plain.images.split(7))
    for one, other in ((stored.sample(10), plain.sample(10)), (stored.first(10), plain.first(10))):
        assert isinstance(one.images, StoredImages)
        assert torch.equal(one.images[:], other.images)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.to("cpu").images[:], other.images)
    assert count_image_overlap(stored.images, plain.images).in_train == len(plain)
    assert count_image_overlap(plain.images, stored.images).in_train == len(plain)


@pytest.mark.parametrize("written", [0, 2])
def test_decoding_that_was_killed_goes_on_at_the_last_shard(written, folder, monkeypatch):
    plain = load_images(str(folder)).load("train")
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    add, count = shards.Manifest.add, []

    def add_some(self, *arguments):
        if len(count) == written:
            raise KeyboardInterrupt
        count.append(1)
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards.Manifest, "add", add_some)
        with pytest.raises(KeyboardInterrupt):
            load_images(str(folder)).load("train")
    read, decoded = image_files._decode, []
    monkeypatch.setattr(image_files, "_decode", lambda *arguments: decoded.append(1) or read(*arguments))
    assert torch.equal(load_images(str(folder)).load("train").images[:], plain.images)
    assert 0 <= len(decoded) - (len(plain) - 6 * written) < 20  # the first image of each shard is looked at again
    decoded.clear()
    load_images(str(folder)).load("train")
    assert len(decoded) <= 2


def test_an_image_that_was_edited_is_decoded_anew(both, folder):
    Image.new("RGB", (SIDE, SIDE)).save(folder / "cat" / "3.png")
    changed = load_images(str(folder)).load("all")
    assert changed.digest != both[0]["all"].digest
    assert int((changed.images[:].flatten(1) == 0).all(1).sum()) == 1


def test_sizes_that_differ_are_told_as_in_memory(folder, monkeypatch):
    Image.new("RGB", (SIDE, SIDE + 1)).save(folder / "cat" / "3.png")
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    with pytest.raises(DataError, match=r"8 × 9: give --image-size to resize all images"):
        load_images(str(folder)).load("all")


def test_a_run_from_shards_is_the_run_from_memory(folder, monkeypatch, tmp_path, single_precision, capsys):
    monkeypatch.chdir(tmp_path)
    words = "train images --data photos --image-size 8 --patch-size 4 --width 8 --layers 1 --steps 6 --eval-every 3"
    words += " --batch-size 5 --device cpu --mixup 0.2"
    assert main([*words.split(), "--out", "plain"]) == 0
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    assert main([*words.split(), "--out", "stored"]) == 0
    assert capsys.readouterr().err.count("are decoded once") == 3
    results = [json.loads((tmp_path / out / "result.json").read_text()) for out in ("plain", "stored")]
    assert results[0]["test"] == results[1]["test"]
    weights = [
        {name: one for name, one in hashes(tmp_path / out)["files"].items() if name.endswith(".safetensors")}
        for out in ("plain", "stored")
    ]
    assert weights[0] == weights[1] != {}
    assert main(["look", "stored", "--examples", "2", "--out", "shown"]) == 0

"""Links in a folder that is converted to, or exported to: nothing is written through them."""

import json
import shutil

import pytest
from peers import build
from safetensors import SafetensorError

from anaphor.cli.main import main
from faults.planted import FILES, FOLDERS, plant, snapshot

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    build("vit", image_size=16).float().save_pretrained(folder / "peer")
    assert main(["convert", str(folder / "peer"), "--out", str(folder / "run")]) == 0
    return folder


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
@pytest.mark.parametrize("is_new", [False, True])
def test_convert(vit, tmp_path, name, is_new, capsys):
    if not is_new:
        shutil.copytree(vit / "run", tmp_path / "run")
    check = plant(tmp_path / "run", name, tmp_path / "victim")
    code = main(["convert", str(vit / "peer"), "--out", str(tmp_path / "run"), "--overwrite"])
    is_refused = is_new or name in (".lock", "spec.yaml")
    assert code == (2 if is_refused else 0)
    check()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_export(vit, tmp_path, name, error_of):
    check = plant(tmp_path / "out", name, tmp_path / "victim")
    line = error_of(["export", str(vit / "run"), "--out", str(tmp_path / "out"), "--overwrite"])
    assert f"out/{name} is a link" in line
    check()


def test_an_export_that_fails_leaves_no_empty_file(vit, tmp_path, monkeypatch, error_of):
    def fail(*given, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("anaphor.interchange.folder.save_file", fail)
    (tmp_path / "out").mkdir()
    before = snapshot(tmp_path)
    assert "No space left on device" in error_of(["export", str(vit / "run"), "--out", str(tmp_path / "out")])
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["save_file", "write_file"])
def test_an_export_on_a_full_disk_is_one_line_and_leaves_no_empty_file(vit, tmp_path, monkeypatch, error_of, name):
    def fail(*given, **options):
        if name == "save_file":
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        given[0].touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"anaphor.interchange.folder.{name}", fail)
    line = error_of(["export", str(vit / "run"), "--out", str(tmp_path / "out")])
    assert "No space left on device" in line
    left = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert left.keys() <= {"model.safetensors"}
    assert all(left.values())


def test_a_shard_with_a_name_that_no_file_can_have(vit, tmp_path, error_of):
    shutil.copytree(vit / "peer", tmp_path / "peer")
    index = {"weight_map": {"a": "x" * 5000, "b": "y\0z"}}
    (tmp_path / "peer" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks xxx" in error_of(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "run")])


def test_a_class_with_half_a_character(vit, tmp_path, error_of):
    shutil.copytree(vit / "peer", tmp_path / "peer")
    file = tmp_path / "peer" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "id2label": {**config["id2label"], "0": "\ud800"}}))
    line = error_of(["convert", str(tmp_path / "peer"), "--out", str(tmp_path / "run")])
    assert "id2label has half a character, \\ud800" in line

"""`anaphor look` and `anaphor predict` for images, on one tiny run: values, figures, the page in a browser."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from anaphor import load_run
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.inspect import image_figures
from anaphor.inspect.image_maps import mean_box_ratios
from anaphor.models import build_image_classifier
from anaphor.tasks.images import ImageRunSpec
from browsing import open_page

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)<!-- $x$ @data@.png"
FIGURES = [f"{stem}.{suffix}" for stem in ("attention", "layers", "heads") for suffix in ("png", "svg")]


pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on shapes of 16 pixels, and image files beside it."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("looked")
    spec = ImageRunSpec(
        image_size=16, width=16, heads=2, layers=2, max_examples=64, steps=2, batch_size=32, device="cpu"
    )
    _, code = execute(spec, folder / "run", test=False)
    assert code == 0
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for name in ("a.png", HOSTILE.replace("/", "|")):
        Image.fromarray(pixels).save(folder / name)
    Image.fromarray(pixels[..., 0]).save(folder / "gray.jpg")
    (folder / "broken.png").write_bytes((folder / "a.png").read_bytes()[:300])
    (folder / "page.png").write_text("<!doctype html><p>not found")
    return folder / "run"


def files(run, *names):
    return [str(run.parent / name) for name in names]


@pytest.mark.parametrize(("terminal", "flags"), [(True, []), (False, [])])
def test_look_has_a_progress_bar_in_a_terminal(terminal, flags, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("draw_views", "draw_layers", "draw_heads"):
        monkeypatch.setattr(image_figures, name, lambda looks, folder: [])
    assert main(["look", str(run), "--examples", "2", "--out", str(tmp_path), "--device", "cpu", *flags]) == 0
    shown = capsys.readouterr().err
    assert ("looking" in shown and "drawing" in shown) == (terminal and not flags)


# ---- predict


def test_predict_gives_label_and_probabilities_of_each_file(run, answer_of):
    names = files(run, "a.png", "gray.jpg")
    rows = answer_of(["predict", str(run), *names, "--device", "cpu", "--json"])
    assert [row["image"] for row in rows] == names
    for row in rows:
        assert list(row) == ["image", "label", "probabilities"]
        assert list(row["probabilities"]) == ["circle", "square", "triangle", "diamond", "cross", "ring"]
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
    loaded = load_run(run, device="cpu")
    assert loaded.predict(names) == rows
    assert loaded.predict(iter(names)) == rows
    # The same image from the data set and from a file.
    pixels = loaded.experiment.split("valid").images[0]
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(run.parent / "valid.png")
    (row,) = loaded.predict(files(run, "valid.png"))
    expected = loaded.experiment.compute_logits(pixels[None])[0].double().softmax(-1).tolist()
    assert list(row["probabilities"].values()) == pytest.approx(expected)


def test_predict_takes_folders_of_images(run, tmp_path, answer_of, error_of):
    (tmp_path / "photographs" / "more").mkdir(parents=True)
    a, gray = files(run, "a.png", "gray.jpg")
    Image.open(a).save(tmp_path / "photographs" / "more" / "b.png")
    Image.open(a).save(tmp_path / "photographs" / "c.PNG")
    (tmp_path / "photographs" / "notes.txt").write_text("no image")
    rows = answer_of(["predict", str(run), gray, str(tmp_path / "photographs"), "--device", "cpu", "--json"])
    expected = [gray, str(tmp_path / "photographs" / "c.PNG"), str(tmp_path / "photographs" / "more" / "b.png")]
    assert [row["image"] for row in rows] == expected
    assert load_run(run, device="cpu").predict([gray, tmp_path / "photographs"]) == rows
    (tmp_path / "empty").mkdir()
    line = error_of(["predict", str(run), str(tmp_path / "empty"), "--device", "cpu"])
    assert line == f"{tmp_path / 'empty'} has no image files"


def test_predict_prints_a_table_for_people(run, capsys):
    (name,) = files(run, "a.png")
    assert main(["predict", str(run), name, "--device", "cpu"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["image", "label", "probabilities"]
    assert line.startswith(name)
    assert len(re.findall(r" 0\.\d{3}", line)) == 3


def test_every_file_that_cannot_be_read_is_named_in_a_line(run, capsys):
    names = files(run, "broken.png", "a.png", "page.png", "missing.png")
    assert main(["predict", str(run), *names, "--device", "cpu", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 3
    assert "broken.png" in lines[0]
    assert lines[1] == f"anaphor: {names[2]} is not an image that Pillow can read: it is an HTML page"
    assert lines[2].endswith("missing.png: No such file or directory")


def test_predict_is_refused_without_images_and_for_runs_of_other_tasks(run, tmp_path, error_of):
    assert error_of(["predict", str(run)]).startswith("`anaphor predict` needs IMAGE: image files")
    (tmp_path / "spec.yaml").write_text("format: 2\ntask: lm\n")
    line = error_of(["predict", str(tmp_path), "a.png"])
    assert line.startswith(f"{tmp_path} is a run of `train lm`, and `predict` is for runs of `train images`")


# ---- look


def test_look_at_examples_of_validation_writes_page_figures_and_json(run, tmp_path, answer_of):
    words = ["look", str(run), "--examples", "3", "--out", str(tmp_path), "--device", "cpu"]
    found = answer_of([*words, "--json"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["attention.html", *FIGURES])
    assert found["written"] == [str(tmp_path / name) for name in ("attention.html", *FIGURES)]
    assert [image["image"] for image in found["images"]] == ["valid 0", "valid 1", "valid 2"]
    experiment = load_run(run, device="cpu").experiment
    valid = experiment.split("valid").first(3)
    assert [image["true"] for image in found["images"]] == [valid.classes[label] for label in valid.labels]
    assert [image["box"] for image in found["images"]] == valid.boxes.tolist()
    first = found["images"][0]
    maps = np.array(first["maps"]["attention"])
    layers = np.array(list(first["layers"]["attention"].values()))
    assert layers.shape == (2, 2, 4, 4)
    np.testing.assert_allclose(maps, layers.mean((0, 1)), rtol=1e-5)
    assert list(first["maps"]) == list(first["box_ratios"]) == ["attention", "rollout", "gradient-weighted", "saliency"]
    looks = experiment.look(examples=3)
    assert "tensor(" not in repr(looks)
    assert found["box_ratios"] == pytest.approx(mean_box_ratios(looks))


def test_look_at_files_has_neither_box_nor_true_class(run, tmp_path, answer_of):
    names = files(run, "a.png", "gray.jpg")
    found = answer_of(["look", str(run), "--image", *names, "--out", str(tmp_path), "--device", "cpu", "--json"])
    assert [(image["image"], image["true"], image["box"]) for image in found["images"]] == [
        (one, None, None) for one in names
    ]
    assert found["box_ratios"] == {}


def test_look_tells_people_the_model_the_predictions_and_the_share_in_the_box(run, tmp_path, capsys):
    assert main(["look", str(run), "--examples", "1", "--out", str(tmp_path), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run}: 2 × attention; 4 × 4 patches; class token; ")
    assert lines[1].split() == ["image", "predicted", "probability", "true"]
    assert "mean of 1 image: attention " in lines[3]
    assert lines[4:] == [str(tmp_path / name) for name in ("attention.html", *FIGURES)]


def test_a_model_without_attention_is_shown_by_its_saliency(run, tmp_path):
    experiment = load_run(run, device="cpu").experiment
    experiment.model = build_image_classifier(
        "vit-nano", classes=6, image_size=16, width=16, layers=1, mixers=("bidirectional-lstm",)
    )
    looks = experiment.look(files(run, "a.png"), out=tmp_path)
    assert list(looks[0].maps.views()) == ["saliency"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attention.html", "attention.png", "attention.svg"]
    data = json.loads(re.search(r'id="data">(.*?)</script>', (tmp_path / "attention.html").read_text(), re.S)[1])
    assert data["layers"] == []
    assert data["notes"] == ["No layer has attention: the map is saliency, |gradient × input| of the predicted class."]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--examples 0", "examples=0: it must be from 1 to 50 images"),
        ("--examples 51", "examples=51: it must be from 1 to 50 images"),
        ("--examples 2 --image a.png", "examples=2: give image files with --image, or --examples, but not both"),
        ("--image {folder}/page.png", "{folder}/page.png is not an image that Pillow can read: it is an HTML page"),
    ],
)
def test_look_refuses_in_one_line(run, tmp_path, error_of, words, message):
    words = words.replace("{folder}", str(run.parent)).split()
    line = error_of(["look", str(run), "--out", str(tmp_path / "out"), *words])
    assert line == f"{message.replace('{folder}', str(run.parent))}"
    assert not (tmp_path / "out").exists()


def test_figures_of_many_images_have_several_rows(run, tmp_path, monkeypatch):
    monkeypatch.setattr(image_figures, "ACROSS", 2)
    monkeypatch.setattr(image_figures, "SUFFIXES", ("png",))
    looks = load_run(run, device="cpu").experiment.look(examples=3)
    sizes = {}
    for count in (2, 3):
        image_figures.draw_views(looks[:count], tmp_path)
        with Image.open(tmp_path / "attention.png") as figure:
            sizes[count] = figure.size
    assert sizes[2][0] == sizes[3][0]
    assert sizes[3][1] > 1.7 * sizes[2][1]
    assert image_figures._choose_evenly(range(40), 4) == [0, 13, 26, 39]


# ---- the page


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    """A page with one image whose name is markup, and its look."""
    torch.set_default_dtype(torch.float32)
    out = tmp_path_factory.mktemp("page")
    names = [*files(run, HOSTILE.replace("/", "|")), *files(run, "a.png")]
    looks = load_run(run, device="cpu").experiment.look(names, out=out)
    return out / "attention.html", looks


def test_the_page_is_one_file_whose_names_stay_data(page):
    text = page[0].read_text(encoding="utf-8")
    assert text.count("<script") == 2
    assert "<img" not in text
    assert "http" not in text.replace("http-equiv", "")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["images"][0]["name"].endswith(HOSTILE.replace("/", "|"))


def test_the_page_shows_each_layer_and_never_runs_a_name(page, browser):
    path, (look, _) = page
    tab = open_page(browser)
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]", state="attached")
    assert tab.locator("#one-title").text_content() == look.name
    assert tab.locator("#gallery [role=option]").count() == 2
    tab.locator("#layer").fill("2")
    tab.wait_for_selector("html[data-drawn='0 attention 1 -1']", state="attached")
    assert tab.locator("#overlay-name").text_content() == "attention, layer 1, mean of the heads"
    heat = look.maps.attention["layers.1.mixer.weights"].mean(0)
    place = tab.locator("#overlay").bounding_box()
    tab.mouse.move(place["x"] + place["width"] * 0.6, place["y"] + place["height"] * 0.4)  # row 1, column 2
    tab.wait_for_selector("#patch:has-text('Patch')")
    said = tab.locator("#patch").text_content()
    assert said.startswith("Patch in row 1, column 2: ")
    assert float(said.split()[6]) == pytest.approx(float(heat[1, 2]), rel=0.02)
    assert tab.wrong == []
    assert [asked.url for asked in tab.asked if not asked.url.startswith("data:")] == [path.as_uri()]
    tab.close()

"""The figures of docs/live-page.md: every view, light and dark, as a browser shows it.

By default of the small runs that other tests use, into a folder of the test. Those of the documentation are made by

    LIVE_RUNS=runs LIVE_FIGURES=docs/figures pytest -m slow tests/web/test_page_figures.py
"""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from web.serving import serving

VIEWS = {
    "runs": {"settings": "differ"},
    "curves": {"group": "1", "xlog": "1", "ylog": "valid.loss,train_loss"},
    "samples": {},
    "tokens": {"on": "1"},
    "look": {"text": os.environ.get("LIVE_TEXT", "the cat sat on the mat")},
    "studies": {},
}


@pytest.fixture(scope="module")
def shown(folder):
    """The server of the runs that are drawn."""
    with serving(Path(os.environ.get("LIVE_RUNS", folder)).resolve()) as found:
        yield found


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    given = os.environ.get("LIVE_FIGURES")
    return Path(given).resolve() if given else tmp_path_factory.mktemp("figures")


def address_of(served, view):
    """A view with two language models, so that tokens can be compared and attention is seen."""
    rows = served.ask("/api/runs")["runs"]
    able = {row["run"].split(" ")[0]: row["id"] for row in rows if "tokens" in row["offers"] and not row["study"]}
    chosen = {"a": able["lstm"], "b": able["hybrid"], "run": able["lstm"], "beside": able["hybrid"]}
    names = {"tokens": ("a", "b"), "look": ("run", "beside")}.get(view, ())
    values = {**VIEWS[view], **{name: chosen[name] for name in names}}
    if view in ("curves", "samples"):
        values["runs"] = ",".join(list(able.values())[:12] if view == "curves" else list(able.values())[:3])
    return f"{served.url}/#{view}?{'&'.join(f'{name}={value}' for name, value in values.items())}"


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn_light_and_dark(shown, browser, figures, view):
    drawn = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.set_default_timeout(120_000)
        wrong = []
        page.on("console", lambda message, wrong=wrong: wrong.append(message.text))
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.goto(shown.address)
        page.goto(address_of(shown, view))
        page.wait_for_selector(f"html[data-ready={view}]", state="attached")
        if view == "look":
            page.wait_for_selector(".view.look[data-beside]")
        if view == "curves":
            page.hover(".chart .overlay")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.locator("#status.error").count() == 0
        assert wrong == []
        path = figures / f"live-{view}{'-dark' if scheme == 'dark' else ''}.png"
        page.screenshot(path=path)
        image = Image.open(path).convert("RGB")
        image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)  # half of its size
        drawn[scheme] = np.asarray(image.convert("L"), dtype=float)
        context.close()
    assert drawn["light"].mean() > 200 > 80 > drawn["dark"].mean()
    assert all(image.std() > 10 for image in drawn.values()), "something is drawn"


@pytest.mark.slow
def test_views_on_a_phone_are_drawn_side_by_side(shown, browser, figures):
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(shown.address)
    images = []
    for view in ("runs", "curves", "studies"):
        page.goto(address_of(shown, view))
        page.wait_for_selector(f"html[data-ready={view}]", state="attached")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        images.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    context.close()
    gap = 16
    whole = Image.new("RGB", (sum(one.width + gap for one in images) - gap, images[0].height), "#c9ced3")
    for place, image in enumerate(images):
        whole.paste(image, (place * (image.width + gap), 0))
    whole.quantize(256, dither=Image.Dither.NONE).save(figures / "live-phone.png", optimize=True)
    assert all(np.asarray(image.convert("L"), dtype=float).std() > 10 for image in images), "something is drawn"

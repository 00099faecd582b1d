"""The page in a real browser: nothing but itself is asked for, nothing complains, cells are what the model says.

Playwright drives Debian's Chromium; where one of them is missing there is nothing to open the page with.
"""

import json
import re

import pytest
import torch

from anaphor.data.bpe import BPE
from anaphor.data.tokenizer import Word
from anaphor.inspect import look_at, page
from anaphor.models import LanguageModelSpec, build
from browsing import cell_at, open_page

HOSTILE = "<script>alert(1)</script>"
SENTENCE = f"the cat </script><!-- saw {HOSTILE} on the @script@"


def look_in(name="hybrid", text=SENTENCE, seed=0, **options):
    torch.manual_seed(seed)
    tokenizer = Word.train(f"{SENTENCE} a dog ran")
    return look_at(build(name, vocabulary=len(tokenizer), width=16, layers=2, **options), tokenizer, text)


def written(path, looks, **more):
    text, left_out = page.build_page(looks, **more)
    path.write_text(text, encoding="utf-8")
    return path, left_out


# ---- what the file says, without a browser


def test_the_page_is_one_file_whose_data_stays_data(parts_of):
    text, left_out = page.build_page({"run <b>": look_in()})
    assert left_out == ()
    found = parts_of(text)
    assert [attributes.get("type") for tag, attributes in found.tags if tag == "script"] == ["application/json", None]
    assert not [tag for tag, attributes in found.tags if "src" in attributes]
    assert [attributes["href"] for tag, attributes in found.tags if "href" in attributes] == ["data:,", "#attention"]
    data = json.loads(found.scripts[0])
    assert data["runs"][0]["tokens"] == ["<eos>", *SENTENCE.split()]
    assert data["runs"][0]["name"] == "run <b>"
    assert "<" not in found.scripts[0]
    assert "http" not in text.replace("http-equiv", "")
    policy = next(attributes["content"] for tag, attributes in found.tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_a_page_that_would_be_too_large_is_rounded_then_cut_and_says_so(parts_of, monkeypatch):
    look = look_in("transformer", " ".join(["the cat saw a dog"] * 12))
    whole, _ = page.build_page({"run": look})

    def lengths(steps):
        return [page._length(page._pack_layer(look, tap, steps)) for tap in look.maps]

    monkeypatch.setattr(page, "MAX_CHARACTERS", sum(lengths(63)) + 10)
    text, notes = page.build_page({"run": look})
    assert len(text) < len(whole)
    assert notes == ("To keep this page small, weights are quantized to 63 steps between 0 and the largest of a row.",)
    monkeypatch.setattr(page, "MAX_CHARACTERS", max(lengths(page.STEPS[-1])))
    text, notes = page.build_page({"run": look})
    assert notes[-1] == "Layer 1 of run is left out: the page would be too large."
    data = json.loads(parts_of(text).scripts[0])
    assert [layer["place"] for layer in data["runs"][0]["layers"]] == ["0"]
    assert data["runs"][0]["notes"][-1] == notes[-1]
    assert data["first"]["name"] == "layers.0.mixer.weights"


@pytest.mark.slow
def test_six_by_six_heads_on_a_thousand_tokens_stay_below_fifteen_megabytes(single_precision):
    tokenizer = Word.train(" ".join(map(str, range(200))))
    model = LanguageModelSpec(vocabulary=len(tokenizer), layers=6, heads=6, width=48, feedforward=0).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # neither even nor sharp: nothing is more tedious to pack
    words = torch.randint(200, (999,), generator=torch.Generator().manual_seed(0)).tolist()
    text, notes = page.build_page({"run": look_at(model, tokenizer, " ".join(map(str, words)))})
    assert len(text) < 15_000_000
    assert not [note for note in notes if "left out" in note]


# ---- in the browser


@pytest.fixture
def tab(browser):
    context = browser.new_context(color_scheme="light", viewport={"width": 1300, "height": 900})
    yield open_page(context)
    context.close()


def open_in(tab, path):
    address = path.as_uri()
    tab.goto(address)
    tab.wait_for_selector("html[data-ready=yes]", state="attached")
    tab.wait_for_selector("#unit-map canvas[data-wide], #matrix canvas[data-wide]", state="attached")
    return address


def undisturbed(tab, address):
    assert tab.wrong == []
    assert [asked.url for asked in tab.asked if not asked.url.startswith("data:")] == [address], (
        "no request but for itself"
    )


def test_the_matrix_shows_every_cell_with_its_weight(tab, tmp_path):
    look = look_in("transformer")
    path, _ = written(tmp_path / "page.html", {"run": look}, first=("layers.1.mixer.weights", 2))
    address = open_in(tab, path)
    tab.wait_for_selector("#matrix canvas[data-wide]")
    tokens, weights = len(look.tokens), look.maps["layers.1.mixer.weights"][2]
    canvas = tab.locator("#matrix canvas")
    assert canvas.get_attribute("data-rows") == canvas.get_attribute("data-columns") == str(tokens)
    coloured = canvas.evaluate(
        """canvas => {
            const at = Object.fromEntries(Object.entries(canvas.dataset).map(([key, value]) => [key, Number(value)]));
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const dot = (edge, at, size) => Math.round((edge + (at + 0.5) * size) * window.devicePixelRatio);
            let found = 0;
            for (let row = 0; row < at.rows; row++)
                for (let column = 0; column < at.columns; column++) {
                    const place = dot(at.top, row, at.high) * canvas.width + dot(at.left, column, at.wide);
                    found += data[4 * place + 3] > 0;
                }
            return found;
        }"""
    )
    assert coloured == tokens * (tokens + 1) // 2, "one cell for each token and each that it may look at"
    for row, column in ((0, 0), (4, 2), (tokens - 1, tokens - 1), (3, 5)):
        told = cell_at(tab, row, column)
        assert told.startswith(f"{look.tokens[row]} ({row}) attends to {look.tokens[column]} ({column})")
        assert float(told.split("\n")[-1]) == pytest.approx(float(weights[row, column]), abs=0.006)
    undisturbed(tab, address)


def test_a_text_that_looks_like_a_script_is_shown_as_text(tab, tmp_path):
    looks = {f"runs/{HOSTILE}": look_in(), f"runs/<img src=x onerror=alert(2)>{HOSTILE}": look_in(seed=1)}
    path, _ = written(tmp_path / "page.html", looks)
    address = open_in(tab, path)
    tokens = tab.locator("#tokens .token")
    assert [tokens.nth(place).inner_text() for place in range(tokens.count())] == ["<eos>", *SENTENCE.split()]
    assert HOSTILE in tab.locator("#facts").inner_text()
    tokens.nth(5).click()
    assert HOSTILE in tab.locator("#from-title").inner_text()
    tab.select_option("#run", "1")
    tab.select_option("#view", "lines")
    assert tab.locator("script").count() == 2
    assert tab.locator("img").count() == 0
    undisturbed(tab, address)


def test_everything_can_be_chosen(tab, tmp_path):
    look = look_in()
    path, _ = written(tmp_path / "page.html", {"run": look})
    address = open_in(tab, path)
    weights = look.maps["layers.1.mixer.weights"]
    tab.select_option("#head", "average")
    tab.wait_for_selector("#attention[data-shown='layers.1.mixer.weights/average']")
    told = cell_at(tab, 5, 3)
    assert float(told.split("\n")[-1]) == pytest.approx(float(weights.mean(0)[5, 3]), abs=0.006)
    tab.select_option("#head", "rollout")
    tab.wait_for_selector("#attention[data-shown='layers.1.mixer.weights/rollout']")
    cell_at(tab, 0, 0)
    told = cell_at(tab, 5, 3)
    rolled = float(look.rollouts["layers.1.mixer.weights"][5, 3])
    assert float(told.split("\n")[-1]) == pytest.approx(rolled, abs=0.006)
    for paint in ("from", "to", "loss"):
        tab.select_option("#paint", paint)
    for scale in ("row", "one", "map"):
        tab.select_option("#scale", scale)
    assert tab.locator("#thumbs button").count() == 4
    tab.locator("#thumbs button").nth(3).click()
    assert tab.locator("#head").input_value() == "3"
    assert tab.locator("#summary tbody tr").count() == 4
    tab.locator("#summary th button").first.click()
    assert tab.locator("#summary th[aria-sort=descending]").inner_text().startswith("entropy")
    tab.select_option("#view", "lines")
    assert tab.locator("#lines canvas").is_visible()
    assert not tab.locator("#matrix").is_visible()
    assert tab.locator("#unit-part option").all_inner_texts() == [
        "state: hidden", "state: cell", "gate: input", "gate: forget", "gate: candidate", "gate: output",
    ]  # fmt: skip
    tab.select_option("#unit-part", "forget")
    tab.wait_for_selector("#units[data-shown='layers.0.mixer/forget']")
    told = cell_at(tab, 2, 4, "#unit-map", said=r"unit \d+ at .*\(4\)")
    forget = next(one for one in look.units if one.part == "forget")
    assert told.startswith(f"unit {forget.units[2]} at saw (4)")
    assert float(told.split("\n")[-1]) == pytest.approx(float(forget.values[2, 4]), abs=0.006)
    undisturbed(tab, address)


def test_the_keyboard_reaches_tokens_and_cells(tab, tmp_path):
    path, _ = written(tmp_path / "page.html", {"run": look_in()})
    address = open_in(tab, path)
    tab.locator("#tokens .token[tabindex='0']").focus()
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#tokens .token[aria-selected=true]").inner_text() == "the"
    assert tab.evaluate("document.activeElement.textContent") == "the"
    assert tab.locator("#token-facts").inner_text().startswith("token 1 the: loss ")
    tab.locator("#matrix .window").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    assert tab.locator("#said").inner_text().startswith("cat (2) attends to the (1)")
    tab.keyboard.press("Enter")
    assert tab.locator("#tokens .token[aria-selected=true]").inner_text() == "cat"
    tab.select_option("#view", "lines")
    tab.locator("#lines .window").focus()
    tab.keyboard.press("ArrowUp")
    assert tab.locator("#from-title").inner_text() == "the (1) attends to"
    undisturbed(tab, address)


def test_colours_follow_the_reader_from_light_to_dark(tab, tmp_path):
    expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
    path, _ = written(tmp_path / "page.html", {"run": look_in("transformer")})
    address = open_in(tab, path)

    def colour(what, element):
        found = tab.evaluate(f"getComputedStyle(document.querySelector({element!r})).{what}")
        return sum(map(int, re.findall(r"\d+", found)[:3]))

    tab.locator("#tokens .token").nth(1).click()
    chosen = tab.locator("#tokens .token[aria-selected=true]")
    light = chosen.evaluate("token => getComputedStyle(token).backgroundColor")
    tab.emulate_media(color_scheme="dark")
    assert colour("backgroundColor", "body") < 128 < 512 < colour("color", "body")
    # The style sheet answers at once, the script only when the browser has told it of the change.
    expect(chosen).not_to_have_css("background-color", light)
    undisturbed(tab, address)


def test_two_runs_stand_side_by_side(tab, tmp_path):
    first, second = look_in(), look_in("gru", seed=3)
    path, _ = written(tmp_path / "page.html", {"one": first, "two": second})
    address = open_in(tab, path)
    for part in ("difference-text", "first-text", "second-text"):
        assert tab.locator(f"#{part} .token").count() == len(first.tokens)
    tab.locator("#runs summary").click()
    differences = [b - a for a, b in zip(first.scored.losses, second.scored.losses, strict=True)]
    largest = max(range(len(differences)), key=lambda place: abs(differences[place]))
    cells = tab.locator("#difference-table tbody tr").first.locator("td").all_inner_texts()
    assert cells[1] == str(largest + 1), "places count the boundary"
    assert float(cells[4].replace("−", "-")) == pytest.approx(differences[largest], abs=0.0006)
    tab.select_option("#run", "1")
    assert not tab.locator("#attention").is_visible(), "a recurrent model has none"
    assert tab.locator("#unit-map canvas").is_visible()
    undisturbed(tab, address)


def test_weights_below_zero_and_on_later_tokens_are_shown(tab, tmp_path):
    tokenizer = Word.train(SENTENCE)
    spec = {"vocabulary": len(tokenizer), "width": 16, "heads": 2, "causal": False}
    look = look_at(LanguageModelSpec(mixers=("low-rank",), **spec).build(), tokenizer, SENTENCE)
    weights = look.maps["layers.0.mixer.weights"][1]
    lowest = divmod(int(weights.argmin()), weights.shape[1])
    path, _ = written(tmp_path / "page.html", {"run": look}, first=("layers.0.mixer.weights", 1))
    address = open_in(tab, path)
    tab.wait_for_selector("#matrix canvas[data-wide]")
    for row, column in (lowest, (0, 5)):
        assert float(cell_at(tab, row, column).split("\n")[-1]) == pytest.approx(float(weights[row, column]), rel=0.02)
    assert "perplexity" not in tab.locator("#facts").inner_text()
    assert tab.locator("#head option").all_inner_texts() == ["0", "1", "average of all heads"]
    undisturbed(tab, address)


@pytest.mark.slow
def test_a_thousand_tokens_stay_usable(tab, tmp_path, single_precision):
    tokenizer = BPE.train("the cat sat\n" * 3, 260)
    model = build("hybrid", vocabulary=len(tokenizer), width=16, layers=2, memory=1200)
    look = look_at(model, tokenizer, "the cat sat on\n" * 100)
    assert len(look.tokens) > 1000
    path, _ = written(tmp_path / "page.html", {"run": look}, first=("layers.1.mixer.weights", 0))
    address = open_in(tab, path)
    tab.wait_for_selector("#matrix canvas[data-wide]")
    size = tab.locator("#matrix canvas").evaluate("canvas => [canvas.width, canvas.height]")
    assert max(size) <= 1300, "only what is in view is drawn"
    assert tab.locator("#tokens .token").count() == len(look.tokens)
    tab.locator("#cell").fill("14")
    tab.locator("#matrix .window").focus()
    for key in ("ArrowDown", "End"):
        tab.keyboard.press(key)
    last = len(look.tokens) - 1
    assert f"({last})\n" in tab.locator("#said").text_content()
    tab.locator("#tokens .token").nth(700).click()
    tab.select_option("#view", "lines")
    assert tab.locator("#from-title").inner_text().endswith("(700) attends to")
    undisturbed(tab, address)

"""Tokens and Look in a real browser: their numbers are those of `score` and `look`, and nothing else is loaded."""

import json
import re
import shutil
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from PIL import Image

import anaphor
from anaphor.cli.main import main
from anaphor.web.catalog import make_id
from browsing import cell_at, open_page
from web.planted import LINE, PLANTED, train_planted
from web.serving import serving

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
SENTENCE = "the cat saw <script>alert(1)</script> on the log"


pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A server with two runs whose difference is planted. `pair` is what the address says of them."""
    folder = tmp_path_factory.mktemp("planted")
    torch.set_default_dtype(torch.float32)
    train_planted(folder)
    with serving(folder) as found:
        found.pair = dict(zip("ab", map(make_id, PLANTED), strict=True))
        yield found


@pytest.fixture
def tab(browser):
    context = browser.new_context(color_scheme="light", viewport={"width": 1300, "height": 900})
    tab = open_page(context)
    yield tab
    assert tab.wrong == []
    assert [asked.url for asked in tab.asked if not asked.url.startswith(("http://127.0.0.1:", "data:"))] == []
    context.close()


def open_view(tab, served, view, **state):
    tab.goto(served.address)
    tab.goto("about:blank")  # else only the part behind # would change
    tab.goto(f"{served.url}/#{view}?{urlencode(state)}")
    tab.wait_for_selector(f"html[data-ready={view}]", state="attached")


def address_of(tab):
    """As the page has it: playwright hears of it later."""
    return tab.evaluate("location.href")


def posted(tab, path):
    """Bodies of what was sent to a path."""
    return [json.loads(asked.post_data) for asked in tab.asked if asked.url.endswith(path) and asked.method == "POST"]


def printed(capsys, *words):
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def hybrid_of(folder):
    return next(path for path in folder.iterdir() if path.name.startswith("hybrid"))


def rows_of(table):
    return [row.split("\t") for row in table.locator("tbody").inner_text().split("\n")]


# ---- tokens


def test_the_losses_of_a_text_are_those_of_score(tab, served, ids, folder, capsys):
    open_view(tab, served, "tokens", a=ids["lstm"], b=ids["hybrid"], text=SENTENCE)
    table = tab.locator(".own-text details table")
    tab.locator(".own-text summary").click()
    scores = [printed(capsys, "score", str(path), SENTENCE)[0] for path in (folder / "lstm", hybrid_of(folder))]
    expected = [
        [str(place), token["token"], f"{token['loss']:.3f}", f"{other['loss']:.3f}"]
        for place, (token, other) in enumerate(zip(*(one["tokens"] for one in scores), strict=True))
    ]
    found = rows_of(table)
    assert [row[:4] for row in found] == expected
    for row, one, other in zip(found, *(score["tokens"] for score in scores), strict=True):
        assert float(row[4].replace("−", "-")) == pytest.approx(other["loss"] - one["loss"], abs=6e-4)
    totals = rows_of(tab.locator(".own-text .totals"))
    assert [row[-3:] for row in totals[:2]] == [
        [f"{score['loss']:#.4g}", f"{score['perplexity']:#.4g}", str(len(expected))] for score in scores
    ]
    assert tab.locator(".own-text .compared .token").all_inner_texts() == [token for _, token, _, _ in expected]
    tab.locator(".own-text .compared .token").nth(2).hover()
    _, token, first, second, difference = found[2]
    better = "B better" if difference.startswith("−") else "A better"
    tip = tab.locator(".view > .tip.on").inner_text()
    for part in (f"{token}\n", f"A  {first}", f"B  {second}", f"B − A  {difference}  {better}"):
        assert part in tip


@pytest.mark.slow
def test_a_run_without_data_is_compared_on_a_text_alone(tab, copied):
    """A converted run has no validation split."""
    spec = copied / "lstm-1" / "spec.yaml"
    spec.write_text(re.sub(r"^  data: .*$", "  data: none", spec.read_text(), flags=re.MULTILINE))
    with serving(copied) as served:
        open_view(tab, served, "tokens", a=make_id("lstm"), b=make_id("lstm-1"))
        expect(tab.locator(".own-text")).to_be_visible()
        expect(tab.locator(".split-part")).to_be_hidden()


def test_the_validation_split_has_the_numbers_of_the_result(tab, served, ids, folder):
    open_view(tab, served, "tokens", a=ids["lstm"], b=ids["lstm-1"])
    assert posted(tab, "/api/passages") == [], "a split is scored when somebody asks for it"
    tab.get_by_role("button", name="Compare on the validation split").click()
    totals = tab.locator(".split-part .totals")
    results = [anaphor.load_run(folder / name).result["valid"] for name in ("lstm", "lstm-1")]
    expect(totals).to_be_visible()
    for row, result in zip(rows_of(totals), results, strict=True):
        numbers = [f"{result[name]:#.4g}" for name in ("loss", "perplexity", "bits_per_byte")]
        assert row[-4:] == [*numbers, f"{result['tokens']:,}"]
    assert "on=valid" in address_of(tab)
    assert posted(tab, "/api/passages") == [
        {"runs": [ids["lstm"], ids["lstm-1"]], "split": "valid", "length": 64, "count": 40}
    ]


def give_many_passages(route):
    """The same passages again and again, as if there were so many."""
    answer = route.fetch()
    plain = answer.json()
    found = plain.get("result") or {}
    if "passages" in found:
        found["passages"] = [
            {**one, "start": one["start"] + 10_000 * number} for number in range(5) for one in found["passages"]
        ]
    route.fulfill(response=answer, json=plain)


@pytest.mark.slow
def test_the_view_starts_with_a_text_and_shows_ten_passages_at_a_time(tab, planted):
    open_view(tab, planted, "tokens", **planted.pair, length=8)
    tokens = tab.locator(".own-text .compared .token")
    expect(tokens.nth(20)).to_be_visible()
    text = tab.locator(".own-text textarea").input_value()
    assert "text=" not in address_of(tab)
    spaced = tab.locator(".own-text .compared").evaluate("one => one.textContent")
    assert spaced.replace("⏎", "").split() == text.split(), "words have spaces between them"
    expect(tab.locator(".pair-choice .legend")).to_contain_text("+ nats, B better")
    tab.route("**/api/job*", give_many_passages)
    tab.get_by_role("button", name="Compare on the validation split").click()
    cards = tab.locator("article.passage")
    expect(cards).to_have_count(10)
    tab.locator(".more-passages").click()
    expect(cards).to_have_count(20)
    expect(cards.nth(10)).to_be_focused()


def lines_of(card):
    start = int(card.get_attribute("data-start"))
    return {place // LINE for place in range(start, start + 8)}


def test_the_planted_passages_come_first(tab, planted):
    open_view(tab, planted, "tokens", **planted.pair, on="valid", length=8)
    for letter, places in zip("AB", PLANTED.values(), strict=True):
        tab.get_by_role("button", name=f"{letter} better").click()
        cards = tab.locator("article.passage")
        expect(cards.first).to_have_class(re.compile(f"better-{letter.lower()}"))
        is_planted = [bool(lines_of(cards.nth(place)) & {*places}) for place in range(cards.count())]
        assert is_planted[0]
        assert is_planted == sorted(is_planted, reverse=True), "nothing else stands before one of them"
        painted = cards.first.locator(".token").evaluate_all("all => all.map(one => one.style.backgroundColor)")
        red, _, blue = np.mean([list(map(int, re.findall(r"\d+", color))) for color in painted], 0)
        assert (blue > red) == (letter == "A"), "blue where A is better, orange where B is"


@pytest.mark.slow
def test_a_link_opens_its_passage_again(tab, planted):
    open_view(tab, planted, "tokens", **planted.pair, on="valid", length=16)
    cards = tab.locator("article.passage")
    cards.first.focus()
    tab.keyboard.press("ArrowDown")
    expect(cards.nth(1)).to_be_focused()
    tab.keyboard.press("Enter")
    start = cards.nth(1).get_attribute("data-start")
    assert f"at={start}" in address_of(tab)
    link = tab.locator("article.open a.share").get_attribute("href")
    losses = rows_of(tab.locator("article.open table"))
    tab.goto("about:blank")
    tab.goto(f"{planted.url}/{link}")
    again = tab.locator("article.open")
    expect(again).to_be_focused()
    assert again.get_attribute("data-start") == start
    assert rows_of(again.locator("table")) == losses
    tab.keyboard.press("ArrowRight")
    expect(tab.locator("#said")).to_contain_text("B − A")
    tab.keyboard.press("Enter")
    expect(tab.locator("article.open")).to_have_count(0)
    assert "at=" not in address_of(tab)


@pytest.mark.slow
def test_a_link_to_any_other_place_opens_it_as_well(tab, planted):
    open_view(tab, planted, "tokens", **planted.pair, on="valid", length=16, at=3)
    expect(tab.locator("article.open")).to_have_attribute("data-start", "3")
    assert [body.get("at") for body in posted(tab, "/api/passages")] == [None, 3]


@pytest.mark.slow
def test_a_passage_leads_to_a_look_at_the_same_tokens(tab, planted):
    open_view(tab, planted, "tokens", **planted.pair, on="valid", length=8)
    card = tab.locator("article.passage").first
    card.focus()
    tab.keyboard.press("Enter")
    tokens = [row[1] for row in rows_of(card.locator("table"))]
    tab.get_by_role("link", name="Look inside kitchen").click()
    tab.wait_for_selector(".view.look[data-shown]")
    assert f"run={planted.pair['b']}" in address_of(tab)
    found = tab.locator(".look-text .token").all_inner_texts()[1:]
    assert [token.strip() for token in found] == ["⏎" if token == "<eos>" else token for token in tokens]


@pytest.mark.slow
def test_a_row_of_a_table_highlights_its_tokens(tab, planted):
    open_view(tab, planted, "tokens", **planted.pair, on="valid", length=16)
    label = tab.locator(".group", has_text="Class of the token").locator("tbody button", has_text="word")
    label.click()
    expect(label).to_have_attribute("aria-pressed", "true")
    assert "mark=by_class" in address_of(tab)
    marked, away = tab.locator(".token.marked"), tab.locator(".token.away")
    expect(marked.first).to_be_visible()
    assert all(token.isalpha() for token in marked.all_inner_texts())
    assert {token.strip() for token in away.all_inner_texts()} == {"⏎"}
    tab.reload()
    expect(marked.first).to_be_visible()
    label.click()
    expect(marked).to_have_count(0)


@pytest.mark.slow
def test_work_shows_its_progress_and_can_be_cancelled(tab, served, ids):
    open_view(tab, served, "tokens", a=ids["lstm"], b=ids["lstm-1"])
    running = {"state": "running", "progress": [3, 4, "valid"]}
    tab.route("**/api/passages", lambda route: route.fulfill(json={"job": "abc"}))
    tab.route("**/api/job?id=abc", lambda route: route.fulfill(json=running))
    tab.route("**/api/cancel", lambda route: route.fulfill(json={}))
    tab.get_by_role("button", name="Compare on the validation split").click()
    work = tab.locator(".split-part .work")
    expect(work).to_contain_text("75 %")
    assert work.locator("progress").evaluate("bar => bar.value / bar.max") == 0.75
    work.get_by_role("button", name="Cancel").click()
    expect(work.locator("p")).to_have_text("Cancelled.")
    assert posted(tab, "/api/cancel") == [{"job": "abc"}]
    expect(tab.get_by_role("button", name="Compare on the validation split")).to_be_visible()


@pytest.mark.slow
def test_a_failed_job_shows_its_line(tab, served, ids):
    open_view(tab, served, "tokens", a=ids["lstm"], b=ids["lstm-1"])
    line = "the runs were not scored on the same text: <script>alert(2)</script>"
    tab.route("**/api/passages", lambda route: route.fulfill(json={"job": "abc"}))
    tab.route("**/api/job?id=abc", lambda route: route.fulfill(json={"state": "failed", "error": line}))
    tab.get_by_role("button", name="Compare on the validation split").click()
    expect(tab.locator(".split-part .work.failed p")).to_have_text(line)
    open_view(tab, served, "look", run=ids["lstm"], example=10**6)
    expect(tab.locator(".work.failed")).to_contain_text("example=1000000")


# ---- look


@pytest.fixture(scope="module")
def look(folder):
    """What `look` shows of the sentence in the hybrid."""
    return anaphor.load_run(hybrid_of(folder)).look(SENTENCE)


def test_the_clearest_head_is_loaded_first_then_all_as_thumbnails_and_a_click_shows_one(tab, served, ids, look):
    open_view(tab, served, "look", run=ids["hybrid"], text=SENTENCE)
    tab.wait_for_selector(".look-attention[data-shown]")
    tab.wait_for_selector(".thumbs[data-shown]")
    maps = [(body["tap"], body["head"]) for body in posted(tab, "/api/head") if "tap" in body]
    assert maps[0] == (look.heads[0].name, look.heads[0].head)
    assert len(maps) == len(set(maps)) == tab.locator(".thumbs button").count() == len(look.heads), "each travels once"
    shown = tab.locator("table.heads tr.now td").first.inner_text()
    row = tab.locator("table.heads tbody tr:not(.now)").first
    name, statistics = row.locator("td").first.inner_text(), row.locator("td").all_inner_texts()
    assert name != shown
    row.locator("button").click()
    layer, head = map(int, re.findall(r"\d+", name))
    tap = f"layers.{layer}.mixer.weights"
    tab.wait_for_selector(f".look-attention[data-shown='{tap}/{head}']")
    assert tab.locator(".thumbs button[aria-pressed=true]").get_attribute("data-at") == f"{tap}/{head}"
    assert len([body for body in posted(tab, "/api/head") if "tap" in body]) == len(maps)
    assert f"head={head}" in address_of(tab)
    (expected,) = [one for one in look.heads if (one.name, one.head) == (tap, head)]
    assert statistics[1] == f"{expected.entropy:.2f}"
    assert look.summary in tab.locator(".inside > .facts").inner_text()


@pytest.mark.slow
def test_cells_and_losses_are_those_of_look(tab, served, ids, look):
    tap, maps = next(iter(look.maps.items()))
    open_view(tab, served, "look", run=ids["hybrid"], text=SENTENCE, tap=tap, head=1)
    tab.wait_for_selector(f".look-attention[data-shown='{tap}/1']")
    for row, column in ((2, 1), (5, 0), (5, 5)):
        value = float(cell_at(tab, row, column, ".matrix").split("\n")[1].replace("−", "-"))
        assert value == pytest.approx(float(maps[1][row][column]), abs=0.01)
    tokens = tab.locator(".look-text .token")
    assert tokens.all_inner_texts() == list(look.tokens)
    tokens.nth(3).hover()
    expect(tab.locator(".look-text .facts")).to_contain_text(f"loss {look.scored.losses[2]:.3f}")


@pytest.mark.slow
def test_states_next_tokens_and_a_continuation_of_a_text(tab, served, ids, folder):
    open_view(tab, served, "look", run=ids["lstm"], text="the cat sat", token=2)
    tab.wait_for_selector(".look-units[data-shown]")
    assert [list(body)[-1] for body in posted(tab, "/api/head")] == ["unit"]
    run = anaphor.load_run(folder / "lstm")
    probabilities = run.model(torch.tensor([run.tokenizer.encode_prompt("the cat")]))[0][0, -1].softmax(-1)
    best = probabilities.topk(5)
    rows = tab.locator(".next li").all_inner_texts()
    assert [row.split()[0] for row in rows] == [run.tokenizer.tokens[token] for token in best.indices]
    assert [row.split()[-1] for row in rows] == [f"{value:.3f}" for value in best.values]
    tab.get_by_label("Tokens", exact=True).fill("5")
    tab.get_by_role("button", name="Continue after cat (2)").click()
    written = tab.locator(".written")
    expect(written).to_be_visible()
    expected = run.generate("the cat", tokens=5, temperature=0.8, seed=0)
    assert written.inner_text().split() == ["the", "cat", *expected.removeprefix("the cat").split()]


@pytest.mark.slow
def test_a_translation_has_its_alignment(tab, served, ids):
    open_view(tab, served, "look", run=ids["translation"], example=1)
    tab.wait_for_selector(".look-attention[data-shown]")
    (body,) = posted(tab, "/api/head")
    assert body["head"] == "mean"
    texts = tab.locator(".look-translation dd").all_inner_texts()
    assert texts[2] == texts[0].upper(), "the reference"
    canvas = tab.locator(".matrix canvas")
    assert int(canvas.get_attribute("data-columns")) == len(texts[0].split())
    assert "attends to" in cell_at(tab, 0, 0, ".matrix")


@pytest.mark.slow
def test_a_classified_text_has_the_contribution_of_each_token(tab, served, ids, folder):
    open_view(tab, served, "look", run=ids["labels"], text="a red house")
    tab.wait_for_selector(".look-attention[data-shown]")
    look = anaphor.load_run(folder / "labels").look("a red house")
    tab.locator(".look-text .token", has_text="red").hover()
    expect(tab.locator(".look-text .facts")).to_contain_text(" red: ")
    told = tab.locator(".look-text .facts").inner_text()
    value = look.contributions[look.tokens.index("red")]
    assert float(re.search(r"input ([+−][\d.]+)", told)[1].replace("−", "-")) == pytest.approx(value, abs=6e-4)
    assert told.endswith(f"for {look.label}")


@pytest.mark.slow
def test_an_image_is_shown_by_layer_and_head_and_can_be_chosen(tab, served, ids, tmp_path):
    Image.new("RGB", (8, 8), "white").save(tmp_path / "own.png")
    open_view(tab, served, "look", run=ids["images"], example=1)
    tab.wait_for_selector(".look-image[data-shown='attention 0 ']")
    assert posted(tab, "/api/head") == [], "the maps of all layers come with the look"
    tab.locator("input[name=layer]").fill("1")
    tab.wait_for_selector(".look-image[data-shown^='attention 1']")
    (body,) = posted(tab, "/api/head")
    assert (body["head"], body["of"], body["example"]) == ("mean", "attention", 1)
    tab.locator(".overlay").hover()
    expect(tab.locator(".look-image .facts")).to_have_text(re.compile("^Patch in row"))
    tab.locator("input[type=file]").set_input_files(tmp_path / "own.png")
    expect(tab.locator(".inside .notes")).to_contain_text("not in the address")
    assert "image" in posted(tab, "/api/look")[-1]


# ---- two runs inside, side by side


@pytest.mark.slow
def test_a_second_run_is_shown_beside_the_first_on_the_same_text(tab, served, ids, folder):
    open_view(tab, served, "look", run=ids["lstm"], text=SENTENCE)
    tab.wait_for_selector(".view.look[data-shown]")
    tab.locator("select[name=beside]").select_option(ids["hybrid"])
    tab.wait_for_selector(".view.look[data-beside]")
    panes = tab.locator(".look-pane")
    first, second = (panes.nth(place).locator(".look-text .token") for place in (0, 1))
    assert first.all_inner_texts() == second.all_inner_texts()
    boxes = [panes.nth(place).bounding_box() for place in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"], "side by side"
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    first.nth(3).click()
    expect(second.nth(3)).to_have_attribute("aria-selected", "true")
    losses = [anaphor.load_run(path).look(SENTENCE).scored.losses for path in (folder / "lstm", hybrid_of(folder))]
    expect(panes.nth(1).locator(".look-text .facts")).to_contain_text(f"loss {losses[1][2]:.3f}")
    difference = float(np.mean(losses[1]) - np.mean(losses[0]))
    better = "B" if difference < 0 else "A"
    facts = tab.locator(".look-difference .facts")
    expect(facts).to_contain_text(f"{better} is better by {abs(difference):.3f} nats per token")
    tab.locator(".look-difference summary").click()
    rows = rows_of(tab.locator(".look-difference details table"))
    assert [row[2:4] for row in rows] == [[f"{one:.3f}", f"{two:.3f}"] for one, two in zip(*losses, strict=True)]
    assert f"beside={ids['hybrid']}" in address_of(tab)
    tab.go_back()
    expect(panes).to_have_count(1)


@pytest.mark.slow
def test_of_two_runs_each_has_a_layer_and_a_head_of_its_own_which_the_address_holds(tab, served, ids):
    open_view(tab, served, "look", run=ids["hybrid"], beside=ids["lstm"], text=SENTENCE)
    tab.wait_for_selector(".view.look[data-beside]")
    units = tab.locator(".look-pane").nth(1).locator("select[name=unit]")
    chosen = units.locator("option").nth(1).get_attribute("value")
    units.select_option(chosen)
    tab.wait_for_selector(f".look-pane:nth-child(2) .look-units[data-shown='{chosen}']")
    assert f"beside.unit={chosen}" in address_of(tab)
    tab.reload()
    tab.wait_for_selector(f".look-pane:nth-child(2) .look-units[data-shown='{chosen}']")
    tab.locator("select[name=run]").select_option(ids["lstm"])  # they change places
    tab.wait_for_selector(".view.look[data-beside]")
    assert f"beside={ids['hybrid']}" in address_of(tab)
    assert "beside.unit" not in address_of(tab)


@pytest.mark.slow
def test_compare_and_look_start_with_an_example_of_every_task(tab, copied, ids):
    """Without a click: what both runs make of the first example, and the same inside two runs."""
    for name in ("translation", "images", "labels"):
        shutil.copytree(copied / name, copied / f"{name}-2")
    with serving(copied) as served:
        for name in ("translation", "images", "labels"):
            a, b = ids[name], make_id(f"{name}-2")
            open_view(tab, served, "tokens", a=a, b=b)
            tab.wait_for_selector(".example-part[data-shown='0']")
            facts = tab.locator(".example-part dl")
            assert facts.locator(".chip").all_inner_texts() == ["A", "B"]
            first, second = facts.locator("dd").all_inner_texts()[-2:]
            assert first == second, "it is the same model"
            expect(tab.locator(".pair-choice .legend")).to_be_hidden()
            tab.get_by_role("button", name="Next example").click()
            tab.wait_for_selector(".example-part[data-shown='1']")
            assert "example=1" in address_of(tab)
            assert posted(tab, "/api/passages") == [], "a split is scored when somebody asks for it"
            tab.get_by_role("link", name="Look inside both").click()
            tab.wait_for_selector(".view.look[data-beside]")
            assert tab.locator(".look-pane").count() == 2
            panes = [tab.locator(".look-pane").nth(place).locator("section").first for place in (0, 1)]
            assert panes[0].inner_text() == panes[1].inner_text()


# ---- any width, any light


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(tab, served, planted, ids):
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.emulate_media(color_scheme="dark")
    for server, view, state in (
        (planted, "tokens", {**planted.pair, "on": "valid", "text": "the old man sees every comet"}),
        (served, "look", {"run": ids["hybrid"], "text": SENTENCE}),
        (served, "look", {"run": ids["lstm"], "beside": ids["hybrid"], "text": SENTENCE}),
        (served, "look", {"run": ids["images"], "example": 0}),
    ):
        open_view(tab, server, view, **state)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        unlabeled = tab.evaluate(
            """() => [...document.querySelectorAll(".view input, .view select, .view textarea, .view button")]
                .filter((one) => !(one.labels?.length || one.getAttribute("aria-label") || one.textContent.trim()))
                .map((one) => one.outerHTML)"""
        )
        assert unlabeled == []

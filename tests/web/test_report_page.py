"""A report is one file that shows what the live page shows, without a server, a network or markup from runs."""

import json
import re
from functools import partial

import pytest
import torch
from planted import write_text

import anaphor
from anaphor.errors import ConfigError
from anaphor.web import report
from anaphor.web.catalog import make_id
from anaphor.web.inference import Cache, answer
from anaphor.web.report import build_report, get_key, post_key
from browsing import open_page

HYBRID = "hybrid <script>alert(1)<⁄script>"


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def built(folder):
    """The report of three runs, with models."""
    torch.set_default_dtype(torch.float32)
    return build_report([folder / "lstm", folder / "lstm-1", folder / HYBRID], ask=partial(answer, cache=Cache()))


@pytest.fixture(scope="module")
def opened(built, browser, tmp_path_factory):
    """The report in a browser that reached it as a file."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(built.page, encoding="utf-8")
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = open_page(context)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-printable]", state="attached")
    yield page
    context.close()


def test_a_report_of_three_runs_has_less_than_3_mb(built):
    assert len(built.page.encode()) < 3_000_000
    assert built.runs == ("lstm", "lstm-1", HYBRID)
    assert built.left_out == ()


def test_every_view_opens_from_disk_without_a_request_and_without_an_error(opened):
    page, requests, said = opened, [asked.url for asked in opened.asked], opened.wrong
    titles = page.locator("#tabs a").all_inner_texts()
    assert titles == ["Report", "Runs", "Curves", "Samples", "Compare", "Look"]
    for title in titles:
        page.get_by_role("link", name=title, exact=True).first.click()
        page.wait_for_selector(f'#tabs a[aria-current="page"]:text-is("{title}")')
        page.wait_for_selector("html[data-ready]", state="attached")
        assert page.locator("#status").inner_text() == "", title
        shown = page.locator("#view").inner_text()
        assert shown.strip(), title
        assert "not in this report" not in shown, title
    assert len(requests) == 1
    assert said == []


def test_markup_in_names_and_samples_is_text(built, opened):
    assert "<script>alert" not in built.page
    page, said = opened, opened.wrong
    page.evaluate("location.hash = '#report'")
    page.wait_for_selector("html[data-ready=report]", state="attached")
    assert page.get_by_text(HYBRID).count() > 0
    assert said == []


def test_scores_are_those_of_the_runs_with_their_signatures(built, folder, opened):
    page = opened
    page.evaluate("location.hash = '#report'")
    page.wait_for_selector("html[data-ready=report]", state="attached")
    shown = page.locator("#view").inner_text()
    for name in built.runs:
        scores = json.loads((folder / name / "result.json").read_bytes())["valid"]
        assert scores["signature"] in shown
        assert f"{scores['loss']:.4g}" in shown


def test_losses_by_position_are_those_of_the_split(built, folder, ids, opened):
    groups = embedded(built.page)["groups"][ids["lstm"]]
    loss = json.loads((folder / "lstm" / "result.json").read_bytes())["valid"]["loss"]
    assert any("osition" in table["title"] for table in groups["tables"])
    for table in groups["tables"]:
        total = sum(row["items"] for row in table["rows"])
        assert sum(row["items"] * row["loss"] for row in table["rows"]) / total == pytest.approx(loss, rel=1e-4)
    page = opened
    page.evaluate("location.hash = '#report'")
    page.wait_for_selector("html[data-ready=report]", state="attached")
    assert f"Validation loss: {groups['tables'][0]['title']}" in page.locator("#view").inner_text()


@pytest.mark.parametrize("shown", ["look", "report"])
def test_paper_has_all_views_one_after_the_other_and_no_controls(opened, shown):
    page = opened
    page.evaluate(f"location.hash = '#{shown}'")
    page.wait_for_selector(f"html[data-ready={shown}]", state="attached")
    titles = [title for title in page.locator("#tabs a").all_inner_texts() if title != "Runs"]  # Report has that table
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".paper > section > .heading").all_inner_texts() == titles
    assert page.locator(".paper select:visible, .paper input:visible, header:visible, #view:visible").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, "it is wider than the paper"
    charts = page.locator(".paper .curves img")
    assert charts.count() > 0
    assert all(charts.nth(number).evaluate("image => image.naturalWidth") > 0 for number in range(charts.count()))
    page.emulate_media(media="screen")


def test_paper_says_what_a_map_is_of_and_has_every_head(opened):
    """Titles, legends and what is chosen; controls are not on paper."""
    page = opened
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    look, pair = page.locator(".paper > .look"), page.locator(".paper > .tokens")
    bar = look.locator(".look-attention > .bar").inner_text()
    assert "Attention" in bar
    assert re.search(r"Layer: \d", bar)
    for legend in (look.locator(".look-attention .legend img"), pair.locator(".pair-choice .legend img")):
        assert legend.bounding_box()["height"] > 5
    thumbs = look.locator(".thumbs button:visible img")
    assert thumbs.count() == look.locator("table.heads tbody tr").count() > 1
    whole = look.locator(".look-attention .matrix img").first
    box, window = whole.bounding_box(), look.locator(".look-attention .matrix .window").bounding_box()
    assert box["width"] <= window["width"] + 1, "the map is not cut"
    assert "A: lstm\nB: hybrid" in pair.locator(".pair-choice").inner_text()
    page.emulate_media(media="screen")


def best_two(content):
    """The two of three runs on the same data that are compared: those with the smallest losses, in their order."""
    runs = content["answers"]["GET /api/runs"]["runs"]
    best = sorted(runs, key=lambda run: run["best"])[:2]
    return [run["id"] for run in runs if run in best]


def test_answers_are_those_of_the_server(built, served):
    """What is embedded under a request is what the server answers to it, up to the digits that are kept."""
    answers = embedded(built.page)["answers"]
    one, two = best_two(embedded(built.page))
    asked = {"count": 40, "length": 64, "runs": [one, two], "split": "valid"}
    found = answers[post_key("/api/passages", asked)]
    assert report.round_numbers(served.send("/api/passages", **asked)) == found
    curves = answers[get_key("/api/curves", points=500, runs=f"{one}:")]["runs"][one]
    live = served.ask(f"/api/curves?points=500&runs={one}:")["runs"][one]
    assert curves["columns"] == report.round_numbers(live["columns"], 6)


def test_a_text_of_the_user_is_looked_at_and_scored(folder, ids):
    built = build_report([folder / "lstm"], text="the cat", ask=partial(answer, cache=Cache()))
    data = embedded(built.page)
    look = data["answers"][post_key("/api/look", {"run": ids["lstm"], "text": "the cat"})]
    assert look["tokens"][1:] == ["the", "cat"]
    assert post_key("/api/tokens", {"runs": [ids["lstm"]], "text": "the cat"}) in data["answers"]
    assert data["start"]["look"] == {"run": ids["lstm"], "text": "the cat"}
    for unit in look["units"]:
        assert post_key("/api/head", {"look": look["look"], "unit": unit["key"]}) in data["answers"]


@pytest.mark.parametrize("name", ["translation", "images", "labels"])
def test_every_task_is_looked_at(folder, ids, name):
    built = build_report([folder / name], ask=partial(answer, cache=Cache()))
    data = embedded(built.page)
    assert built.left_out == ()
    assert data["start"]["look"]["run"] == ids[name]
    assert sum(key.startswith("POST /api/head") for key in data["answers"]) > 1


@pytest.mark.parametrize("names", [["labels", "lstm", "translation"], ["lstm", "images", "labels"]])
def test_runs_of_several_tasks_are_each_shown_an_input_of_their_own(folder, ids, names):
    ask = partial(answer, cache=Cache())
    together = build_report([folder / name for name in names], ask=ask)
    assert together.left_out == ()
    asked = [key for key in embedded(together.page)["answers"] if key.startswith("POST")]
    for name in names:
        alone = embedded(build_report([folder / name], ask=ask).page)["answers"]
        assert {key for key in asked if ids[name] in key} == {
            key for key in alone if ids[name] in key and "POST" in key
        }


@pytest.mark.parametrize("name", ["diverged", "training"])
def test_a_run_without_a_result_has_a_report(folder, name):
    built = build_report([folder / name], ask=partial(answer, cache=Cache()))
    (row,) = embedded(built.page)["answers"][get_key("/api/runs")]["runs"]
    assert row["status"] == name


@pytest.mark.needs("studies")
def test_a_study_comes_with_its_cells(folder):
    built = build_report([folder / "study"])
    data = embedded(built.page)
    (study,) = data["answers"][get_key("/api/runs")]["studies"]
    assert len(built.runs) == 4
    assert get_key("/api/study", id=study["id"]) in data["answers"]


@pytest.mark.needs("studies")
def test_the_cells_of_a_study_are_in_its_order_and_two_of_its_settings_are_compared(folder):
    content = embedded(build_report([folder / "study"], ask=partial(answer, cache=Cache())).page)
    runs = content["answers"][get_key("/api/runs")]["runs"]
    assert [(row["settings"]["width"], row["seed"]) for row in runs] == [(4, 0), (4, 1), (8, 0), (8, 1)]
    (asked,) = [key for key in content["answers"] if key.startswith("POST /api/passages")]
    assert json.loads(asked.split(" ", 2)[2])["runs"] == [runs[0]["id"], runs[2]["id"]]


def test_what_does_not_fit_is_left_out_and_named(folder, monkeypatch, built):
    monkeypatch.setattr(report, "LIMIT", len(built.page) - 8000)
    smaller = build_report([folder / "lstm", folder / "lstm-1", folder / HYBRID], ask=partial(answer, cache=Cache()))
    assert len(smaller.page) < len(built.page)
    assert any("the page would be too large" in line for line in smaller.left_out)
    assert embedded(smaller.page)["notes"] == list(smaller.left_out)


def test_the_passage_that_is_shown_first_is_looked_at_whatever_the_tokens(tmp_path):
    data = write_text(tmp_path / "data", "stars", 0)
    tiny = {"model": "lstm", "width": 8, "layers": 1, "steps": 1, "device": "cpu", "no_test": True, "progress": False}
    for kind in ("character", "word"):
        anaphor.train("lm", data=str(data), tokenizer=kind, out=tmp_path / kind, **tiny)
    content = embedded(
        build_report([tmp_path / "character", tmp_path / "word"], ask=partial(answer, cache=Cache())).page
    )
    (passages,) = [found for key, found in content["answers"].items() if key.startswith("POST /api/passages")]
    text = content["start"]["look"]["text"]
    assert passages["passages"][0]["start"] > 0
    assert "".join(passages["passages"][0]["tokens"]).startswith(text)


@pytest.mark.needs("studies")
def test_runs_that_cannot_be_compared_are_a_line_of_the_report(folder):
    built = build_report([folder / "lstm", folder / "study"], ask=partial(answer, cache=Cache()))
    assert not any(str(folder) in line for line in built.left_out)


def test_of_several_runs_two_on_the_same_data_are_compared(tmp_path):
    tiny = {"model": "lstm", "width": 8, "layers": 1, "steps": 1, "device": "cpu", "no_test": True, "progress": False}
    for name, word in (("a", "star"), ("b", "moon"), ("c", "moon")):
        (tmp_path / word).write_text(f"a {word} in the sky\n" * 60)
        anaphor.train("lm", data=str(tmp_path / word), out=tmp_path / "runs" / name, **tiny)
    built = build_report([tmp_path / "runs"], ask=partial(answer, cache=Cache()))
    (asked,) = [key for key in embedded(built.page)["answers"] if key.startswith("POST /api/passages")]
    assert json.loads(asked.split(" ", 2)[2])["runs"] == [make_id("b"), make_id("c")]
    assert built.left_out == ()


def test_what_a_run_cannot_show_is_named_once(folder):
    built = build_report([folder / "lstm", folder / "images"], ask=partial(answer, cache=Cache()), text="the cat")
    (line,) = [line for line in built.left_out if "inside" in line]
    assert line.startswith("the inside of images: ")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run in"):
        build_report([tmp_path])
    with pytest.raises(ConfigError, match="there is no such folder"):
        build_report([tmp_path / "nothing"])


@pytest.mark.slow
def test_paper_has_the_curves_of_each_task_on_axes_of_their_own(folder, browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(build_report([folder / name for name in ("lstm", "lstm-1", "images")]).page, encoding="utf-8")
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = open_page(context)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-printable]", state="attached")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    found = {
        page.locator(f".paper > .curves >> nth={place} >> .heading").inner_text(): page.locator(
            f".paper > .curves >> nth={place} >> .legend-box .line-name"
        ).all_inner_texts()
        for place in range(2)
    }
    assert {title: sorted(names) for title, names in found.items()} == {
        "Curves (images)": ["images"], "Curves (lm)": ["lstm", "lstm-1"]
    }  # fmt: skip
    assert page.wrong == []
    context.close()

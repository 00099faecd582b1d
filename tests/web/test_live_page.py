"""The live page in a real browser: views open and nothing complains; charts follow a run; the address holds the state.

Playwright drives Debian's Chromium. The policy of the page forbids evaluation: tests wait for elements and attributes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from itertools import combinations, pairwise

import numpy as np
import pytest

from anaphor.training.run_folder import RunFolder
from anaphor.web.catalog import make_id
from browsing import open_page
from web.conftest import HOSTILE
from web.pretended_runs import add_cell, write_run, write_study
from web.serving import begin_run, serving

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

VIEWS = ("runs", "curves", "samples", "tokens", "look", "studies")
UNNAMED = """[...document.querySelectorAll("button, a, input, select, textarea, [tabindex='0'], table")].filter((one) =>
    one.offsetParent && !(one.ariaLabel || one.title || one.caption || one.labels?.[0]?.textContent.trim()
        || (one.tagName !== "TABLE" && one.textContent.trim()))).map((one) => one.outerHTML)"""
NARROW, WIDE = {"width": 390, "height": 800}, {"width": 1280, "height": 860}


@pytest.fixture
def open_tab(browser):
    """Opens a tab, with lists of what goes wrong and of what is asked for in it."""
    contexts = []

    def open_tab(served, view="runs", viewport=None, script="", **options):
        context = browser.new_context(viewport=viewport or WIDE, **options)
        contexts.append(context)
        context.add_init_script(script)
        tab = open_page(context)
        tab.goto(served.address)
        show(tab, served, view)
        return tab

    yield open_tab
    for context in contexts:
        context.close()


def show(tab, served, address):
    """Go to a view by its address."""
    tab.goto(f"{served.url}/#{address}")
    tab.wait_for_selector(f"html[data-ready={address.partition('?')[0]}]", state="attached")


def until_drawn(tab):
    """Charts are drawn in the next frame."""
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def address_of(tab):
    """As the page has it: playwright hears of it later."""
    return tab.evaluate("location.href")


def overflow(tab):
    return tab.evaluate("document.documentElement.scrollWidth - innerWidth")


def chart(tab, metric="valid.loss", **attributes):
    """The chart of a metric, once it has these attributes."""
    wanted = "".join(f"[data-{name}='{value}']" for name, value in attributes.items())
    return tab.wait_for_selector(f".chart[data-metric='{metric}']{wanted}")


# ---- colors of runs, without a browser

SEEN_BY = {  # what a dichromat sees of linear red, green and blue (Machado et al. 2009, severity 1)
    "normal": np.eye(3),
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def to_linear(code):
    values = np.array([int(code[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def to_lab(linear):
    x, y, z = TO_XYZ @ np.clip(linear, 0, 1) / (0.9505, 1, 1.089)
    x, y, z = (np.cbrt(value) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(("scheme", "paper", "contrast"), [(0, "#ffffff", 3), (1, "#191d24", 4.5)])
def test_ten_runs_have_colors_that_color_blind_readers_tell_apart(scheme, paper, contrast):
    text = (files("anaphor.web") / "static" / "selection.js").read_text()
    colors = [to_linear(pair[scheme]) for pair in re.findall(r'\["(#\w{6})", "(#\w{6})"\]', text)]
    assert len(colors) == 10
    for name, matrix in SEEN_BY.items():
        places = [to_lab(np.array(matrix) @ color) for color in colors]
        assert min(np.linalg.norm(a - b) for a, b in combinations(places, 2)) > 20, name
    lights = [TO_XYZ[1] @ color for color in (*colors, to_linear(paper))]
    assert all((max(one, lights[-1]) + 0.05) / (min(one, lights[-1]) + 0.05) >= contrast for one in lights[:-1])


# ---- row 1: every view, on a folder with runs of every kind


@pytest.mark.parametrize(("scheme", "viewport"), [("light", WIDE), ("dark", NARROW)])
def test_every_view_opens_without_an_error_and_asks_no_other_host(open_tab, served, scheme, viewport):
    tab = open_tab(served, viewport=viewport, color_scheme=scheme)
    names = tab.locator("#tabs a").evaluate_all("links => links.map((link) => link.dataset.view)")
    assert names == list(VIEWS)
    for name in VIEWS:
        tab.click(f"#tabs a[data-view={name}]")
        tab.wait_for_selector(f"html[data-ready={name}]", state="attached")
        assert tab.locator("#status.error").count() == 0, name
        assert tab.locator(".view").inner_text().strip(), name
        assert overflow(tab) <= 0, f"{name} is wider than the window"
        assert tab.evaluate(UNNAMED) == [], name
    assert tab.wrong == []
    assert [asked.url for asked in tab.asked if not asked.url.startswith((f"{served.url}/", "data:"))] == []


@pytest.mark.needs("studies")
def test_the_table_says_what_the_server_says(open_tab, served, ids):
    rows = {row["id"]: row for row in served.ask("/api/runs")["runs"]}
    tab = open_tab(served)
    table = tab.locator(".runs table")
    expect(tab.locator("#tasks select")).to_have_value("lm")
    of_task = [row for row in rows.values() if row["task"] == "lm"]
    assert table.get_attribute("data-rows") == str(len(of_task))
    for name, status in (("training", "training"), ("lstm", "finished"), ("diverged", "diverged")):
        row = tab.locator(f"tr[data-run='{ids[name]}']")
        assert row.locator(".badge").inner_text() == status == rows[ids[name]]["status"]
    best = tab.locator(f"tr[data-run='{ids['lstm']}']").inner_text()
    assert f"{rows[ids['lstm']]['best']:.4g}" in best
    assert tab.locator("tbody input.choose:checked").count() == min(len(of_task), 10), (
        "at most ten are selected at first"
    )
    assert table.locator("thead th[scope=col]").count() > 8
    assert table.locator("tbody th[scope=row]").count() >= len(of_task)


TWO_TASKS = {"words": ("lm", 2.0), "other words": ("lm", 3.0), "pictures": ("images", 0.5)}


def write_two_tasks(folder):
    for name, (task, loss) in TWO_TASKS.items():
        write_run(folder / name, losses=(loss + 1, loss), task=task, width=len(name), clip=loss, dropout=loss / 10)


def test_one_task_is_shown_at_a_time(open_tab, tmp_path):
    """The newest run's at first, then the one that the reader chooses, or that a run in the address has."""
    write_two_tasks(tmp_path)
    for age, name in enumerate(TWO_TASKS):
        for path in (tmp_path / name).iterdir():
            os.utime(path, (1e9 - age, 1e9 - age))
    with serving(tmp_path) as served:
        tab = open_tab(served, "curves")
        switch = tab.locator("#tasks select")
        expect(switch).to_have_value("images" if served.ask("/api/runs")["runs"][-1]["task"] == "images" else "lm")
        switch.select_option("lm")
        chart(tab, "valid.loss", lines=2)
        assert "task=lm" in address_of(tab)
        switch.select_option("images")
        chart(tab, "valid.loss", lines=1)
        assert tab.locator(".legend-box .line-name").all_inner_texts() == ["pictures"]
        tab.click("#tabs a[data-view=runs]")
        expect(tab.locator(".runs table")).to_have_attribute("data-rows", "1")
        tab.go_back()
        chart(tab, "valid.loss", lines=1)
        tab.go_back()
        chart(tab, "valid.loss", lines=2)
        both = f"{make_id('words')},{make_id('pictures')}"
        show(tab, served, f"curves?runs={both}")
        chart(tab, "valid.loss", lines=1)
        expect(switch).to_have_value("lm")
        assert tab.locator(".legend-head").inner_text().startswith("Validation loss")
        assert tab.wrong == []


LONG = "a-transformer-with-a-name-that-is-much-longer-than-any-column-of-a-table-can-be-wide"


def test_the_table_of_runs_has_ten_columns_and_more_and_sorts_by_the_goal(open_tab, tmp_path):
    for number, accuracy in enumerate((0.5, 0.9, 0.1)):
        run = write_run(tmp_path / f"run-{number}", losses=(), task="images", width=8 + number, lr=0.1 * (number + 1),
                        clip=1.0 + number, dropout=0.1 * number)  # fmt: skip
        run.spec.write_text(run.spec.read_text().replace("select: loss", "select: accuracy"))
        run.result.unlink()
        run.log(1, epoch=1, valid={"accuracy": accuracy, "loss": 1.0})
    shutil.copytree(tmp_path / "run-0", tmp_path / LONG)
    with serving(tmp_path) as served:
        tab = open_tab(served)
        heads = tab.locator(".runs thead th")
        assert heads.count() == 1 + 10, "and a box to select with"
        box = tab.locator(".runs .scroll").evaluate("one => [one.scrollWidth, one.clientWidth]")
        assert box[0] <= box[1], "the tenth column is whole, however long a name is"
        tab.fill(".filter", "run-")
        names = lambda: tab.locator(".runs button.name").all_inner_texts()  # noqa: E731
        tab.get_by_role("button", name="Best validation accuracy").click()
        expect(heads.nth(4)).to_have_attribute("aria-sort", "descending")
        assert names() == ["run-1", "run-0", "run-2"], "the largest accuracy is the best"
        tab.get_by_role("button", name="Best validation accuracy").click()
        assert names() == ["run-2", "run-0", "run-1"]
        tab.get_by_role("button", name="More columns (2)").click()
        expect(heads).to_have_count(1 + 12)
        assert tab.locator("tbody th .rename-run").count() == tab.locator("tbody th .hide-run").count() == 3
        assert tab.wrong == []


SMALL = """[...document.querySelectorAll(".view :is(button, input, select, a)")].filter((one) => {
    const box = one.getBoundingClientRect();
    return one.offsetParent && getComputedStyle(one).visibility === "visible" && (box.height < 24 || box.width < 24);
}).map((one) => one.outerHTML)"""
CUT = """[...document.querySelectorAll("table.cards tr > *, table.cards button")].filter((one) =>
    one.offsetParent && one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML)"""


def test_on_a_phone_a_run_is_a_card_with_its_whole_name_and_its_values(open_tab, tmp_path):
    for name in ("short", LONG):
        write_run(tmp_path / name, width=len(name))
    with serving(tmp_path) as served:
        tab = open_tab(served, viewport=NARROW, has_touch=True)
        card = tab.locator(f"tr[data-run='{make_id(LONG)}']")
        assert LONG in card.inner_text()
        labels = card.locator("td[data-label]").evaluate_all("all => all.map((one) => one.dataset.label)")
        assert labels[:4] == ["Status", "Step", "Best validation loss", "Last"]
        assert tab.evaluate(CUT) == []
        assert tab.evaluate(SMALL) == []
        assert overflow(tab) <= 0
        boxes = [tab.locator("table.cards tbody tr").nth(place).bounding_box() for place in (0, 1)]
        assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
        tab.locator(".card-order select").select_option("name")
        assert tab.locator(".runs button.name").all_inner_texts() == [LONG, "short"]
        card.locator("button.name").click()
        assert "open=" in address_of(tab)
        assert overflow(tab) <= 0
        assert tab.wrong == []


FIELD = re.compile(r"--field: (#\w{6})")


def test_fields_have_borders_that_are_seen():
    """At least 3:1 against the page and against what they are on, light and dark."""
    static = {name: (files(f"anaphor.{name}") / "static") for name in ("web", "inspect")}
    fields = FIELD.findall((static["web"] / "app.css").read_text())
    page = (static["inspect"] / "page.css").read_text()
    assert len(fields) == 2
    for field, *papers in zip(
        fields, *(re.findall(rf"--{name}: (#\w{{6}})", page) for name in ("paper", "card")), strict=True
    ):
        for paper in papers:
            light, dark = sorted((TO_XYZ[1] @ to_linear(code) for code in (field, paper)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3, (field, paper)


@pytest.mark.slow
def test_a_band_is_the_interval_of_the_mean_or_says_that_it_is_not(open_tab, tmp_path):
    losses = {0: (3.0, 2.0), 1: (3.2, 2.5), 2: (3.1, 2.4)}
    for seed, own in losses.items():
        write_run(tmp_path / f"seed-{seed}", losses=own, seed=seed)
    with serving(tmp_path) as served:
        tab = open_tab(served, "curves?group=1&charts=valid.loss")
        chart(tab, lines=1)
        expect(tab.locator(".band-note")).to_contain_text("95 % interval")
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Download validation loss as CSV").click()
        rows = [line.split(",") for line in saved.value.path().read_text().splitlines()]
        assert rows[0] == ["run", "step", "valid.loss", "lowest", "highest", "interval_low", "interval_high"]
        for row, values in zip(rows[1:], zip(*losses.values(), strict=True), strict=True):
            half = 4.303 * np.std(values, ddof=1) / np.sqrt(3)  # Student's t with two degrees of freedom
            expected = [np.mean(values), min(values), max(values), np.mean(values) - half, np.mean(values) + half]
            assert [float(value) for value in row[2:]] == pytest.approx(expected, rel=1e-3)
        tab.get_by_label("Band").select_option("range")
        expect(tab.locator(".band-note")).to_contain_text("from the lowest to the highest seed")
        assert "band=range" in address_of(tab)
        assert tab.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_printed_view_keeps_its_title_its_legend_and_its_colors_and_is_light(open_tab, served, ids, scheme):
    tab = open_tab(served, f"look?run={ids['hybrid']}&text=the cat sat", color_scheme=scheme)
    tab.wait_for_selector(".thumbs[data-shown]")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    seen = tab.locator("main :is(h1, h2):visible").all_inner_texts()
    assert seen[0] == "Look"
    assert {"Text", "Attention"} <= {*seen}
    expect(tab.locator(".look-attention .legend")).to_be_visible()
    buttons = "main button:visible:not(.thumbs button, th button, .heads button)"
    assert tab.locator(f"header select:visible, {buttons}, main input:visible").count() == 0
    expect(tab.locator(".look-attention select[name=layer]")).to_be_visible()  # as text: which layer it is
    style = (
        tab.locator(".look-text .token")
        .nth(2)
        .evaluate("one => [getComputedStyle(one).printColorAdjust, one.style.backgroundColor]")
    )
    assert style[0] == "exact"
    assert style[1]
    paper = tab.evaluate("getComputedStyle(document.body).getPropertyValue('--paper')")
    assert paper.strip() == "#ffffff"
    assert tab.wrong == []


@pytest.mark.slow
def test_on_paper_a_map_is_whole_and_no_text_is_cut_or_covered(open_tab, served, ids, tmp_path):
    tab = open_tab(served, f"look?run={ids['hybrid']}&text={'the cat sat on the mat ' * 10}")
    tab.wait_for_selector(".look-attention[data-shown]")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    canvas = tab.locator(".matrix canvas").evaluate("one => ({...one.dataset, drawn: one.height / devicePixelRatio})")
    assert int(canvas["rows"]) == 61
    assert float(canvas["drawn"]) > float(canvas["top"]) + 61 * float(canvas["high"]) > 700
    box, room = (
        tab.locator(f".look-attention .split {one}").bounding_box() for one in (".matrix canvas", "> :first-child")
    )
    assert box["width"] <= room["width"]

    study = write_study(tmp_path / "a-study-with-a-name-of-many-words")
    add_cell(study, {"width": 4}, 0)
    for number in range(6):
        write_run(tmp_path / f"a-run-with-a-name-of-many-words-{number}").add_sample(10, "a cat")
    with serving(tmp_path) as other:
        tab = open_tab(other)
        tab.emulate_media(media="print")
        for name in tab.locator(".runs .run-name").all():
            parts = [part.bounding_box() for part in name.locator("> *").all()]
            assert all(one["x"] + one["width"] <= two["x"] + 1 or one["y"] < two["y"] for one, two in pairwise(parts))
        show(tab, other, "samples")
        tab.wait_for_selector(".samples-box[data-steps]")
        tops = {cell.bounding_box()["y"] for cell in tab.locator("td.sample:visible").all()}
        assert len(tops) == 6, "one below the other"


@pytest.mark.slow
def test_a_curve_of_the_step_log_goes_to_the_end_of_the_run(open_tab, tmp_path):
    run = write_run(tmp_path / "run", losses=(3.0, 2.0))  # trained with 4 and 3 at steps 10 and 20
    for step, loss in ((1, 6.0), (5, 5.0), (12, 4.0)):
        run.log_step(
            {"step": step, "loss": loss, "lr": 0.1, "grad_norm": 1.0, "throughput": None, "seconds_left": None}
        )
    with serving(tmp_path) as served:
        tab = open_tab(served, "curves?charts=train_loss")
        chart(tab, "train_loss", lines=1)
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Download training loss as CSV").click()
        rows = [line.split(",")[1:] for line in saved.value.path().read_text().splitlines()]
        assert [[float(value) for value in row] for row in rows[1:]] == [[1, 6], [5, 5], [12, 4], [20, 3]]
        show(tab, served, "curves?charts=train_loss&x=seconds")
        chart(tab, "train_loss", lines=1)
        assert tab.wrong == []


@pytest.mark.slow
def test_an_address_opens_the_details_of_a_run_far_down_the_list(open_tab, tmp_path):
    for number in range(40):
        write_run(tmp_path / f"run-{number:02}")
    write_run(tmp_path / "other", task="translate")
    with serving(tmp_path) as served:
        tab = open_tab(served, f"runs?open={make_id('run-00')}&sort=-name")
        expect(tab.locator(".detail")).to_be_in_viewport()
        expect(tab.locator("tr[data-run]").filter(has_text="run-00")).to_be_in_viewport()


@pytest.mark.slow
def test_a_training_is_on_the_page_within_ten_seconds_of_its_start(open_tab, tmp_path):
    """Long before its first validation; the time in which Python loads torch is not counted."""
    words = (
        "train lm --data grammar --model lstm --width 16 --steps 1000000 --eval-every 1000000 --device cpu --no-test"
    )
    with serving(tmp_path) as served:
        tab = open_tab(served, "curves")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = tmp_path / "run"
        with subprocess.Popen([sys.executable, "-m", "anaphor", *words.split(), "--out", run], env=environment,
                              stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as training:  # fmt: skip
            try:
                while not (run / "spec.yaml").exists():  # it is written before the first step
                    assert training.poll() is None
                    tab.wait_for_timeout(50)
                tab.wait_for_selector(".chart[data-metric=train_loss][data-lines='1']", timeout=10_000)
                for metric in ("lr", "grad_norm", "throughput"):
                    chart(tab, metric)
                show(tab, served, "runs")
                expect(tab.locator(f"tr[data-run='{make_id('run')}']")).to_contain_text("in training")
            finally:
                training.kill()
        assert tab.wrong == []


def test_an_empty_folder_has_the_commands_that_fill_it(open_tab, tmp_path, monkeypatch):
    (tmp_path / "my runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "my runs") as served:
        tab = open_tab(served)
        command = "anaphor train lm --data grammar --model lstm --out 'my runs/lstm'"
        expect(tab.locator(".empty code")).to_have_text(command)
        for view in ("curves", "samples"):
            show(tab, served, view)
            expect(tab.locator(".empty code")).to_have_text(command)
        show(tab, served, "studies")
        expect(tab.locator(".empty code")).to_have_text("anaphor study bptt --out 'my runs/bptt'")
        show(tab, served, "curves")
        write_run(tmp_path / "my runs" / "first")
        chart(tab, lines=1)  # it appears without a click
        assert tab.wrong == []


# ---- more runs than colors


@pytest.mark.slow
def test_runs_beyond_the_tenth_have_the_same_colors_and_dashes_wherever_they_are_shown(open_tab, tmp_path):
    """One swatch for each line in the legend, the tip and the tables; a run with one point is told apart, too."""
    names = [f"run-{number:02}" for number in range(1, 34)]
    for number, name in enumerate(names):
        losses = (3 + number / 100,) if number in (9, 19) else (3 + number / 100, 2 + number / 100)
        write_run(tmp_path / name, losses=losses).add_sample(10, "a cat")
    chosen = ",".join(map(make_id, names))

    def swatches(place):
        found = tab.locator(f"{place} .swatch").evaluate_all("all => all.map((one) => one.style.background)")
        assert len(set(found)) == len(found), f"two lines look alike in {place}"
        return found

    with serving(tmp_path) as served:
        tab = open_tab(served, f"curves?runs={chosen}&charts=valid.loss")
        box = chart(tab, lines=len(names)).bounding_box()
        legend = swatches(".legend-box")
        dashes = [re.findall(r"rgb\([^)]*\) (\w+), rgb\([^)]*\) (\w+)", swatch) for swatch in legend]
        assert sorted(map(len, dashes)) == [0] * 10 + [1] * 20 + [2] * 3, "solid, dashed, dotted, dashed and dotted"
        tab.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
        tab.wait_for_selector(".chart .tip .swatch")
        assert set(swatches(".chart .tip")) <= set(legend)
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Download validation loss as SVG").click()
        drawing = saved.value.path().read_text(encoding="utf-8")
        drawn = re.findall(r'stroke="(#\w+)" stroke-width="1.6"[^>]*?(?: stroke-dasharray="([^"]*)")?/>', drawing)
        dashed = [line for line in drawn if line[1]]
        assert len(set(dashed)) == len(dashed) == len(names) - 10
        assert drawing.count("<circle ") == 2
        show(tab, served, f"runs?runs={chosen}")
        assert sorted(swatches(".runs tbody")) == sorted(legend)
        show(tab, served, f"samples?runs={chosen}")
        tab.wait_for_selector(".samples-box[data-steps]")
        assert swatches(".samples-box thead") == legend
        assert tab.wrong == []


# ---- a chart that is open while a run is trained


@pytest.fixture
def growing(trained, tmp_path, served):
    """A served folder with a run whose metrics a test writes; gives the server, the run and its remaining lines."""
    folder = tmp_path / "runs"
    folder.mkdir()
    rest = begin_run(folder / "training", trained / "lstm")
    shutil.copytree(trained / "lstm-1", folder / "lstm-1")
    with RunFolder(folder / "training").lock(), serving(folder) as found:
        yield found, folder / "training", rest


def write_row(run, row):
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(row)


def drag(tab, box, start, end):
    tab.mouse.move(box["x"] + start[0], box["y"] + start[1])
    tab.mouse.down()
    tab.mouse.move(box["x"] + end[0], box["y"] + end[1])
    tab.mouse.up()


SHORT_PAUSES = """window.pauses = [];  // as the page wants them; it does not wait as long
const wait = setTimeout;
window.setTimeout = (work, pause = 0, ...rest) => { pauses.push(pause); return wait(work, pause / 10, ...rest); };"""


def test_a_new_point_appears_in_an_open_chart_after_two_seconds_at_most_and_the_zoom_is_kept(open_tab, growing):
    """The pauses of the page are looked at, not a clock: how long an answer takes depends on what else is at work."""
    served, run, rest = growing
    both = f"{make_id('training')},{make_id('lstm-1')}"
    tab = open_tab(served)
    tab.add_init_script(SHORT_PAUSES)
    tab.goto("about:blank")  # else only the part behind # would change
    show(tab, served, f"curves?runs={both}&charts=valid.loss")
    whole = chart(tab, lines=2)
    points, everything = int(whole.get_attribute("data-points")), whole.get_attribute("data-x")
    drag(tab, whole.bounding_box(), (150, 60), (400, 70))
    domain, address = chart(tab, zoomed="yes").get_attribute("data-x"), address_of(tab)
    assert domain != everything
    write_row(run, rest[0])
    assert chart(tab, points=points + 1).get_attribute("data-x") == domain
    later = json.dumps({**json.loads(rest[0]), "step": 1000}).encode()
    write_row(run, later[:40])  # a line that is not complete is no point, and no error
    write_row(run, later[40:] + b"\n")
    assert chart(tab, points=points + 2).get_attribute("data-x") == domain
    assert address_of(tab) == address
    tab.dblclick(".chart .overlay")
    assert chart(tab, zoomed="no").get_attribute("data-x").endswith(",1000")
    assert 1000 <= max(tab.evaluate("pauses")) <= 2000
    assert tab.wrong == []


def test_a_click_on_the_legend_is_not_lost_to_a_new_point(open_tab, growing):
    served, run, rest = growing
    both = f"{make_id('training')},{make_id('lstm-1')}"
    tab = open_tab(served, f"curves?runs={both}&charts=valid.loss", script=SHORT_PAUSES)
    chart(tab, lines=2)
    tab.locator(".legend-box .drop").first.hover()
    tab.mouse.down()
    step = json.loads(rest[0])["step"]
    with tab.expect_response(lambda answer: "/api/curves" in answer.url and f"{step}" in answer.text()):
        write_row(run, rest[0])
    until_drawn(tab)
    tab.mouse.up()
    chart(tab, lines=1)
    expect(tab.locator(".legend-box .drop")).to_have_count(1)
    assert tab.wrong == []


@pytest.mark.slow
def test_a_zoom_into_a_thinned_curve_shows_every_point_and_a_spike_is_always_seen(open_tab, growing):
    served, run, rest = growing
    row = {**json.loads(rest[0]), "train_loss": 1.0}
    rows = [{**row, "step": 100 + step, "train_loss": 50.0 if step == 1234 else 1 + step % 7} for step in range(3000)]
    write_row(run, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    tab = open_tab(served, f"curves?runs={make_id('training')}&charts=train_loss")
    whole = chart(tab, "train_loss", lines=1)
    assert int(whole.get_attribute("data-points")) < 1000
    assert float(whole.get_attribute("data-y").split(",")[1]) > 50
    show(tab, served, f"curves?runs={make_id('training')}&charts=train_loss&zoom=2000,2100")
    # 101 points inside, and one or two on either side to which the lines lead
    expect(tab.locator(".chart")).to_have_attribute("data-drawn", re.compile(r"10[2-5]"))
    with tab.expect_download() as saved:
        tab.get_by_role("button", name="Download training loss as CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert [float(line.split(",")[2]) for line in lines[-3000:]] == [row["train_loss"] for row in rows]
    assert tab.wrong == []


def test_a_run_that_is_deleted_and_a_server_that_is_gone_are_told_and_the_page_goes_on(open_tab, growing):
    served, run, _ = growing
    both = f"{make_id('training')},{make_id('lstm-1')}"
    tab = open_tab(served, f"curves?runs={both}&charts=valid.loss", script=SHORT_PAUSES)
    chart(tab, lines=2)
    shutil.rmtree(run.parent / "lstm-1")
    tab.wait_for_selector("#status.error:text('gone')")
    chart(tab, lines=1)
    tab.context.set_offline(True)
    tab.wait_for_selector("#connection:text('no connection to the server')")
    chart(tab, lines=1)
    tab.context.set_offline(False)
    tab.wait_for_selector("#connection", state="hidden")
    assert [line for line in tab.wrong if "ERR_INTERNET_DISCONNECTED" not in line] == []


@pytest.mark.needs("studies")
@pytest.mark.slow
def test_a_study_that_grows_is_followed_and_its_failed_cell_says_why(open_tab, trained, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(trained / "study", folder / "study")
    first, second, *_ = sorted((folder / "study" / "cells").iterdir())
    result = (first / "result.json").read_bytes()
    for cell in (first, second):
        (cell / "result.json").unlink()
    (second / "status.json").write_text(json.dumps({"status": "failed", "reason": "no memory left"}))
    with serving(folder) as served:
        tab = open_tab(served, "studies")
        expect(tab.locator(".study-facts")).to_contain_text("2 of 4 cells · 1 failed")
        assert "no memory left" in tab.inner_text(f".cells tr[data-row='{second.name}']")
        assert tab.locator("table.heat tbody td").count() == 2, "one for each width"
        (first / "result.json").write_bytes(result)
        expect(tab.locator(".study-facts")).to_contain_text("3 of 4 cells · 1 failed")
        tab.click(f".cells tr[data-row='{first.name}'] a")
        chart(tab, "valid.loss", lines=1)
        assert tab.wrong == []


@pytest.mark.needs("studies")
@pytest.mark.slow
def test_of_what_is_tuned_the_map_has_all_values_and_the_table_the_chosen_one(open_tab, tmp_path):
    study = write_study(tmp_path / "tuned", tune={"lr": {"values": [0.1, 0.2]}}, tune_seeds=1, seeds=[0])
    cells = []
    for width, lr, loss in ((4, 0.1, 1.0), (4, 0.2, 2.0), (8, 0.1, 3.0), (8, 0.2, 2.5)):
        cell = add_cell(study, {"width": width, "lr": lr}, 0, loss=loss)
        chosen = (width, lr) in ((4, 0.1), (8, 0.2))
        cells.append({"parameters": {"width": width, "lr": lr}, "seed": 0, "run": str(cell), "chosen": chosen})
    (study / "result.json").write_text(json.dumps({"cells": cells}))
    write_run(tmp_path / "other", task="translate")
    with serving(tmp_path) as served:
        tab = open_tab(served, "studies?task=lm")
        assert tab.locator(".heat td:not(.quiet)").all_inner_texts() == ["1.000", "3.000", "2.000", "2.500"]
        expect(tab.locator(".heat-box .axes")).to_contain_text("All values that were tried")
        assert tab.locator(".settings tbody tr").count() == 2
        assert tab.locator(".cells tbody tr").count() == 4
        show(tab, served, "studies?task=translate")
        expect(tab.locator(".others")).to_have_text("Studies of other tasks: tuned (lm)")
        tab.locator(".others a").click()
        expect(tab.locator(".study-title")).to_have_text("tuned")
        assert tab.wrong == []


@pytest.mark.needs("studies")
def test_a_study_shows_its_question_and_its_cells_by_their_settings_which_open_their_runs(open_tab, tmp_path):
    study = write_study(tmp_path / "widths", about="which width is <b>best</b>?")
    for number, (width, seed) in enumerate([(8, 1), (4, 0), (8, 0), (4, 1)]):
        add_cell(study, {"width": width}, seed, loss=2 + number / 10)
    with serving(tmp_path) as served:
        tab = open_tab(served, "studies")
        expect(tab.locator(".question")).to_have_text("which width is <b>best</b>?")
        names = tab.locator(".cells tbody th").all_inner_texts()
        assert names == ["width 4", "width 4", "width 8", "width 8"]
        assert tab.locator(".cells tbody tr").first.inner_text().split()[2] == "0", "its seed"
        expect(tab.locator(".settings thead th").nth(1)).to_contain_text("Validation loss (nats per token)")
        tab.locator("table.heat a").nth(1).click()
        chart(tab, "valid.loss", lines=1)
        assert tab.locator(".legend-box .line-name").inner_text() == "widths: width 8 × 2 seeds"
        assert tab.wrong == []


def test_the_mean_over_seeds_is_the_same_over_steps_and_time_and_its_plus_minus_an_interval(open_tab, tmp_path):
    for seed, pace in ((0, 1), (1, 3)):
        run = write_run(tmp_path / f"run-{seed}", losses=(), result=None, seed=seed)
        for number in range(1, 6):
            run.log(10 * number, epoch=number, seconds=pace * number**1.5, valid={"loss": 4.0 - number / 5 + seed})
    with serving(tmp_path) as served:
        found = {}
        tab = open_tab(served)
        for x in ("step", "seconds"):
            show(tab, served, f"curves?group=1&charts=valid.loss&x={x}")
            one = chart(tab, "valid.loss", lines=1)
            found[x] = (one.get_attribute("data-points"), one.get_attribute("data-y"))
        assert found["step"] == found["seconds"]
        show(tab, served, "runs?group=1")
        # seeds have 3 and 4; the interval of Student's t with one degree of freedom is 12.7 standard errors of 0.5 wide
        expect(tab.locator(".runs tbody tr").first).to_contain_text("3.500 ± 6.4")
        assert tab.wrong == []


@pytest.mark.needs("studies")
@pytest.mark.slow
def test_where_room_is_short_the_settings_of_a_cell_are_shown_and_its_study_is_cut(open_tab, trained, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(trained / "study", folder / "study-with-a-name-that-is-longer-than-any-column-of-the-page")
    with serving(folder) as served:
        tab = open_tab(served, "curves?charts=valid.loss")
        chart(tab, lines=4)
        names = [tab.locator(".legend-box .run-name")]
        tab.locator(".chart .overlay").hover()
        names.append(tab.locator(".chart .tip .run-name"))
        assert [name.count() for name in names] == [4, 4]
        fits = "all => all.map((part) => part.scrollWidth <= part.clientWidth)"
        for name, is_whole in zip(names, (True, False), strict=True):
            assert name.locator(".of-study").evaluate_all(fits) == [is_whole] * 4
            assert name.locator(":scope > :last-child").evaluate_all(fits) == [True] * 4
        show(tab, served, "runs")
        parts = tab.locator(".runs .name > :last-child")
        settings = [f"width {width}, seed {seed}" for width in (4, 8) for seed in (0, 1)]
        assert sorted(parts.all_text_contents()) == settings
        assert parts.evaluate_all(fits) == [True] * 4
        assert tab.wrong == []


@pytest.mark.slow
def test_two_runs_on_the_same_data_are_compared_first(open_tab, trained, tmp_path):
    for name in ("lstm", "lstm-1"):
        shutil.copytree(trained / name, tmp_path / "runs" / name)
    shutil.copytree(trained / "lstm", tmp_path / "runs" / "newest")
    spec = tmp_path / "runs" / "newest" / "spec.yaml"
    text = spec.read_text()
    assert "data/text.txt" in text
    spec.write_text(text.replace("data/text.txt", "python-reference"))
    with serving(tmp_path / "runs") as served:
        tab = open_tab(served, "tokens")
        chosen = {tab.locator(f"select[name={letter}]").input_value() for letter in "ab"}
        assert chosen == {make_id("lstm"), make_id("lstm-1")}
        tab.locator("select[name=a]").select_option(make_id("newest"))
        assert tab.locator("select[name=b]").input_value() in chosen, "the only ones of its task"


# ---- what the address and the keys do


@pytest.mark.slow
def test_the_state_of_a_view_is_in_its_address_and_back_works(open_tab, served, ids):
    tab = open_tab(served, f"curves?runs={ids['lstm']},{ids['lstm-1']}&charts=valid.loss,train_loss")
    chart(tab, lines=2)
    tab.get_by_label("Seeds together").check()
    chart(tab, lines=1)
    tab.get_by_label("x axis").select_option("count")
    tab.get_by_label("Smoothing").fill("0.6")
    tab.get_by_role("button", name="Logarithmic y axis").first.click()
    until_drawn(tab)
    shown, address = chart(tab, lines=1).get_attribute("data-y"), address_of(tab)
    tab.reload()
    expect(tab.locator(".chart[data-metric='valid.loss']")).to_have_attribute("data-y", shown)
    assert address_of(tab) == address
    assert tab.get_by_label("x axis").input_value() == "count"
    assert tab.get_by_label("Smoothing").input_value() == "0.6"
    tab.click("#tabs a[data-view=samples]")
    tab.wait_for_selector(".samples-box[data-steps]")
    assert f"runs={ids['lstm']},{ids['lstm-1']}" in address_of(tab), "the selection goes from view to view"
    tab.go_back()
    chart(tab, lines=1)
    assert address_of(tab) == address
    tab.go_back()
    tab.wait_for_selector(".curves button[aria-pressed=false] >> nth=1")
    assert "ylog" not in address_of(tab)
    assert tab.wrong == []


def test_a_zoom_is_undone_by_back_and_a_chart_is_enlarged(open_tab, served, ids):
    tab = open_tab(served, f"curves?runs={ids['lstm']}&charts=valid.loss,train_loss,lr")
    whole = chart(tab, zoomed="no")
    rights = [tab.locator(".chart-card").nth(place).bounding_box() for place in range(3)]
    rows = {box["y"]: max(one["x"] + one["width"] for one in rights if one["y"] == box["y"]) for box in rights}
    assert len(rows) == 2, "two rows"
    assert max(rows.values()) - min(rows.values()) < 2, "which charts fill"
    drag(tab, whole.bounding_box(), (150, 60), (300, 70))
    chart(tab, zoomed="yes")
    tab.go_back()
    wide = chart(tab, zoomed="no").bounding_box()["width"]
    tab.get_by_role("button", name="Enlarge the chart of validation loss").click()
    expect(tab.locator(".chart")).to_have_count(1)
    assert chart(tab).bounding_box()["width"] > 1.8 * wide
    tab.go_back()
    expect(tab.locator(".chart")).to_have_count(3)
    assert tab.wrong == []


def test_a_color_belongs_to_a_run_whatever_is_selected(open_tab, tmp_path):
    names = [f"run-{number:02}" for number in range(12)]
    for name in names:
        write_run(tmp_path / name)
    with serving(tmp_path) as served:
        tab = open_tab(served)
        colors = {}
        for chosen in (names, names[5:9], names[8:], names[11:]):
            show(tab, served, f"curves?runs={','.join(map(make_id, chosen))}")
            chart(tab, "valid.loss", lines=len(chosen))
            for item in tab.locator(".legend-box li").all():
                swatch = item.locator(".swatch").evaluate("one => one.style.background")
                color = re.search(r"rgb\([^)]*\)", swatch)[0]
                assert colors.setdefault(item.locator(".line-name").inner_text(), color) == color
        assert len(set(colors.values())) == 10
        assert tab.wrong == []


@pytest.mark.slow
def test_runs_are_filtered_selected_hidden_and_named_by_the_keyboard(open_tab, served, ids):
    tab = open_tab(served)
    tab.keyboard.press("/")
    tab.keyboard.type("task=lm model=lstm steps>4 !")
    expect(tab.locator(".no-match")).to_contain_text("No run matches “task=lm model=lstm steps>4 !”.")
    expect(tab.locator(".runs table")).to_be_hidden()
    tab.keyboard.press("Backspace")
    tab.wait_for_selector(".runs table[data-rows='4']")
    tab.keyboard.press("Enter")
    # A row may be replaced at any moment, since it says how old its run is: what is asked of it is asked again.
    boxes = tab.locator("tbody input.choose")
    expect(boxes.first).to_be_focused()
    was = boxes.first.is_checked()
    tab.keyboard.press("Space")
    expect(boxes.first).to_be_checked(checked=not was)
    tab.keyboard.press("ArrowDown")
    expect(boxes.nth(1)).to_be_focused()
    row = tab.locator(f"tr[data-run='{ids['lstm']}']")
    row.locator(".rename-run").click(force=True)
    tab.keyboard.type("<b>mine")
    tab.keyboard.press("Enter")
    tab.reload()
    expect(row.locator("button.name")).to_have_text("<b>mine")
    row.locator(".hide-run").click(force=True)
    tab.wait_for_selector(".runs table[data-rows='3']")
    tab.locator("body").press("?")
    expect(tab.locator("dialog[open] dt").nth(4)).to_be_visible()
    tab.keyboard.press("Escape")
    tab.locator("body").press("2")
    tab.wait_for_selector("html[data-ready=curves]", state="attached")
    assert tab.wrong == []


HURRY = """let now = 0;
Date.now = () => (now += 3600000); // whenever the table is drawn its ages have changed
const wait = setTimeout;
window.setTimeout = (work, pause = 0, ...rest) => wait(work, pause / 100, ...rest);
window.requestAnimationFrame = () => 0; // no frame is ever drawn"""


@pytest.mark.slow
def test_no_key_is_lost_while_the_table_of_runs_is_drawn_again(open_tab, served):
    tab = open_tab(served, script=HURRY)
    box = tab.locator("tbody input.choose").first
    was = box.is_checked()
    box.focus()
    tab.keyboard.down("Space")
    for _ in range(20):  # the table is drawn about as often as the server is asked
        with tab.expect_response("**/api/runs*"):
            pass
    tab.keyboard.up("Space")
    expect(box).to_be_checked(checked=not was)
    tab.locator(".rename-run").first.click(force=True)
    tab.keyboard.type("mine")
    tab.keyboard.press("Enter")
    expect(tab.locator("button.name", has_text="mine")).to_have_count(1)


@pytest.mark.slow
def test_a_chart_is_read_by_the_keyboard_and_saved(open_tab, served, ids, tmp_path):
    tab = open_tab(served, f"curves?runs={ids['lstm']}&charts=valid.loss")
    chart(tab, lines=1)
    answer = served.ask(f"/api/curves?runs={ids['lstm']}:&points=500")["runs"][ids["lstm"]]["columns"]
    tab.focus(".chart")
    tab.keyboard.press("Home")
    expect(tab.locator("#said")).to_have_text(f"step {answer['step'][0]}: lstm {answer['valid.loss'][0]:#.4g}")
    tab.keyboard.press("ArrowRight")
    expect(tab.locator("#said")).to_have_text(f"step {answer['step'][1]}: lstm {answer['valid.loss'][1]:#.4g}")
    kinds = {"SVG": b"<svg ", "PNG": b"\x89PNG", "CSV": b"run,step,valid.loss\n"}
    for kind, start in kinds.items():
        with tab.expect_download() as saved:
            tab.get_by_role("button", name=f"Download validation loss as {kind}").click()
        path = tmp_path / saved.value.suggested_filename
        saved.value.save_as(path)
        assert path.read_bytes().startswith(start)
    lines = path.read_text().splitlines()[1:]
    assert [float(line.split(",")[2]) for line in lines] == answer["valid.loss"]
    assert tab.wrong == []


# ---- row 5: text stays text


@pytest.mark.needs("studies")
def test_markup_in_names_settings_samples_and_errors_is_shown_and_never_executed(open_tab, trained, tmp_path):
    folder = tmp_path / "runs"
    hybrid = next(path for path in trained.iterdir() if path.name.startswith("hybrid"))
    for source in (hybrid, trained / "diverged"):
        shutil.copytree(source, folder / source.name)
    shutil.copytree(trained / "study", folder / f"study {hybrid.name[7:]}")
    (folder / hybrid.name / "samples.txt").write_text(f"=== step 8 ===\n{HOSTILE}\n\n")
    spec = folder / "diverged" / "spec.yaml"
    spec.write_text(spec.read_text().replace("tokenizer: word", f"tokenizer: '{HOSTILE}'"))
    result = json.loads((folder / "diverged" / "result.json").read_text())
    (folder / "diverged" / "result.json").write_text(json.dumps({**result, "reason": HOSTILE}))
    cell = next((folder / f"study {hybrid.name[7:]}" / "cells").iterdir())
    (cell / "result.json").unlink()
    (cell / "status.json").write_text(json.dumps({"status": "failed", "reason": HOSTILE}))
    with serving(folder) as served:
        tab = open_tab(served, f"runs?open={make_id('diverged')}")
        detail = tab.inner_text(".detail")
        assert detail.count(HOSTILE) >= 2, "the error and a setting"
        assert hybrid.name in tab.inner_text(".runs")
        show(tab, served, f"curves?runs={make_id(hybrid.name)}&charts=valid.loss")
        assert hybrid.name in tab.inner_text(".legend-box")
        chart(tab, lines=1)
        tab.hover(".chart .overlay")
        expect(tab.locator(".chart .tip")).to_contain_text(hybrid.name)
        show(tab, served, f"samples?runs={make_id(hybrid.name)}")
        tab.wait_for_selector(".samples-box[data-steps]")
        assert tab.inner_text("td.sample") == HOSTILE
        show(tab, served, "studies")
        assert HOSTILE in tab.inner_text(".cells")
        assert tab.wrong == []

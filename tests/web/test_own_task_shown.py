"""A user's own task, with the real example: table, page, report and terminal show it as they show ours, and none of
them imports its file."""

import json
import re
from functools import partial

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.imported_files import import_file
from anaphor.metrics.described import describe_metrics, read_described
from anaphor.metrics.result import Metric
from anaphor.registry import TASKS
from anaphor.shipped_files import EXAMPLES
from anaphor.web.catalog import make_id
from anaphor.web.inference import Cache, answer
from anaphor.web.report import build_report
from browsing import open_page
from web.serving import serving

FILE = EXAMPLES / "digit_sum.py"
WORDS = ["train", "digit-sum", "--import", str(FILE), "--steps", "20", "--eval-every", "5", "--lr", "0.02", "--json"]
LABELS = {"mse": "mean squared error", "within_half": "share within 0.5"}

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Two trained runs of the example, in a process that does not know their task any more."""
    for model in ("gru", "rnn"):
        assert main([*WORDS, "--model", model, "--out", str(tmp_path / "runs" / model)]) == 0
    known = {name: value for name, value in TASKS._entries.items() if name != "digit-sum"}
    monkeypatch.setattr(TASKS, "_entries", known)
    return tmp_path / "runs"


def test_a_run_says_what_it_measures_without_its_file(own, capsys):
    assert "digit-sum" not in TASKS
    capsys.readouterr()
    assert main(["runs", str(own), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    for row in rows:
        result = json.loads((own / row["run"] / "result.json").read_bytes())
        assert (row["metric"], row["goal"], row["counted"]) == ("mse", "min", "sequences")
        assert row["best"] == result["valid"]["mse"]
        assert row["throughput"] == result["sequences_per_second"]
    assert main(["runs", str(own)]) == 0
    printed = capsys.readouterr().out
    assert "sequences/s" in printed
    assert re.search(r"gru +finished +mse|gru +finished +mean squared error", printed)


def test_a_report_names_the_winner_in_the_words_of_the_task(own):
    page = build_report([own]).page
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    best = min(("gru", "rnn"), key=lambda name: json.loads((own / name / "result.json").read_bytes())["valid"]["mse"])
    (sentence,) = data["head"]["sentences"]
    assert sentence.startswith(f"{best} is the best of 2 runs, with a mean squared error of ")
    (picture,) = data["head"]["pictures"]
    assert picture["alt"].startswith("validation mean squared error of ")
    (runs,) = (value["runs"] for key, value in data["answers"].items() if key == "GET /api/runs")
    assert [{one["name"]: one["label"] for one in row["metrics"]} for row in runs] == [LABELS, LABELS]
    assert {one["name"]: one["goal"] for one in runs[0]["metrics"]} == {"mse": "min", "within_half": "max"}


@pytest.mark.slow
def test_the_page_has_its_curves_samples_and_scores_in_words(own, browser):
    with serving(own) as served:
        tab = open_page(browser.new_context(viewport={"width": 1280, "height": 860}))
        tab.goto(f"{served.address}#runs?open={make_id('gru')}")
        tab.wait_for_selector(".detail")
        assert "Best validation mean squared error" in tab.locator(".runs thead").inner_text()
        assert "validation share within 0.5" in tab.locator(".detail").inner_text()
        tab.click("#tabs a[data-view=curves]")
        tab.wait_for_selector(".chart[data-metric='valid.mse'][data-lines='2']")
        assert tab.locator(".legend-head").inner_text().split("\n") == ["Validation mean squared error", "last", "best"]
        tab.click("#tabs a[data-view=samples]")
        tab.wait_for_selector(".samples-box[data-steps]")
        assert "->" in tab.locator("td.sample").first.inner_text()
        assert tab.locator("#tabs a").evaluate_all("all => all.map((one) => one.dataset.view)") == [
            "runs",
            "curves",
            "samples",
            "studies",
        ]
        assert tab.wrong == []
        tab.context.close()


def test_a_report_looks_into_models_of_a_users_own_task_on_tokens(tmp_path):
    known = dict(TASKS._entries)
    try:
        import_file("my_recall.py")
        small = {"pairs": 1, "keys": 4, "values": 2, "width": 8, "layers": 1, "steps": 2, "device": "cpu"}
        for model in ("gru", "lstm"):
            anaphor.train("my-recall", model=model, out=tmp_path / model, no_test=True, progress=False, **small)
        page = build_report([tmp_path], ask=partial(answer, cache=Cache())).page
    finally:
        TASKS._entries.clear()
        TASKS._entries.update(known)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    asked = {re.search(r"/api/\w+", key)[0] for key in data["answers"]}
    assert {"/api/look", "/api/tokens"} <= asked
    assert "/api/passages" not in asked


METRICS = (
    Metric("mse", "min", "mean squared error", "points²", digits=3, minimum=0.0),
    Metric("hit", "max", "hit", maximum=1.0),
)


def test_metrics_are_read_as_they_were_described():
    found = read_described(json.loads(json.dumps(describe_metrics(METRICS, "sequences"))))
    assert (found.metrics, found.unit) == (METRICS, "sequences")


@pytest.mark.parametrize(
    "values",
    [
        None,
        3,
        [],
        {},
        {"metrics": 3},
        {"metrics": [3, None, {}, {"name": "a"}, {"name": 3, "goal": "min"}, {"name": "a", "goal": "up"}]},
    ],
)
def test_what_describes_no_metric_is_left_out(values):
    assert read_described(values) is None


def test_a_description_from_elsewhere_is_bounded():
    many = [
        {"name": f"m{number}" + "x" * 1000, "goal": "min", "label": "\ud800" * 10, "digits": 10**9, "minimum": "low"}
        for number in range(1000)
    ]
    found = read_described({"metrics": many, "unit": ["a"]})
    assert len(found.metrics) == 100
    assert found.unit == "items"
    assert max(len(one.name) for one in found.metrics) == 80
    assert {one.label for one in found.metrics} == {"?" * 10}
    assert {one.digits for one in found.metrics} == {4}

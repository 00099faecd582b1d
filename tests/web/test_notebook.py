"""In a notebook a run is a frame with its curves and a look inside, which can reach nothing outside of itself."""

from html.parser import HTMLParser

import pytest

from anaphor import load_run
from browsing import open_page


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def run(folder):
    name = next(path for path in folder.iterdir() if path.name.startswith("hybrid"))
    return load_run(name, device="cpu")


def test_the_frame_is_one_element_that_has_scripts_and_nothing_else_allowed(run):
    html = run._repr_html_()
    ((tag, attributes),) = Tags(html).found
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["title"] == run.folder.name
    assert "src" not in attributes
    inner = Tags(attributes["srcdoc"]).found
    policy = next(found for tag, found in inner if found.get("http-equiv") == "Content-Security-Policy")["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not [found for tag, found in inner if found.get("src") or found.get("href", "#")[0] not in "#d"]


@pytest.mark.slow
def test_curves_and_look_open_in_the_frame_without_a_request(run, browser):
    context = browser.new_context()
    page = open_page(context)
    page.set_content(f"<h1>notebook</h1>{run.show('the cat sat')._repr_html_()}")
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=curves]").wait_for(state="attached")
    assert frame.locator("#tabs a").all_inner_texts() == ["Curves", "Look"]
    frame.get_by_role("link", name="Look", exact=True).click()
    frame.locator("html[data-ready=look]").wait_for(state="attached")
    assert "cat" in frame.locator("#view").inner_text()
    assert frame.locator("#status").inner_text() == ""
    assert "notebook" in page.content()
    assert [asked.url for asked in page.asked if not asked.url.startswith(("about:", "data:"))] == []
    assert page.wrong == []
    context.close()


def test_a_notebook_does_not_wait_for_the_validation_split(run, monkeypatch):
    monkeypatch.setattr("anaphor.web.inference.Cache.losses", lambda *given: pytest.fail("it is scored"))
    assert "iframe" in run._repr_html_()


def test_a_run_whose_folder_is_gone_is_printed(copied):
    run = load_run(copied / "lstm", device="cpu")
    (copied / "lstm" / "spec.yaml").unlink()
    assert run._repr_html_() is None
    assert "lstm" in repr(run)


def test_a_look_shows_its_page_in_a_frame(run):
    html = run.look("the cat sat")._repr_html_()
    ((tag, attributes),) = Tags(html).found
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert "the" in attributes["srcdoc"]
    assert "Content-Security-Policy" in attributes["srcdoc"]

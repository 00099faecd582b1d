"""The browser that tests open pages with."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120_000
"""Milliseconds that a browser waits for anything. The worker of the live page, which yields to all others, loads torch
before its first answer: on a busy machine that takes a while."""


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium inside the block; without it the test is skipped and says so."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium to open the page with: apt-get install chromium")
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def open_page(context: Any) -> Any:
    """A new tab of a browser or of its context, with lists of what goes wrong and of what is asked for in it."""
    tab = context.new_page()
    tab.set_default_timeout(PATIENCE)
    tab.wrong, tab.asked = [], []
    tab.on("console", lambda message: tab.wrong.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.on("dialog", lambda dialog: (tab.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda asked: tab.asked.append(asked))  # a function that playwright can mark
    return tab


def cell_at(tab: Any, row: int, column: int, host: str = "#matrix", said: str = "") -> str:
    """What the page says of a cell of a heat map when the pointer is moved over it."""
    from playwright.sync_api import expect  # there is a browser

    tab.wait_for_selector(f"{host} canvas[data-wide]")
    place = tab.locator(f"{host} canvas").evaluate("canvas => ({...canvas.dataset})")
    x, y = (float(place[edge]) + (at + 0.5) * float(place[size]) for edge, at, size in
            (("left", column, "wide"), ("top", row, "high")))  # fmt: skip
    tab.locator(f"{host} canvas").hover(position={"x": x, "y": y})
    tip = tab.locator(f"{host} .tip")
    expect(tip).to_have_text(re.compile(said or rf"\({row}\) attends to .*\({column}\)"))
    return tip.inner_text()

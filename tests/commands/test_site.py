"""The site as it is built: no warning, and every link and picture in it leads to a file and a place of the site."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from anaphor.registry import SHELVES

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value:
                self.links.add(value)


def find_dead(site: Path) -> tuple[list[str], int]:
    """Links inside a site whose file or anchor is missing, and the number of all that were looked at."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    dead, count = [], 0
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            name = unquote(parts.path)
            target = (
                (site / name.lstrip("/") if name.startswith("/") else path.parent / name).resolve() if name else path
            )
            target = target / "index.html" if target.is_dir() else target
            wanted = unquote(parts.fragment)
            if not target.exists() or (wanted and target in pages and wanted not in pages[target].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead, count


@pytest.mark.slow
@pytest.mark.needs(*SHELVES)
def test_the_site_is_built_without_a_warning_and_has_no_dead_link(tmp_path):
    """In a copy, so that nothing is left in the checkout."""
    pytest.importorskip("zensical", reason="the docs are built by `make docs`")
    for name in ("docs", "src", "zensical.toml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    command = [sys.executable, "-m", "zensical", "build", "--clean"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "No issues found" in built.stdout + built.stderr
    assert not re.search("warning", built.stdout + built.stderr, re.IGNORECASE)
    dead, count = find_dead((tmp_path / "site").resolve())
    assert dead == []
    assert count > 10_000


def test_dead_links_of_a_site_are_found(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text("<p id=here>")
    links = (
        "other/",
        "other/#here",
        "other/#there",
        "/other/index.html",
        "none.html",
        "#a",
        "#b",
        "https://example.org/x",
    )
    (tmp_path / "index.html").write_text(
        "<h1 id=a>" + "".join(f'<a href="{link}">' for link in links) + "<img src=none.png>"
    )
    dead, count = find_dead(tmp_path.resolve())
    assert dead == ["index.html: #b", "index.html: none.html", "index.html: none.png", "index.html: other/#there"]
    assert count == 8

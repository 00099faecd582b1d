"""Every link from page to page leads somewhere: to a file, and to a heading in it."""

import pkgutil
import re
from pathlib import Path

import pytest

from anaphor.registry import SHELVES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: str) -> set[str]:
    """Anchors of all headings, as Python-Markdown makes them; one that is given as `{ #name }` replaces it."""
    headings = re.findall(r"^#+ (.*?)(?: \{ #(\S+) \})?$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)
    return {given or re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()) for text, given in headings}


def broken(path: Path) -> list[str]:
    """Links of a page whose file or heading does not exist. Addresses of the web are not looked up."""
    found = []
    for name, anchor in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", name):
            continue
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            found.append(f"{name}#{anchor}" if anchor else name)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path):
    assert broken(path) == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_the_documentation_stay_in_it(path):
    """What lies beside the folder is no part of the site."""
    names = [name for name, _ in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8")))]
    targets = [(path.parent / name).resolve() for name in names if name and not re.match(r"\w+:", name)]
    assert [target for target in targets if not target.is_relative_to(ROOT / "docs")] == []


@pytest.mark.needs(*SHELVES)
def test_the_reference_names_modules_that_have_what_it_describes():
    """The site is not built otherwise, and no other page of it then finds the reference."""
    names = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) > 50
    for name in names:
        assert pkgutil.resolve_name(name) is not None, name


def test_every_page_is_in_the_navigation():
    listed = re.findall(r'= "([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_a_wrong_file_or_heading_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# One: two (three)\n\n## Named { #name }\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#one-two-three) [b](other.md#name) [c](other.md#named) [d](no.md) `[e](f)` [g](#h)")
    assert broken(page) == ["other.md#named", "no.md", "#h"]

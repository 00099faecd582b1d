"""What the documentation shows is what happens: every snippet of every page is run."""

from pathlib import Path

import pytest
import torch

from commands.pages import outputs, stripped

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_snippet_prints_what_the_page_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    torch.set_default_dtype(torch.float32)
    found = outputs(path.read_text(encoding="utf-8"))
    assert found, "a page shows something that runs"
    for _, _, shown, printed in found:
        assert stripped(shown) == printed

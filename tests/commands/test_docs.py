"""What the documentation shows is what happens: every snippet of every page is run."""

from pathlib import Path

import pytest
import torch

from commands.pages import agrees, outputs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_snippet_prints_what_the_page_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the numbers are those of a CPU, in processes of studies as well
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch.set_default_dtype(torch.float32)
    found = outputs(path.read_text(encoding="utf-8"))
    assert found, "a page shows something that runs"
    for _, _, shown, printed in found:
        assert agrees(shown, printed), f"the page shows\n{shown}\nbut this is printed:\n{printed}"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb", "a\nb", True),
        ("a\nb", "a\nc", False),
        ("3 tokens/s, … s", "3 tokens/s, 12.5 s", True),
        ("3 tokens/s, … s", "3 tokens/s, 12\n5 s", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nd", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("…\nd", "a\nd", True),
        ("…\nd", "ad", False),
        ("a\n…", "a\nb\nc", True),
        ("a.c", "abc", False),
    ],
)
def test_an_ellipsis_stands_for_what_a_page_leaves_out(shown, printed, same):
    assert agrees(shown, printed) == same

"""The documentation's Python is typed: mypy, strict, over every snippet; and the reference has every public name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import anaphor
from commands.pages import BLOCK, TITLE

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
UNTYPED = "# mypy: allow-untyped-defs, allow-untyped-calls\n"
BY_HAND = {"check.md", "course/001.md", "trace.md"}
"""Functions of these pages are written as students write them, with lists where `trace` passes tensors."""
UNIONS = {
    "selection.md": "an answer is a query or the proof that there is none, and the page knows which",
    "images.md": "images are in memory or in files, and the page knows which",
}

mypy = pytest.importorskip("mypy", reason="mypy is part of `make lint`")


def write_snippets(page: Path, folder: Path) -> None:
    """The Python of a page as files: its blocks, each at its line, and those with a title."""
    name, text, lines = str(page.relative_to(ROOT / "docs")), page.read_text(encoding="utf-8"), []
    stem = "page_" + re.sub(r"\W", "_", name.removesuffix(".md"))
    head = UNTYPED if name in BY_HAND else ""
    for block in BLOCK.finditer(text):
        title = TITLE.match(block[0])
        start = text.count("\n", 0, block.start()) + 1
        if title and title[1].endswith(".py"):  # a page may have a second file of that name
            (folder / f"{stem}_{start}_{title[1]}").write_text(head + block[2], encoding="utf-8")
        elif not title and block[0].startswith("```python"):
            lines += [""] * (start - len(lines)) + block[2].rstrip("\n").split("\n")
    if lines:
        if name in UNIONS:
            lines[0] = "# mypy: disable-error-code=union-attr"
        elif head:
            lines[0] = head.rstrip()
        (folder / f"{stem}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


def check(folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    files = sorted(map(str, folder.glob("*.py")))
    return subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False)


NONSENSE = """
import anaphor
anaphor.nonsense()
anaphor.mixers.nonsense()
anaphor.load_run("a", devcie="cpu")
anaphor.detach(anaphor.Span, 1)
reveal_type(anaphor.train("lm").model)
reveal_type(anaphor.train("translate").tokenizer.source)
reveal_type(anaphor.load_run("a", task="images").model)
reveal_type(anaphor.mixer_spec("lstm"))
reveal_type(anaphor.read_study("a"))
"""


@pytest.mark.needs("extras", "interchange", "labs", "studies", "trace", "web")
def test_every_snippet_is_typed_and_a_wrong_name_is_not(tmp_path):
    """One process of mypy for both."""
    for page in PAGES:
        write_snippets(page, tmp_path)
    (tmp_path / "nonsense.py").write_text(NONSENSE)
    lines = check(tmp_path).stdout.splitlines()
    found = [line.partition("nonsense.py:")[2] for line in lines if "nonsense.py:" in line]
    errors = [line for line in lines if ": error:" in line and "nonsense.py:" not in line]
    assert errors == []
    assert {line.split(":")[0] for line in found if ": error:" in line} == {"3", "4", "5", "6"}
    assert re.findall(r'Revealed type is "(?:\w+\.)*(\w+)"', "\n".join(found)) == [
        "LanguageModel", "Tokenizer", "ImageClassifier", "MixerSpec", "StudySpec",
    ]  # fmt: skip


@pytest.mark.needs("interchange", "labs", "studies", "trace", "web")
def test_the_reference_has_every_public_name_and_no_other():
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    section = text[text.index("{ #names }") :]
    rows = [line for line in section[: section.index("\n## ")].splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {name for name in dir(anaphor) if not name.startswith("_")}

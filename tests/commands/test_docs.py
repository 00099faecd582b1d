"""What the documentation shows is what happens: every snippet of every page is run."""

import math
import re
from pathlib import Path

import pytest
import torch

from anaphor.data.datasets import open_dataset
from anaphor.registry import has_shelf
from commands.pages import BLOCK, agrees, outputs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "results")  # these are records
REFERENCE = "bb387736116b25e4"
"""Start of the digest of the text that comes with Python 3.11.7, whose numbers pages show."""
LONG = (
    *("classification.md", "index.md", "length.md", "translation.md"),
    *("tutorials/compare.md", "tutorials/fine-tune.md", "tutorials/look-inside.md", "tutorials/own-mixer.md"),
    *("course/003.md", "images.md", "interchange.md", "live-page.md", "looking-inside.md", "python.md", "studies.md"),
)
"""Pages that take longer than two seconds."""


NEEDS = {
    **{f"course/{name}.md": ("labs",) for name in ("000", "002", "004")},
    "check.md": ("course",),
    "course/001.md": ("labs", "trace"),
    "course/003.md": ("interchange", "labs", "trace"),
    "evaluation.md": ("extras",),
    "for-students.md": ("course",),
    "for-teachers.md": ("course",),
    "handouts.md": ("course",),
    "interchange.md": ("interchange",),
    "labs/backprop.md": ("labs", "trace"),
    "labs/bptt.md": ("labs", "trace"),
    "labs/index.md": ("labs", "trace"),
    "live-page.md": ("web",),
    "models.md": ("extras",),
    "python.md": ("web",),
    "reference.md": ("trace",),
    "selection.md": ("labs",),
    "studies.md": ("studies",),
    "trace.md": ("trace",),
    "training.md": ("web",),
    "tutorials/compare.md": ("studies",),
    **{f"labs/{name}.md": ("labs",) for name in ("complexity", "concepts", "kronecker", "low-rank", "masking")},
    **{f"labs/{name}.md": ("labs",) for name in ("scaling", "unroll")},
}
"""Shelves whose parts the snippets of a page use, so that it is skipped without them."""
NEXT = "next: anaphor serve"
"""The last line of a training, where there is such a verb."""


def snippets():
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if not any(block[1] in ("python", "bash") for block in BLOCK.finditer(page)):
            continue
        name = str(path.relative_to(DOCS))
        marks = [pytest.mark.needs(*NEEDS.get(name, ()), *(["web"] if NEXT in page else []))]
        yield pytest.param(path, id=name, marks=[*marks, pytest.mark.slow] if name in LONG else marks)


@pytest.mark.parametrize("path", [*snippets()])
def test_every_snippet_prints_what_the_page_shows(path, tmp_path, monkeypatch):
    page = path.read_text(encoding="utf-8")
    if "data: python-reference" in page and not open_dataset("python-reference").digest("train").startswith(REFERENCE):
        pytest.skip("the page shows numbers of the reference of Python 3.11.7, and that of this Python is another")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the numbers are those of a CPU, in processes of studies as well
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if has_shelf("studies"):
        from studies.here import Here

        # Cells of a study in this process: a worker would import torch for each.
        monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **options: Here(slots=2))
    # How many lines about steps there are depends on the speed of the machine.
    for name in ("FIRST_SECONDS", "LINE_SECONDS"):
        monkeypatch.setattr(f"anaphor.progress.{name}", math.inf)
    # Their names are all that a page shows of the curves of a run.
    monkeypatch.setattr("anaphor.training.loop.draw_curves", lambda folder, task: list(folder.curves))
    torch.set_default_dtype(torch.float32)
    found = outputs(page)
    assert found, "what runs on a page is followed by what it prints"
    for _, _, shown, printed in found:
        assert agrees(shown, printed), f"the page shows\n{shown}\nbut this is printed:\n{printed}"


def test_the_start_page_begins_with_two_commands_a_picture_and_what_one_does_most():
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    first = re.search(r"^```\w+\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make demo", "make test"]
    assert page.index("make test") < page.index("![") < page.index("\n## ")
    assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE)[:4] == ["Train", "Compare", "Look", "Ask a study"]


def test_the_study_of_the_start_page_is_the_one_that_the_page_on_studies_runs():
    page, studies = ((DOCS / name).read_text(encoding="utf-8") for name in ("index.md", "studies.md"))
    command, output = re.search(
        r"^```\{ \.console \.wrap \}\n\$ (.*?)\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ).groups()
    file = re.search(r'^```\{ \.yaml title="gates.yaml" \}\n.*?^```', page, re.MULTILINE | re.DOTALL)[0]
    assert file in studies
    assert f"```bash\n{command}\n```\n\n```{{ .text .wrap }}\n{output}```" in studies


@pytest.mark.parametrize("path", [*PAGES, DOCS.parent / "README.md"], ids=lambda path: path.name)
def test_pages_call_the_command_as_a_user_types_it(path):
    assert "anaphor.cli" not in path.read_text(encoding="utf-8")


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

"""Small runs on a text that holds what a careless page would execute."""

from html.parser import HTMLParser

import pytest
import torch

from anaphor.cli.main import main

HOSTILE = "<script>alert(1)</script>"
TEXT = f"the cat sat on the mat\nthe dog sat on the log\na bird saw {HOSTILE} on the log\n" * 30
SETTINGS = "--width 16 --batch-size 4 --bptt 8 --steps 25 --device cpu --no-test --seed 1"
MODELS = {
    "hybrid": "--model hybrid --layers 3 --heads 2 --memory 16",
    "lstm": "--model lstm --layers 1",
    "bytes": "--model transformer --layers 1 --heads 2 --tokenizer byte",
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders of trained runs, by name."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(folder / "cache"))
        for name, model in MODELS.items():
            words = ["train", "lm", "--data", str(folder / "text.txt"), "--out", str(folder / name)]
            assert main([*words, *model.split(), *SETTINGS.split(), "--json"]) == 0
    torch.set_default_dtype(before)
    return {name: folder / name for name in MODELS}


class Parts(HTMLParser):
    """Elements of the page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.scripts and self.tags[-1][0] == "script":
            self.scripts[-1] += data


@pytest.fixture
def parts_of():
    """From the text of a page to its elements."""
    return Parts

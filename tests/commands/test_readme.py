"""What the README shows is what happens, and so do the tree of files and the table of speed that its pages have."""

import json
import re
from pathlib import Path

import pytest
import torch

from anaphor.registry import SHELVES, has_shelf

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_two_commands_that_do_all_the_setup_come_first():
    first = re.search(r"^```\w+\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make demo", "make test"]
    assert README.index("make test") < README.index("![") < README.index("## ")


def test_a_whole_experiment_takes_ten_lines():
    (block,) = [block for block in blocks("python") if "anaphor.train(" in block]
    assert len([line for line in block.splitlines() if line]) <= 10


def test_a_reader_sees_early_what_it_replaces_and_how_to_install_it():
    headings = re.findall(r"^## (.*)$", README, flags=re.MULTILINE)
    assert headings[:2] == ["For whom", "Instead of what"]
    assert "pip install" in README
    first = README[: README.index("```")]
    assert all(word in first for word in ("workbench", "students", "researchers", "nanoGPT", "TensorBoard"))
    words = re.sub(r"<!--.*?-->", "", README).split()
    assert sum(any(map(str.isalnum, word)) for word in words) <= 620


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_run_and_print_what_their_comments_say(number, capsys, tmp_path, monkeypatch):
    block = blocks("python")[number]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the numbers are those of a CPU
    torch.set_default_dtype(torch.float32)
    exec(compile(block, f"README.md, block {number}", "exec"), {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
    assert promised
    assert capsys.readouterr().out.splitlines() == promised


def test_every_file_of_the_annotated_tree_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = re.search(r"^```text\nsrc/anaphor/\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[1]
    names = re.findall(r"^  (\w+)(/|\.py) ", tree, flags=re.MULTILINE)
    source = ROOT / "src" / "anaphor"
    missing = {shelf for shelf in SHELVES if not has_shelf(shelf)}
    assert {name + (".py" if kind == ".py" else "") for name, kind in names} - missing == {
        path.name for path in source.iterdir() if not path.name.startswith("__") and path.name != "py.typed"
    }


def test_numbers_in_the_results_were_produced_by_a_run():
    """Every ratio in the table on speed stands in the recorded benchmark."""
    record = json.loads((ROOT / "docs" / "results" / "speed.json").read_text(encoding="utf-8"))
    values = {f"{finding['value']:.2f}" for finding in record["findings"]}
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- speed -->\n(.*?)\n<!-- end -->", page, flags=re.DOTALL)[1]
    ratios = re.findall(r"\| \*\*([\d.]+)\*\*", table)
    assert ratios
    assert set(ratios) <= values

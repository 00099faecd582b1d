"""Tables hold what was measured in all three formats, whatever characters names are made of."""

import csv
import io
import re

import pytest

from anaphor.errors import DataError
from anaphor.metrics.result import Metric
from anaphor.metrics.statistics import Interval
from anaphor.studies.groups import Group, Objective
from anaphor.studies.outputs import write_tables
from anaphor.studies.report import merge_remarks
from anaphor.tasks.lm.measures import describe_cut

PPL = Objective(Metric("perplexity", "min", "perplexity"))
NASTY = 'a|b & c_d 5% "e"\nf\\g {h} $i$ #j ~k ^l <m>'
AXES = {"variant": ["plain", NASTY], "width": [64, 128]}
GROUPS = [
    Group({"variant": "plain", "width": 64}, (1, 2, 3), (98.0, 98.2, 98.4)),
    Group({"variant": NASTY, "width": 128}, (1,), (120.123456789,), note="sees\nmore | less", failed=2),
]

EXTRA = {"parameters": [1234567, 89], "test": [Interval(97.0, 96.0, 98.0, 3), None]}


@pytest.fixture
def written(tmp_path):
    shown = write_tables(GROUPS, AXES, PPL, EXTRA, tmp_path / "new")
    return shown, tmp_path / "new"


def cells_of(line):
    """As a reader of Markdown takes them apart."""
    inner = re.split(r"(?<!\\)(?:\\\\)*\|", line.strip().strip("|"))
    return [cell.strip() for cell in inner]


def test_markdown_has_a_row_for_each_group_and_what_is_shown_is_what_is_written(written):
    shown, folder = written
    assert shown == (folder / "table.md").read_text(encoding="utf-8")
    header, rule, first, second = map(cells_of, shown.splitlines())
    assert header == ["variant", "width", "validation perplexity", "±", "seeds", "parameters", "test", "note"]
    assert [cell.endswith(":") for cell in rule] == [False, True, True, True, True, True, True, False]
    assert first == ["plain", "64", "98.20", "0.50", "3", "1,234,567", "97.0 ± 1.0", ""]
    assert second[1:] == ["128", "120.12", "", "1 of 3", "89", "", r"sees<br>more \| less"]


def test_special_characters_survive_markdown(written):
    name = cells_of(written[0].splitlines()[3])[0]
    assert re.sub(r"\\([\\|<])", r"\1", name.replace("<br>", "\n")) == NASTY


def test_special_characters_and_all_digits_survive_csv(written):
    rows = list(csv.DictReader(io.StringIO((written[1] / "table.csv").read_text(encoding="utf-8"))))
    assert [row["variant"] for row in rows] == ["plain", NASTY]
    assert [row["note"] for row in rows] == ["", "sees\nmore | less"]
    assert float(rows[1]["validation perplexity"]) == pytest.approx(120.123456789, abs=1e-6)


def test_csv_has_a_number_in_every_column_of_numbers(written):
    rows = list(csv.DictReader(io.StringIO((written[1] / "table.csv").read_text(encoding="utf-8"))))
    assert [(row["test"], row["test ±"]) for row in rows] == [("97", "1"), ("", "")]
    assert [row["parameters"] for row in rows] == ["1234567", "89"]
    assert "parameters ±" not in rows[0]


def test_special_characters_survive_latex(written):
    text = (written[1] / "table.tex").read_text(encoding="utf-8")
    assert text.startswith("\\begin{tabular}{lrrrrrrl}\n")
    line = next(line for line in text.splitlines() if line.startswith("a"))
    name = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))[0].strip()
    names = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textgreater": ">",
             "textbar": "|"}  # fmt: skip
    name = name.replace(r"\symbol{34}", '"')
    name = re.sub(r"\\([a-z]+)\{\}", lambda found: names[found[1]], name)
    name = re.sub(r"\\([{}&%$#_])", r"\1", name)
    assert name == NASTY.replace("\n", " ")
    assert "97.0 $\\pm$ 1.0" in text
    assert text.count(r"\\") == 3


def test_a_study_without_results_has_a_table_all_the_same(tmp_path):
    shown = write_tables([Group({"width": 64}, (), (), failed=2)], {"width": [64]}, PPL, {}, tmp_path)
    assert cells_of(shown.splitlines()[2]) == ["64", "", "", "0 of 2"]


def test_a_table_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="cannot write the table"):
        write_tables(GROUPS, AXES, PPL, {}, tmp_path / "file")


def test_lengths_that_no_row_has_are_named_once_unless_settings_differ():
    short, refused, long = {5: 5, 40: 33, 80: 33}, {5: 5}, {5: 5, 40: 40, 80: 60}
    said = "lengths 40 and 80 are cut to 33 tokens, the longest row of the text."
    one = "length 80 is cut to 60 tokens, the longest row of the text."
    assert [describe_cut(reached) for reached in (short, refused, long, {})] == [said, "", one, ""]
    assert describe_cut({2: 1}) == "length 2 is cut to 1 token, the longest row of the text."
    assert merge_remarks([("a", said, 33), ("d", said, 33), ("b", "", 5), ("e", "", 0)]) == [said]
    assert merge_remarks([("a", said, 33), ("c", one, 60)]) == [f"with a, {said}", f"with c, {one}"]
    assert merge_remarks([("a", said, 33), ("c", "", 80)]) == [f"with a, {said}"]
    assert merge_remarks([("b", "", 5)]) == merge_remarks([]) == []

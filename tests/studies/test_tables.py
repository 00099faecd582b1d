"""Tables hold what was measured in all three formats, whatever characters names are made of."""

import csv
import io
import re

import pytest

from anaphor.errors import DataError
from anaphor.metrics.result import Metric
from anaphor.metrics.statistics import Interval
from anaphor.studies.groups import Group, Objective, find_undistinguished
from anaphor.studies.report import merge_remarks
from anaphor.studies.tables import write_tables
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
    assert second[1:] == ["128", "120.1", "", "1 of 3", "89", "", r"sees<br>more \| less"]


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
    assert text.startswith("% needs \\usepackage{booktabs}\n\\begin{tabular}{lrrrrrl}\n\\toprule\n")
    assert text.count("rule\n") == 3
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


def test_each_row_has_the_digits_of_its_own_interval(tmp_path):
    """One format for all made 12, 12 and 11 of these."""
    values = {"a": (12.440, 12.442, 12.441), "b": (1.0, 25.0, 10.3), "c": (11.40, 11.42, 11.46)}
    groups = [Group({"variant": name}, (1, 2, 3), of) for name, of in values.items()]
    rows = write_tables(groups, {"variant": [*values]}, PPL, {}, tmp_path).splitlines()[2:]
    assert [cells_of(row)[1:3] for row in rows] == [["12.4410", "0.0025"], ["12", "30"], ["11.427", "0.076"]]


def test_latex_has_the_best_in_bold_together_with_those_that_do_not_differ_from_it(tmp_path):
    values = {"best": (10.0, 10.2, 10.1), "close": (10.3, 10.1, 10.2), "worse": (20.0, 20.2, 20.1), "single": (9.0,)}
    groups = [Group({"variant": name}, (1, 2, 3)[: len(of)], of, failed=3 - len(of)) for name, of in values.items()]
    best = find_undistinguished(groups, PPL)
    assert best == {0, 1}
    test = [Interval(30.0, 29.0, 31.0, 3), None, None, None]
    write_tables(groups, {"variant": [*values]}, PPL, {"test": test}, tmp_path, {PPL.title: best})
    lines = (tmp_path / "table.tex").read_text(encoding="utf-8").splitlines()
    assert lines[5:8] == [
        r"best & \textbf{10.10} $\pm$ 0.25 & 3 & 30.0 $\pm$ 1.0 \\",
        r"close & \textbf{10.20} $\pm$ 0.25 & 3 &  \\",
        r"worse & 20.10 $\pm$ 0.25 & 3 &  \\",
    ]


def test_with_too_few_seeds_for_a_p_value_the_best_alone_is_bold():
    two = [Group({"variant": name}, (1, 2), of) for name, of in {"a": (3.0, 2.0), "b": (2.0, 2.9)}.items()]
    equal = [Group({"variant": name}, (1, 2), (2.0, 3.0)) for name in "ab"]
    assert find_undistinguished(two, PPL) == {1}
    assert find_undistinguished(equal, PPL) == {0, 1}
    assert find_undistinguished([Group({"variant": "a"}, (), (), failed=2)], PPL) == set()


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


def test_people_read_labels_with_units_and_programs_the_names(tmp_path):
    loss = Objective(Metric("loss", "min", "loss", "nats per token"))
    groups = [Group({"lr": 0.1, "batch_size": 8}, (1,), (2.0,))]
    further = {"test loss": [Interval(2.5, None, None, 1)]}
    labels = {"test loss": "test loss (nats per token)"}
    best = {loss.title: {0}}
    shown = write_tables(groups, {"lr": [0.1], "batch_size": [8]}, loss, further, tmp_path, best, labels)
    units = ["validation loss (nats per token)", "±", "seeds", "test loss (nats per token)"]
    assert cells_of(shown.splitlines()[0]) == ["learning rate", "batch size", *units]
    names = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert names == ["lr", "batch_size", "validation loss", "±", "seeds", "test loss", "test loss ±"]
    assert r"\textbf{2.000}" in (tmp_path / "table.tex").read_text(encoding="utf-8"), "the best, by its name"

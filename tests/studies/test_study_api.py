"""`anaphor.study` does what the command does, gives its runs as rows, resumes, and shows itself in a notebook."""

import csv
import sys
from html.parser import HTMLParser
from types import ModuleType

import pytest

import anaphor
from anaphor.errors import ConfigError
from anaphor.studies import load_study
from anaphor.studies.results import split_cells, to_html
from anaphor.studies.study_file import read_study
from studies.here import Here

LINES = """
about: is <one> better & why?
parameters: {model: {values: [lstm, gru]}}
tune: {lr: {values: [0.01, 0.02]}}
report: [loss]
seeds: 2
"""


@pytest.fixture
def file(tmp_path, own_cache, single_precision):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 60)
    base = f"{{data: {tmp_path}/text.txt, width: 4, layers: 1, batch_size: 4, bptt: 8, steps: 2, device: cpu}}"
    (tmp_path / "study.yaml").write_text(f"base: {base}{LINES}")
    return tmp_path / "study.yaml"


@pytest.fixture
def engine(monkeypatch):
    made = Here()
    monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **options: made)
    return made


def test_rows_are_the_runs_and_the_same_call_resumes(file, engine, tmp_path, capsys):
    result = anaphor.study(file, out=tmp_path / "out", progress=False)
    assert len(result) == 8
    assert list(result[0]) == [
        "model", "lr", "seed", "status", "chosen", "valid_loss", "valid_perplexity", "valid_bits_per_byte",
        "valid_recall_perplexity", "valid_tokens", "valid_recall_tokens", "seconds", "run",
    ]  # fmt: skip
    tested = [row for row in result if "test_perplexity" in row]
    assert len(tested) == 2
    assert all(row["chosen"] and row["model"] == result.best["parameters"]["model"] for row in tested)
    table = list(csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines()))
    for line in table:
        values = [row["valid_perplexity"] for row in result if row["chosen"] and row["model"] == line["model"]]
        assert float(line["validation perplexity"]) == pytest.approx(sum(values) / 2)
    assert capsys.readouterr() == ("", "")
    jobs = len(engine.jobs)
    again = anaphor.study(file, out=tmp_path / "out")
    assert again.rows == result.rows == load_study(tmp_path / "out").rows
    assert len(engine.jobs) == jobs
    assert "done" in capsys.readouterr().err


def test_a_spec_and_a_mapping_are_studies_too(file, engine, tmp_path):
    spec = read_study(file)
    first = anaphor.study(spec, out=tmp_path / "out", progress=False, seeds=1, settings={"width": 3})
    given = {**spec.to_plain(), "name": "study", "seeds": 1}
    given["base"] = {**given["base"], "width": 3}
    second = anaphor.study(given, out=tmp_path / "out", progress=False)
    assert first.rows == second.rows
    assert len(first) == 4


def test_a_notebook_shows_table_findings_and_figure(file, engine, tmp_path):
    html = anaphor.study(file, out=tmp_path / "out", progress=False)._repr_html_()
    tags = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            tags.append(tag)

    Reader().feed(html)
    assert (tags.count("tr"), tags.count("img"), tags.count("table")) == (3, 1, 1)
    assert tags.count("p") >= 3
    assert "is &lt;one&gt; better &amp; why?" in html
    assert "data:image/svg+xml;base64," in html


def test_cells_of_a_table_survive_html():
    line = r"| a\|b | \<i> & c | x<br>y | \\ |"
    assert [cell.strip() for cell in split_cells(line)] == [r"a\|b", r"\<i> & c", "x<br>y", r"\\"]
    found = to_html(f"| a | b | c | d |\n| --- | --: | --- | --- |\n{line}\n")
    assert "<tr><td>a|b</td><td>&lt;i&gt; &amp; c</td><td>x<br>y</td><td>\\</td></tr>" in found


def test_a_data_frame_has_the_rows(file, engine, tmp_path, monkeypatch):
    result = anaphor.study(file, out=tmp_path / "out", progress=False, seeds=1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"to_pandas\(\) needs pandas: pip install pandas"):
        result.to_pandas()
    pandas = ModuleType("pandas")
    pandas.DataFrame = list
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert result.to_pandas() == result.rows
    assert list(result) == result.rows


def test_the_real_pandas_has_a_row_for_each_run_and_numbers_as_numbers(file, engine, tmp_path):
    pytest.importorskip("pandas")
    result = anaphor.study(file, out=tmp_path / "out", progress=False, seeds=1)
    frame = result.to_pandas()
    assert list(frame["model"]) == [row["model"] for row in result.rows]
    assert frame["valid_perplexity"].dtype == float
    means = frame.groupby("model")["valid_perplexity"].mean()
    for model in means.index:
        values = [row["valid_perplexity"] for row in result.rows if row["model"] == model]
        assert means[model] == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "unknown option of study 'seed'; did you mean 'seeds'"),
        ({"worker": True}, "unknown option of study 'worker'"),
        ({"threads": 0}, "threads=0"),
        ({"threads": "two"}, "threads='two'"),
        ({"settings": {"model": "gru"}}, "the study varies model"),
        ({"settings": {"lr": 1}}, "the study varies lr"),
        ({"test": "some"}, "unknown choice of test scores 'some'"),
        ({"settings": {"widht": 1}}, "did you mean 'width'"),
    ],
)
def test_what_the_command_refuses_is_refused(options, message, file, engine, tmp_path):
    with pytest.raises(ConfigError, match=message):
        anaphor.study(file, out=tmp_path / "out", progress=False, **options)
    assert not (tmp_path / "out").exists()

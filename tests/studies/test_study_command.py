"""`anaphor study`: one command from a file to a table, a figure and findings. Cells are run in this process here."""

import json
import math
import time

import pytest

from anaphor.cli.main import main
from anaphor.flags import parse
from anaphor.studies import worker
from anaphor.studies.axes import make_axis
from anaphor.studies.cell import MEASURES, Cell
from anaphor.studies.command import make_engine
from anaphor.studies.engines import JobResult
from anaphor.studies.names import check_name
from anaphor.studies.progress import format_score
from anaphor.studies.spec import StudySpec
from anaphor.studies.verb import Options, build_spec, default_name
from studies.here import Here

STUDY = """
about: which gates are better?
base: {data: %s, layers: 1, batch_size: 2, bptt: 4, steps: 2}
parameters:
  model: {values: [lstm, gru]}
seeds: 2
samples: {cat: the cat sat}
train_score: true
long_lines: 2
"""


pytestmark = pytest.mark.usefixtures("own_cache", "own_folder", "single_precision")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 60)
    path = tmp_path / "gates.yaml"
    path.write_text(STUDY % (tmp_path / "text.txt"))
    return path


class HereWithEnd(Here):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def engine(monkeypatch):
    made = HereWithEnd()
    monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **options: made)
    return made


def told(capsys, *words):
    code = main(["study", *map(str, words), "--device", "cpu", "--json"])
    return code, json.loads(capsys.readouterr().out, parse_constant=no_constant)


@pytest.mark.parametrize(
    ("in_file", "words", "device"), [("", [], "auto"), ("cpu", [], "cpu"), ("cuda", ["--device", "cpu"], "cpu")]
)
def test_the_device_is_that_of_the_command_or_else_of_the_file(file, monkeypatch, in_file, words, device):
    if in_file:
        file.write_text(file.read_text().replace("base: {", f"base: {{device: {in_file}, "))
    options = parse(Options, [str(file), *words], program="study")
    spec = build_spec(options)
    assert spec.base["device"] == device
    asked = []
    monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **said: asked.append(said["device"]))
    make_engine(options, spec)
    assert asked == [device]


def test_one_command_gives_cells_choice_findings_and_figures(file, engine, tmp_path, capsys):
    code, result = told(capsys, file)
    assert code == 0
    assert set(result) >= {"cells", "best", "findings", "figures"}
    assert len(result["cells"]) == 4
    cell = result["cells"][0]
    assert set(cell) >= {"parameters", "seed", "status", "valid", "run"}
    assert cell["parameters"] == {"model": "lstm"}
    means = {}
    for cell in result["cells"]:
        means.setdefault(json.dumps(cell["parameters"]), []).append(cell["valid"]["perplexity"])
    best = min(means, key=lambda key: sum(means[key]))
    assert result["best"]["parameters"] == json.loads(best)
    assert result["best"]["valid"]["mean"] == pytest.approx(sum(means[best]) / 2)
    tested = [cell for cell in result["cells"] if "test" in cell]
    assert [cell["parameters"] for cell in tested] == [json.loads(best)] * 2, "test is read for the choice alone"
    folder = tmp_path / "studies" / "gates-text"
    files = ("table.md", "table.csv", "table.tex", "study.png", "study.svg", "findings.txt", "study.yaml", "log.jsonl")
    for name in files:
        assert (folder / name).stat().st_size > 0
    header = (folder / "table.csv").read_text().splitlines()[0]
    assert all(name in header for name in ("model", "parameters", "train", "cat", "2 long lines", "test", "test ±"))
    row = dict(zip(header.split(","), (folder / "table.csv").read_text().splitlines()[1].split(","), strict=True))
    assert int(row["parameters"]) > 100
    assert all(float(row[name]) >= 0 for name in ("train", "train ±", "cat"))


def test_the_same_command_again_runs_nothing_and_says_the_same(file, engine, capsys):
    first = told(capsys, file)
    jobs = len(engine.jobs)
    assert told(capsys, file) == first
    assert len(engine.jobs) == jobs


def refused(capsys, *words):
    """One line on stderr, nothing else, and code two."""
    assert main(["study", *map(str, words), "--device", "cpu"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_changed_study_is_refused_before_anything_is_trained_or_written(file, engine, tmp_path, capsys):
    told(capsys, file)
    engine.jobs.clear()
    folder = tmp_path / "studies" / "gates-text"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    for change in ("--seeds 3", "--seeds 1", "--set steps=3", "--threads 2"):
        assert "is frozen with other cells" in refused(capsys, file, *change.split())
    assert main(["study", str(file), "--seeds", "3", "--dry-run"]) == 0  # which writes nothing, and warns
    assert "is frozen with other cells" in capsys.readouterr().err
    assert engine.jobs == []
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before
    assert told(capsys, file, "--seeds", "3", "--force", "--dry-run")[0] == 0


def test_more_cells_after_the_choice_are_run_with_force(file, engine, capsys):
    told(capsys, file)
    assert told(capsys, file, "--seeds", "3", "--force")[0] == 0
    assert len(engine.jobs) == 4 + 2 + 2 + 3  # four cells and two tests, then two more cells and three tests


def test_a_search_that_is_changed_after_its_choice_is_refused_at_once(file, engine, tmp_path, capsys):
    pytest.importorskip("optuna")
    file.write_text(file.read_text() + "method: random\ntrials: 1\n")
    told(capsys, file, "--seeds", "1")
    engine.jobs.clear()
    assert "is frozen with other cells" in refused(capsys, file, "--seeds", "1", "--set", "steps=3")
    assert engine.jobs == []
    assert told(capsys, file, "--seeds", "1")[0] == 0


def test_a_folder_that_cannot_be_made_is_one_line(file, engine, tmp_path, capsys):
    (tmp_path / "one.txt").write_text("mine")
    for out in (tmp_path / "one.txt", tmp_path / "one.txt" / "below", "/proc/anaphor"):
        assert f"cannot write to {out}: " in refused(capsys, file, "--out", out)
    assert (tmp_path / "one.txt").read_text() == "mine"


def test_a_study_that_finished_in_part_ends_with_four(file, engine, capsys):
    engine.instead = lambda job, count: JobResult(1, "no room") if job.folder.name == engine.jobs[0][1] else None
    code, result = told(capsys, file)
    assert code == 4
    assert [cell["status"] for cell in result["cells"]].count("failed") == 1
    assert result["cells"][0]["reason"] == "no room"


def test_a_cell_that_was_trained_and_could_not_be_measured_has_failed(file, engine, capsys):
    def unmeasured(job, count):
        engine.work(job)
        (job.folder / MEASURES).unlink()
        return JobResult(2, "no tokens to score")

    engine.instead = unmeasured
    code, result = told(capsys, file, "--seeds", "1")
    assert code == 4
    assert [(cell["status"], cell["reason"]) for cell in result["cells"]] == [("failed", "no tokens to score")] * 2
    engine.instead = lambda job, count: None
    assert told(capsys, file, "--seeds", "1")[0] == 0, "a failure is tried again next time"


def test_a_choice_that_could_not_be_tested_ends_with_four_and_says_why(file, engine, capsys):
    engine.instead = lambda job, count: JobResult(1, "no room") if job.action == "test" else None
    code, result = told(capsys, file, "--seeds", "1")
    assert code == 4
    untested = {json.dumps(cell["parameters"]): cell["untested"] for cell in result["cells"] if "untested" in cell}
    assert untested == {json.dumps(result["best"]["parameters"]): "no room"}
    engine.instead = lambda job, count: None
    code, result = told(capsys, file, "--seeds", "1")
    assert code == 0
    assert "test" in result["best"]
    assert not any("untested" in cell for cell in result["cells"])


def test_a_cell_that_failed_before_the_choice_is_not_trained_again_for_nothing(file, engine, capsys):
    one = ("--seeds", "1")
    engine.instead = lambda job, count: JobResult(1, "no room") if job.folder.name == engine.jobs[0][1] else None
    told(capsys, file, *one)
    engine.instead, before = lambda job, count: None, len(engine.jobs)
    assert "is frozen, and 1 failed cell would be trained again" in refused(capsys, file, *one)
    assert len(engine.jobs) == before
    code, result = told(capsys, file, *one, "--force")
    assert code == 0
    assert {cell["status"] for cell in result["cells"]} == {"finished"}
    assert told(capsys, file, *one)[0] == 0


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def test_numbers_beyond_all_bounds_are_null_in_every_file(file, engine, tmp_path, capsys):
    def beyond(job, count):
        """A model so bad that its perplexity is no number any more, and one of its losses neither."""
        code = engine.work(job)
        if job.action == "train" and json.loads((job.folder / "job.json").read_text())["spec"]["model"] == "gru":
            result = json.loads((job.folder / "result.json").read_text())
            result["valid"] |= {"loss": 800.0, "perplexity": None}
            (job.folder / "result.json").write_text(json.dumps(result))
            found = json.loads((job.folder / MEASURES).read_text())
            found["columns"]["train"] |= {"loss": 800.0, "perplexity": math.inf}
            found["columns"]["2 long lines"] = None
            worker.write(job.folder / MEASURES, found)
        return JobResult(code)

    engine.instead = beyond
    first = told(capsys, file)
    assert first[0] == 0
    folder = tmp_path / "studies" / "gates-text"
    files = [path for path in folder.rglob("*.json*") if path.is_file()]
    assert {"seal.json", "result.json", "log.jsonl", "measures.json", "test.json"} <= {path.name for path in files}
    for path in files:
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(text, parse_constant=no_constant)
    assert first[1]["best"]["parameters"] == {"model": "lstm"}
    table = (folder / "table.csv").read_text().splitlines()
    row = dict(zip(table[0].split(","), table[2].split(","), strict=True))
    assert (row["model"], row["validation perplexity"], row["train"], row["2 long lines"]) == ("gru", "inf", "inf", "")
    jobs = len(engine.jobs)
    assert told(capsys, file) == first
    assert len(engine.jobs) == jobs


def test_people_get_a_table_and_sentences(file, engine, capsys):
    assert main(["study", str(file), "--device", "cpu", "--seeds", "1", "--test", "none"]) == 0
    printed = capsys.readouterr()
    assert "| model |" in printed.out
    assert "Best of 2 settings" in printed.out
    assert "study.png" in printed.out
    assert "2 of 2 cells done" in printed.err


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        ("wikitext-2", "s-wikitext-2"),
        ("texts/my book.txt", "s-my-book"),
        ("a.txt,b.txt", "s-a"),
        ("Märchen.txt", "s-Märchen"),
        ("../..", "s"),
        ("/", "s"),
        ("¿?.txt", "s"),
        ("x\x1b[31m\n:*.txt", "s-x-31m"),
        ("n" * 300, "s-" + "n" * 58),
    ],
)
def test_the_default_folder_of_a_study_has_a_plain_name_whatever_its_data_are_called(data, folder):
    name = default_name(StudySpec(name="s", base={"data": data}, parameters=(make_axis("width", [8]),)))
    check_name(name, "folder")
    assert name == folder


def test_a_dry_run_lists_cells_and_time_and_runs_nothing(file, engine, capsys):
    code, listed = told(capsys, file, "--dry-run")
    assert code == 0
    assert len(listed["cells"]) == 4
    assert {cell["status"] for cell in listed["cells"]} == {"new"}
    low, high = listed["seconds_left_range"]
    assert 0 < low <= listed["seconds_left"] <= high
    assert all(0 < cell["seconds_range"][0] <= cell["seconds_range"][1] for cell in listed["cells"])
    assert engine.jobs == []


def test_a_dry_run_says_how_far_its_estimates_are(file, engine, capsys, monkeypatch):
    """On a processor the first steps of many large models take minutes."""
    monkeypatch.setattr("anaphor.studies.command.estimate_range", lambda run, threads: (10.0, 20.0))
    monkeypatch.setattr("anaphor.progress.LINE_SECONDS", -1.0)
    assert main(["study", str(file), "--dry-run", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert [line.partition(",")[0] for line in shown.err.splitlines() if "estimating" in line] == ["estimating: 50%"]
    assert "estimating" not in shown.out


@pytest.mark.parametrize(("slots", "total"), [(1, 140), (2, 70), (3, 50), (4, 50), (16, 50)])
def test_the_estimated_time_of_all_cells_is_not_below_that_of_one(slots, total, file, engine, capsys, monkeypatch):
    engine.slots, durations = slots, {"lstm": (50.0, 50.0), "gru": (20.0, 20.0)}
    monkeypatch.setattr("anaphor.studies.command.estimate_range", lambda run, threads: durations[run.model])
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(64))
    _, listed = told(capsys, file, "--dry-run")
    assert [cell["seconds"] for cell in listed["cells"]] == [50, 50, 20, 20]
    assert listed["seconds_left_range"] == [total, total]


def test_more_processes_than_cores_are_slower(file, engine, capsys, monkeypatch):
    engine.slots = 16
    monkeypatch.setattr("anaphor.studies.command.estimate_range", lambda run, threads: (10.0, 20.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(2))
    _, listed = told(capsys, file, "--dry-run")
    assert listed["seconds_left_range"] == [10, 40], "at most four cells take turns on two cores"


def test_the_estimate_of_a_busy_machine_is_a_range_from_processor_time_to_wall_time(file, engine, capsys, monkeypatch):
    """As if this process had a fifth of its core."""
    monkeypatch.setattr("time.process_time", lambda: time.perf_counter() / 5)
    _, listed = told(capsys, file, "--dry-run", "--set", "steps=100000")
    for cell in listed["cells"]:
        low, high = cell["seconds_range"]
        assert 4 * low < high


def test_flags_lie_over_the_file(file, engine, capsys):
    _, listed = told(capsys, file, "--seeds", "1", "--set", "steps=1", "bptt=3", "--test", "none")
    assert len(listed["cells"]) == 2
    assert all("bptt:3" in cell["valid"]["signature"] for cell in listed["cells"])
    assert all("test" not in cell for cell in listed["cells"])


def test_a_study_without_test_has_selected_too(file, engine, tmp_path, capsys):
    _, first = told(capsys, file, "--test", "none", "--seeds", "1")
    studied = tmp_path / "studies" / "gates-text"
    code, result = told(capsys, "length", "--of", studied, "--out", "length")
    assert code == 0
    (cell,) = result["cells"]
    assert cell["parameters"] == first["best"]["parameters"]
    assert "test" not in cell, "as its study, unless --test is given"
    assert "validation" in result["table_by_length"]
    (studied / "result.json").unlink()
    assert "run the study again" in refused(capsys, "length", "--of", studied, "--out", "again")


def test_a_question_about_a_finished_study_trains_nothing(file, engine, tmp_path, capsys):
    _, first = told(capsys, file)
    engine.jobs.clear()
    code, result = told(capsys, "length", "--of", tmp_path / "studies" / "gates-text", "--out", tmp_path / "length")
    assert code == 0
    assert {cell["valid"]["loss"] for cell in result["cells"]} == {
        cell["valid"]["loss"] for cell in first["cells"] if cell["parameters"] == first["best"]["parameters"]
    }
    rows = (tmp_path / "length" / "lengths" / "table.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[1].strip() for row in rows] == ["carried", "restarted"], rows  # the rows have 4 tokens


def test_a_run_that_kept_off_test_is_asked_on_validation(file, engine, tmp_path, capsys):
    words = f"train lm --data {tmp_path}/text.txt --layers 1 --batch-size 2 --bptt 4 --steps 2 --out one --device cpu"
    assert main([*words.split(), "--no-test", "--json"]) == 0
    capsys.readouterr()
    code, result = told(capsys, "length", "--of", "one", "--out", "length")
    assert (code, engine.jobs[0][0], len(engine.jobs)) == (0, "train", 1)
    assert not [line for line in result["findings"] if "test" in line]
    code, result = told(capsys, "length", "--of", "one", "--out", "length", "--test", "best")
    assert len(engine.jobs) == 2
    further = [line for line in result["findings"] if line.startswith("By length: ")]
    assert further[0] == "By length: test scores, by which nothing is selected."
    assert all("test perplexity" in line for line in further if "perplexity" in line)
    assert not [line for line in further if "est of" in line]


def test_a_run_is_asked_what_the_study_asks_for_its_data(file, engine, tmp_path, capsys):
    words = f"train lm --data {tmp_path}/text.txt --layers 1 --batch-size 2 --bptt 4 --steps 2 --out one --device cpu"
    assert main([*words.split(), "--no-test", "--json"]) == 0
    capsys.readouterr()
    asked = tmp_path / "asked.yaml"
    lengths = f"lengths: [5]\nwith_data: {{{tmp_path}/text.txt: {{lengths: [2, 3]}}}}\n"
    asked.write_text("base: {data: python-reference}\nparameters: {width: {values: [8]}}\n" + lengths)
    told(capsys, asked, "--of", "one", "--out", "answer")
    table = (tmp_path / "answer" / "lengths" / "table.csv").read_text()
    assert [line.split(",")[2] for line in table.splitlines()[1:]] == ["2", "3"] * 2, table


def test_lengths_beyond_the_rows_of_the_text_stand_where_their_segments_end(file, engine, tmp_path, capsys):
    words = f"train lm --data {tmp_path}/text.txt --layers 1 --batch-size 2 --bptt 4 --steps 2 --out one --device cpu"
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 400)
    assert main([*words.split(), "--no-test", "--json"]) == 0
    asked = tmp_path / "asked.yaml"
    asked.write_text("parameters: {width: {values: [8]}}\nlengths: [5, 40, 80, 160]\n")
    capsys.readouterr()
    assert main(["study", str(asked), "--of", "one", "--out", "answer", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    _, result = told(capsys, asked, "--of", "one", "--out", "answer")
    table = (tmp_path / "answer" / "lengths" / "table.csv").read_text().splitlines()
    longest = table[2].split(",")[2]
    assert [line.split(",")[1:3] for line in table[1:]] == [
        [state, length] for state in ("carried", "restarted") for length in ("5", longest)
    ]
    assert 5 < int(longest) < 40
    cut = f"lengths 40, 80 and 160 are cut to {longest} tokens, the longest row of the text."
    said = f"By length: trained on segments of 4 tokens; {cut}"
    assert [line for line in result["findings"] if "longest row" in line] == [said]
    assert said in printed
    # People and programs get the table that the study was asked for, not only the one of the training.
    assert result["table_by_length"] == (tmp_path / "answer" / "lengths" / "table.md").read_text()
    assert result["table"] == (tmp_path / "answer" / "table.md").read_text()
    assert printed.startswith(f"{result['table']}\nby length:\n\n{result['table_by_length']}\n")


def test_rows_that_end_at_other_lengths_are_told_apart(file, engine, tmp_path, capsys):
    asked = tmp_path / "asked.yaml"
    text = file.read_text().replace("model: {values: [lstm, gru]}", "eval_batch_size: {values: [2, 4]}")
    asked.write_text(text + "lengths: [5, 80, 160]\n")
    _, result = told(capsys, asked, "--seeds", "1", "--test", "none")
    said = [line for line in result["findings"] if "longest row" in line]
    assert [line.partition(", ")[0] for line in said] == [
        f"By length: with eval_batch_size {rows}" for rows in (2, 4)
    ], said
    assert len({line.partition("are cut to")[2] for line in said}) == 2


def test_a_run_s_folder_is_not_made_a_study_s(file, engine, tmp_path, error_of):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "spec.yaml").write_text("task: lm\n")
    assert "one has a run in it" in error_of(["study", str(file), "--device", "cpu", "--out", "one"])
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["spec.yaml"]


@pytest.mark.parametrize("content", ["garbage{", "[]", "{}", '{"cells": 1, "metric": 2, "chosen": 3}'])
def test_a_damaged_seal_is_told_in_one_line(content, file, engine, tmp_path, capsys):
    told(capsys, file, "--seeds", "1")
    (tmp_path / "studies" / "gates-text" / "seal.json").write_text(content)
    assert "seal.json is damaged" in refused(capsys, file, "--seeds", "1")


@pytest.mark.parametrize(
    "content", ['{"status": "fin', *(pytest.param(one, marks=pytest.mark.slow) for one in ("[]", "{}", ""))]
)
def test_a_damaged_result_of_a_cell_of_a_sealed_study_is_named_and_what_to_do(content, file, engine, tmp_path, capsys):
    first = told(capsys, file)
    engine.jobs.clear()
    damaged = min((tmp_path / "studies" / "gates-text" / "cells").glob("*/result.json"))
    damaged.write_text(content)
    line = refused(capsys, file)
    place = damaged.relative_to(tmp_path)
    assert line.endswith(f"{place} is damaged: delete it, and the same command trains this cell again\n")
    assert main(["study", str(file), "--dry-run", "--device", "cpu"]) == 0  # which warns
    assert str(place) in capsys.readouterr().err
    assert engine.jobs == []
    damaged.unlink()
    code, report = told(capsys, file)
    assert (code, report["best"]) == (0, first[1]["best"])
    assert engine.jobs == [("train", damaged.parent.name)]


def test_an_engine_that_is_not_known_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "bptt", "--engine", "rya", "--device", "cpu"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_budget_of_another_unit_takes_the_place_of_the_studys():
    runs = [setting.run for setting in build_spec(Options(study="bptt", set=("steps=3",))).settings()]
    assert {(run.steps, run.epochs) for run in runs} == {(3, None)}


def test_presets_are_listed(capsys):
    assert main(["study", "list"]) == 0
    printed = capsys.readouterr().out
    for name in ("bptt", "grid", "length", "hybrid", "positions", "merge", "optimizers"):
        assert name in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bptts"], "did you mean 'bptt'"),
        (["bptt", "--set", "epochs"], "write name=value"),
        (["bptt", "--set", "epohcs=2"], "did you mean 'epochs'"),
        (["bptt", "--engine", "rya"], "did you mean 'ray'"),
        (["bptt", "--address", "here"], "has no effect without --engine ray"),
        (["bptt", "--seeds", "0"], "at least 1"),
        (["bptt", "--test", "some"], "choice of test scores"),
        (["length", "--of", "nowhere"], "has neither a run nor a study"),
        (["bptt", "--data", "wikitex-2"], "did you mean 'wikitext-2'"),
        (["bptt", "--workers", "0"], "at least 1"),
        (["bptt", "--threads", "0"], "threads=0: it must be at least 1"),
        (["bptt", "--workers", "1000000000"], "workers=1000000000: it must be at most 1,024"),
        (["bptt", "--threads", "-1", "--dry-run"], "threads=-1: it must be at least 1"),
        (["bptt", "--per-device", "0", "--engine", "ray"], "per_device=0: it must be at least 1"),
        (["bptt", "--set", "bptt=5", "--dry-run"], "the study varies bptt (5, 10, 20, 40, 80)"),
        (["grid", "--set", "width=16", "--dry-run"], "the study varies width (32, 64, 128)"),
        (["optimizers", "--set", "lr=1", "--dry-run"], "the study varies lr along the axis optimizer (sgd, "),
        (["bptt", "--set", "seed=3", "--dry-run"], "use --seeds"),
        (["bptt", "--set", "device=cpu", "--dry-run"], "use --device"),
        (["bptt", "--of", "somewhere"], "--of is for studies that measure more (architectures-full, "),
        (["length", "--of", "somewhere", "--set", "width=8"], "leave out --data, --init, --seeds and --set"),
        (["bptt", "--set", "lr=2020-13-45"], "'2020-13-45' is neither a number, a name nor a list of them"),
        (["bptt", "--set", f"lr={'[' * 5000}"], "is neither a number, a name nor a list of them"),
        (["grid", "--device", "cdua"], "unknown device 'cdua'; did you mean 'cuda'"),
        (["grid", "--set", "optimizer=adamx"], "at model lstm, width 32, layers 1: unknown optimizer 'adamx'; did you"),
        (["grid", "--set", "schedule=cosin", "--dry-run"], "unknown schedule 'cosin'; did you mean 'cosine'"),
        (["optimizers", "--set", "model=lsmt"], "unknown model 'lsmt'; did you mean 'lstm'"),
        (["bptt", "--set", "tokenizer=words"], "unknown tokenizer 'words'; did you mean 'word'"),
        (["bptt", "--set", "norm=befor"], "unknown norm 'befor'; did you mean 'before'"),
        (["bptt", "--set", "lr=-1"], "lr=-1: a learning rate must be above 0"),
    ],
)
def test_a_mistake_is_one_line_and_code_two(words, message, error_of):
    assert message in error_of(["study", *words])


def test_a_finished_cell_tells_what_it_is_judged_by_and_not_its_last_epoch(tmp_path):
    spec = StudySpec(name="one", base={"data": "grammar"}, parameters=(make_axis("width", [8]),), seeds=(0,))
    cell = Cell(spec.settings()[0], 0, tmp_path)
    (tmp_path / "measures.json").write_text(json.dumps({"wanted": spec.measures}))
    (tmp_path / "result.json").write_text(
        json.dumps({"status": "finished", "valid": {"perplexity": 151.0, "loss": 5.0}})
    )
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 9, "valid": {"perplexity": 233.0, "loss": 5.4}}) + "\n")
    assert format_score(cell, spec) == ", perplexity 151.00"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bptt", "--data", "pyton-reference"], "did you mean 'python-reference'?"),
        (
            ["fine-tuning-optimizers", "--data", "negation", "--init", "nothing"],
            "init=nothing: there is no such",
        ),
    ],
)
def test_data_and_weights_that_are_missing_leave_no_folder(words, message, tmp_path, error_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in error_of(["study", *words, "--device", "cpu"])
    assert not (tmp_path / "studies").exists()


def test_an_interrupted_study_says_once_how_to_resume_it(file, engine, tmp_path, capsys, monkeypatch):
    def interrupt(study):
        raise KeyboardInterrupt

    monkeypatch.setattr("anaphor.studies.study.Study.run", interrupt)
    assert main(["study", str(file), "--device", "cpu", "--out", "one"]) == 130
    assert capsys.readouterr().err.splitlines() == [
        "anaphor: interrupted; finished cells are in one: resume with the same command"
    ]
    assert json.loads((tmp_path / "one" / "log.jsonl").read_text())["event"] == "interrupted"

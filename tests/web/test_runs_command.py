"""`anaphor runs`: every run and study below a folder, in the terminal, sorted and filtered, as JSON and CSV."""

import csv
import fcntl
import io
import json
import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from anaphor.cli.main import main
from anaphor.registry import has_shelf
from anaphor.training.run_folder import RunFolder
from anaphor.web import runs_listing as runs
from anaphor.web.runs_table import find_distinguishing, format_age, format_size
from web.pretended_runs import add_cell, log, write_run, write_study


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Four runs and, where studies are there, a study, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_run(tmp_path / "runs" / "run-2", losses=(3.0, 2.0))
    write_run(tmp_path / "runs" / "run-10", losses=(1.0, 1.5), model="gru", lr=0.003)
    write_run(tmp_path / "runs" / "stopped", losses=(9.0, 8.0), result=None, clip=0.5)
    diverged = write_run(tmp_path / "runs" / "diverged", losses=(), result=None, lr=20.0)
    diverged.write_result({"status": "diverged", "reason": "training diverged at step 1: loss nan"})
    if has_shelf("studies"):
        study = write_study(tmp_path / "studies" / "widths")
        add_cell(study, {"width": 4}, 0)
        add_cell(study, {"width": 4}, 1, event="failed", reason="no memory")
    return tmp_path


def listed(capsys, *words):
    assert main(["runs", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def names(capsys, *words):
    return [row["run"] for row in listed(capsys, *words) if row["kind"] == "run" and not row["study"]]


@pytest.mark.needs("studies")
def test_json_is_a_list_of_runs_and_studies_with_the_same_keys(capsys):
    rows = listed(capsys)
    by_name = {row["run"]: row for row in rows}
    assert {frozenset(row) for row in rows} == {frozenset((*runs.FACTS, "settings", "scores"))}
    assert list(by_name) == [
        "runs/diverged", "runs/run-2", "runs/run-10", "runs/stopped", "studies/widths",
        "studies/widths/cells/0000000000000000",
    ]  # fmt: skip
    row = by_name["runs/run-2"]
    assert (row["task"], row["status"], row["step"], row["best"], row["last"]) == ("lm", "finished", 20, 2.0, 2.0)
    assert (row["metric"], row["goal"], row["parameters"], row["throughput"]) == ("loss", "min", 1234, 555.5)
    assert (row["counted"], row["seed"], row["settings"]["lr"]) == ("tokens", 0, 0.1)
    assert row["scores"]["valid"]["signature"] == "bptt:8|tokens:100"
    assert 0 <= row["age"] < 600
    study, cell = by_name["studies/widths"], by_name["studies/widths/cells/0000000000000000"]
    assert (study["kind"], study["cells"], study["finished"], study["failed"]) == ("study", 4, 1, 1)
    assert (cell["kind"], cell["study"]) == ("run", "studies/widths")


def test_a_run_without_a_validation_is_listed_with_step_speed_and_training_loss(folder, capsys, monkeypatch):
    run = write_run(folder / "new" / "run", losses=(), result=None)
    run.log_step({"step": 1234, "loss": 5.4321, "lr": 0.1, "grad_norm": 1.0, "throughput": 250.0, "seconds_left": 9.0})
    for columns in ("200", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["runs", "new"]) == 0
        line = capsys.readouterr().out.splitlines()[1]
        assert [part in line for part in ("1,234", "250 tokens/s", "training loss", "5.432")] == [True] * 4


@pytest.mark.needs("studies")
def test_paths_are_those_that_other_commands_take(folder, capsys):
    assert names(capsys, "runs") == names(capsys)
    assert names(capsys, str(folder / "runs"))[0] == str(folder / "runs" / "diverged")
    assert listed(capsys, "runs/run-2")[0]["run"] == "runs/run-2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--sort name", "diverged run-2 run-10 stopped"),
        ("--sort name --reverse", "stopped run-10 run-2 diverged"),
        ("--sort best", "run-10 run-2 stopped diverged"),
        ("--sort best --reverse", "stopped run-2 run-10 diverged"),
        ("--sort last", "run-10 run-2 stopped diverged"),
        ("--sort parameters", "run-2 run-10 diverged stopped"),
        ("--sort status", "diverged run-2 run-10 stopped"),
        ("--status finished", "run-2 run-10"),
        ("--status stopped diverged", "diverged stopped"),
        ("--filter run-", "run-2 run-10"),
        ("--filter MODEL=GRU", "run-10"),
        ("--filter finished", "run-2 run-10"),
        ("--where model=gru", "run-10"),
        ("--where model=lstm lr=0.1", "run-2 stopped"),
        ("--where lr=3e-3", "run-10"),
        ("--where clip=0.5", "stopped"),
        ("--where task=images", ""),
    ],
)
def test_order_and_selection(capsys, words, expected):
    assert names(capsys, *words.split()) == [f"runs/{name}" for name in expected.split()]


def test_what_the_table_shows_of_a_run_selects_it(folder, capsys):
    """Also with own mixers: `model` is then the preset that the rest of the layers comes from."""
    write_run(folder / "mixed" / "plain", mixers=["lstm"], clip=None)
    write_run(folder / "mixed" / "own", mixers=["lstm", "gru"], clip=0.5)
    write_run(folder / "mixed" / "gru", mixers=["gru"], model="gru")
    assert main(["runs", "mixed"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0]: [word.rstrip(",") for word in line.split() if "=" in word] for line in lines}
    assert shown["mixed/own"] == ["model=lstm", "mixers=[lstm,gru]"]
    for run, settings in shown.items():
        assert names(capsys, "mixed", "--where", *settings) == [run]
    assert names(capsys, "mixed", "--where", "model=lstm") == ["mixed/own", "mixed/plain"]


def test_a_metric_that_is_maximized_is_sorted_with_the_largest_first(folder, capsys):
    for name, accuracy in (("low", 0.1), ("high", 0.9)):
        run = write_run(folder / "images" / name, task="images", losses=(), result=None)
        run.spec.write_text(run.spec.read_text().replace("select: loss", "select: accuracy"))
        run.log(1, valid={"accuracy": accuracy, "loss": 1.0})
    assert names(capsys, "images", "--sort", "best") == ["images/high", "images/low"]
    assert names(capsys, "images", "--sort", "last", "--reverse") == ["images/low", "images/high"]


def test_age_is_sorted_with_the_newest_first(folder, capsys):
    for age, name in enumerate(("stopped", "run-10", "diverged", "run-2")):
        run = folder / "runs" / name
        for path in run.iterdir():
            os.utime(path, (1e9 - 1000 * age,) * 2)
    assert names(capsys, "--sort", "age") == [f"runs/{name}" for name in ("stopped", "run-10", "diverged", "run-2")]


@pytest.mark.needs("studies")
def test_the_table_has_a_line_for_each_run_and_study(capsys):
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "run status metric step best last parameters speed age differs in"
    assert lines[2].split()[:8] == ["runs/run-2", "finished", "loss", "20/40", "2.000", "2.000", "1.2", "k"]
    assert lines[2].endswith("model=lstm, lr=0.1")
    assert lines[3].endswith("model=gru, lr=0.003")
    assert "not listed: 1 run of studies (use --cells)" in lines
    assert any(line.split()[:5] == ["studies/widths", "stopped", "4", "1", "1"] for line in lines)
    assert lines[-1] == "runs/diverged: training diverged at step 1: loss nan"


@pytest.mark.needs("studies")
def test_the_table_of_studies_counts_cells_that_diverged(folder, capsys):
    add_cell(folder / "studies" / "widths", {"width": 8}, 0, event="diverged", reason="loss nan")
    assert main(["runs", "studies"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["study", "status", "cells", "finished", "failed", "diverged", "age"] in lines
    assert ["studies/widths", "stopped", "4", "1", "1", "1"] in [line[:6] for line in lines]


@pytest.mark.needs("studies")
def test_cells_are_listed_where_they_are_asked_for(capsys):
    main(["runs", "--cells"])
    text = capsys.readouterr().out
    assert "studies/widths/cells/0000000000000000  finished" in text
    assert "not listed" not in text


def test_csv_has_a_column_for_each_setting_that_differs(capsys):
    assert main(["runs", "runs", "--csv"]) == 0
    header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert header == [*runs.FACTS, "model", "lr", "clip"]
    first = dict(zip(header, rows[1], strict=True))
    assert (first["run"], first["best"], first["model"], first["lr"], first["clip"]) == (
        "runs/run-2", "2.0", "lstm", "0.1", ""
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sort bets", "unknown order 'bets'; did you mean 'best'?"),
        ("--status done", "unknown status 'done'"),
        ("--where modl=lstm", "where: no run has the setting 'modl'; did you mean 'model'?"),
        ("--where lstm", "where='lstm': write NAME=VALUE, such as model=lstm"),
        ("--csv --json", "--csv and --json: give one of them"),
        ("--interval 0", "interval=0.0: it must be from 0.1 to 3600 seconds"),
        ("nowhere", "no folder at nowhere"),
    ],
)
def test_mistakes_are_told_in_one_line(error_of, words, message):
    assert error_of(["runs", *words.split()]).startswith(message)


def test_an_empty_folder_has_no_runs(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["runs", "empty"]) == 0
    assert capsys.readouterr().out == "no runs\n"
    assert listed(capsys, "empty") == []


def test_watching_prints_again_after_each_change_and_ends_with_ctrl_c(folder, capsys, monkeypatch):
    run, waits = RunFolder(folder / "runs" / "stopped"), []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            log(run, 3, 7.0)
        if len(waits) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.time, "sleep", wait)
    assert main(["runs", "--watch", "--json", "--interval", "0.5"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert waits == [0.5] * 4
    assert [row["last"] for row in (first[3], second[3])] == [8.0, 7.0]


def in_terminal(*words, columns=100, until=None):
    """Exit code, and what a terminal gets from the command. It is ended by Ctrl-C when it has shown this, if given."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "40", "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "anaphor", "runs", *words], stdin=follower, stdout=follower, stderr=follower,
        env=environment, start_new_session=True, preexec_fn=lambda: take_terminal(follower),
    ) as process:  # fmt: skip
        os.close(follower)
        text = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
            if until is not None and until in text:
                os.write(leader, b"\x03")
                until = None
        os.close(leader)
        return process.wait(), text.decode(errors="replace")


def take_terminal(terminal):
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.mark.needs("studies")
def test_watching_in_a_terminal_ends_with_ctrl_c():
    code, text = in_terminal("--watch", "--interval", "0.1", until=b"studies/widths")
    assert code == 0
    assert "Traceback" not in text
    assert "runs/run-10" in text


def test_a_terminal_gets_no_codes_from_names(folder):
    write_run(folder / "runs" / "a\x1b[31m\nb <script>[bold]", lr=0.5)
    code, text = in_terminal(columns=160)
    assert code == 0
    assert r"a\x1b[31m\nb <script>[bold]" in text
    assert "\x1b[31mb" not in text


def test_a_narrow_terminal_keeps_the_numbers():
    code, text = in_terminal(columns=80)
    assert code == 0
    assert max(len(line) for line in text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()) <= 110
    assert "2.000" in text
    assert "555" not in text


def test_a_narrow_terminal_lacks_columns_before_it_cuts_values(folder):
    write_run(folder / "runs" / "a-run-with-a-name-of-many-words", task="translate")
    run = write_run(folder / "runs" / "first-steps", losses=(), result=None, task="images")
    run.log_step({"step": 12, "loss": 5.4321, "lr": 0.1, "grad_norm": 1.0, "throughput": 250.0, "seconds_left": 9.0})
    code, text = in_terminal(columns=80)
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith("runs/")}
    assert not any("…" in row[:60] for row in rows.values())
    assert [word in rows["runs/run-2"] for word in ("finished", "loss", "2.000")] == [True] * 3
    assert [word in rows["runs/first-steps"] for word in ("training loss", "12", "5.432")] == [True] * 3


def test_neither_help_nor_the_list_imports_torch(folder):
    write_run(folder / "runs" / "own", task="my-task")
    for task in ("translate", "images", "classify"):
        write_run(folder / "runs" / task, task=task)
    command = [sys.executable, "-X", "importtime", "-m", "anaphor", "runs"]
    for words, needed in ((["--help"], "anaphor.flags"), ([], "anaphor.web.catalog")):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert needed in imported
        assert not {"torch", "numpy", "scipy", "starlette"} & imported


def test_as_few_settings_as_possible_tell_runs_apart():
    rows = [
        {"task": "lm", "settings": {"data": "a", "model": model, "width": width, "heads": heads, "seed": seed}}
        for model, width, heads, seed in [("lstm", 8, None, 0), ("lstm", 8, None, 1), ("gpt", 9, 2, 0)]
    ]
    assert find_distinguishing(rows) == ["model", "seed"]
    assert find_distinguishing(rows[:1]) == []


def test_mixers_tell_runs_of_one_preset_apart_and_not_options_that_only_some_layers_have():
    settings = {"model": "lstm", "width": 8}
    rows = [
        {"task": "lm", "settings": settings | {"weight_drop": 0.0, "mixers": ["lstm"], "lr": 0.1}},
        {"task": "lm", "settings": settings | {"heads": 4, "mixers": ["gru", "attention"], "lr": 0.2}},
    ]
    assert find_distinguishing(rows) == ["mixers"]
    for row in rows:
        del row["settings"]["mixers"]
    assert find_distinguishing(rows) == ["lr"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_age(5.4), "5 s"), (format_age(61), "1 min"), (format_age(7300), "2 h"), (format_age(200_000), "2 d"),
        (format_size(999), "999"), (format_size(22_713_986), "22.7 M"), (format_size(None), ""),
    ],
)  # fmt: skip
def test_numbers_for_people(shown, expected):
    assert shown == expected


def test_seconds_until_a_value_was_reached_or_never(capsys):
    rows = {row["run"]: row for row in listed(capsys, "--reach", "2.5", "1.2", "--where", "task=lm")}
    assert rows["runs/run-2"]["reached"] == {"2.5": 1.0, "1.2": None}
    assert rows["runs/run-10"]["reached"]["1.2"] is not None
    assert rows["runs/diverged"]["reached"] == {"2.5": None, "1.2": None}
    assert main(["runs", "--reach", "1.2", "--where", "task=lm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "s to 1.2" in lines[0]
    assert "never" in next(line for line in lines if "run-2" in line)
    assert "never" not in next(line for line in lines if "run-10" in line)
    assert main(["runs", "--reach", "1.2", "--csv"]) == 0
    table = {row["run"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert table["runs/run-2"]["seconds to 1.2"] == ""
    assert float(table["runs/run-10"]["seconds to 1.2"]) > 0


def test_runs_of_other_tasks_have_empty_cells_for_a_metric_that_they_lack(folder, capsys):
    run = write_run(folder / "runs" / "a-picture", task="images", losses=(), result=None)
    run.log(1, seconds=2.5, valid={"accuracy": 0.9, "loss": 1.0})
    words = ["--reach", "0.8", "--metric", "accuracy"]
    reached = {row["run"]: row["reached"] for row in listed(capsys, "runs", *words)}
    assert reached.pop("runs/a-picture") == {"0.8": 2.5}
    assert reached == {f"runs/{name}": {"0.8": None} for name in ("run-2", "run-10", "stopped", "diverged")}
    assert main(["runs", "runs", *words]) == 0
    shown = capsys.readouterr().out
    assert "2.5" in next(line for line in shown.splitlines() if "a-picture" in line)
    assert "never" not in shown  # a run that has no accuracy does not fail to reach one
    assert main(["runs", "runs", "--curves", "accuracy.svg", "--metric", "accuracy"]) == 0
    capsys.readouterr()
    assert main(["runs", "runs", "--reach", "0.8", "--metric", "acuracy"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "no run has the metric 'acuracy'" in said[0]
    assert "did you mean 'accuracy'?" in said[0]


def test_curves_of_all_runs_in_one_figure(capsys, folder):
    assert main(["runs", "runs", "--curves", "figures/all.svg"]) == 0
    drawn = (folder / "figures" / "all.svg").read_text()
    assert "figures/all.svg" in capsys.readouterr().err
    assert all(name in drawn for name in ("run-2", "run-10", "stopped", "seconds of training"))
    assert "diverged" not in drawn


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--curves", "all.gif"], ".png"),
        (["--metric", "loss"], "--reach"),
        (["--reach", "nan"], "finite"),
        (["--reach", "2", "--metric", "los"], "loss"),
        (["--curves", "all.png", "--where", "clip=7"], "no value"),
        (["--curves", "all.png", "--watch"], "--curves and --watch"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(words, part, capsys):
    assert main(["runs", "runs", *words]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert part in said[0]


def test_a_run_that_cannot_be_read_is_one_that_never_reached_a_value(capsys, folder):
    """Its metrics are a link, which is not followed, or its task is unknown and it has none."""
    metrics = folder / "runs" / "run-2" / "metrics.jsonl"
    metrics.rename(folder / "elsewhere.jsonl")
    metrics.symlink_to(folder / "elsewhere.jsonl")
    (folder / "runs" / "diverged" / "spec.yaml").write_text("][")
    rows = {row["run"]: row for row in listed(capsys, "runs", "--reach", "1.2", "--metric", "loss")}
    assert "metrics.jsonl cannot be read" in rows["runs/run-2"]["error"]
    assert {name: row["reached"]["1.2"] for name, row in rows.items() if name != "runs/run-10"} == {
        "runs/diverged": None, "runs/run-2": None, "runs/stopped": None,
    }  # fmt: skip
    assert rows["runs/run-10"]["reached"]["1.2"] is not None

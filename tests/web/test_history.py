"""Curves by cursor: what is new, whole and in order; thinned without losing a spike. Slow twins stand beside them."""

import json
import math
import os
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anaphor.errors import DataError
from anaphor.training.run_folder import RunFolder
from anaphor.web import history
from anaphor.web.history import (
    AXES,
    Extremes,
    find_values,
    make_columns,
    read_curves,
    read_last_step,
    read_samples,
    read_step_log,
    thin,
)

LINE = {"epoch": 0.5, "tokens": 700, "seconds": 1.5, "train_loss": 2.5, "tokens_per_second": 400.0, "lr": 0.1}


@pytest.fixture
def run(tmp_path):
    """The folder of a run without a model: its files as the trainer writes them."""
    folder = RunFolder(tmp_path / "run")
    folder.folder.mkdir()
    folder.spec.write_text("format: 2\ntask: lm\n")
    return folder


def log(run, *losses, start=0):
    for number, loss in enumerate(losses, start=start):
        run.log(number + 1, **LINE, valid={"loss": loss, "accuracy": 1 - number / 100, "signature": "tokens:5"})


def test_columns_have_the_names_that_a_page_knows(run):
    log(run, 3.0, 2.0)
    found = read_curves(run.folder)
    assert found["columns"] == {
        "step": [1, 2], "epoch": [0.5, 0.5], "count": [700, 700], "seconds": [1.5, 1.5], "train_loss": [2.5, 2.5],
        "throughput": [400.0, 400.0], "lr": [0.1, 0.1], "valid.loss": [3.0, 2.0], "valid.accuracy": [1.0, 0.99],
    }  # fmt: skip
    assert (found["rows"], found["restart"], found["torn"], found["damaged"]) == (2, False, False, 0)


def test_only_rows_after_the_cursor_are_given(run):
    log(run, 3.0, 2.0)
    first = read_curves(run.folder)
    assert read_curves(run.folder, first["cursor"])["columns"] == {}
    log(run, 1.5, start=2)
    second = read_curves(run.folder, first["cursor"])
    assert second["columns"]["valid.loss"] == [1.5]
    assert (second["rows"], second["restart"]) == (3, False)


def test_a_part_of_the_steps_is_given_in_more_detail(run):
    log(run, *(1 / step for step in range(1, 201)))
    assert len(read_curves(run.folder, points=20)["columns"]["step"]) < 40
    part = read_curves(run.folder, points=20, steps=(51, 60))
    assert part["columns"]["step"] == list(range(51, 61))
    assert part["rows"] == 200


def test_a_torn_line_is_told_and_comes_when_it_is_whole(run):
    log(run, 3.0)
    whole = json.dumps({"step": 2, **LINE, "valid": {"loss": 2.0}}).encode() + b"\n"
    with run.metrics.open("ab") as file:
        file.write(whole[:50])
        file.flush()
        torn = read_curves(run.folder)
        assert (torn["rows"], torn["torn"]) == (1, True)
        file.write(whole[50:])
        file.flush()
        assert read_curves(run.folder, torn["cursor"])["columns"]["valid.loss"] == [2.0]


@pytest.mark.parametrize("change", ["replaced", "truncated", "rewritten in place", "deleted"])
def test_rows_that_no_longer_hold_are_told(run, change):
    log(run, 3.0, 2.0, 1.0)
    cursor = read_curves(run.folder)["cursor"]
    if change == "replaced":
        run.truncate_after(2)  # as a resumed run does
        log(run, 9.0, 8.0, start=2)
    elif change == "truncated":
        os.truncate(run.metrics, run.metrics.stat().st_size // 3)
    elif change == "rewritten in place":
        run.metrics.write_bytes(run.metrics.read_bytes().replace(b"1.0", b"7.0") * 2)
    else:
        run.metrics.unlink()
    found = read_curves(run.folder, cursor)
    assert found["restart"] is True
    assert found["columns"] == read_curves(run.folder)["columns"]


def test_damaged_lines_are_counted_and_the_others_read(run):
    log(run, 3.0)
    with run.metrics.open("ab") as file:
        file.write(b'{"step": \n[1]\n{"loss": 1}\n{"step": "1"}\n{"step": 2} x\n\xff\xfe\n' + b"[" * 100_000 + b"\n\n")
    log(run, 2.0, start=1)
    found = read_curves(run.folder)
    assert (found["columns"]["valid.loss"], found["damaged"]) == ([3.0, 2.0], 7)


def test_a_step_that_no_run_can_have_is_a_damaged_line(run):
    run.metrics.write_bytes(b'{"step": 1%s, "valid": {"loss": 1}}\n' % (b"0" * 400))
    assert (read_curves(run.folder)["columns"], read_curves(run.folder)["damaged"]) == ({}, 1)


def test_values_that_are_not_finite_are_gaps(run):
    log(run, 3.0, math.nan, 2.0)
    run.metrics.write_bytes(run.metrics.read_bytes() + b'{"step": 4, "valid": {"loss": NaN, "n": 1e999, "b": true}}\n')
    found = read_curves(run.folder)["columns"]
    assert found["valid.loss"] == [3.0, None, 2.0, None]
    assert found["train_loss"] == [2.5, 2.5, 2.5, None]
    assert not {"valid.n", "valid.b", "valid.signature"} & set(found)


def test_names_that_are_no_text_can_be_sent(run):
    run.metrics.write_bytes(b'{"step": 1, "valid": {"\\ud800<script>": 1}}\n')
    assert json.dumps(read_curves(run.folder)).encode()
    assert list(read_curves(run.folder)["columns"]) == ["step", "valid.?<script>"]


def test_a_run_without_metrics_is_empty_and_a_deleted_one_is_an_error(run):
    assert read_curves(run.folder) == {
        "cursor": "", "restart": False, "columns": {}, "rows": 0, "torn": False, "damaged": 0
    }  # fmt: skip
    assert read_samples(run.folder) == []
    run.spec.unlink()
    for read in (read_curves, read_samples):
        with pytest.raises(DataError, match=r"^the run was deleted$"):
            read(run.folder)


@pytest.mark.parametrize("name", ["metrics", "samples"])
def test_links_out_of_the_folder_are_not_read(run, tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1, "secret": 5}\n=== step 1 ===\nsecret\n\n')
    getattr(run, name).symlink_to(secret)
    with pytest.raises(DataError, match=r"cannot be read: Too many levels of symbolic links$"):
        (read_curves if name == "metrics" else read_samples)(run.folder)


@pytest.mark.parametrize("cursor", ["x", "1-2-3", "1-2-3-zzzzzzzz", "-1-2-3-00000000", f"1-{'f' * 40}-1-00000000", "é"])
def test_a_cursor_that_we_did_not_write_reads_from_the_beginning(run, cursor):
    log(run, 3.0)
    assert read_curves(run.folder, cursor)["columns"]["valid.loss"] == [3.0]


def test_a_file_larger_than_one_answer_comes_in_parts(run, monkeypatch):
    log(run, *range(100))
    monkeypatch.setattr(history.read_lines, "__defaults__", (1000,))
    cursor, steps = "", []
    while columns := (found := read_curves(run.folder, cursor))["columns"]:
        cursor = found["cursor"]
        steps += columns["step"]
    assert steps == list(range(1, 101))


def test_a_line_longer_than_one_answer_is_damaged_and_passed(run, monkeypatch):
    run.metrics.write_bytes(b"x" * 2500 + b"\n")
    log(run, 3.0)
    monkeypatch.setattr(history.read_lines, "__defaults__", (1000,))
    cursor, damaged = "", 0
    for _ in range(5):
        found = read_curves(run.folder, cursor)
        cursor, damaged = found["cursor"], damaged + found["damaged"]
        if found["columns"]:
            break
    assert found["columns"]["valid.loss"] == [3.0]
    assert damaged > 0


values = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-5, 5))


tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(values, min_size=width, max_size=width), max_size=200)
)


@given(tables, st.integers(1, 50))
def test_thinning_keeps_the_extremes_and_the_gaps_of_every_column(rows, points):
    columns = {"step": list(range(len(rows)))}
    columns |= {f"c{index}": list(column) for index, column in enumerate(zip(*rows, strict=True))}
    thinned = thin(columns, points)
    steps = thinned["step"]
    assert steps == sorted(set(steps))
    assert all(
        column[place] == columns[name][step] for name, column in thinned.items() for place, step in enumerate(steps)
    )
    if rows:
        assert (steps[0], steps[-1]) == (0, len(rows) - 1)
    for name, column in columns.items():
        present = [value for value in column if value is not None]
        kept = [value for value in thinned[name] if value is not None]
        if present:
            assert (min(kept), max(kept)) == (min(present), max(present))
        assert (None in thinned[name]) == (None in column)
    assert len(steps) <= max(points, 2 + 3 * len(columns))


def test_thinning_keeps_a_single_spike_among_ten_thousand_rows():
    columns = {"step": list(range(10_000)), "a": [1.0] * 10_000, "b": [math.sin(row) for row in range(10_000)]}
    columns["a"][4321], columns["b"][77], columns["b"][9001] = 50.0, None, -50.0
    thinned = thin(columns, 500)
    assert 250 <= len(thinned["step"]) <= 500
    assert (max(thinned["a"]), min(filter(None, thinned["b"]))) == (50.0, -50.0)
    assert 77 in thinned["step"]


names = st.sampled_from(["loss", "tokens", "tokens_per_second", "epoch", "valid", "train_loss"])
rows = st.lists(
    st.dictionaries(names, st.one_of(values, st.booleans(), st.text(max_size=2), st.dictionaries(names, values))),
    max_size=8,
)


@example([{"valid": False}, {"valid": 0.0}])
@example([{"valid": {"loss": 1}}, {"valid": 2}])
@example([{"valid": 10**400}, {"valid": 2}])
@given(rows)
def test_columns_are_those_of_the_slow_twin(given_rows):
    rows = [{"step": number, **row} for number, row in enumerate(given_rows)]
    expected = {}
    for place, row in enumerate(rows):
        for name, value in history.flatten_row(row).items():
            expected.setdefault(name, [None] * len(rows))[place] = history.to_number(value)
    expected = {name: column for name, column in expected.items() if set(column) != {None}}
    found = make_columns(rows)
    assert found == expected
    assert [name for name in found if name in AXES] == [name for name in AXES if name in found]


@given(st.lists(values, max_size=30), st.integers(0, 30), st.sampled_from([b"", b"oops\n", b'{"step": 3}\n']))
def test_values_found_quickly_are_those_of_whole_lines(losses, place, foreign):
    lines = [json.dumps({"step": 1, "valid": {"top": None, "loss": loss, "by": {"loss": 9}}}) for loss in losses]
    data = "".join(f"{line}\n" for line in lines[:place]).encode() + foreign
    data += "".join(f"{line}\n" for line in lines[place:]).encode()
    found = find_values(data, "loss")
    assert found == (losses if not foreign else None)


def test_the_range_and_the_last_row_follow_a_growing_file(run):
    log(run, 3.0, 1.0, 2.0)
    found = Extremes("loss")
    found.update(run.metrics)
    assert (found.lowest, found.highest, found.last["step"]) == (1.0, 3.0, 3)
    log(run, 0.5, start=3)
    found.update(run.metrics)
    assert (found.lowest, found.highest, found.last["step"]) == (0.5, 3.0, 4)
    run.truncate_after(1)
    found.update(run.metrics)
    assert (found.lowest, found.highest, found.last["step"]) == (3.0, 3.0, 1)


def test_the_last_row_alone_is_found_at_the_end_of_the_file(run, monkeypatch):
    log(run, *range(50))
    monkeypatch.setattr(history, "TAIL", 500)
    tail = Extremes("loss", has_range=False)
    tail.update(run.metrics)
    assert (tail.last["step"], tail.damaged) == (50, 0)


def test_samples_are_whole_and_after_a_step(run):
    run.add_sample(10, "first\nsample\n=== step 5 ===")
    run.add_sample(20, "second <script>")
    assert read_samples(run.folder) == [
        {"step": 10, "text": "first\nsample\n === step 5 ==="},
        {"step": 20, "text": "second <script>"},
    ]
    with run.samples.open("a") as file:
        file.write("=== step 30 ===\nhalf")
    assert read_samples(run.folder, after=10) == [{"step": 20, "text": "second <script>"}]


@pytest.mark.parametrize("content", [b"", b"no heading", b"\0" * 10, b"\xff\xfe"])
def test_a_file_without_samples_has_none(run, content):
    """A run that is resumed from a checkpoint before its first validation has an empty one."""
    run.samples.write_bytes(content)
    assert read_samples(run.folder) == []


@pytest.mark.parametrize("name", ["metrics", "samples"])
def test_a_folder_in_the_place_of_a_file_is_named(run, name):
    getattr(run, name).mkdir()
    with pytest.raises(DataError, match=r"cannot be read: Is a directory$"):
        (read_curves if name == "metrics" else read_samples)(run.folder)


def test_ten_thousand_rows_take_little_time(run):
    line = json.dumps({"step": 1, **LINE, "valid": {"loss": 2.5, "perplexity": 12.0, "signature": "x" * 150}})
    run.metrics.write_text(f"{line}\n" * 10_000)
    start = time.process_time()
    assert read_curves(run.folder)["rows"] == 10_000
    assert time.process_time() - start < 0.6  # a tenth of it on an idle machine


# ---- the step log


STEP = {"loss": 3.0, "lr": 0.1, "grad_norm": None, "throughput": 99.0, "seconds_left": 7.5}


def test_the_step_log_has_the_names_of_metrics_and_comes_by_cursor(run):
    run.log_step({"step": 1, **STEP, "throughput": None, "seconds_left": None})
    first = read_step_log(run.folder)
    assert first["columns"] == {"step": [1], "train_loss": [3.0], "lr": [0.1]}
    run.log_step({"step": 5, **STEP})
    second = read_step_log(run.folder, first["cursor"])
    assert second["columns"] == {
        "step": [5], "train_loss": [3.0], "throughput": [99.0], "lr": [0.1], "seconds_left": [7.5]
    }  # fmt: skip
    assert not second["restart"]
    assert read_last_step(run.folder) == {
        "step": 5, "train_loss": 3.0, "lr": 0.1, "grad_norm": None, "throughput": 99.0, "seconds_left": 7.5
    }  # fmt: skip


def test_a_step_log_that_was_thinned_starts_again(run):
    for step in range(1, 9):
        run.log_step({"step": step, **STEP})
    cursor = read_step_log(run.folder)["cursor"]
    run.thin_steps()
    found = read_step_log(run.folder, cursor)
    assert (found["restart"], found["columns"]["step"]) == (True, [1, 3, 5, 7])


def test_a_step_log_that_cannot_be_read_is_empty(run, tmp_path):
    """A link, a folder, or more than training ever writes."""
    assert read_step_log(run.folder)["columns"] == {}
    (tmp_path / "elsewhere").write_text('{"step": 1, "loss": 1}\n')
    run.steps.symlink_to(tmp_path / "elsewhere")
    assert (read_step_log(run.folder)["columns"], read_last_step(run.folder)) == ({}, {})
    run.steps.unlink()
    with run.steps.open("wb") as file:
        file.truncate(11_000_000)
    assert (read_step_log(run.folder)["columns"], read_last_step(run.folder)) == ({}, {})
    run.steps.unlink()
    run.steps.write_bytes(b'{"step": 1}\n{"loss": 2}\n\xff\n{"step": 2, "loss": "x", "lr": 1e999}\n{"step": 3, "lo')
    assert read_step_log(run.folder)["columns"] == {"step": [1, 2]}
    assert read_last_step(run.folder) == {"step": 2, "train_loss": None, "lr": None}

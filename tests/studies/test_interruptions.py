"""What befalls a study from outside: torn lines, damaged results, leftover words, workers that somebody ends."""

import json
from pathlib import Path

import pytest

from anaphor.files import append_file
from anaphor.studies import study as module
from anaphor.studies import worker
from anaphor.studies.cell import STOP
from anaphor.studies.engines import JobResult
from anaphor.studies.study import MAX_RESTARTS, describe_failure
from studies.here import logged
from studies.pretended import Pretending


def statuses(study):
    return [cell.status(study.spec) for cell in study.cells]


def test_a_torn_line_of_the_log_is_left_as_it_is_and_stops_nothing(begin, tmp_path):
    begin(Pretending()).run()
    log = tmp_path / "out" / "log.jsonl"
    log.write_bytes(log.read_bytes() + b'[1]\n"text"\n\xff\xfe\n{"event": "finished"}\n{"time": "2026-01-0')
    again = begin(engine := Pretending())
    again.run()
    again.log("interrupted")
    assert engine.jobs == []
    lines = log.read_bytes().split(b"\n")
    assert lines[-3] == b'{"time": "2026-01-0'
    assert json.loads(lines[-2])["event"] == "interrupted"


def test_a_torn_line_is_ended_before_the_next(tmp_path):
    path = tmp_path / "log.jsonl"
    append_file(path, b"one\n")
    assert path.read_bytes() == b"one\n"
    path.write_bytes(b"one\ntw")
    append_file(path, b"three\n")
    assert path.read_bytes() == b"one\ntw\nthree\n"


def test_the_log_is_read_once_however_many_cells_are_finished(begin, monkeypatch):
    begin(Pretending()).run()
    read, opened = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path.name) or read(path))
    begin(Pretending()).run()
    assert opened.count("log.jsonl") == 1


def test_a_cell_that_ended_and_was_not_told_is_told_once(begin, tmp_path):
    begin(Pretending()).run()
    log = tmp_path / "out" / "log.jsonl"
    log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines() if '"finished"' not in line))
    for _ in range(2):
        (again := begin(Pretending())).run()
        assert [line["event"] for line in logged(again)].count("finished") == 2


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"status": "interrupted"}'])
def test_a_worker_goes_on_where_the_result_cannot_be_read_or_is_not_of_the_end(tmp_path, monkeypatch, content):
    class Reached(Exception):
        pass

    def train_run(spec, folder, *, options):
        assert (options.resume, options.test) == (True, False)
        raise Reached

    (tmp_path / "spec.yaml").touch()
    (tmp_path / "result.json").write_text(content)
    monkeypatch.setattr(worker, "train_run", train_run)
    job = {"task": "lm", "spec": {}, "threads": 1, "measures": {}, "longer": [], "imports": {}}
    with pytest.raises(Reached):
        worker.train(tmp_path, job)
    (tmp_path / "result.json").write_text('{"status": "finished"}')
    monkeypatch.setattr(worker, "load_run", lambda folder, **options: {}["loaded"])
    with pytest.raises(KeyError, match="loaded"):
        worker.train(tmp_path, job)


def test_a_cell_that_was_told_to_stop_as_it_finished_can_be_tested(begin):
    study = begin(engine := Pretending())
    study.run()
    for cell in study.cells:
        (cell.folder / STOP).touch()
    study.freeze(study.cells[0].setting)
    engine.ends = lambda job: JobResult(143) if (job.folder / STOP).exists() else None
    assert study.test(study.cells) == {}


@pytest.mark.parametrize("code", [143, -15])
def test_a_worker_that_somebody_else_ended_is_begun_again(begin, code):
    study = begin(engine := Pretending())
    engine.ends = lambda job: (
        JobResult(code, "some warning") if engine.jobs.count(("train", job.folder.name)) < 3 else None
    )
    study.run()
    assert statuses(study) == ["finished"] * 2
    assert len(engine.jobs) == 2 * 3
    assert {line["signal"] for line in logged(study) if line["event"] == "killed"} == {15}


def test_a_worker_that_is_always_ended_has_failed(begin):
    study = begin(engine := Pretending(ends=lambda job: JobResult(143)))
    study.run()
    assert statuses(study) == ["failed"] * 2
    assert len(engine.jobs) == 2 * (MAX_RESTARTS + 1)
    assert "signal 15" in study.reason(study.cells[0], "failed")
    assert "signal 15" in describe_failure(JobResult(143))


@pytest.mark.parametrize("code", [143, -15])
def test_a_worker_that_the_study_told_to_stop_is_not_begun_again(begin, code):
    def stopped(job):
        (job.folder / STOP).touch()
        return JobResult(code)

    study = begin(engine := Pretending(ends=stopped))
    study.run()
    assert statuses(study) == ["stopped"] * 2
    assert len(engine.jobs) == 2


def test_a_refused_search_leaves_the_description_of_the_study_as_it_was(begin, monkeypatch):
    study = begin(Pretending())

    def refuse(spec, folder, is_shared):
        raise KeyError("refused")

    monkeypatch.setattr(module, "make_proposals", refuse)
    with pytest.raises(KeyError, match="refused"):
        study.run()
    assert list(study.folder.iterdir()) == []

"""A study runs what is missing, chooses by validation, seals the choice, and only then reads test."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anaphor.data import files
from anaphor.errors import ConfigError
from anaphor.studies import worker
from anaphor.studies.cell import CODE, DIGESTS, JOB, STOP, TEST, make_cell
from anaphor.studies.engines import JobResult
from anaphor.studies.search import MIN_CELLS
from anaphor.studies.study import MAX_RESTARTS, Study, describe_failure
from anaphor.studies.study_file import read_study
from anaphor.studies.study_folder import lock_study
from studies.here import Here, Silent, logged

STUDY = """
base: {data: %s, width: 8, layers: 1, batch_size: 2, bptt: 4, steps: 4, eval_every: 2, device: cpu}
parameters:
  width: {values: [4, 8]}
seeds: 2
"""


@pytest.fixture(autouse=True)
def _as_a_worker_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat\nthe dog ate the rat\n" * 40)
    return path


def study(tmp_path, text, engine, more="", name="study"):
    file = tmp_path / f"{name}.yaml"
    file.write_text(STUDY % text + more)
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    return Study(read_study(file), folder, engine, Silent())


def test_every_setting_is_trained_with_every_seed_and_never_again(tmp_path, text):
    engine = Here()
    made = study(tmp_path, text, engine)
    made.run()
    assert [(cell.setting.parameters["width"], cell.seed) for cell in made.cells] == [(4, 0), (4, 1), (8, 0), (8, 1)]
    assert all(made.value(cell) > 1 for cell in made.cells)
    again = study(tmp_path, text, nothing := Here())
    again.run()
    assert nothing.jobs == []
    assert [again.value(cell) for cell in again.cells] == [made.value(cell) for cell in made.cells]


def test_one_more_seed_trains_only_what_is_new(tmp_path, text):
    study(tmp_path, text, Here()).run()
    more = study(tmp_path, text, engine := Here())
    more.spec = replace(more.spec, seeds=(0, 1, 2))
    more.run()
    assert len(engine.jobs) == 2


@pytest.mark.parametrize("content", ['{"status": "fin', "[]", "{}", ""])
def test_a_cell_whose_result_is_damaged_is_trained_again(content, tmp_path, text):
    made = study(tmp_path, text, Here())
    made.run()
    values = [made.value(cell) for cell in made.cells]
    (made.cells[0].folder / "result.json").write_text(content)
    again = study(tmp_path, text, engine := Here())
    again.run()
    assert engine.jobs == [("train", made.cells[0].key)]
    assert [again.value(cell) for cell in again.cells] == values


def test_a_new_question_about_finished_runs_trains_nothing(tmp_path, text):
    made = study(tmp_path, text, Here())
    made.run()
    steps = [(cell.folder / "result.json").stat().st_mtime_ns for cell in made.cells]
    asked = study(tmp_path, text, engine := Here(), 'samples: {one: "the cat"}\n')
    asked.run()
    assert len(engine.jobs) == 4
    assert [(cell.folder / "result.json").stat().st_mtime_ns for cell in asked.cells] == steps
    assert asked.cells[0].read("measures.json")["columns"]["one"]["tokens"] == 2


def test_a_cell_is_called_after_settings_data_and_threads(tmp_path, text):
    made = study(tmp_path, text, Here())
    first, second = made.spec.settings()
    key = make_cell(first, 0, tmp_path, "lm", 1).key
    assert key == make_cell(first, 0, tmp_path, "lm", 1).key
    others = [make_cell(first, 1, tmp_path, "lm", 1), make_cell(second, 0, tmp_path, "lm", 1)]
    others.append(make_cell(first, 0, tmp_path, "lm", 2))
    assert len({key, *(cell.key for cell in others)}) == 4


def test_changed_data_are_another_cell(tmp_path, text):
    made = study(tmp_path, text, Here())
    before = make_cell(made.spec.settings()[0], 0, tmp_path, "lm", 1).key
    text.write_text("once more\n" + text.read_text())
    DIGESTS.clear()
    assert make_cell(made.spec.settings()[0], 0, tmp_path, "lm", 1).key != before


def test_test_text_is_not_opened_before_the_seal(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(f"{split} the cat sat on the mat\n" * 30)
    opened = []
    read = files.StoredFile.read
    monkeypatch.setattr(files.StoredFile, "read", lambda file: opened.append(file.path.name) or read(file))
    made = study(tmp_path, folder, Here())
    made.run()
    assert "train.txt" in opened
    assert "test.txt" not in opened
    with pytest.raises(ConfigError, match="after the selection is frozen"):
        made.test(made.cells[:1])
    made.freeze(made.cells[0].setting)
    made.test(made.cells[:2])
    assert "test.txt" in opened
    events = [line["event"] for line in logged(made)]
    assert events.index("sealed") < events.index("test")
    assert events.count("sealed") == 1
    assert made.cells[0].read(TEST)["loss"] > 0
    assert not made.cells[2].read(TEST)
    tests = events.count("test")
    made.test(made.cells[:2])
    assert [line["event"] for line in logged(made)].count("test") == tests, "test is read once"


def test_a_choice_is_made_once(tmp_path, text):
    made = study(tmp_path, text, Here())
    made.run()
    made.freeze(made.cells[0].setting)
    made.freeze(made.cells[0].setting)
    with pytest.raises(ConfigError, match="is frozen with other cells"):
        made.freeze(made.cells[2].setting)
    made.test(made.cells[:1])
    made.freeze(made.cells[2].setting, force=True)
    assert not made.cells[0].read(TEST), "what was tested for the old choice is not shown for the new one"
    assert [line["event"] for line in logged(made)].count("sealed") == 2


def test_a_killed_cell_is_begun_again_and_goes_on(tmp_path, text):
    made = study(tmp_path, text, engine := Here(lambda job, count: JobResult(-9) if count < 3 else None))
    made.run()
    assert all(cell.status(made.spec) == "finished" for cell in made.cells)
    assert len(engine.jobs) == 4 * 3


def test_a_cell_that_is_always_killed_has_failed_and_the_others_finish(tmp_path, text):
    bad = []

    def kill_the_first(job, count):
        bad.append(job.folder.name)
        return JobResult(-9) if job.folder.name == bad[0] else None

    made = study(tmp_path, text, engine := Here(kill_the_first))
    made.run()
    assert [cell.status(made.spec) for cell in made.cells] == ["failed", "finished", "finished", "finished"]
    assert engine.jobs.count(("train", bad[0])) == MAX_RESTARTS + 1
    assert "signal 9" in made.reason(made.cells[0], "failed")


def test_a_cell_that_fails_tells_its_last_line(tmp_path, text):
    made = study(tmp_path, text, Here(lambda job, count: JobResult(1, "MemoryError: no room")))
    made.run()
    assert {cell.status(made.spec) for cell in made.cells} == {"failed"}
    assert made.callback.calls[-1][2] == "MemoryError: no room"
    healed = study(tmp_path, text, Here())
    healed.run()
    assert {cell.status(healed.spec) for cell in healed.cells} == {"finished"}, "a failure is tried again next time"


def test_an_engine_that_breaks_fails_a_cell_and_not_the_study(tmp_path, text):
    made = study(tmp_path, text, engine := Here())
    submit = engine.submit

    def broken(job):
        if engine.jobs:
            return submit(job)
        engine.jobs.append(job)
        promise = Future()
        promise.set_exception(OSError(12, "Cannot allocate memory\nat all"))
        return promise

    engine.submit = broken
    made.run()
    assert [cell.status(made.spec) for cell in made.cells] == ["failed", "finished", "finished", "finished"]
    assert made.reason(made.cells[0], "failed") == "OSError: [Errno 12] Cannot allocate memory at all"


def test_a_diverged_cell_says_so_and_is_not_run_again(tmp_path, text):
    made = study(tmp_path, text, Here())
    made.spec = made.spec.with_base(lr=3e38)
    engine = Here()
    engine.work = lambda job: worker.main([job.action, str(job.folder)])
    made.engine = engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "watch_for_stop", lambda folder: None)
        made.run()
    assert {cell.status(made.spec) for cell in made.cells} == {"diverged"}
    assert "diverged" in made.reason(made.cells[0], "diverged")
    again = study(tmp_path, text, nothing := Here())
    again.spec = made.spec
    again.run()
    assert nothing.jobs == []


def test_a_hopeless_cell_is_stopped_and_stays_so(tmp_path, text):
    """The worker is asked by a file; here the engine looks at it in the worker's place."""
    made = study(tmp_path, text, Here(), "prune: true\n")
    made.run()  # finished ones to be compared with
    assert len(made.cells) >= MIN_CELLS
    slow = study(tmp_path, text, Here(), "prune: true\n")
    slow.spec = replace(made.spec, base={**made.spec.base, "lr": 1e-9})
    cell = make_cell(slow.spec.settings()[0], 0, slow.cells_folder, "lm", 1)
    cell.write_job(slow.spec, 1)
    worker.train(cell.folder, json.loads((cell.folder / JOB).read_text()))
    slow.cells = [*made.cells, cell]
    slow._prune([cell])
    assert (cell.folder / STOP).exists()
    best = max(made.cells, key=lambda cell: -made.value(cell))
    slow._prune([best])
    assert not (best.folder / STOP).exists()


def test_another_task_is_studied_the_same_way(tmp_path):
    """Translation, chosen by BLEU."""
    for name in ("source", "target"):
        (tmp_path / f"{name}.txt").write_text("".join(f"word{n % 7} word{n % 5}\n" for n in range(60)))
    file = tmp_path / "pairs.yaml"
    file.write_text(
        f"task: translate\nbase: {{data: '{tmp_path}/source.txt,{tmp_path}/target.txt', width: 8, steps: 2, beam: 1}}\n"
        "metric: valid.bleu\nparameters: {condition: {values: [none, state, attention]}}\nseeds: 1\n"
    )
    folder = tmp_path / "out"
    folder.mkdir()
    made = Study(read_study(file).with_base(device="cpu"), folder, Here(), Silent())
    made.run()
    assert made.spec.goal == "maximize"
    assert [cell.status(made.spec) for cell in made.cells] == ["finished"] * 3
    assert all(0 <= made.value(cell) <= 100 for cell in made.cells)
    made.freeze(made.cells[0].setting)
    made.test(made.cells[:1])
    assert made.cells[0].read(TEST)["bleu"] >= 0


def test_failures_name_signals_and_codes():
    assert "memory" in describe_failure(JobResult(-9))
    assert "signal 11" in describe_failure(JobResult(-11))
    assert describe_failure(JobResult(2, "no such data")) == "no such data"
    assert describe_failure(JobResult(2)) == "exit code 2"


def test_two_processes_do_not_run_one_study(tmp_path):
    with (
        lock_study(tmp_path / "out"),
        pytest.raises(ConfigError, match="in use by process"),
        lock_study(tmp_path / "out"),
    ):
        pass


def test_a_second_study_in_a_folder_is_refused_before_torch_is_imported(tmp_path):
    script = (
        "import sys; from anaphor.cli.main import main; code = main(sys.argv[1:]);"
        "sys.exit(f'torch is imported, code {code}' if 'torch' in sys.modules else code)"
    )
    words = ["study", "echo", "--out", str(tmp_path / "out")]
    with lock_study(tmp_path / "out"):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path / 'out'} is in use by process {os.getpid()}" in done.stderr


def test_a_second_study_in_a_folder_is_refused_before_a_file_is_imported(tmp_path, error_of):
    """Such files import torch, which takes longer than to see that the folder is in use."""
    (tmp_path / "own.py").write_text("raise SystemError")
    words = ["study", "echo", "--import", str(tmp_path / "own.py"), "--out", str(tmp_path / "out")]
    with lock_study(tmp_path / "out"):
        assert f"{tmp_path / 'out'} is in use by process {os.getpid()}" in error_of(words)


def test_no_code_that_makes_a_result_is_left_out_of_the_name_of_a_cell():
    package = Path(files.__file__).parents[1]
    harmless = {
        "cli",
        "files",
        "file_locks",
        "processor",
        "shipped_files",
        "imported_files",
        "plain_values",
        "yaml_files",
        "config",
        "deprecated",
        "user_paths",
        "flags",
        "errors",
        "registry",
        "typecheck",
        "progress",
        "progress_listener",
        "draw",
        "taps",
        "inspect",
    }  # they read, refuse, name and show
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in CODE:
            used = set(re.findall(r"^\s*from anaphor\.(\w+)", path.read_text(), re.MULTILINE))
            assert used <= harmless | {name.removesuffix(".py") for name in CODE}, path

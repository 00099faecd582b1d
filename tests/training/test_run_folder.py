"""Run folders: one writer, plain files, nothing torn."""

import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor import files
from anaphor.errors import ConfigError, DataError
from anaphor.training import checkpoint, lock
from anaphor.training.run_folder import STUDY, RunFolder


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "runs" / "first")
    with run.lock():
        run.create("seed: 1\n")
        yield run


def test_opening_a_folder_writes_nothing(tmp_path):
    run = RunFolder(tmp_path / "none")
    assert not run.exists
    assert run.read_metrics() == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"no run at .*none: there is no such folder$"):
        run.require()
    with pytest.raises(ConfigError, match="no run at"):
        run.read_result()


def test_a_folder_without_a_run_says_what_it_is(tmp_path):
    (tmp_path / "study").mkdir()
    with pytest.raises(ConfigError, match=r"no run at .*study: it has no spec.yaml$"):
        RunFolder(tmp_path / "study").require()
    (tmp_path / "study" / STUDY).write_text("name: a\n")
    with pytest.raises(ConfigError, match=r"no run at .*study: it is a study, and its runs are in .*study/cells$"):
        RunFolder(tmp_path / "study").require()


def test_an_existing_run_is_not_overwritten_by_accident(run):
    run.log(1, loss=2.0)
    with pytest.raises(
        ConfigError, match=r"already holds a run: resume it with --resume, replace it with --overwrite, or"
    ):
        run.refuse_existing()
    assert run.spec.read_text() == "seed: 1\n"
    assert run.read_metrics() == [{"step": 1, "loss": 2.0}]


def test_overwriting_deletes_the_run_and_nothing_else(run):
    run.log(1, loss=2.0)
    run.add_sample(1, "text")
    run.write_result({"done": True})
    checkpoint.write(run.checkpoints, 1, {"model": {"a": torch.zeros(1)}}, {})
    (run.folder / "notes.txt").write_text("mine")
    run.create("seed: 2\n")
    assert (run.previous / "result.json").is_file()
    run.delete_previous()  # as the first checkpoint does
    left = sorted(path.name for path in run.folder.iterdir())
    assert left == [".lock", "checkpoints", "notes.txt", "spec.yaml"]
    assert list(run.checkpoints.iterdir()) == []
    assert run.spec.read_text() == "seed: 2\n"


@pytest.fixture
def pauses(monkeypatch):
    """Seconds that are slept, which are not waited for here: how long anything else takes depends on the machine."""
    pauses = []
    monkeypatch.setattr(lock.time, "sleep", pauses.append)
    return pauses


def test_a_second_holder_is_refused_with_the_name_of_the_first(tmp_path, pauses):
    run = RunFolder(tmp_path)
    with run.lock():
        with pytest.raises(ConfigError, match=rf"{tmp_path} is in use by process {os.getpid()} on .+ since \d{{4}}-"):
            RunFolder(tmp_path).lock().__enter__()
        assert 0 < sum(pauses) < 0.5
    with RunFolder(tmp_path).lock():
        pass


HOLD = """
import sys
from pathlib import Path
from anaphor.training.lock import hold_lock
with hold_lock(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_holder_is_free(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"in use by process {holder.pid} on "), RunFolder(tmp_path).lock():
            pass
        holder.kill()
        holder.wait()
        with RunFolder(tmp_path).lock():
            pass


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_taken_again(tmp_path, monkeypatch):
    """As when another process was refused a run between the opening of the file and the lock on it."""
    path, lock_file, deleted = tmp_path / ".lock", lock.lock_file, []

    def late(handle):
        if not deleted:
            deleted.append(path.unlink())
        lock_file(handle)

    monkeypatch.setattr(lock, "lock_file", late)
    with lock.hold_lock(path, "it"):
        assert deleted
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on "), lock.hold_lock(path, "it"):
            pass


def test_a_strange_lock_file_is_quoted_harmlessly(tmp_path):
    with RunFolder(tmp_path).lock():
        for content, holder in ((b"", "another process"), (b"\x1b[31m\xff\n" + b"x" * 10**6, r"\[31m�x+")):
            (tmp_path / ".lock").write_bytes(content)
            with pytest.raises(ConfigError, match=f"in use by {holder}: ") as caught, RunFolder(tmp_path).lock():
                pass
            assert len(str(caught.value)) < 600 + len(str(tmp_path))


@pytest.fixture
def read_only(tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    # Root may write anywhere but on a disk that is read-only.
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("to mount a read-only disk needs rights that this user does not have")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("inside", [".", "runs/first"])
def test_a_read_only_folder_is_refused_at_once(read_only, inside, pauses):
    with pytest.raises(ConfigError, match=r"cannot write to .*: .*; choose another --out") as caught:
        RunFolder(read_only / inside).lock().__enter__()
    assert pauses == []
    assert "\n" not in str(caught.value)


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="cannot write to"), RunFolder(tmp_path / "run").lock():
        pass


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=3)), max_size=8),
    st.integers(0, 9),
    st.data(),
)
def test_metrics_after_a_kill_and_a_resume(tmp_path_factory, lines, step, data):
    """Whatever byte the last write stopped at: whole lines are kept up to the step, and nothing else."""
    run = RunFolder(tmp_path_factory.mktemp("run"))
    run.create("")
    for number, values in lines:
        run.log(number, **values)
    written = run.metrics.read_bytes() if lines else b""
    stopped = data.draw(st.integers(0, len(written)))
    run.metrics.write_bytes(written[:stopped])
    whole = [{"step": number, **values} for number, values in lines][: written[:stopped].count(b"\n")]
    assert run.read_metrics() == whole
    run.truncate_after(step)
    assert run.read_metrics() == [line for line in whole if line["step"] <= step]
    run.log(step + 1, loss=0.5)
    assert run.read_metrics()[-1] == {"step": step + 1, "loss": 0.5}


def test_numbers_that_are_not_finite_are_null(run):
    run.log(1, loss=math.nan, nested={"norm": [math.inf, 1.0]})
    run.write_result({"loss": -math.inf, "status": "diverged"})
    assert run.read_metrics() == [{"step": 1, "loss": None, "nested": {"norm": [None, 1.0]}}]
    assert run.read_result() == {"loss": None, "status": "diverged"}
    json.loads(run.result.read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"loss": 1}', b"[" * 100_000, b"\xff"])
def test_a_broken_line_is_named(run, line):
    run.log(1, loss=2.0)
    with run.metrics.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(DataError, match=r"metrics.jsonl, line 2 ") as caught:
        run.read_metrics()
    assert "\n" not in str(caught.value)


def test_samples_after_a_step_are_deleted(run):
    run.add_sample(1, "one\n=== step 0 ===\nand the same")
    run.add_sample(2, "two ☃")
    before = run.samples.read_text()
    run.add_sample(3, "three")
    for torn in ("", "=== ste"):
        with run.samples.open("a") as file:
            file.write(torn)
        run.truncate_after(2)
        assert run.samples.read_text() == before
    run.truncate_after(0)
    assert run.samples.read_text() == ""


def test_any_generated_text_can_be_kept(run):
    run.add_sample(1, "lone \ud800 surrogate, \x00, \r\n")
    assert "surrogate" in run.samples.read_text()


def test_truncating_deletes_the_result(run):
    run.write_result({"loss": 1.0})
    run.truncate_after(0)
    with pytest.raises(DataError, match=r"has no result\.json: it is not finished"):
        run.read_result()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b" " * 10_000_001])
def test_a_broken_result_is_one_line(run, content):
    run.result.write_bytes(content)
    with pytest.raises(DataError, match=r"result.json") as caught:
        run.read_result()
    assert "\n" not in str(caught.value)


def test_a_failed_write_keeps_the_old_content(run, monkeypatch):
    run.write_result({"loss": 1.0})
    monkeypatch.setattr(files.os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(DataError, match=r"cannot write .*result\.json: the disk is full"):
        run.write_result({"loss": 2.0})
    assert run.read_result() == {"loss": 1.0}
    assert not list(run.folder.glob("*.tmp"))

"""A disk that is full or read-only: refused at once, or reported, and no earlier file is lost."""

import errno
import os
import resource
import shutil
import subprocess

import pytest
import torch

import forked
from anaphor.cli.main import main
from anaphor.errors import CheckpointError
from anaphor.files import replace_file
from anaphor.training import checkpoint
from command_line import without_start_lines
from faults.runs import command, environment, hashes, run

STEPS = ("--steps", "30", "--eval-every", "5", "--width", "32")


def mounted(folder, options):
    """A disk of its own at that folder; to unmount it is the caller's."""
    folder.mkdir()
    mount = shutil.which("mount")
    words = [mount or "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() or mount is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("to mount a disk needs rights that this user does not have")
    return folder


@pytest.fixture
def small_disk(tmp_path):
    disk = mounted(tmp_path / "disk", "size=4m")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def litter(out):
    return [path.name for path in out.rglob("*") if path.suffix in (".tmp", ".old")]


@pytest.fixture
def here(tmp_path, capsys, own_cache, single_precision):
    """The same run in this process, which need not load torch again; its exit code and stderr."""

    def trained(out, *more):
        code = main(command(tmp_path, out, *STEPS, *more))
        return code, capsys.readouterr().err

    return trained


def assert_disk_full(code, errors, out):
    """One line with the path and the bytes; what was saved before is whole, and nothing else is left."""
    assert code == 2, errors
    assert "Traceback" not in errors
    *lines, last = without_start_lines(errors)
    assert all(line.startswith("epoch") for line in lines)
    assert last.startswith(f"anaphor: cannot write {out}")
    assert "bytes" in last
    assert "free" in last
    assert litter(out) == []
    newest, warnings = checkpoint.newest(out / "checkpoints")
    assert warnings == []
    return None if newest is None else newest.path, last


def test_a_disk_that_fills_up_while_saving_costs_no_checkpoint_and_the_run_can_go_on(tmp_path, small_disk, here):
    assert here(tmp_path / "reference")[0] == 0
    out = small_disk / "run"
    out.mkdir()
    size = sum(path.stat().st_size for path in (tmp_path / "reference" / "checkpoints" / "step-30").iterdir())
    # Room for two checkpoints and a half.
    (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free - 5 * size // 2))
    newest, last = assert_disk_full(*here(out), out)
    assert newest is not None
    assert "step-" in last
    assert "No space left on device" in last
    (small_disk / "other").unlink()
    assert here(out, "--resume")[0] == 0
    assert weights(out) == weights(tmp_path / "reference")


def weights(out):
    return {name: digest for name, digest in hashes(out)["files"].items() if name.endswith(".safetensors")}


@pytest.mark.parametrize("room", [0, 40960])
def test_a_disk_that_is_full_from_the_start(small_disk, here, room):
    (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free - room))
    code, errors = here(small_disk / "run")
    assert code == 2, errors
    assert errors.splitlines()[-1].startswith("anaphor: cannot write ")
    assert "No space left on device" in errors
    assert litter(small_disk) == []


def test_no_room_for_the_third_checkpoint_leaves_the_first_two(tmp_path, monkeypatch, here):
    """The same without a disk that is small: writing fails as on a full disk."""
    out, write = tmp_path / "run", checkpoint.save_file

    def failing(tensors, path):
        if "step-15" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", failing)
    newest, last = assert_disk_full(*here(out), out)
    assert newest == out / "checkpoints" / "step-10"
    assert f"{out / 'checkpoints' / 'step-15'}: " in last
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-10", "step-5"]


def test_what_is_left_of_earlier_checkpoints_is_said(tmp_path, monkeypatch):
    def failing(tensors, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    parts = {"model": {"weight": torch.zeros(3)}}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", failing)
        with pytest.raises(CheckpointError, match="there is no earlier checkpoint"):
            checkpoint.write(tmp_path, 1, parts, {})
    checkpoint.write(tmp_path, 1, parts, {})
    monkeypatch.setattr(checkpoint, "save_file", failing)
    with pytest.raises(CheckpointError, match="earlier checkpoints are intact"):
        checkpoint.write(tmp_path, 2, parts, {})


def test_a_disk_without_inodes_is_not_told_as_missing_bytes(tmp_path):
    disk = mounted(tmp_path / "disk", "size=4m,nr_inodes=4")
    try:
        for name in "abc":
            (disk / name).touch()
        with pytest.raises(OSError, match="no inodes are free") as caught:
            replace_file(disk / "result.json", b"{}")
        assert caught.value.filename == str(disk / "result.json")
        with pytest.raises(CheckpointError, match=r"no inodes are free.*there is no earlier checkpoint"):
            checkpoint.write(disk, 1, {"model": {"weight": torch.zeros(3)}}, {})
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_files_that_may_not_grow_are_like_a_full_disk(tmp_path):
    """No rights are needed for this: each file of the process is limited, the weights exceed it."""
    out = tmp_path / "run"
    done = forked.run(
        command(tmp_path, out, *STEPS), environment(tmp_path),
        first=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)),
    )  # fmt: skip
    newest, last = assert_disk_full(done.returncode, done.stderr, out)
    assert newest is None
    assert "File too large" in last


@pytest.fixture
def read_only(tmp_path):
    if os.geteuid():
        folder = tmp_path / "read-only"
        folder.mkdir(mode=0o555)
        yield folder
        folder.chmod(0o755)
        return
    disk = mounted(tmp_path / "read-only", "ro")  # root may write anywhere else
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def refused_at_once(folder, out):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(folder, out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2
    assert done.stderr.startswith(f"anaphor: cannot write to {out}: ")
    assert done.stderr.count("\n") == 1
    # Time of the processor: others may be at work here. It is a third of a second.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_a_read_only_folder_is_refused_before_torch_is_imported(tmp_path, read_only):
    refused_at_once(tmp_path, read_only / "run")
    refused_at_once(tmp_path, read_only)


def test_a_file_in_the_place_of_a_folder_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused_at_once(tmp_path, tmp_path / "file")
    refused_at_once(tmp_path, tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"

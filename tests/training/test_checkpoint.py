"""Checkpoints: complete or absent, whatever happens while they are written and to them afterwards."""

import errno
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from anaphor.config import FORMAT
from anaphor.errors import CheckpointError
from anaphor.models import build
from anaphor.training import checkpoint

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def parts(value, rows=4):
    return {"model": {"weight": torch.full((rows, 3), float(value))}, "optimizer": {}}


def newest(folder):
    """Path of the newest checkpoint, and the warnings."""
    found, warnings = checkpoint.newest(folder)
    return None if found is None else found.path, warnings


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    values = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    tensor = values.to(draw(st.sampled_from(DTYPES)))
    return tensor.T if tensor.ndim == 2 and draw(st.booleans()) else tensor


def test_whoever_may_read_the_folder_may_read_its_weights(tmp_path):
    path = checkpoint.write(tmp_path, 1, parts(1), {})
    (tmp_path / "new").touch()
    assert {file.stat().st_mode for file in path.iterdir()} == {(tmp_path / "new").stat().st_mode}


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.text("abc./@0", min_size=1, max_size=8), tensors(), max_size=5))
def test_tensors_come_back_as_they_were(tmp_path_factory, given_tensors):
    metadata = {"seed": 3, "losses": [0.1, None], "text": "naïve ☃", "large": 2**70}
    path = checkpoint.write(tmp_path_factory.mktemp("run"), 7, {"model": given_tensors}, metadata)
    found = checkpoint.read(path)
    assert (found.step, found.metadata) == (7, metadata)
    assert found.parts["model"].keys() == given_tensors.keys()
    for name, tensor in given_tensors.items():
        again = found.parts["model"][name]
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(again, tensor)


class Tied(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)
        if tied:
            self.head.weight = self.embed.weight


def test_tied_tensors_are_stored_once_and_tied_again(tmp_path):
    model = Tied()
    path = checkpoint.write(tmp_path, 1, {"model": model.state_dict()}, {})
    found = checkpoint.read(path).parts["model"]
    assert found.keys() == model.state_dict().keys()
    assert found["head.weight"] is found["embed.weight"]
    assert (path / "model.safetensors").stat().st_size < 2 * 11 * 8 * 8


def test_views_of_one_storage_are_stored_as_what_they_show(tmp_path):
    storage = torch.arange(12.0)
    grid = storage.view(3, 4)
    views = {"all": storage, "left": storage[:6], "right": storage[4:], "grid": grid, "turned": grid.T}
    found = checkpoint.read(checkpoint.write(tmp_path, 1, {"model": views}, {})).parts["model"]
    assert all(torch.equal(found[name], view) for name, view in views.items())


def test_what_is_read_has_memory_of_its_own(tmp_path):
    path = checkpoint.write(tmp_path, 1, parts(1), {})
    checkpoint.read(path).parts["model"]["weight"].zero_()
    assert torch.equal(checkpoint.read(path).parts["model"]["weight"], parts(1)["model"]["weight"])


def test_the_newest_is_the_one_with_the_most_steps(tmp_path):
    assert newest(tmp_path / "nowhere") == (None, [])
    for step in (9, 100, 20):
        checkpoint.write(tmp_path, step, parts(step), {})
    assert newest(tmp_path) == (tmp_path / "step-100", [])


def test_a_step_can_be_written_again(tmp_path):
    checkpoint.write(tmp_path, 5, parts(1), {})
    path = checkpoint.write(tmp_path, 5, parts(2), {})
    assert checkpoint.read(path).parts["model"]["weight"][0, 0] == 2
    assert names_in(tmp_path) == ["step-5"]


def test_old_ones_are_pruned_and_named_ones_kept(tmp_path):
    for step in range(1, 7):
        checkpoint.write(tmp_path, step, parts(step), {})
    checkpoint.prune(tmp_path, keep=2, also=[3])
    assert names_in(tmp_path) == ["step-3", "step-5", "step-6"]
    checkpoint.prune(tmp_path, keep=0)
    assert names_in(tmp_path) == []
    checkpoint.prune(tmp_path / "nowhere", keep=1)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for step in (1, 2):
        checkpoint.write(folder, step, parts(step), {"step": step})
    return folder


FILES = ["model.safetensors", "optimizer.safetensors", "facts.json", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_one_flipped_bit_is_noticed(two, name, data):
    self_healing(two, name, lambda content: flipped(content, data.draw(st.integers(0, len(content) * 8 - 1))))


@pytest.mark.parametrize("name", FILES)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_a_truncated_file_is_noticed(two, name, data):
    self_healing(two, name, lambda content: content[: data.draw(st.integers(0, len(content) - 1))])


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def self_healing(folder, name, damage):
    path = folder / "step-2" / name
    content = path.read_bytes()
    try:
        path.write_bytes(damage(content))
        found, warnings = newest(folder)
        assert found == folder / "step-1"
        assert len(warnings) == 1
        assert "step-2" in warnings[0]
        assert name in warnings[0] or name == "manifest.json"
        assert "\n" not in warnings[0]
        with pytest.raises(CheckpointError):
            checkpoint.read(folder / "step-2")
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(two, tmp_path, name):
    shutil.copytree(two, tmp_path / "copy")
    (tmp_path / "copy" / "step-2" / name).unlink()
    found, (warning,) = newest(tmp_path / "copy")
    assert found == tmp_path / "copy" / "step-1"
    assert f"{name} is missing" in warning


def test_files_of_a_killed_process_are_removed(tmp_path):
    checkpoint.write(tmp_path, 1, parts(1), {})
    (tmp_path / "step-2.tmp").mkdir()
    (tmp_path / "step-2.tmp" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-1").rename(tmp_path / "step-1.old")  # killed between the two renames of a replacement
    assert newest(tmp_path) == (tmp_path / "step-1.old", [])
    checkpoint.write(tmp_path, 3, parts(3), {})
    assert names_in(tmp_path) == ["step-1", "step-3"]


def test_nothing_gets_its_name_before_it_is_on_the_disk(tmp_path, monkeypatch):
    """A kill cannot show this, a power cut can: every file, then the folder, then the name, then the folder above."""
    done = []

    def noted(name, call, place):
        def wrapped(*arguments):
            done.append((name, place(arguments[0])))
            return call(*arguments)

        monkeypatch.setattr(os, name, wrapped)

    noted("fsync", os.fsync, lambda handle: Path(os.readlink(f"/proc/self/fd/{handle}")).name)
    noted("rename", os.rename, lambda path: path.name)
    checkpoint.write(tmp_path, 1, parts(1), {})
    assert done == [
        ("fsync", "model.safetensors"),
        ("fsync", "optimizer.safetensors"),
        ("fsync", "facts.json"),
        ("fsync", "manifest.json"),
        ("fsync", "step-1.tmp"),
        ("rename", "step-1.tmp"),
        ("fsync", tmp_path.name),
    ]


# Forks from one process, since to load torch takes far longer than to be killed.
KILLED = """
import os, random, select, signal, sys
from pathlib import Path
import torch
from anaphor.training import checkpoint

torch.set_num_threads(1)
folder, moments = Path(sys.argv[1]), random.Random(0)
calls = ("fsync", "rename", "mkdir", "rmdir", "unlink")

def write_for_ever(first):
    for step in range(first, first + 10_000):
        checkpoint.write(folder, step - step % 2, {"model": {"weight": torch.full((300, 100), float(step))}}, {})
        checkpoint.prune(folder, keep=2)

def die_at(count):
    left = [count]
    def counted(call):
        def wrapped(*arguments, **keywords):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)
        return wrapped
    for name in calls:
        setattr(os, name, counted(getattr(os, name)))

checkpoint.write(folder, 2, {"model": {"weight": torch.full((300, 100), 2.0)}}, {})
step = 3
for trial in range(50):
    child = os.fork()
    if child == 0:
        if trial < 30:
            die_at(trial)
        write_for_ever(step)
    if trial >= 30:
        select.select([], [], [], moments.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    found, warnings = checkpoint.newest(folder)
    assert found is not None and not warnings, (found, warnings)
    for whole in folder.iterdir():
        if not whole.name.endswith(".tmp"):
            stored = checkpoint.read(whole)
            assert stored.parts["model"]["weight"][0, 0] - stored.step in (0, 1)
    assert found.step >= step - step % 2 - 2
    step = found.step + 1
checkpoint.write(folder, step + 1, {}, {})
print(*sorted(path.name for path in folder.iterdir()))
"""


def test_a_process_killed_at_any_moment_leaves_only_whole_checkpoints(tmp_path):
    """At each of the first system calls in turn, and then at random moments."""
    command = [sys.executable, "-W", "error", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ".tmp" not in done.stdout
    assert ".old" not in done.stdout


@pytest.fixture
def small_disk(tmp_path):
    mount = shutil.which("mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("to mount a small disk needs rights that this user does not have")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_costs_no_earlier_checkpoint(small_disk):
    folder = small_disk / "checkpoints"
    checkpoint.write(folder, 1, parts(1), {})
    with pytest.raises(CheckpointError, match=r"step-2: .*No space left.* it needs 2,400,000 bytes, .* are free"):
        checkpoint.write(folder, 2, parts(2, rows=100_000), {})
    assert names_in(folder) == ["step-1"]
    assert newest(folder) == (folder / "step-1", [])
    checkpoint.write(folder, 3, parts(3), {})


@pytest.mark.parametrize("call", ["sync", "write_file", "save_file"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_disk_that_fills_up_half_way(tmp_path, monkeypatch, call, count):
    checkpoint.write(tmp_path, 1, parts(1), {})
    real, calls = getattr(checkpoint, call), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(checkpoint, call, failing)
    with pytest.raises(CheckpointError, match=r"step-2: .*No space left on device; it needs 96 bytes") as caught:
        checkpoint.write(tmp_path, 2, parts(2), {})
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["step-1"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, 2, parts(2), {})
    assert names_in(tmp_path) == []


@pytest.fixture
def little_memory():
    """The process can allocate little more memory than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 300_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def forged(folder, **contents):
    """A checkpoint whose manifest is right whatever its files hold."""
    path = folder / "step-9"
    path.mkdir()
    files = {"facts.json": b'{"step":9,"facts":{},"ties":{}}', **contents}
    for name, content in files.items():
        (path / name).write_bytes(content)
    listed = {
        name: {"bytes": (path / name).stat().st_size, "sha256": checkpoint._digest(path / name)} for name in files
    }
    (path / "manifest.json").write_text(json.dumps({"format": FORMAT, "files": listed}))
    return path


def header(text, size=None):
    return struct.pack("<Q", len(text) if size is None else size) + text


EVIL = b"cos\nsystem\n(S'touch executed'\ntR."  # a file of Python objects that runs a command when it is opened
SHAPE = b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,%s]}}'
TIES = b'{"step":9,"facts":{},"ties":{"model":%s}}'

# Made when they are needed: some are large.
HOSTILE = {
    "objects": lambda: {"model.safetensors": EVIL},
    "archive": lambda: {"model.safetensors": b"PK\x03\x04" + bytes(60)},
    "empty": lambda: {"model.safetensors": b""},
    "long header": lambda: {"model.safetensors": header(b"{" + b" " * 10_000_001)},
    "endless header": lambda: {"model.safetensors": header(b"{}", 2**63)},
    "header of 100 MB": lambda: {"model.safetensors": header(b"{", 99_000_000) + bytes(99_000_000)},
    "header of 100 MB that is not there": lambda: {"model.safetensors": header(b"{}", 100_000_000)},
    "deep header": lambda: {"model.safetensors": header(b"[" * 100_000)},
    "tensor of a terabyte": lambda: {"model.safetensors": header(SHAPE % (b"250000000000", b"1000000000000"))},
    "sizes that overflow": lambda: {"model.safetensors": header(SHAPE % (b"4611686018427387904,4", b"0"))},
    "negative": lambda: {"model.safetensors": header(SHAPE % (b"-1", b"4")) + bytes(4)},
    "unknown type": lambda: {"model.safetensors": header((SHAPE % (b"1", b"4")).replace(b"F32", b"O08")) + bytes(4)},
    "deep facts": lambda: {"facts.json": b"[" * 100_000 + b"]" * 100_000},
    "deep names": lambda: {"facts.json": b'{"a":' * 100_000 + b"1" + b"}" * 100_000},
    "list for facts": lambda: {"facts.json": b"[]"},
    "facts without a step": lambda: {"facts.json": b'{"facts":{},"ties":{}}'},
    "facts that are code": lambda: {"facts.json": b'{"step":9,"facts":"__import__","ties":{}}'},
    "ties to nowhere": lambda: {"facts.json": TIES % b'{"a":"b"}', "model.safetensors": header(b"{}")},
    "ties to a number": lambda: {"facts.json": TIES % b'{"a":1}', "model.safetensors": header(b"{}")},
    "ties in a list": lambda: {"facts.json": TIES % b'["a"]', "model.safetensors": header(b"{}")},
    "long facts": lambda: {"facts.json": b'{"step":9,"facts":{"a":"' + b"a" * 20_000_000 + b'"},"ties":{}}'},
    "a number without end": lambda: {"facts.json": b'{"step":' + b"9" * 100_000 + b"}"},
    "file outside": lambda: {"../outside.safetensors": b""},
    "file of another kind": lambda: {"model.bin": EVIL},
}  # fmt: skip


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = forged(tmp_path, **HOSTILE[name]())
    begun = time.process_time()  # of this process alone: others may be at work
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(path)
    assert time.process_time() - begun < 5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "manifest",
    [
        b"", b"[]", b"{}", b'{"format":2}', b'{"format":2,"files":{}}', b'{"format":1,"files":{"facts.json":{}}}',
        b'{"format":2,"files":{"facts.json":{}}}', b'{"format":2,"files":{"facts.json":1}}', b"[" * 100_000,
        b'{"format":2,"files":{"facts.json":{"bytes":31,"sha256":null}}}', b" " * 1_000_001, b"\xff\xfe",
    ],
)  # fmt: skip
def test_hostile_manifests_are_refused_in_one_line(tmp_path, manifest):
    path = forged(tmp_path)
    (path / "manifest.json").write_bytes(manifest)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(path)
    assert "\n" not in str(caught.value)
    found, (warning,) = newest(tmp_path)
    assert found is None
    assert "step-9" in warning


def test_a_link_to_another_file_is_not_followed(two, tmp_path):
    shutil.copytree(two, tmp_path / "copy")
    path = tmp_path / "copy" / "step-2" / "model.safetensors"
    path.unlink()
    path.symlink_to(two / "step-2" / "model.safetensors")
    with pytest.raises(CheckpointError, match="is missing"):
        checkpoint.read(tmp_path / "copy" / "step-2")


def test_a_disk_that_cannot_be_read_is_one_warning(two, monkeypatch):
    read_bytes = Path.read_bytes

    def failing(path):
        if path.parent.name == "step-2" and path.name != "manifest.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    found, warnings = newest(two)
    assert found == two / "step-1"
    assert "step-2" in warnings[0]
    assert "cannot be read: Input/output error" in warnings[0]


def test_no_checkpoint_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match=f"no checkpoint at {tmp_path}/step-1"):
        checkpoint.read(tmp_path / "step-1")


def test_weights_that_do_not_fit_are_listed_with_their_sizes():
    model = build("transformer", vocabulary=11, width=8, layers=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = dict(build("transformer", vocabulary=13, width=8, layers=1).state_dict())
    del other["layers.norm.bias"]
    other["more.weight"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_weights(model, other, "runs/a/checkpoints/step-1")
    message = str(caught.value)
    assert message.startswith(
        "runs/a/checkpoints/step-1 does not fit: missing: layers.norm.bias (8); unexpected: more.weight; wrong:"
    )
    assert "embedder.embedding.weight is 13 × 8 but should be 11 × 8" in message
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_long_list_of_names_is_cut():
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_weights(nn.Linear(1, 1), {f"{'x' * 1000}{index}": torch.zeros(1) for index in range(1000)})
    assert "and 994 more" in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("stored", ["embed.weight", "head.weight"])
def test_a_tied_weight_may_be_stored_under_either_name(stored):
    model = Tied()
    weights = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    kept = weights[stored]
    for name in ("embed.weight", "head.weight"):
        del weights[name]
    checkpoint.load_weights(model, {**weights, stored: kept})
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, kept)


def test_different_weights_are_not_tied_silently():
    weights = Tied(tied=False).state_dict()
    with pytest.raises(CheckpointError, match=r"head.weight is not equal to embed.weight, to which the model ties it"):
        checkpoint.load_weights(Tied(), weights)


def test_integers_are_no_weights():
    with pytest.raises(CheckpointError, match="weight holds int64 but should hold float64"):
        checkpoint.load_weights(nn.Linear(2, 1, bias=False), {"weight": torch.ones(1, 2, dtype=torch.long)})


@pytest.mark.parametrize(
    ("version", "given"),
    [("1", "format 1"), ("3", "format 3"), ("true", "format True"), ('"2"', "format 2"), (None, "no format number")],
)
def test_another_format_number_is_refused_in_one_line(two, tmp_path, version, given):
    shutil.copytree(two, tmp_path / "copy")
    path = tmp_path / "copy" / "step-2" / "manifest.json"
    number = "" if version is None else f'"format":{version},'
    path.write_text(path.read_text().replace('"format":2,', number))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(path.parent)
    assert str(caught.value) == f"{path} has {given}, but this version of anaphor reads format 2"


def test_only_the_parts_that_are_asked_for_are_read(two):
    found, warnings = checkpoint.newest(two, ("model",))
    assert (found.step, warnings) == (2, [])
    assert found.parts.keys() == {"model"}
    assert found.names == {"model", "optimizer"}


def test_damage_to_a_part_that_is_not_read_is_not_noticed_and_its_absence_is(two, tmp_path):
    shutil.copytree(two, tmp_path / "copy")
    optimizer = tmp_path / "copy" / "step-2" / "optimizer.safetensors"
    optimizer.write_bytes(b"damaged")
    assert checkpoint.newest(tmp_path / "copy", ("model",))[0].step == 2
    assert newest(tmp_path / "copy")[0] == tmp_path / "copy" / "step-1"
    optimizer.unlink()
    assert checkpoint.newest(tmp_path / "copy", ("model",))[0].step == 1

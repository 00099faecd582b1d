"""Every test starts from the same seed, in double precision, on one thread: two workers share two cores."""

import gc
import json
import os
import signal

import anaphor  # noqa: F401  # isort: skip  (before torch: it bounds the spinning of threads)
import pytest
import torch
from hypothesis import settings

from anaphor import registry
from anaphor.cli.main import main
from anaphor.imported_files import IMPORTED
from anaphor.operations import KERNELS
from anaphor.training.curves import draw_curves
from browsing import open_browser
from command_line import without_start_lines

# Kernels that a GPU would compile are interpreted where there is none; Triton asks when it is first imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# timm, an oracle of some tests, imports torchvision. PyPI has it built for CUDA: `make test` removes both where torch
# is for CPUs, because two operators are missing. They are never called: tests run where both were installed by hand.
if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
    torchvision_operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        torchvision_operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

# What shelves register stays to the end, not only to that of the first test that needs it.
registry.load_plugins()

# The tests may run where a lost connection is ignored (`nohup`), or Ctrl-C (a job in the background of a script); those
# of these signals need their defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Also for what fixtures of modules compute before the first test.
torch.set_num_threads(1)

# Seeds of devices that were not used yet are kept for later, with the whole stack of calls: a millisecond each time.
for device in (torch.cuda, torch.mtia, torch.xpu):
    if not device.is_available():
        device.manual_seed_all = lambda seed: None

# A process may be killed in a test, the machine is not: to wait for the disk at each checkpoint takes long.
os.fsync = lambda handle: None

# A busy machine is no mistake of the code: what has a time limit says so itself.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_collection_finish():
    """What was imported and collected stays to the end: to look for garbage in it again and again takes long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)


def pytest_runtest_setup(item):
    """A test that needs several shelves stands in the folder of one of them, and names the others."""
    for mark in item.iter_markers("needs"):
        for shelf in mark.args:
            if not registry.has_shelf(shelf):
                pytest.skip(f"anaphor.{shelf} is not there")


@pytest.fixture(autouse=True)
def _known_start():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    # Not "what it was before": a fixture shared by a module may have changed it before the first test began.
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """What a test registers is gone after it."""
    tables = [value for value in vars(registry).values() if isinstance(value, registry.Registry)]
    for table in (*tables, *registry.PRESETS.values(), KERNELS):
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    imported = dict(IMPORTED)
    yield
    IMPORTED.clear()  # in place: other modules hold the same dictionary
    IMPORTED.update(imported)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory):
    """Which data runs may read is recorded in a folder that is gone after the tests. All processes of a test run share
    it, as they share runs."""
    base = tmp_path_factory.getbasetemp()
    state = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "state"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_STATE", str(state))
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_runs():
    """A run of a few steps draws no curves, a third of its time, unless the test is marked `curves`, and its samples
    are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anaphor.training.loop.draw_curves", lambda folder, task: [])
        patch.setattr("anaphor.tasks.lm.experiment.SAMPLE_TOKENS", 8)
        yield


@pytest.fixture(autouse=True)
def _curves(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("curves") is not None:
            patch.setattr("anaphor.training.loop.draw_curves", draw_curves)
        yield


@pytest.fixture
def error_of(capsys):
    """A function that runs a command that is refused, with exit code 2 and one line, and returns that line. It comes
    after the line that says what is trained, where there is one."""

    def error_of(words):
        capsys.readouterr()
        assert main(words) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        (line,) = without_start_lines(printed.err)
        assert line.startswith("anaphor: ")
        return line.removeprefix("anaphor: ")

    return error_of


@pytest.fixture
def answer_of(capsys):
    """A function that runs a command with `--json` and returns the value that it prints."""

    def answer_of(words):
        capsys.readouterr()
        assert main(words) == 0
        return json.loads(capsys.readouterr().out)

    return answer_of


@pytest.fixture
def single_precision(_known_start):
    """Models have the precision that they have in a process of the command."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A folder with train and valid, where commands are given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text("the cat sat on the mat\na dog sat on a log\n" * 20)


@pytest.fixture(scope="module")
def browser():
    """Chromium; without it tests are skipped and say so."""
    with open_browser() as running:
        yield running

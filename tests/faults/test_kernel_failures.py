"""A kernel that cannot be compiled when training first needs it ends the run in one line that says what to do."""

import pytest
import torch

import anaphor
from anaphor.cli.main import main
from anaphor.errors import KernelError
from anaphor.mixers import kernels
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training.load import load_run

triton = pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
layers = pytest.importorskip("anaphor.mixers.kernels.layers")
SETTINGS = {"model": "lstm", "width": 8, "layers": 1, "bptt": 4, "batch_size": 2, "eval_every": 2, "dropout": 0.5}
OPTIONS = {"device": "cuda" if torch.cuda.is_available() else "cpu", "dtype": torch.float32}


@triton.jit
def broken(x, sums, rows, parts, WIDTH, ROWS, COLUMNS):
    raise RuntimeError("no such kernel")


@triton.jit
def too_large(x, sums, rows, parts, WIDTH, ROWS, COLUMNS):
    raise RuntimeError("Triton Error [CUDA]: out of memory")


@pytest.fixture(autouse=True)
def _kernels_that_fail(monkeypatch, text):
    """One kernel cannot be compiled, and no other one failed before."""
    monkeypatch.setattr(kernels, "FAILURES", [])
    monkeypatch.setattr(layers, "_sum_rows", broken)
    kernels.load_kernels.cache_clear()
    yield
    kernels.load_kernels.cache_clear()


def forward():
    layers.sum_rows(torch.zeros(2, 3, **OPTIONS))


def backward():
    x, weight, bias = (torch.zeros(shape, **OPTIONS, requires_grad=True) for shape in ((2, 3), (4, 3), (4,)))
    layers.linear(x, weight, bias, torch.float32).sum().backward()


def fail_from(monkeypatch, first, call=forward):
    """Call a kernel in every loss from that one on. Returns the numbers of all losses."""
    plain, losses = StreamExperiment.loss, []

    def loss(self, batch, carry):
        losses.append(len(losses))
        if len(losses) >= first:
            call()
        return plain(self, batch, carry)

    monkeypatch.setattr(StreamExperiment, "loss", loss)
    return losses


def train(out, **more):
    settings = SETTINGS | {"steps": 4, "data": "text", "no_test": True, "device": "cpu", "progress": False} | more
    return anaphor.train("lm", out=out, **settings)


@pytest.mark.parametrize("call", [forward, backward])
def test_a_kernel_that_fails_ends_the_command_in_one_line(call, monkeypatch, capsys):
    losses = fail_from(monkeypatch, 2, call)
    words = ["--data", "text", "--model", "lstm", "--width", "8", "--batch-size", "2", "--bptt", "4", "--steps", "4"]
    assert main(["train", "lm", *words, "--device", "cpu", "--out", "run", "--no-test"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "kernel" in line]
    assert "no such kernel" in line
    assert "--no-kernels" in line
    assert len(losses) == 2


def test_a_run_whose_kernel_failed_is_resumed_from_its_last_checkpoint_and_is_the_same(monkeypatch):
    plain = train("plain", steps=6)
    with monkeypatch.context() as patch:
        fail_from(patch, 4)
        with pytest.raises(KernelError, match="no such kernel"):
            train("run", steps=6)
    run = train("run", steps=6, resume=True)
    assert run.result["valid"] == plain.result["valid"]
    one, other = (load_run(folder, device="cpu").model.state_dict() for folder in ("run", "plain"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def fail_elsewhere():
    raise RuntimeError("no such kernel")


def launch_a_kernel_of_the_user():
    broken[(1,)](torch.zeros(2, **OPTIONS), torch.zeros(2, **OPTIONS), 1, 1, WIDTH=1, ROWS=1, COLUMNS=1)


@pytest.mark.parametrize("call", [fail_elsewhere, launch_a_kernel_of_the_user])
def test_another_failure_is_raised_as_it_is(call, monkeypatch):
    fail_from(monkeypatch, 1, call)
    with pytest.raises(Exception, match="no such kernel") as raised:
        train("run")
    assert not isinstance(raised.value, KernelError)


def test_an_error_of_the_gpu_that_a_kernel_of_ours_only_reports_is_raised_as_it_is(monkeypatch):
    """A GPU reports an error, as of an index out of bounds, at whatever is launched next, and then at everything."""

    def synchronize():
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    fail_from(monkeypatch, 1)
    with pytest.raises(Exception, match="no such kernel") as raised:
        train("run")
    assert not isinstance(raised.value, KernelError)


def test_missing_memory_is_no_failure_of_a_kernel(monkeypatch):
    monkeypatch.setattr(layers, "_sum_rows", too_large)
    fail_from(monkeypatch, 1)
    with pytest.raises(Exception, match="out of memory") as raised:
        train("run")
    assert not isinstance(raised.value, KernelError)

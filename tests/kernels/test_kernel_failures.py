"""A kernel that cannot be compiled ends the command in one line that says how to do without kernels."""

from collections import defaultdict
from pathlib import Path
from subprocess import CalledProcessError
from types import FunctionType

import pytest
import torch

import anaphor
from anaphor.cli.main import main
from anaphor.errors import KernelError
from anaphor.models.cross_entropy import cross_entropy
from anaphor.models.head import Head
from anaphor.operations import OFF_VARIABLE, kernel_errors, kernels_are_on
from anaphor.tasks.lm.experiment import StreamExperiment

pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
import triton
from triton.errors import TritonError

from anaphor.kernels import linear as linear_kernel

SETTINGS = {"model": "lstm", "width": 8, "layers": 1, "bptt": 4, "batch_size": 2, "eval_every": 2, "dropout": 0.5}
OPTIONS = {"device": "cuda" if torch.cuda.is_available() else "cpu", "dtype": torch.float32}
MESSAGE = r"^the kernel of linear failed: \w+: .*no such kernel.*; --no-kernels runs without kernels"


@triton.jit
def broken(x, sums, rows, parts, WIDTH, ROWS, COLUMNS):
    raise RuntimeError("no such kernel")


@triton.jit
def too_large(x, sums, rows, parts, WIDTH, ROWS, COLUMNS):
    raise RuntimeError("Triton Error [CUDA]: out of memory")


@pytest.fixture(autouse=True)
def _a_kernel_that_fails(monkeypatch, text):
    monkeypatch.setattr(linear_kernel, "_sum_rows", broken)


def forward():
    linear_kernel.sum_rows(torch.zeros(2, 3, **OPTIONS))


def backward():
    x, weight, bias = (torch.zeros(shape, **OPTIONS, requires_grad=True) for shape in ((2, 3), (4, 3), (4,)))
    linear_kernel.linear(x, weight, bias, True).sum().backward()


def fail_from(monkeypatch, first, call=backward):
    """Call a kernel in every loss from that one on, where kernels are on."""
    plain, losses = StreamExperiment.loss, []

    def loss(self, batch, carry):
        losses.append(len(losses))
        if len(losses) >= first and kernels_are_on():
            call()
        return plain(self, batch, carry)

    monkeypatch.setattr(StreamExperiment, "loss", loss)
    return losses


def train(out, **more):
    settings = SETTINGS | {"steps": 4, "data": "text", "no_test": True, "device": "cpu", "progress": False} | more
    return anaphor.train("lm", out=out, **settings)


@pytest.mark.parametrize("call", [forward, backward])
def test_training_ends_and_says_which_operation_failed(call, monkeypatch):
    fail_from(monkeypatch, 2, call)
    with pytest.raises(KernelError, match=MESSAGE):
        train("run")


def test_the_command_ends_in_one_line_with_exit_code_2(monkeypatch, capsys):
    fail_from(monkeypatch, 2)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    words = ["train", "lm", "--data", "text", "--steps", "4", "--no-test", "--device", "cpu", "--out", "run", *words]
    assert main(words) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("anaphor: the kernel of linear failed: ")
    assert told.endswith("; --no-kernels runs without kernels")
    assert main([*words, "--overwrite", "--no-kernels"]) == 0


def test_checkpoints_are_kept_and_the_run_resumes_without_kernels(monkeypatch):
    plain = train("plain")
    fail_from(monkeypatch, 4)
    with pytest.raises(KernelError, match=MESSAGE):
        train("run")
    assert any(Path("run/checkpoints").glob("step-2"))
    monkeypatch.setenv(OFF_VARIABLE, "1")
    resumed = train("run", resume=True, force=True)
    assert resumed.result["valid"] == plain.result["valid"]


def launch(*inputs, **options):
    raise ERROR


ERROR = RuntimeError()


@pytest.mark.parametrize(
    "error",
    [RuntimeError("no C compiler\nfor the launcher"), CalledProcessError(1, "gcc"), OSError("none"), TritonError("no")],
)
def test_whatever_triton_raises_is_told(error, monkeypatch):
    in_triton = FunctionType(launch.__code__, {"__name__": "triton.compiler", "ERROR": error})
    monkeypatch.setattr(linear_kernel, "_sum_rows", defaultdict(lambda: in_triton))
    with pytest.raises(KernelError, match="the kernel of linear failed: ") as raised, kernel_errors():
        backward()
    assert " ".join(str(error).split()) in str(raised.value)


@pytest.mark.usefixtures("gpu_kernels")
def test_an_operation_says_so_itself():
    """Scores and samples have no training step around them."""
    head, hidden_states = Head(6, 30, True, None).to(**OPTIONS), torch.zeros(4, 1, 6, **OPTIONS)
    targets = torch.zeros(4, 1, dtype=torch.long, device=OPTIONS["device"])
    with pytest.raises(KernelError, match=r"the kernel of cross_entropy or .* failed: .*no such kernel"):
        cross_entropy(hidden_states, head, targets, logits_per_chunk=60)


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


def test_an_error_of_the_gpu_that_a_kernel_of_ours_only_reports_is_raised(monkeypatch):
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
    monkeypatch.setattr(linear_kernel, "_sum_rows", too_large)
    fail_from(monkeypatch, 1)
    with pytest.raises(Exception, match="out of memory") as raised:
        train("run")
    assert not isinstance(raised.value, KernelError)

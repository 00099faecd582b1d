"""Where a device has no double precision, as Apple's GPUs, nothing on it is in double precision."""

import contextlib
import io

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anaphor import precision
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.training.device import choose_device

TINY = ["--steps", "2", "--eval-every", "1", "--batch-size", "4", "--width", "8", "--device", "cpu", "--json"]
RUNS = {
    "sinusoids": "lm --data grammar --model transformer --bptt 8 --eval-batch-size 64 --layers 1 --heads 2",
    "images": "images --data shapes --max-examples 8 --model vit-nano --layers 1 --heads 2",
    "classifier": "classify --data negation --max-examples 8 --model lstm",
}


class DoubleOnDevice(TorchDispatchMode):
    """Notes operations that make tensors of double precision while a model computes: those on the host begin with a
    copy there, which on a CPU is none and cannot be seen. What is made from numbers of Python is on the host."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        values = [one for one in arguments if isinstance(one, torch.Tensor)]
        is_from_single = any(value.dtype in (torch.float32, torch.bfloat16) for value in values)
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64 and is_from_single:
            self.seen.add(str(function))
        return found


@pytest.mark.parametrize("name", RUNS)
def test_training_and_scoring_make_no_double_of_what_a_model_computed(tmp_path, name, monkeypatch, own_cache):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(precision, "WITHOUT_DOUBLE", {"cpu"})
    with contextlib.redirect_stdout(io.StringIO()), DoubleOnDevice() as mode:
        assert main(["train", *RUNS[name].split(), *TINY, "--out", str(tmp_path / "run")]) == 0
    assert mode.seen == set()


def test_a_cpu_has_double_precision_and_a_mac_has_not():
    assert precision.to_double(torch.ones(2, dtype=torch.float32)).dtype == torch.float64
    assert precision.widest_dtype(torch.device("mps")) == torch.float32


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is one")
def test_a_mac_that_is_not_there_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="device='mps': torch finds no GPU of Apple here"):
        choose_device("mps")

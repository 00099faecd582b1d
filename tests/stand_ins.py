"""What takes the place of a GPU's graphs and of its compiler's process, and of a machine that dies; and what tests of
sentence pairs share."""

import hashlib
import json
import os
import sys
from subprocess import run
from types import SimpleNamespace

import pytest
import torch

from anaphor.api import execute
from anaphor.cuda_graphs import CUDAGraphs
from anaphor.mixers.base import tensors_of
from anaphor.training.build import build_experiment
from anaphor.training.callbacks import NullCallback


class ReplayedGraphs(CUDAGraphs):
    """Without a GPU: a replay calls the function again, on the tensors and into the tensors that were captured."""

    def __init__(self, model):
        super().__init__()
        self.weights, self.replays = list(model.parameters()), 0

    def setup(self):
        pass

    def warm_up(self, run, group, carry):
        return run(group, carry)

    def record(self, function):
        before = [weight.detach().clone() for weight in self.weights]
        made = function()
        with torch.no_grad():  # a capture does no work
            torch._foreach_copy_(self.weights, before)

        def replay():
            self.replays += 1
            for ours, theirs in zip(tensors_of(made), list(tensors_of(function())), strict=True):
                ours.copy_(theirs)

        return SimpleNamespace(replay=replay), made


class Interrupted(NullCallback):
    """Dies at a step, as a machine does."""

    def __init__(self, step):
        self.left = step

    def on_step(self, info):
        self.left -= 1
        if self.left < 0:
            raise ChildProcessError


def weights(out):
    """The newest checkpoint of a run: its name, and a digest of its weights."""
    last = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    return last.name, hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()


def assert_same_after_a_kill(spec, folder):
    """A run that dies at step 7, one after a checkpoint inside of an epoch, ends with the bits of a whole one."""
    experiment = build_experiment(spec)
    first, second = (len(experiment.batches(epoch)) for epoch in range(2))
    assert first < 6 < first + second, "the checkpoint is inside the second epoch"
    execute(spec, folder / "whole", NullCallback(), test=False)
    with pytest.raises(ChildProcessError):
        execute(spec, folder / "parts", Interrupted(7), test=False)
    assert weights(folder / "parts")[0] == "step-6"
    result, code = execute(spec, folder / "parts", NullCallback(), resume=True, test=False)
    assert (code, result["steps"]) == (0, spec.steps)
    assert weights(folder / "parts") == weights(folder / "whole")


def compiled_kernels(script, cache):
    """What a script tells that compiles kernels, in a process of its own: in that of the tests Triton interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = run(
        [sys.executable, script], env=environment | {"TRITON_CACHE_DIR": str(cache)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_equal_batches(one, other):
    """Of sentence pairs: the same pairs in the same order, with the same tokens."""
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.indices == theirs.indices
        for name in ("input_ids", "targets", "lengths", "source_ids", "source_lengths"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name))


def decode_pairs(experiment, batches):
    """Source and target of each pair, by its index."""
    tokenizer, found = experiment.tokenizers.target, {}
    for batch in batches:
        rows = zip(batch.indices, *batch.source, batch.targets, batch.lengths, strict=True)
        for index, source, size, target, length in rows:
            assert target[length - 1] == tokenizer.boundary
            sides = source[:size].tolist(), target[: length - 1].tolist()
            found[index] = tuple(tokenizer.decode(ids) for ids in sides)
    return found

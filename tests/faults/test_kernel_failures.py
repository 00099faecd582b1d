"""A kernel that cannot be compiled when training first needs it: training goes on without kernels."""

import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import anaphor
from anaphor.errors import ConfigError, KernelWarning
from anaphor.mixers import kernels
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training import run as run_module
from anaphor.training.load import load_run
from anaphor.training.trainer import NullCallback, Trainer

triton = pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
layers = pytest.importorskip("anaphor.mixers.kernels.layers")
SETTINGS = {"model": "lstm", "width": 8, "layers": 1, "bptt": 4, "batch_size": 2, "eval_every": 2, "dropout": 0.5}
OPTIONS = {"device": "cuda" if torch.cuda.is_available() else "cpu", "dtype": torch.float32}
WARNING = "^the kernels cannot be used, so that training is slower: .*no such kernel"


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
    """Call a kernel in every loss from that one on, unless kernels are disabled. Gives the number of losses."""
    plain, losses = StreamExperiment.loss, []

    def loss(self, batch, carry):
        losses.append(len(losses))
        if len(losses) >= first and not kernels.FAILURES:
            call()
        return plain(self, batch, carry)

    monkeypatch.setattr(StreamExperiment, "loss", loss)
    return losses


def train(out, **more):
    settings = SETTINGS | {"steps": 4, "data": "text", "no_test": True, "device": "cpu", "progress": False} | more
    return anaphor.train("lm", out=out, **settings)


@pytest.mark.parametrize("call", [forward, backward])
def test_training_starts_again_without_kernels_and_is_the_same(call, monkeypatch):
    plain = train("plain")
    losses = fail_from(monkeypatch, 2, call)
    with pytest.warns(KernelWarning, match=WARNING) as caught:
        run = train("run")
    assert len(caught) == 1
    assert len(losses) == 2 + 4
    assert run.result["valid"] == plain.result["valid"]
    assert [row["step"] for row in run.metrics] == [row["step"] for row in plain.metrics]
    assert kernels.load_kernels("layers", torch.device("cuda")) is None


def test_notes_are_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(StreamExperiment, "notes", lambda self: ["this is to be known"])
    fail_from(monkeypatch, 2)
    with pytest.warns(KernelWarning, match=WARNING):
        run = train("run")
    assert capsys.readouterr().err.count("this is to be known") == 1
    assert run.result["notes"] == ["this is to be known"]


def test_the_model_of_the_first_try_is_released(monkeypatch):
    fail_from(monkeypatch, 2)
    failing, models, first_is_released = StreamExperiment.loss, list[weakref.ref](), list[bool]()

    def loss(self, batch, carry):
        if not models or models[-1]() is not self.model:
            models.append(weakref.ref(self.model))
            first_is_released.append(models[0]() is None)
        return failing(self, batch, carry)

    monkeypatch.setattr(StreamExperiment, "loss", loss)
    with pytest.warns(KernelWarning, match=WARNING):
        train("run")
    assert first_is_released == [False, True]


def test_a_run_that_is_resumed_goes_on_without_kernels(monkeypatch):
    for out in ("plain", "run"):
        train(out)
    plain = train("plain", steps=6, resume=True, force=True)
    fail_from(monkeypatch, 1)
    with pytest.warns(KernelWarning, match=WARNING):
        run = train("run", steps=6, resume=True, force=True)
    assert run.result["valid"] == plain.result["valid"]


class Recorded(NullCallback):
    """Counts of the steps and epochs of the validations that were reported."""

    def __init__(self):
        self.counts, self.epochs = [], []

    def on_step(self, progress, loss, count):
        self.counts.append(count)

    def on_evaluation(self, epoch, train_loss, result, is_best):
        self.epochs.append(epoch)


@pytest.mark.parametrize(("resume", "first"), [(False, 2), (True, 5)])
def test_a_callback_is_called_once_for_each_step_and_validation(resume, first, monkeypatch):
    spec = LanguageRunSpec(**SETTINGS, steps=6, data="text", device="cpu")
    reported = {}
    for out in ("plain", "run"):
        if resume:
            train(out, steps=1)
        if out == "run":
            losses = fail_from(monkeypatch, first)
        reported[out] = Recorded()
        with pytest.warns(KernelWarning, match=WARNING) if out == "run" else nullcontext():
            # Validations save nothing that could be resumed: a run that is resumed twice repeats them, too.
            run_module.execute(spec, out, reported[out], resume=resume, force=resume, test=False, save_only_model=True)
    assert len(losses) == first + 6 - resume
    assert reported["run"].epochs == reported["plain"].epochs
    assert reported["run"].counts == reported["plain"].counts


def test_a_run_that_was_to_be_replaced_is_kept_until_the_first_checkpoint(monkeypatch, capsys):
    kept = []

    class Previous(NullCallback):
        def on_step(self, progress, loss, count):
            kept.append(sorted(path.name for path in Path("run/previous/checkpoints").glob("step-*")))

    train("run")
    fail_from(monkeypatch, 1)
    with pytest.warns(KernelWarning, match=WARNING):
        train("run", overwrite=True, callback=Previous())
    assert capsys.readouterr().err.count("overwriting run") == 1
    assert kept == [["step-2", "step-4"], ["step-2", "step-4"], [], []]


def test_a_run_that_was_to_be_replaced_is_still_protected_when_the_second_try_is_killed(monkeypatch):
    train("run")
    fail_from(monkeypatch, 1)
    build, built = run_module.build_experiment, []

    def build_once(*inputs, **options):
        built.append(1)
        if len(built) > 1:
            raise KeyboardInterrupt
        return build(*inputs, **options)

    monkeypatch.setattr(run_module, "build_experiment", build_once)
    with pytest.warns(KernelWarning, match=WARNING), pytest.raises(KeyboardInterrupt):
        train("run", overwrite=True)
    monkeypatch.setattr(run_module, "build_experiment", build)
    with pytest.raises(ConfigError, match="the run that was being overwritten is in"):
        train("run")
    assert any(Path("run/previous/checkpoints").glob("step-*"))


def weights(folder):
    return load_run(folder, device="cpu").model.state_dict()


def test_a_new_run_goes_on_from_its_last_checkpoint_and_is_the_same(monkeypatch):
    plain = train("plain", steps=6)
    losses = fail_from(monkeypatch, 4)
    reported = Recorded()
    with pytest.warns(KernelWarning, match=WARNING):
        run = train("run", steps=6, callback=reported)
    assert len(losses) == 4 + 4  # from step 2 on
    assert len(set(reported.counts)) == len(reported.counts) == 6
    assert run.result["valid"] == plain.result["valid"]
    for one, other in zip(run.metrics, plain.metrics, strict=True):
        assert (one["step"], one["valid"]) == (other["step"], other["valid"])
    one, other = weights("run"), weights("plain")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("resume", [False, True])
def test_the_time_of_the_first_try_counts_once(resume, monkeypatch):
    if resume:
        train("run", steps=2)
    fail_from(monkeypatch, 4)
    fit, starts = Trainer.fit, []

    def fit_recorded(self):
        starts.append(self.start)
        fit(self)

    monkeypatch.setattr(Trainer, "fit", fit_recorded)
    with pytest.warns(KernelWarning, match=WARNING):
        train("run", steps=8, resume=resume, force=resume)
    assert len(starts) == 2
    assert starts[0] == starts[1]


def test_a_cell_of_a_study_whose_checkpoint_has_weights_alone_starts_again(monkeypatch):
    spec = LanguageRunSpec(**SETTINGS, steps=4, data="text", device="cpu")
    plain, _ = run_module.execute(spec, "plain", test=False, save_only_model=True)
    losses = fail_from(monkeypatch, 4)
    with pytest.warns(KernelWarning, match=WARNING):
        result, _ = run_module.execute(spec, "run", test=False, save_only_model=True)
    assert len(losses) == 4 + 4
    assert result["valid"] == plain["valid"]


def test_a_run_that_is_overwritten_is_never_taken_for_the_new_one(monkeypatch):
    train("run", steps=2, seed=1)
    build, built = run_module.build_experiment, []

    def build_with_kernels(*inputs, **options):
        built.append(1)
        if len(built) == 1:
            forward()
        return build(*inputs, **options)

    monkeypatch.setattr(run_module, "build_experiment", build_with_kernels)
    with pytest.warns(KernelWarning, match=WARNING):
        run = train("run", overwrite=True)
    assert run.result["valid"] == train("plain").result["valid"]


def fail_elsewhere():
    raise RuntimeError("no such kernel")


def launch_a_kernel_of_the_user():
    broken[(1,)](torch.zeros(2, **OPTIONS), torch.zeros(2, **OPTIONS), 1, 1, WIDTH=1, ROWS=1, COLUMNS=1)


@pytest.mark.parametrize("call", [fail_elsewhere, launch_a_kernel_of_the_user])
def test_another_failure_is_raised(call, monkeypatch):
    losses = fail_from(monkeypatch, 1, call)
    with pytest.raises(Exception, match="no such kernel"):
        train("run")
    assert len(losses) == 1
    assert not kernels.FAILURES


def test_an_error_of_the_gpu_that_a_kernel_of_ours_only_reports_is_raised(monkeypatch):
    """A GPU reports an error, as of an index out of bounds, at whatever is launched next, and then at everything."""

    def synchronize():
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    losses = fail_from(monkeypatch, 1)
    with pytest.raises(Exception, match="no such kernel"):
        train("run")
    assert len(losses) == 1
    assert not kernels.FAILURES


def test_missing_memory_is_no_failure_of_a_kernel(monkeypatch):
    monkeypatch.setattr(layers, "_sum_rows", too_large)
    losses = fail_from(monkeypatch, 1)
    with pytest.raises(Exception, match="out of memory"):
        train("run")
    assert len(losses) == 1
    assert not kernels.FAILURES

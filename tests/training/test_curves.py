"""Metrics of each validation, the same after a resume, and the figures of a run."""

import math
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.metrics.losses import LossTotal, loss_result
from anaphor.metrics.result import Metric
from anaphor.progress import Bar, duration
from anaphor.registry import TASKS
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training.curves import draw_curves, progress_axis
from anaphor.training.pace import Pace
from anaphor.training.run_folder import RunFolder


class Recorder:
    """A callback that keeps the losses of all steps; it ends the run, as a kill would, at one of them."""

    def __init__(self, until=math.inf):
        self.losses, self.until = [], until

    def on_step(self, info):
        self.losses.append(info.loss)
        if len(self.losses) == self.until:
            raise SystemError("killed")

    def on_evaluation(self, info):
        pass


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("the cat sat on the mat\nthe dog sat on the log\na bird sang\n" * 20, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _as_the_command_has_it(text, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(text.parent / "cache"))
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """The metrics of an undisturbed run, and the losses of its steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(text.parent / "cache"))
        torch.set_num_threads(1)
        recorder, out = Recorder(), tmp_path_factory.mktemp("whole") / "run"
        execute(small(text), out, recorder)
    return lines_of(out), recorder.losses


def small(text, **more):
    return LanguageRunSpec(
        data=str(text), width=8, layers=1, batch_size=2, bptt=8, steps=12, eval_every=4, device="cpu", **more
    )


def lines_of(out):
    return RunFolder(out).read_metrics()


def timeless(lines):
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "tokens_per_second")} for line in lines
    ]


def test_each_line_has_the_mean_training_loss_since_the_last_one(whole):
    lines, losses = whole
    assert [line["step"] for line in lines] == [4, 8, 12]
    for number, line in enumerate(lines):  # all batches are equally large here
        assert line["train_loss"] == pytest.approx(sum(losses[4 * number : 4 * number + 4]) / 4)
    assert all(line["tokens_per_second"] > 0 for line in lines)
    assert lines[-1]["lr"] == pytest.approx(0, abs=1e-12)
    assert lines[0]["lr"] > lines[1]["lr"] > 0


@pytest.mark.parametrize("until", [5, 8, 10])
def test_a_killed_and_resumed_run_logs_the_same(text, whole, tmp_path, until):
    with pytest.raises(SystemError):
        execute(small(text), tmp_path / "parts", Recorder(until))
    execute(small(text), tmp_path / "parts", Recorder(), resume=True)
    assert timeless(lines_of(tmp_path / "parts")) == timeless(whole[0])


def test_a_checkpoint_between_validations_has_the_loss_since_the_last_one(text, whole, tmp_path):
    """A stopped run is saved at its step; the loss of the steps before belongs to the next line."""
    spec, out = small(text), tmp_path / "run"

    class Stopper(Recorder):
        def on_step(self, info):
            super().on_step(info)
            if len(self.losses) == 6:
                signal.raise_signal(signal.SIGTERM)

    assert execute(spec, out, Stopper())[1] == 143
    execute(spec, out, Recorder(), resume=True)
    assert timeless(lines_of(out)) == timeless(whole[0])


@pytest.mark.curves
def test_the_command_writes_the_figures_and_names_them(text, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["train", "lm", "--data", str(text), "--width", "8", "--layers", "1", "--steps", "2", "--device", "cpu"]
    assert main([*words, "--out", str(out), "--no-test"]) == 0
    printed = capsys.readouterr()
    assert f"figure: {out / 'curves.png'}, .svg, .pdf\n" in printed.out
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "curves.svg").read_text()
    assert (out / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert RunFolder(out).read_result()["figures"] == [str(out / f"curves.{kind}") for kind in ("png", "svg", "pdf")]


def test_figures_are_deleted_when_a_run_is_resumed(tmp_path):
    run = RunFolder(tmp_path)
    run.create("")
    run.log(1, epoch=1, tokens=10, train_loss=2.0, valid={"loss": 2.0})
    assert draw_curves(run, TASKS["lm"]) == list(run.curves)
    run.truncate_after(1)
    assert not any(path.exists() for path in run.curves)


@pytest.fixture
def axes_of(tmp_path, monkeypatch):
    """The axes of a figure with these losses of training and validation, drawn."""
    drawn = []
    monkeypatch.setattr("anaphor.draw._save", lambda figure, paths: drawn.append(figure))

    def draw(losses, epoch):
        run = RunFolder(tmp_path)
        run.create("")
        for step, (trained, valid) in enumerate(losses, start=1):
            run.log(step, epoch=epoch, tokens=1_234_567 + step, train_loss=trained, valid={"loss": valid})
        draw_curves(run, TASKS["lm"])
        drawn[0].draw_without_rendering()
        return drawn[0].axes[0]

    return draw


def ticks_of(axis):
    low, high = axis.get_view_interval()
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


@pytest.mark.parametrize(
    ("losses", "epoch"), [((3.2891234, 3.2891301), 1), ((None, 3.2891234), 1), ((0.0, 0.0), 1), ((3.2, 3.4), 0)]
)
def test_a_single_validation_is_drawn_with_room_round_it(axes_of, losses, epoch):
    axes = axes_of([losses], epoch)
    low, high = axes.get_ylim()
    assert high - low >= 0.099 * max(value or 0 for value in losses)
    assert 2 <= len(set(ticks_of(axes.yaxis))) == len(ticks_of(axes.yaxis))
    assert max(map(len, ticks_of(axes.yaxis))) <= 6
    place = axes.lines[0].get_xdata()[0]
    assert axes.get_xlim() == pytest.approx((0, 2 * place))
    if epoch:
        assert ticks_of(axes.xaxis) == ["0", "1", "2"]


def test_the_axis_of_a_single_curve_names_its_split(tmp_path, monkeypatch):
    labels = []
    monkeypatch.setattr(
        "anaphor.training.curves.curves", lambda drawn, *paths, x_label, y_label: labels.append(y_label)
    )
    run = RunFolder(tmp_path)
    run.create("")
    run.log(1, epoch=1, images=10, train_loss=2.0, valid={"accuracy": 0.5, "loss": 2.1})
    draw_curves(run, TASKS["images"])
    assert labels == ["validation accuracy", "loss (nats per image)"]
    digits = replace(TASKS["images"], metrics=(Metric("mse", "min", "mean squared error"),))
    labels.clear()
    draw_curves(run, digits)
    assert labels == ["training loss"]


def test_axes_have_no_offset(axes_of):
    axes = axes_of([(3.2891234, 3.2891301), (3.2891240, 3.2891290), (3.2891250, 3.2891280)], 1)
    assert [axis.get_offset_text().get_text() for axis in (axes.xaxis, axes.yaxis)] == ["", ""]
    assert all(tick.startswith("3.2891") for tick in ticks_of(axes.yaxis))


def test_a_run_without_validations_has_no_figure(tmp_path):
    run = RunFolder(tmp_path)
    run.create("")
    assert draw_curves(run, TASKS["lm"]) == []
    run.log(1, loss=2.0)
    assert draw_curves(run, TASKS["lm"]) == []


def test_missing_values_leave_gaps(tmp_path):
    run = RunFolder(tmp_path)
    run.create("")
    for epoch, loss in enumerate((3.0, math.nan, 2.0), start=1):
        run.log(epoch, epoch=epoch, tokens=epoch, valid={"loss": loss})
    svg = draw_curves(run, TASKS["lm"])[1].read_text()
    assert svg.count("<svg") == 1


@pytest.mark.parametrize(
    ("epochs", "tokens", "x", "label"),
    [
        ([1, 2, 3], [10, 20, 30], [1, 2, 3], "epoch"),
        ([0, 0, 1], [10, 20, 30], [10, 20, 30], "training tokens"),
        ([1, 2, 2], [1000, 2000, 2500], [1, 2, 2.5], "thousands of training tokens"),
        ([0, 0], [1_000_000, 2_000_000], [1, 2], "millions of training tokens"),
    ],
)
def test_curves_run_along_epochs_or_tokens(epochs, tokens, x, label):
    lines = [{"epoch": epoch, "tokens": count} for epoch, count in zip(epochs, tokens, strict=True)]
    assert progress_axis(lines, "tokens") == (x, label)


def test_the_pace_leaves_validation_out_of_the_speed_and_counts_it_in_the_time_left():
    pace = Pace(start=100.0, progress=0.1, count=50)
    pace.on_step(104.0, 0.3, 850)
    assert pace.speed == 200
    assert pace.left == pytest.approx(4.0 * 0.7 / 0.2)
    pace.on_evaluation(106.0)
    assert pace.speed == 200
    assert pace.left == pytest.approx(6.0 * 0.7 / 0.2)
    pace.on_step(110.0, 1.0, 1650)
    assert pace.speed == 200
    assert pace.left is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (250, "4 min 10 s"),
        (3599.7, "1 h 00 min"),
        (3930, "1 h 06 min"),
    ],
)
def test_durations_are_as_precise_as_a_guess(seconds, shown):
    assert duration(seconds) == shown


def test_without_a_terminal_each_validation_is_a_line_with_speed_and_time_left(capsys, monkeypatch):
    clock = iter([10.0, 12.0, 13.0, 15.0, 16.0])
    monkeypatch.setattr("anaphor.progress.time.perf_counter", lambda: next(clock))
    result = loss_result(LossTotal(2.0, 1), {})
    with Bar("training", TASKS["lm"]) as bar:
        bar.on_step(SimpleNamespace(progress=0.1, loss=3.0, count=100))
        bar.on_step(SimpleNamespace(progress=0.2, loss=3.0, count=300))
        bar.on_evaluation(SimpleNamespace(epoch=1, train_loss=3.0, result=result, is_best=True))
        bar.on_step(SimpleNamespace(progress=1.0, loss=3.0, count=700))
        bar.on_evaluation(SimpleNamespace(epoch=2, train_loss=None, result=result, is_best=False))
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1: training loss 3.0000, valid loss 2.0000, perplexity 7.39 (best so far); 100 tokens/s, 24 s left",
        "epoch 2: valid loss 2.0000, perplexity 7.39; 150 tokens/s",
    ]

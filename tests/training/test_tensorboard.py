"""TensorBoard events: every point once, whatever killed the run; read as TensorBoard reads them."""

import re
import signal
import struct
from unittest.mock import Mock

import pytest

from anaphor.api import execute
from anaphor.errors import ConfigError, DataError
from anaphor.progress_listener import Cancelled
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training import loop
from anaphor.training.trackers import check_trackers
from anaphor.training.trackers.tensorboard import TensorBoard

METRICS = ("loss", "perplexity")
LINE = {"train_loss": 2.5, "lr": 0.125, "valid": {"loss": 2.0, "perplexity": 7.5, "signature": "bptt:35"}}


class Killer:
    """Ends the run, as a kill would, after so many validations."""

    def __init__(self, lives=100):
        self.lives = lives

    def on_step(self, info):
        pass

    def on_evaluation(self, info):
        self.lives -= 1
        if not self.lives:
            raise SystemError("killed")


@pytest.fixture
def spec(tmp_path, own_cache, single_precision):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nthe dog sat on the log\na bird sang\n" * 20, encoding="utf-8")
    return LanguageRunSpec(
        data=str(text), width=8, layers=1, batch_size=2, bptt=8, steps=12, eval_every=3, device="cpu"
    )


def events_of(path):
    """The events of a file up to a record that is not complete, where TensorBoard goes on with the next file."""
    from tensorboardX.proto.event_pb2 import Event

    content, place = path.read_bytes(), 0
    while len(content) - place >= 16:
        (size,) = struct.unpack("<Q", content[place : place + 8])
        if place + size + 16 > len(content):
            return
        yield Event.FromString(content[place + 12 : place + 12 + size])
        place += size + 16


def shown(folder):
    """{tag: {step: value}} as TensorBoard has it: the second start of a session, and each after it, drops what has been
    read from its step on (`plugin_event_accumulator`)."""
    points, starts = [], 0
    for path in sorted(folder.iterdir()):
        for event in events_of(path):
            if event.HasField("session_log"):
                starts += 1
                points = [point for point in points if starts == 1 or point[1] < event.step]
            for value in event.summary.value:
                text = value.tensor.string_val
                points.append((value.tag, event.step, text[0].decode() if text else value.simple_value))
    places = [point[:2] for point in points]
    assert len(set(places)) == len(places), "a point is shown twice"
    return {tag: {step: value for name, step, value in points if name == tag} for tag, _, _ in points}


def shown_validations(folder):
    """What does not depend on the clock, as the steps do that are logged every few seconds."""
    return {tag: points for tag, points in shown(folder).items() if not tag.startswith("step/")}


def test_every_curve_and_sample_is_at_its_step(tmp_path):
    events = TensorBoard(tmp_path / "events", METRICS)
    events.add(7, LINE, "two\nlines")
    events.add(14, {**LINE, "train_loss": None, "train_accuracy": 0.75}, "")
    found = shown(tmp_path / "events")  # not closed yet: what was added is on the disk
    events.close()
    assert found["loss/train"] == {7: 2.5}
    assert found["accuracy/train"] == {14: 0.75}
    assert found["loss/valid"] == {7: 2.0, 14: 2.0}
    assert found["perplexity/valid"] == {7: 7.5, 14: 7.5}
    assert found["learning-rate"] == {7: 0.125, 14: 0.125}
    assert found["sample/text_summary"] == {7: "    two\n    lines"}
    curves = {"loss/train", "accuracy/train", "loss/valid", "perplexity/valid", "learning-rate"}
    assert set(found) == {*curves, "sample/text_summary"}


def test_any_generated_text_can_be_written(tmp_path):
    events = TensorBoard(tmp_path, METRICS)
    events.add(1, LINE, "lone \ud800 surrogate, \x00")
    events.close()
    assert "surrogate" in shown(tmp_path)["sample/text_summary"][1]


def test_points_after_the_step_of_a_resume_are_shown_once(tmp_path):
    first = TensorBoard(tmp_path, METRICS)
    for step in (7, 14, 21):
        first.add(step, LINE, "before")
    first.close()
    second = TensorBoard(tmp_path, METRICS, after=14)
    second.add(21, {**LINE, "lr": 0.5}, "after")
    second.close()
    assert len(list(tmp_path.iterdir())) == 2
    found = shown(tmp_path)
    assert found["learning-rate"] == {7: 0.125, 14: 0.125, 21: 0.5}
    assert found["sample/text_summary"] == {7: "    before", 14: "    before", 21: "    after"}


@pytest.mark.parametrize("kept", range(0, 40, 3))
def test_a_point_that_a_kill_cut_short_does_not_hide_what_follows(tmp_path, kept):
    first = TensorBoard(tmp_path, METRICS)
    first.add(7, LINE, "one")
    first.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    second = TensorBoard(tmp_path, METRICS, after=7)
    second.add(14, LINE, "two")
    second.close()
    assert shown(tmp_path)["sample/text_summary"] == {7: "    one", 14: "    two"}


@pytest.mark.parametrize("torn", [False, True])
def test_a_run_that_was_killed_and_resumed_shows_what_an_undisturbed_one_shows(spec, tmp_path, monkeypatch, torn):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    execute(spec, whole, Killer(), tensorboard=True)
    with monkeypatch.context() as patch:
        if torn:  # the third validation is logged, but has no checkpoint
            patch.setattr(loop, "save", saves_until(6))
        with pytest.raises(SystemError):
            execute(spec, parts, Killer(lives=3), tensorboard=True)
    execute(spec, parts, Killer(), resume=True, tensorboard=True)
    found = shown_validations(parts / "events")
    assert found == shown_validations(whole / "events")
    assert list(found["loss/train"]) == [3, 6, 9, 12]


def saves_until(step):
    save = loop.save

    def chosen(run):
        if run.state.progress.step > step:
            raise SystemError("killed")
        save(run)

    return chosen


def test_events_hold_what_the_metrics_hold(spec, tmp_path):
    from anaphor.training.run_folder import RunFolder

    execute(spec, tmp_path / "run", Killer(), tensorboard=True)
    found, lines = shown(tmp_path / "run" / "events"), RunFolder(tmp_path / "run").read_metrics()
    assert found["loss/train"] == pytest.approx({line["step"]: line["train_loss"] for line in lines})
    assert found["perplexity/valid"] == pytest.approx({line["step"]: line["valid"]["perplexity"] for line in lines})
    assert found["learning-rate"] == pytest.approx({line["step"]: line["lr"] for line in lines})
    rows = RunFolder(tmp_path / "run").read_steps()
    assert found["step/loss"] == pytest.approx({row["step"]: row["loss"] for row in rows})
    assert found["step/gradient-norm"] == pytest.approx({row["step"]: row["grad_norm"] for row in rows})


def test_without_the_flag_there_are_none_and_overwriting_deletes_those_of_the_run_before(spec, tmp_path):
    out = tmp_path / "run"
    execute(spec, out, Killer(), tensorboard=True)
    (out / "events" / "notes.txt").write_text("mine")
    execute(spec, out, Killer(), overwrite=True)
    assert [path.name for path in (out / "events").iterdir()] == ["notes.txt"]


def test_without_the_package_one_line_names_the_extra(tmp_path, monkeypatch, error_of):
    monkeypatch.setattr("anaphor.registry.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'anaphor\[tensorboard\]'"):
        check_trackers(["tensorboard"])
    line = error_of(["train", "lm", "--data", "grammar", "--tensorboard", "--out", str(tmp_path / "run")])
    assert "anaphor[tensorboard]" in line
    assert not (tmp_path / "run" / "spec.yaml").exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "events").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write events to .*events: ") as caught:
        TensorBoard(tmp_path / "events", METRICS)
    assert "\n" not in str(caught.value)


def test_a_disk_that_is_full_when_the_file_is_closed_is_told_with_its_folder(tmp_path, monkeypatch):
    events = TensorBoard(tmp_path / "events", METRICS)
    with monkeypatch.context() as patch:
        patch.setattr(events, "writer", Mock(close=Mock(side_effect=OSError(28, "No space left on device"))))
        with pytest.raises(DataError, match=r"cannot write events to .*events: No space left on device$"):
            events.close()
    events.close()


def test_a_validation_that_was_logged_but_not_saved_is_shown_once(spec, tmp_path, monkeypatch):
    """A signal comes while step 3 is validated, and a kill after the resumed run has validated it."""

    def interrupted(self, split):
        signal.raise_signal(signal.SIGTERM)
        raise Cancelled

    options = {"test": False, "tensorboard": True}
    with monkeypatch.context() as patch:
        patch.setattr(StreamExperiment, "evaluate", interrupted)
        assert execute(spec, tmp_path / "run", **options)[1] == 128 + signal.SIGTERM
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", Mock(side_effect=SystemError("killed")))
        with pytest.raises(SystemError, match="killed"):
            execute(spec, tmp_path / "run", resume=True, **options)
    for number, path in enumerate(sorted((tmp_path / "run" / "events").iterdir())):
        path.rename(path.with_name(re.sub(r"tfevents\.\d+", f"tfevents.{number:010}", path.name)))  # in other seconds
    execute(spec, tmp_path / "run", resume=True, **options)
    assert list(shown(tmp_path / "run" / "events")["loss/valid"]) == [3, 6, 9, 12]

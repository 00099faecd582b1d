"""`anaphor runs --add`: runs of TensorBoard and wandb stand beside ours, with their curves and settings."""

import json
import os
import struct
import sys
import types
import zlib
from types import SimpleNamespace

import pytest

from anaphor.cli.main import main
from anaphor.web.added_runs import find_runs


@pytest.fixture
def listed(tmp_path, capsys, monkeypatch):
    """A function that adds a folder and returns what `anaphor runs --json` has, and stderr."""
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")

    def listed(*words):
        assert main(["runs", *words, "--json"]) == 0
        output = capsys.readouterr()
        return json.loads(output.out), output.err

    return listed


def write_events(folder, values, after=0):
    """An event file with {tag: {step: value}}."""
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import scalar

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"), f".{after}")
    for tag, points in values.items():
        for step, value in points.items():
            writer.write_event(Event(step=step, wall_time=1000.0 + step, summary=scalar(tag, value)))
    writer.close()


def test_runs_of_tensorboard_are_listed_with_their_best_and_last_values(tmp_path, listed):
    write_events(tmp_path / "logs" / "a", {"loss/train": {1: 5.0, 2: 4.0}, "loss/valid": {2: 4.5, 4: 3.5, 6: 3.75}})
    write_events(tmp_path / "logs" / "b", {"eval/accuracy": {3: 0.25, 6: 0.5}, "train/lr": {3: 0.1}})
    rows, errors = listed("--add", str(tmp_path / "logs"))
    assert errors == f"2 runs of {tmp_path}/logs added below added\n"
    first, second = sorted(rows, key=lambda row: row["run"])
    assert (first["run"], first["task"], first["metric"]) == ("added/logs-a", "tensorboard", "loss")
    assert (first["best"], first["last"], first["step"], first["status"]) == (3.5, 3.75, 6, "finished")
    assert (second["metric"], second["goal"], second["best"]) == ("accuracy", "max", 0.5)
    steps = (tmp_path / "own" / "added" / "logs-a" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in steps] == [5.0, 4.0]


def test_adding_again_replaces_what_was_added(tmp_path, listed):
    write_events(tmp_path / "logs" / "a", {"loss/valid": {2: 4.5}})
    listed("--add", str(tmp_path / "logs"))
    write_events(tmp_path / "logs" / "a", {"loss/valid": {4: 2.5}}, after=3)
    rows, _ = listed("--add", str(tmp_path / "logs"))
    assert [(row["run"], row["last"]) for row in rows] == [("added/logs-a", 2.5)]


@pytest.mark.usefixtures("own_cache", "single_precision")
def test_events_of_our_own_runs_have_the_numbers_of_their_metrics(tmp_path, listed, capsys):
    words = ["train", "lm", "--data", "grammar", "--width", "8", "--layers", "1", "--steps", "4", "--eval-every", "2"]
    out = tmp_path / "logs" / "run"
    assert main([*words, "--device", "cpu", "--no-test", "--log", "tensorboard", "--out", str(out)]) == 0
    capsys.readouterr()
    rows, _ = listed("--add", str(tmp_path / "logs"))
    added = [row for row in rows if row["run"].startswith("added")]
    own = [json.loads(line)["valid"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert added[0]["best"] == pytest.approx(min(values["loss"] for values in own))


def test_a_damaged_end_leaves_what_was_before_it(tmp_path):
    write_events(tmp_path / "a", {"loss/valid": {2: 4.5, 4: 3.5}})
    (file,) = (tmp_path / "a").iterdir()
    os.truncate(file, file.stat().st_size - 3)
    (run,) = find_runs(tmp_path)
    assert run.curves == {"loss/valid": {2: 4.5}}


def test_a_record_that_claims_to_be_huge_is_not_read(tmp_path, error_of):
    (tmp_path / "events.out.tfevents.1").write_bytes(struct.pack("<Q", 2**60) + bytes(100))
    assert "there are no runs of TensorBoard" in error_of(["runs", "--add", str(tmp_path)])


@pytest.mark.parametrize("place", ["nothing", "empty"])
def test_a_folder_without_runs_is_one_line(tmp_path, error_of, place):
    (tmp_path / "empty").mkdir()
    assert f"--add {tmp_path / place}: " in error_of(["runs", str(tmp_path), "--add", str(tmp_path / place)])


@pytest.mark.parametrize(("file", "extra"), [("events.out.tfevents.1", "tensorboard"), ("run-x.wandb", "wandb")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, error_of, file, extra):
    monkeypatch.setattr("anaphor.web.added_runs.find_spec", lambda name: None)
    (tmp_path / file).write_bytes(b"x")
    assert f"pip install 'anaphor[{extra}]'" in error_of(["runs", "--add", str(tmp_path)])


def test_links_are_not_followed(tmp_path):
    write_events(tmp_path / "elsewhere", {"loss/valid": {2: 4.5}})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "link").symlink_to(tmp_path / "elsewhere")
    assert list(find_runs(tmp_path / "logs")) == []


# wandb ----------------------------------------------------------------------------------------------------------------


def write_log(path, records):
    """The blocks of a log, as wandb writes them."""
    content = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            left = 2**15 - len(content) % 2**15
            if left < 7:
                content += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not rest]
            content += struct.pack("<IHB", zlib.crc32(part), len(part), kind) + part
            is_first = False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(content))


class Record:
    """Stands for the records of wandb: they hold JSON here."""

    def __init__(self, kind, values):
        items = [SimpleNamespace(key=key, nested_key=[], value_json=json.dumps(value)) for key, value in values.items()]
        self.kind, self.history = kind, SimpleNamespace(item=items, step=SimpleNamespace(num=0))
        self.run = SimpleNamespace(config=SimpleNamespace(update=items))

    @classmethod
    def FromString(cls, content):  # noqa: N802
        return cls(*json.loads(content))

    def WhichOneof(self, name):  # noqa: N802
        return self.kind


@pytest.fixture
def _wandb(monkeypatch):
    for name in ("wandb", "wandb.proto", "wandb.proto.wandb_internal_pb2"):
        module = types.ModuleType(name)
        module.Record = Record
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("anaphor.web.added_runs.find_spec", lambda name: object())


@pytest.mark.usefixtures("_wandb")
def test_an_offline_run_of_wandb_is_listed_with_its_settings(tmp_path, listed):
    rows = [{"_step": step, "_timestamp": 10.0 + step, "val_loss": 9.0 - step, "lr": 0.5} for step in range(3)]
    records = [["run", {"lr": 0.5, "model": "resnet", "nested": {"a": 1}, "long": "x" * 40_000}]]
    records += [["history", row] for row in rows] + [["summary", {}]]
    write_log(
        tmp_path / "logs" / "wandb" / "offline-run-1" / "run-abc.wandb", [json.dumps(one).encode() for one in records]
    )
    found, _ = listed("--add", str(tmp_path / "logs"))
    (row,) = found
    assert (row["run"], row["task"]) == ("added/logs-offline-run-1-run-abc", "wandb")
    assert (row["best"], row["last"], row["step"]) == (7.0, 7.0, 2)
    assert (row["settings"]["lr"], row["settings"]["model"]) == (0.5, "resnet")
    assert "nested" not in row["settings"]


@pytest.mark.usefixtures("_wandb")
def test_a_truncated_file_of_wandb_leaves_what_was_before_it(tmp_path):
    path = tmp_path / "run-abc.wandb"
    write_log(path, [json.dumps(["history", {"_step": step, "val_loss": 1.0 * step}]).encode() for step in range(5)])
    os.truncate(path, path.stat().st_size - 2)
    (run,) = find_runs(tmp_path)
    assert list(run.curves["val_loss"]) == [0, 1, 2, 3]

"""Cells that train on several devices: their processes are started by torchrun."""

import json
import time

import pytest
import yaml

from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.studies import engines
from anaphor.studies.engines import Job, build_engine, start_worker, stop_worker
from anaphor.studies.study_file import read_study

STUDY = """
base: {data: grammar, model: lstm, width: 8, steps: 4, eval_every: 2, batch_size: 6, dropout: 0.2}
parameters: {layers: {values: [1]}}
seeds: 1
test: none
devices: 2
"""


def write(folder, text=STUDY):
    (folder / "two.yaml").write_text(text)
    return folder / "two.yaml"


def test_a_study_names_the_devices_of_a_run(tmp_path):
    spec = read_study(write(tmp_path))
    assert spec.devices == 2
    assert spec.to_plain()["devices"] == 2
    assert "devices" not in read_study(write(tmp_path, STUDY.replace("devices: 2", ""))).to_plain()


def test_no_device_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="devices=0"):
        read_study(write(tmp_path, STUDY.replace("devices: 2", "devices: 0")))


def test_each_job_has_gpus_of_its_own(monkeypatch):
    monkeypatch.setattr(engines, "visible_gpus", lambda: ["0", "1", "2", "3", "4"])
    with build_engine("local", device="cuda", devices_per_job=2, per_device=1) as engine:
        assert sorted(engine._free) == ["0,1", "2,3"]
    with pytest.raises(ConfigError, match="devices=6: there are only 5 GPUs here"):
        build_engine("local", device="cuda", devices_per_job=6)


def test_on_a_cpu_a_job_takes_as_many_cores_as_it_has_processes(monkeypatch):
    monkeypatch.setattr(engines.os, "sched_getaffinity", lambda process: range(8))
    with build_engine("local", device="cpu", devices_per_job=2, threads=2) as engine:
        assert engine.slots == 2


@pytest.mark.slow
def test_cells_on_two_devices_have_the_losses_of_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {}
    for devices in (1, 2):
        file = write(tmp_path, STUDY.replace("devices: 2", f"devices: {devices}"))
        assert main(["study", str(file), "--device", "cpu", "--workers", "1", "--out", f"on-{devices}"]) == 0
        (cell,) = (tmp_path / f"on-{devices}" / "cells").iterdir()
        assert yaml.safe_load((cell / "spec.yaml").read_text())["environment"].get("ranks", 1) == devices
        values[devices] = json.loads((cell / "result.json").read_text())["valid"]["loss"]
    assert values[2] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.slow
def test_a_cell_on_two_devices_stops_with_its_study(tmp_path):
    spec = read_study(write(tmp_path, STUDY.replace("steps: 4", "steps: 100000")))
    job = {
        "task": "lm", "spec": {**spec.base, "layers": 1, "device": "cpu"}, "threads": 1, "devices": 2, "measures": {},
        "longer": [], "callbacks": [], "imports": {},
    }  # fmt: skip
    cell = tmp_path / "study" / "cells" / "one"
    cell.mkdir(parents=True)
    (cell / "job.json").write_text(json.dumps(job))
    process = start_worker(Job("train", cell), {})
    end = time.monotonic() + 120
    while not (cell / "metrics.jsonl").exists():
        assert time.monotonic() < end and process.poll() is None, (cell / "output.txt").read_text()  # noqa: PT018
        time.sleep(0.1)
    stop_worker(process)
    assert process.wait(timeout=60) == 143
    assert any((cell / "checkpoints").glob("step-*"))

"""A damaged line of `metrics.jsonl` does not stand in the way of weights that are intact."""

import json

import pytest

from command_line import without_start_lines
from faults.runs import hashes, here

SHORT = ("--steps", "10", "--eval-every", "5")
DAMAGED = [b"{not json}", b'{"loss": 1}', b"[1]", b"\xff\xfe", b"", b"[" * 100_000, b'{"step"\r: 5']


def test_damaged_lines_are_set_aside_and_training_resumes(tmp_path):
    out = tmp_path / "run"
    assert here(tmp_path, out, *SHORT).returncode == 0
    metrics, aside = out / "metrics.jsonl", out / "metrics.jsonl.damaged"
    first, second = metrics.read_bytes().splitlines(keepends=True)
    damage = b"".join(line + b"\n" for line in DAMAGED)
    metrics.write_bytes(first + damage + second)
    done = here(tmp_path, out, "--steps", "20", "--eval-every", "5", "--resume", "--force")
    assert done.returncode == 0, done.stderr
    assert any(str(aside) in line and "7 damaged lines" in line for line in done.stderr.splitlines())
    assert aside.read_bytes() == damage
    assert metrics.read_bytes().startswith(first + second)
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == [5, 10, 15, 20]
    assert hashes(out)["step"] == "step-20"


def test_nothing_is_set_aside_where_nothing_is_damaged(tmp_path):
    out = tmp_path / "run"
    assert here(tmp_path, out, *SHORT).returncode == 0
    assert here(tmp_path, out, *SHORT, "--resume").returncode == 0
    assert not (out / "metrics.jsonl.damaged").exists()


def test_a_lost_line_does_not_change_the_weights(tmp_path):
    """A step that has been validated is not validated again, which would lower the learning rate of a plateau."""
    plateau = ("--schedule", "plateau", "--lr", "0.01", "--eval-every", "5")
    for name in ("whole", "damaged"):
        out = tmp_path / name
        assert here(tmp_path, out, *plateau, "--steps", "10").returncode == 0
        if name == "damaged":
            metrics = out / "metrics.jsonl"
            metrics.write_bytes(metrics.read_bytes().splitlines(keepends=True)[0])
        assert here(tmp_path, out, *plateau, "--steps", "20", "--resume", "--force").returncode == 0
    files = [hashes(tmp_path / name)["files"] for name in ("whole", "damaged")]
    assert files[0]["model.safetensors"] == files[1]["model.safetensors"]


def test_a_folder_in_the_place_of_the_metrics_is_named_in_one_line(tmp_path):
    out = tmp_path / "run"
    assert here(tmp_path, out, *SHORT).returncode == 0
    (out / "metrics.jsonl").unlink()
    (out / "metrics.jsonl").mkdir()
    done = here(tmp_path, out, *SHORT, "--resume")
    assert done.returncode == 2
    assert without_start_lines(done.stderr) == [f"anaphor: {out / 'metrics.jsonl'} cannot be read: Is a directory"]


@pytest.mark.parametrize("change", ["changed", "added", "removed", "none"])
def test_rows_that_were_altered_are_noticed(tmp_path, change):
    out = tmp_path / "run"
    assert here(tmp_path, out, *SHORT).returncode == 0
    metrics = out / "metrics.jsonl"
    first, second = metrics.read_text().splitlines(keepends=True)
    row = json.loads(first)
    better = json.dumps({**row, "valid": {**row["valid"], "loss": 0.5}}) + "\n"
    added = json.dumps({**row, "step": 6}) + "\n"
    rows = {"changed": [better, second], "added": [first, added, second], "removed": [second], "none": [first, second]}
    metrics.write_text("".join(rows[change]))
    done = here(tmp_path, out, "--steps", "20", "--eval-every", "5", "--resume", "--force")
    assert done.returncode == 0
    assert ("rows that were changed, added or removed" in done.stderr) == (change != "none")
    again = here(tmp_path, out, "--steps", "25", "--eval-every", "5", "--resume", "--force")
    assert "rows that were" not in again.stderr

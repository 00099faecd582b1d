"""Time to a perplexity: the loop of PyTorch's example learns, and what no run reaches is called so."""

import json
import math
import random

import pytest
import torch

from anaphor.data.batches import EvaluationStream
from benchmarks.time_to_perplexity import main, score, transpose


@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_the_examples_loop_writes_a_line_for_each_epoch(model, tmp_path, monkeypatch, capsys, own_cache):
    monkeypatch.setattr("benchmarks.training.VOCABULARY", 40)
    draw = random.Random(0)
    for split in ("train", "valid", "test"):
        words = (draw.choice("abcd") for _ in range(2000))
        (tmp_path / f"{split}.txt").write_text("\n".join(" ".join(row) for row in zip(*[words] * 20, strict=False)))
    main(["train", model, str(tmp_path / "out"), "--data", str(tmp_path), "--epochs", "2", "--device", "cpu"])
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 3), (2, 6)]
    assert 0 < lines[0]["seconds"] < lines[1]["seconds"]
    first, second = (line["valid"]["perplexity"] for line in lines)
    assert 1 < second < first
    assert capsys.readouterr().out.count("ms a step") == 2


def test_the_table_tells_the_first_validation_that_reached_each_goal(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    rows = [(5, 210.0), (10, 140.0), (15, 160.0), (20, 118.0)]
    lines = [{"seconds": seconds, "valid": {"perplexity": value}} for seconds, value in rows]
    lines.insert(1, {"seconds": 7, "train_loss": 3.0})  # a report without a validation
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    main(["draw", str(tmp_path / "time.png"), str(tmp_path / "run")])
    row = capsys.readouterr().out.splitlines()[2]
    assert row == "| `run` | 10 | 10 | 20 | never | never | never | never | 118.00 |"
    assert (tmp_path / "time.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_shared_its_machine_counts_its_steps(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    line = {"step": 2000, "seconds": 900, "valid": {"perplexity": 99.0}}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(line))
    words = ["draw", str(tmp_path / "time.png"), str(tmp_path / "run"), "--step-ms"]
    main([*words, "run=6.5"])
    assert capsys.readouterr().out.splitlines()[2].startswith("| `run` | 13 | 13 | 13 | 13 | never")
    with pytest.raises(SystemExit, match="no run has that name, only run"):
        main([*words, "other=6.5"])
    for wrong in ("run=fast", "run=-1", "run=nan", "6.5"):
        with pytest.raises(SystemExit, match=f"{wrong}: "):
            main([*words, wrong])


def test_the_padding_of_the_last_segment_counts_as_no_token():
    class Uniform(torch.nn.Module):
        def forward(self, tokens, state):
            return torch.full((tokens.numel(), 8), 1 / 8).log(), state

    batches = [transpose(batch) for batch in EvaluationStream(torch.arange(7), 0, 4, 2)]
    assert any((targets < 0).any() for _, targets in batches), "rows differ in length"
    assert score(Uniform(), batches) == pytest.approx(math.log(8))


def test_a_folder_without_metrics_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"run has no metrics.jsonl"):
        main(["draw", str(tmp_path / "time.png"), str(tmp_path / "run")])


def test_runs_of_one_name_are_refused(tmp_path):
    runs = [tmp_path / parent / "run" for parent in ("one", "other")]
    for run in runs:
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "seconds": 1, "valid": {"perplexity": 99.0}}))
    with pytest.raises(SystemExit, match="two runs are called run"):
        main(["draw", str(tmp_path / "time.png"), *map(str, runs)])


def test_a_run_without_a_validation_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"step": 1, "seconds": 1}))
    with pytest.raises(SystemExit, match="run has no validation yet"):
        main(["draw", str(tmp_path / "time.png"), str(tmp_path / "run")])

"""Partial shuffling and random offsets: another order of a text in each epoch, the same when asked again."""

from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anaphor.cli.main import main
from anaphor.data.batches import Stream
from anaphor.extras.partial_shuffling import PartialShuffling
from anaphor.extras.random_offset import RandomOffset
from anaphor.registry import TASKS
from anaphor.training.build import build_experiment

TEXT = torch.arange(1000)


def shuffled(seed, epoch, tokens=TEXT, rows=10):
    return Stream(tokens, rows, 7, orders=[PartialShuffling(seed)], epoch=epoch).rows


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_partial_shuffling_rotates_every_row_by_itself(epoch):
    plain, rotated = Stream(TEXT, 10, 7).rows, shuffled(3, epoch)
    shifts = (rotated[:, 0] - plain[:, 0]).tolist()
    for before, after, shift in zip(plain, rotated, shifts, strict=True):
        assert torch.equal(after, before.roll(-shift))
    assert len(set(shifts)) > 1


def test_partial_shuffling_depends_on_seed_and_epoch_alone():
    assert torch.equal(shuffled(3, 1), shuffled(3, 1))
    assert not torch.equal(shuffled(3, 1), shuffled(3, 2))
    assert not torch.equal(shuffled(3, 1), shuffled(4, 1))


def test_partial_shuffling_follows_the_offset():
    """Both may be used: the rows are cut at the offset first."""
    rows = Stream(torch.arange(103), 4, 7, orders=[PartialShuffling(0), RandomOffset(4, 7)], epoch=3).rows
    assert torch.equal(rows.sort(dim=1).values, torch.arange(3, 103).view(4, 25))


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 80))
def test_random_offsets_learn_every_transition_within_one_cycle(rows, bptt, more):
    cycle = max(bptt, rows + 1)
    text = torch.arange(2 * rows + cycle + 4 + more)
    learned, order = set(), RandomOffset(rows, bptt)
    for epoch in range(cycle):
        for batch in Stream(text, rows, bptt, orders=[order], epoch=epoch):
            learned |= set(batch.targets.flatten().tolist())
    assert learned == set(range(1, len(text)))
    assert order.offset(0) == order.offset(cycle) == 0
    assert max(map(order.offset, range(cycle))) == order.max_offset


@pytest.mark.parametrize("settings", [{"partial_shuffle": True}, {"random_offset": True}], ids=["shuffled", "shifted"])
def test_epochs_of_a_run_differ_and_an_epoch_is_the_same_again(settings):
    sizes = {"data": "grammar", "width": 8, "layers": 1, "batch_size": 4, "bptt": 5, "device": "cpu"}
    experiment = build_experiment(TASKS["lm"].run_spec(**sizes, **settings))
    first, again, other = (experiment.batches(epoch)[0].input_ids for epoch in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("flag", ["--partial-shuffle", "--random-offset"])
def test_examples_have_no_stream_that_could_be_ordered(flag, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a b c\n\nd e\n\n" * 20)
    words = ["train", "lm", "--data", str(tmp_path / "text.txt"), "--batching", "padded", "--dry-run", flag]
    assert main(words) == 2
    name = flag.strip("-").replace("-", "_")
    message = f"{name}=True applies to segments of a stream, and examples have none: use --batching stream"
    assert message in capsys.readouterr().err


def test_rows_that_would_run_out_of_text_when_shifted_are_refused_at_once(tmp_path, error_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "valid", "test"):
        Path(f"{split}.txt").write_text("a b c d e f g h i\n")
    words = ["train", "lm", "--data", ".", "--width", "8", "--batch-size", "4", "--device", "cpu", "--out", "run"]
    assert "too short for 4 rows after 34 tokens" in error_of([*words, "--steps", "1", "--random-offset"])
    assert not Path("run").exists()


def test_a_run_with_them_says_so_in_sections_of_its_spec_file(run):
    document = yaml.safe_load((Path(run("--partial-shuffle")) / "spec.yaml").read_text())
    assert document["partial_shuffling"] == {"partial_shuffle": True}
    assert "random_offset" not in document

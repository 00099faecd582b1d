"""`evaluate` with other memories and biases of the pointer, and without it."""

import pytest
import torch

from anaphor.cli.main import main
from anaphor.data.batches import EvaluationStream
from anaphor.evaluation import losses_by_batch, score_batches
from anaphor.extras.adaptation.steps import AdaptiveStep
from anaphor.extras.pointer.head import use_pointer
from anaphor.models import build
from anaphor.tasks.lm.protocol import Protocol

VOCABULARY = 7


def losses_of(model):
    text = torch.randint(0, VOCABULARY, (41,), generator=torch.Generator().manual_seed(0))
    return torch.cat([losses for _, losses in losses_by_batch(model, EvaluationStream(text, 0, 2, 5), True)], -1)


def test_a_row_for_each_memory_and_for_the_model_without_it(run, answer_of):
    folder = run("--pointer-memory", "4", "--pointer-eval-memory", "6", "--pointer-eval-bias", "0.5")
    place = ["--device", "cpu", "--batch-size", "1"]
    (trained,) = answer_of(["evaluate", folder, *place, "--json"])
    flags = [*place, "--pointer-eval-memory", "0", "6", "12", "--pointer-eval-bias", "0.5", "2"]
    rows = answer_of(["evaluate", folder, *flags, "--dynamic", "0.1", "--json"])
    names = ["off", "6,+0.5", "6,+2", "12,+0.5", "12,+2"]
    assert [row["pointer"] for row in rows[::2]] == [row["pointer"] for row in rows[1::2]] == names
    assert all(f"|pointer:{row['pointer']}" in row["signature"] for row in rows)
    assert rows[2] == trained
    assert len({row["loss"] for row in rows}) == len(rows)


def test_lines_name_the_pointer_before_the_adaptation(run, capsys):
    words = ["--split", "test", "--pointer-eval-memory", "0", "12", "--dynamic", "0.1", "--device", "cpu"]
    assert main(["evaluate", run("--pointer-memory", "4", "--pointer-eval-bias", "0.5"), *words]) == 0
    lines = [line.partition(": loss")[0] for line in capsys.readouterr().out.splitlines() if "perplexity" in line]
    assert lines == [
        "bptt 5, pointer off", "bptt 5, pointer off, adapted by dynamic(0.1)",
        "bptt 5, pointer 12,+0.5", "bptt 5, pointer 12,+0.5, adapted by dynamic(0.1)",
    ]  # fmt: skip


def test_padded_examples_are_scored_with_each_memory(run, answer_of):
    folder = run("--pointer-memory", "4", "--batching", "padded")
    found = answer_of(["evaluate", folder, "--pointer-eval-memory", "0", "4", "--device", "cpu", "--json"])
    assert [row["pointer"] for row in found] == ["off", "4"]


def test_a_model_without_its_pointer_is_scored_as_one_that_has_none():
    sizes = {"vocabulary": VOCABULARY, "width": 8, "layers": 1}
    model = build("lstm", **sizes, pointer_memory=6, pointer_eval_memory=9).eval()
    pointer, own = model.pointer, losses_of(model)
    with use_pointer(model, 0):
        off = losses_of(model)
        assert len(AdaptiveStep(model, True).weights) == len(list(model.parameters()))
    plain = build("lstm", **sizes).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("pointer.")})
    assert torch.equal(off, losses_of(plain))
    with use_pointer(model, 3, 1.0):
        assert model.pointer is pointer
        assert not torch.allclose(own, losses_of(model))
    assert torch.equal(own, losses_of(model))


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [("lstm", {}), ("linear", {"heads": 2}), ("transformer-xl", {"heads": 2, "memory": 5, "position": "rotary"})],
)
def test_segments_that_are_computed_at_once_have_the_losses_of_each_alone(name, options, complete):
    model = build(name, vocabulary=VOCABULARY, width=8, layers=1, pointer_memory=7, **options).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # far from uniform, so that an error shows
    text = torch.randint(0, VOCABULARY, (43,), generator=torch.Generator().manual_seed(0))
    batches = Protocol(4, 3, carry=True, complete=complete).batches(text, 0)
    alone, together = (list(score_batches(model, batches, True, None, at_once=count)) for count in (1, 3))
    for (batch, losses), (expected_batch, expected) in zip(together, alone, strict=True):
        assert torch.equal(batch.targets, expected_batch.targets)
        torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pointer-eval-memory", "5"], "has no pointer: it was trained without --pointer-memory"),
        (["--pointer-eval-memory", "-5"], "pointer_eval_memory=(-5,): it must be at least 0"),
        (["--pointer-eval-bias", "1", "nan"], "pointer_eval_bias=(1.0, nan): it must be finite"),
    ],
)
def test_flags_that_cannot_work_get_one_line(run, error_of, words, message):
    assert message in error_of(["evaluate", run(), *words, "--device", "cpu"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "test", "--pointer-eval-memory", "0", "5", "6"], "pointer_eval_memory=(5, 6) on test"),
        (["--by-position", "--pointer-eval-memory", "0", "6"], "--by-position and --out show one model"),
    ],
)
def test_several_models_are_refused_where_there_can_be_one(run, error_of, words, message):
    assert message in error_of(["evaluate", run("--pointer-memory", "4"), *words, "--device", "cpu"])

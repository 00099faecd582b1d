"""A task of one's own on tokens: the loss and all scores count the answers alone; it has the flags of a model."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import anaphor
from anaphor.cli.main import main
from anaphor.data.batches import IGNORE_INDEX
from anaphor.data.masked_batches import MaskedBatch, MaskedBatches
from anaphor.errors import ConfigError, DataError
from anaphor.imported_files import import_file
from anaphor.mixers import Span, mixer_spec
from anaphor.shipped_files import EXAMPLES

SMALL = {"pairs": 2, "keys": 8, "values": 4, "width": 16, "layers": 1, "device": "cpu", "progress": False}
EDGES = ["--pairs", "2", "--keys", "8", "--values", "4", "--width", "16", "--layers", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my_recall.py", "my_gated_delta.py"):
        import_file(name)


def example():
    tokens = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 1, 4, 3]])
    learned = torch.tensor([[0, 0, 1, 0, 1], [0, 0, 0, 0, 1]]).bool()
    return MaskedBatch.next_tokens(tokens, learned)


def test_a_masked_batch_counts_its_targets_alone():
    batch = example()
    assert batch.targets.tolist() == [[-100, 2, -100, 4], [-100, -100, -100, 3]]
    assert (batch.count, int(batch.denominator)) == (3, 3)
    assert [part.count for part in MaskedBatches(batch, 1, [1, 0])] == [1, 2]
    assert MaskedBatches(batch, 1, [1, 0])[0].input_ids.tolist() == [[0, 2, 1, 4]]


@pytest.mark.parametrize("learned", [torch.zeros(2, 5).bool(), torch.ones(2, 5), torch.ones(2, 4).bool()])
def test_a_mask_without_targets_or_of_another_form_is_refused(learned):
    with pytest.raises(DataError, match="learned"):
        MaskedBatch.next_tokens(torch.zeros(2, 5, dtype=torch.long), learned)


def test_scores_of_positions_are_those_of_counting_one_by_one():
    torch.manual_seed(0)
    model, batch = anaphor.build("gru", vocabulary=5, width=8, layers=1).eval(), example()
    logits = model(batch.input_ids)[0]
    places = [(row, place) for row in range(2) for place in range(4) if batch.targets[row, place] != IGNORE_INDEX]
    losses = [F.cross_entropy(logits[place], batch.targets[place]).item() for place in places]
    batch.targets[0, 1] = logits[0, 1].argmax()  # right
    batch.targets[1, 3] = logits[1, 3].argmax()
    batch.targets[0, 3] = logits[0, 3].argmin()
    found = anaphor.score_positions(model, MaskedBatches(batch, 1))
    assert (found.accuracy, found.sequence_accuracy, found.targets) == (2 / 3, 1 / 2, 3)
    assert found.by_position == (None, 1.0, None, 0.5)
    losses = [F.cross_entropy(logits[place], batch.targets[place]).item() for place in places]
    assert found.loss == pytest.approx(sum(losses) / 3)


def test_the_training_loss_is_that_of_the_answers():
    run = anaphor.train("my-recall", model="gru", steps=2, out="run", **SMALL)
    batch = run.experiment.batches(0)[0]
    assert batch.count == 2 * len(batch.input_ids), "two answers each"
    loss, _ = run.experiment.loss(batch, None)
    logits, _ = run.model(batch.input_ids)
    answers = batch.has_target
    torch.testing.assert_close(loss.total, F.cross_entropy(logits[answers], batch.targets[answers], reduction="sum"))
    assert set(batch.input_ids[:, -1].tolist()) <= {run.tokenizer.tokens.index(f"k{key}") for key in range(8)}


def test_every_answer_is_the_value_of_its_key():
    experiment = anaphor.train("my-recall", model="gru", steps=1, out="run", **SMALL).experiment
    for times in (1, 2, 4):
        batch = experiment.examples("valid", times)
        for ids, targets in zip(batch.input_ids.tolist(), batch.targets.tolist(), strict=True):
            told = dict(zip(ids[1 : 1 + 4 * times : 2], ids[2 : 2 + 4 * times : 2], strict=True))
            assert len(told) == 2 * times
            asked = [(key, value) for key, value in zip(ids, targets, strict=True) if value != IGNORE_INDEX]
            assert dict(asked) == told


def test_flags_of_the_model_are_flags_of_the_task(error_of, capsys):
    main(["train", "my-recall", "--import", "my_recall.py", *EDGES, "--model", "lstm", "--dry-run", "--out", "x"])
    assert "parameters" in capsys.readouterr().out
    command = ["train", "my-recall", "--import", "my_recall.py", *EDGES, "--out", "x"]
    assert "heads=2 is not used by the layers lstm" in error_of([*command, "--model", "lstm", "--heads", "2"])
    assert "did you mean 'lstm'" in error_of([*command, "--model", "lsmt"])
    assert "sees later tokens" in error_of([*command, "--mixers", "svd", "--no-causal"])


def test_a_run_has_scores_of_longer_sequences_resumes_and_is_looked_into(capsys):
    own = ["--import", "my_recall.py", "--import", "my_gated_delta.py"]
    common = ["train", "my-recall", *own, "--out", "run"]
    assert main([*common, *EDGES, "--model", "my-gated-delta", "--steps", "4", "--eval-every", "2"]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert {"accuracy", "accuracy_2x", "accuracy_4x", "sequence_accuracy", "loss"} < set(result["test"])
    assert main([*common, "--resume"]) == 0
    capsys.readouterr()
    assert main(["look", "run", "k1 v2 k1", *own, "--out", "look", "--json", "--device", "cpu"]) == 0
    units = json.loads(capsys.readouterr().out)["runs"][0]["units"]
    assert set(units) == {f"layers.0.mixer.{part}" for part in ("states.memory", "gates.forget", "gates.input")}
    assert all(0 <= value <= 1 for row in units["layers.0.mixer.gates.forget"]["values"] for value in row)


@pytest.mark.parametrize("bias", [4.0, -12.0])
def test_the_gated_delta_rule_by_chunks_is_the_one_token_by_token(bias):
    """Also where nothing is kept: powers of the gate over a chunk would be too small for a number."""
    torch.manual_seed(0)
    fast, slow = (mixer_spec(f"my-gated-delta{kind}", width=16).build() for kind in ("", "-slow"))
    torch.nn.init.constant_(fast.gate.bias.detach()[:4], bias)
    slow.load_state_dict(fast.state_dict())
    x = torch.randn(3, 70, 16)
    span = Span.whole(x, torch.tensor([70, 33, 1]))
    losses = []
    for mixer in (fast, slow):
        y, state = mixer(x, mixer.initial_state(x), span)
        (y.square().sum() + state.memory.square().sum()).backward()
        losses.append((y, state.memory, state.last))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    for one, other in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_gated_delta_rule_learns_to_recall():
    settings = {**SMALL, "width": 32, "batch_size": 100, "lr": 0.01, "steps": 100, "eval_every": 100}
    run = anaphor.train("my-recall", model="my-gated-delta", out="run", **settings)
    assert run.result["test"]["accuracy"] > 0.9


@pytest.mark.needs("web")
def test_the_page_looks_into_an_example_and_scores_a_text_of_two_models():
    from anaphor.web.inference import Cache, answer

    for model in ("gru", "lstm"):
        anaphor.train("my-recall", model=model, steps=1, no_test=True, out=model, **SMALL)
    cache, given = Cache(), {"verb": "look", "run": str(Path("gru").resolve()), "example": 1}
    found = answer(given, cache)
    words = anaphor.load_run("gru").experiment.split("valid").select(torch.tensor([1]))
    assert found["tokens"][1:] == found["text"].split()
    assert len(found["tokens"]) == 1 + 4 * SMALL["pairs"], "the last answer is part of it"
    names = anaphor.load_run("gru").tokenizer.tokens
    assert found["tokens"][:-1] == [names[number] for number in words.input_ids[0]]
    assert answer({**given, "example": None, "text": found["text"]}, cache)["tokens"] == found["tokens"]
    with pytest.raises(ConfigError, match="validation has the examples 0 to 499"):
        answer({**given, "example": 500}, cache)
    runs = {name: str(Path(name).resolve()) for name in ("gru", "lstm")}
    scored = answer({"verb": "tokens", "runs": runs, "text": found["text"]}, cache)
    assert len(scored["difference"]) == len(scored["tokens"]) == 4 * SMALL["pairs"]


def test_the_examples_are_short():
    lines = {name: len((EXAMPLES / name).read_text().splitlines()) for name in ("my_recall.py", "my_gated_delta.py")}
    assert lines["my_recall.py"] < 80
    assert lines["my_gated_delta.py"] < 120


def test_a_task_without_the_section_of_a_model_is_told_of_it():
    class Plain(anaphor.TokenExperiment):
        def examples(self, split, times=1):
            return example()

    with pytest.raises(ConfigError, match="let it inherit LanguageModelSection"):
        Plain(object(), ["a"])

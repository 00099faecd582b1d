"""Language modelling: what is learnt from, what is carried, and how a text is scored."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.data.batches import IGNORE_INDEX
from anaphor.data.vocab import Word
from anaphor.errors import ConfigError
from anaphor.evaluation import score_sentences
from anaphor.models import build, head
from anaphor.tasks.language_modelling import LanguageModelling, Protocol, Split, resolve_carry

TEXT = "a b c a b\nb c a b c\na a b\n" * 4


def task_of(rows=2, bptt=3, carry=True, protocol=None, text=TEXT):
    tokenizer = Word.train(text, None)
    tokens = torch.from_numpy(tokenizer.encode(text)).long()
    opened = []

    def split(name):
        opened.append(name)
        return Split(tokens, len(text.encode()), 0)

    protocol = protocol or Protocol(rows, bptt, carry)
    task = LanguageModelling(tokenizer, split, rows=rows, bptt=bptt, carry=carry, shift=False, protocol=protocol)
    return task, tokens, opened


def model_of(task, name="lstm", **options):
    return build(name, vocabulary=len(task.tokenizer), width=8, layers=2, **options)


def test_one_number_means_no_target_everywhere():
    assert head.IGNORE_INDEX == IGNORE_INDEX


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), bptt=st.integers(1, 40))
def test_a_carried_score_counts_every_token_once_whatever_the_segments(rows, bptt):
    task, tokens, _ = task_of()
    model = model_of(task).eval()
    score = task.evaluate_by(model, "valid", Protocol(rows, bptt, carry=True))
    assert score.total.tokens == len(tokens)
    assert score.total.bytes == len(TEXT)
    whole = task.evaluate_by(model, "valid", Protocol(rows, len(tokens), carry=True))
    assert score.total.loss == pytest.approx(whole.total.loss, rel=1e-9)


def test_the_score_is_the_sum_of_minus_log_probabilities():
    task, tokens, _ = task_of()
    model = model_of(task).eval()
    row = torch.cat((torch.tensor([task.tokenizer.boundary]), tokens))[None]
    with torch.no_grad():
        logits, _ = model(row[:, :-1])
    expected = -torch.log_softmax(logits, -1)[0].gather(-1, tokens[:, None]).sum().item()
    assert task.evaluate_by(model, "valid", Protocol(1, 7, carry=True)).total.total == pytest.approx(expected)


def test_the_example_protocol_drops_the_rest_and_says_so():
    task, tokens, _ = task_of()
    score = task.evaluate_by(model_of(task), "valid", Protocol(5, 4, carry=True, complete=False))
    assert score.total.tokens == 5 * (len(tokens) // 5 - 1)
    assert "protocol:example" in score.signature
    assert score.total.bits_per_byte is None


def test_evaluation_leaves_the_model_in_training_and_its_carry_alone():
    task, _, _ = task_of()
    model = model_of(task, dropout=0.5).train()
    _, carry = task.loss(model, task.batches(0)[0], None)
    before = [tensor.clone() for layer in carry.layers for tensor in layer]
    task.evaluate(model, "valid")
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, [t for layer in carry.layers for t in layer], strict=True))


def test_carried_training_equals_one_long_segment():
    """Losses of segments with carried state add up to the loss of the whole row."""
    task, _, _ = task_of(rows=2, bptt=3)
    model = model_of(task)
    total, carry = 0.0, None
    for batch in task.batches(0):
        loss, carry = task.loss(model, batch, carry)
        total += loss.total.item()
        assert not any(tensor.requires_grad for layer in carry.layers for tensor in layer)
    longer, _, _ = task_of(rows=2, bptt=1000)
    whole, _ = longer.loss(model, longer.batches(0)[0], None)
    assert total == pytest.approx(whole.total.item())


def test_test_text_is_opened_only_when_it_is_scored():
    task, _, opened = task_of()
    model = model_of(task)
    task.loss(model, task.batches(0)[0], None)
    task.evaluate(model, "valid")
    assert "test" not in opened
    task.evaluate(model, "test")
    assert opened[-1] == "test"


def test_carry_is_decided_by_the_model_and_refused_where_it_cannot_work():
    def small(name, **options):
        return build(name, vocabulary=5, width=8, layers=2, **options)

    assert resolve_carry(small("lstm"), None, 10)
    assert resolve_carry(small("transformer-xl"), None, 10)
    assert not resolve_carry(small("transformer"), None, 10)
    assert not resolve_carry(small("gpt-nano", heads=2), None, 10)
    with pytest.raises(ConfigError, match="would grow for ever: give it a finite memory"):
        resolve_carry(small("transformer"), True, 10)
    with pytest.raises(ConfigError, match="knows 1,024 positions"):
        resolve_carry(small("gpt-nano", heads=2), True, 10)
    with pytest.raises(ConfigError, match="bptt=2000 is longer than the 1,024 positions"):
        resolve_carry(small("gpt-nano", heads=2), None, 2000)


def test_a_sample_ends_with_the_positions_that_the_model_knows():
    task, _, _ = task_of()
    model = model_of(task, "transformer", heads=2, position="learned", max_positions=6)
    assert len(task.sample(model, seed=0).split()) <= 6
    assert len(task.sample(model_of(task, "transformer", heads=2), seed=0).split()) > 6


@pytest.mark.parametrize("name", ["lstm", "transformer", "hybrid"])
def test_a_sentences_score_does_not_depend_on_its_neighbours(name):
    task, _, _ = task_of()
    model = model_of(task, name)
    sentences = ["a b c", "b", "c a b c a b zebra"]
    together = list(score_sentences(model, task.tokenizer, sentences))
    for sentence, scored in zip(sentences, together, strict=True):
        (alone,) = score_sentences(model, task.tokenizer, [sentence])
        assert alone == scored
    assert together[2].unknown == (False,) * 6 + (True,)
    assert together[0].tokens == ("a", "b", "c")
    row = torch.tensor([[task.tokenizer.boundary, *task.tokenizer.encode_sentence("a b c").tolist()]])
    with torch.no_grad():
        logits, _ = model.eval()(row[:, :-1])
    expected = -torch.log_softmax(logits, -1)[0].gather(-1, row[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(together[0].losses), expected, rtol=1e-9, atol=1e-9)

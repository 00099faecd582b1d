"""Language modeling: what is learnt from, what is carried, and how a text is scored."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.data.batches import IGNORE_INDEX
from anaphor.data.tokenizer import Word
from anaphor.errors import ConfigError
from anaphor.evaluation import score_sentences
from anaphor.models import build, cross_entropy
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.tasks.lm.protocol import Protocol, Split, choose_carry

TEXT = "a b c a b\nb c a b c\na a b\n" * 4


def experiment_of(name="lstm", rows=2, bptt=3, text=TEXT, **options):
    """An experiment on a given text, its tokens, and the splits that were loaded."""
    tokenizer = Word.train(text, None)
    tokens = torch.from_numpy(tokenizer.encode(text)).long()
    loaded = []

    class GivenText(StreamExperiment):
        def load_split(self, name):
            loaded.append(name)
            return Split(tokens, len(text.encode()), 0)

    spec = LanguageRunSpec(batch_size=rows, bptt=bptt, eval_batch_size=rows)
    model = build(name, vocabulary=len(tokenizer), width=8, layers=2, **options)
    return GivenText(spec, model, tokenizer, lambda: None), tokens, loaded


def test_one_number_means_no_target_everywhere():
    assert cross_entropy.IGNORE_INDEX == IGNORE_INDEX


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), bptt=st.integers(1, 40))
def test_a_carried_score_counts_every_token_once_whatever_the_segments(rows, bptt):
    experiment, tokens, _ = experiment_of()
    score = experiment.evaluate_with("valid", Protocol(rows, bptt, carry=True))
    assert score.total.tokens == len(tokens)
    assert score.total.bytes == len(TEXT)
    whole = experiment.evaluate_with("valid", Protocol(rows, len(tokens), carry=True))
    assert score.total.loss == pytest.approx(whole.total.loss, rel=1e-9)


def test_the_score_is_the_sum_of_minus_log_probabilities():
    experiment, tokens, _ = experiment_of()
    row = torch.cat((torch.tensor([experiment.tokenizer.boundary]), tokens))[None]
    with torch.no_grad():
        logits, _ = experiment.model.eval()(row[:, :-1])
    expected = -torch.log_softmax(logits, -1)[0].gather(-1, tokens[:, None]).sum().item()
    assert experiment.evaluate_with("valid", Protocol(1, 7, carry=True)).total.total == pytest.approx(expected)


def test_the_example_protocol_drops_the_rest_and_says_so():
    experiment, tokens, _ = experiment_of()
    score = experiment.evaluate_with("valid", Protocol(5, 4, carry=True, complete=False))
    assert score.total.tokens == 5 * (len(tokens) // 5 - 1)
    assert "protocol:example" in score.signature
    assert score.total.bits_per_byte is None


def test_evaluation_leaves_the_model_in_training_and_its_carry_alone():
    experiment, _, _ = experiment_of(dropout=0.5)
    experiment.model.train()
    _, carry = experiment.loss(experiment.batches(0)[0], None)
    before = [tensor.clone() for layer in carry.layers for tensor in layer]
    experiment.evaluate("valid")
    assert experiment.model.training
    assert all(torch.equal(a, b) for a, b in zip(before, [t for layer in carry.layers for t in layer], strict=True))


def test_carried_training_equals_one_long_segment():
    """Losses of segments with carried state add up to the loss of the whole row."""
    experiment, _, _ = experiment_of(rows=2, bptt=3)
    total, carry = 0.0, None
    for batch in experiment.batches(0):
        loss, carry = experiment.loss(batch, carry)
        total += loss.total.item()
        assert not any(tensor.requires_grad for layer in carry.layers for tensor in layer)
    longer, _, _ = experiment_of(rows=2, bptt=1000)
    longer.model = experiment.model
    whole, _ = longer.loss(longer.batches(0)[0], None)
    assert total == pytest.approx(whole.total.item())


def test_test_text_is_opened_only_when_it_is_scored():
    experiment, _, loaded = experiment_of()
    experiment.loss(experiment.batches(0)[0], None)
    experiment.evaluate("valid")
    assert loaded == ["train", "valid"]
    experiment.evaluate("test")
    assert loaded[-1] == "test"


def test_carry_is_decided_by_the_model_and_refused_where_it_cannot_work():
    def small(name, **options):
        return build(name, vocabulary=5, width=8, layers=2, **options)

    assert choose_carry(small("lstm"), None, 10)
    assert choose_carry(small("transformer-xl"), None, 10)
    assert not choose_carry(small("transformer"), None, 10)
    assert not choose_carry(small("gpt-nano", heads=2), None, 10)
    with pytest.raises(ConfigError, match="would grow without bound: set --memory"):
        choose_carry(small("transformer"), True, 10)
    with pytest.raises(ConfigError, match="has 1,024 learned positions"):
        choose_carry(small("gpt-nano", heads=2), True, 10)
    with pytest.raises(ConfigError, match="bptt=2000 is longer than the 1,024 learned positions"):
        choose_carry(small("gpt-nano", heads=2), None, 2000)


def test_a_sample_ends_with_the_positions_that_the_model_knows(monkeypatch):
    monkeypatch.setattr("anaphor.tasks.lm.experiment.SAMPLE_TOKENS", 50)
    learned = {"position": "learned", "max_positions": 6}
    assert len(experiment_of("transformer", heads=2, **learned)[0].sample(seed=0).split()) <= 6
    assert len(experiment_of("transformer", heads=2)[0].sample(seed=0).split()) > 6


@pytest.mark.parametrize("name", ["lstm", "transformer", "hybrid"])
def test_a_sentences_score_does_not_depend_on_its_neighbours(name):
    experiment, _, _ = experiment_of(name)
    model = experiment.model
    sentences = ["a b c", "b", "c a b c a b zebra"]
    together = list(score_sentences(model, experiment.tokenizer, sentences))
    for sentence, scored in zip(sentences, together, strict=True):
        (alone,) = score_sentences(model, experiment.tokenizer, [sentence])
        assert alone == scored
    assert together[2].unknown == (False,) * 6 + (True,)
    assert together[0].tokens == ("a", "b", "c")
    row = torch.tensor([[experiment.tokenizer.boundary, *experiment.tokenizer.encode_sentence("a b c").tolist()]])
    with torch.no_grad():
        logits, _ = model.eval()(row[:, :-1])
    expected = -torch.log_softmax(logits, -1)[0].gather(-1, row[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(together[0].losses), expected, rtol=1e-9, atol=1e-9)

"""Losses token by token, and the difference of two models."""

import pytest
import torch

from anaphor.data.tokenizer import Byte, Word
from anaphor.errors import DataError
from anaphor.evaluation import score_text
from anaphor.inspect import compare_losses
from anaphor.inspect.figures import token_labels
from anaphor.models import build


def test_losses_are_those_of_the_model():
    tokenizer = Word.train("a b c a b")
    model = build("gru", vocabulary=len(tokenizer), width=8)
    scored = score_text(model, tokenizer, "a c b zebra")
    row = torch.tensor([[tokenizer.boundary, *tokenizer.encode_sentence("a c b zebra").tolist()]])
    logits, _ = model(row[:, :-1])
    expected = -logits.log_softmax(-1)[0].gather(-1, row[0, 1:, None]).squeeze(-1)
    assert scored.losses == pytest.approx(expected.tolist())
    assert scored.tokens == ("a", "c", "b", "<unk>")
    assert scored.unknown == (False, False, False, True)


def test_differences_are_second_less_first():
    tokenizer = Word.train("a b c")
    one, other = (score_text(build("gru", vocabulary=len(tokenizer), width=8), tokenizer, "a b c") for _ in range(2))
    found = compare_losses(one, other)
    assert found == pytest.approx([second - first for first, second in zip(one.losses, other.losses, strict=True)])
    assert any(abs(value) > 1e-6 for value in found)


def test_texts_that_are_read_differently_are_not_compared():
    word, byte = Word.train("a b c"), Byte()
    one = score_text(build("gru", vocabulary=len(word), width=8), word, "a b c")
    other = score_text(build("gru", vocabulary=256, width=8), byte, "a b c")
    with pytest.raises(DataError, match="token 1 is 'b' for the first and ' ' for the second"):
        compare_losses(one, other)
    longer = score_text(build("gru", vocabulary=len(word), width=8), word, "a b c a")
    with pytest.raises(DataError, match="into 3 and 4 tokens"):
        compare_losses(one, longer)


def test_tokens_can_be_seen():
    assert token_labels([" the", "\n", "\t", "\x00\x1b", "é", "$x$"]) == ("␣the", "⏎", "⇥", "\\x00\\x1b", "é", "$x$")

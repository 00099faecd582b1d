"""What is measured on a trained model: its longest lines are lines of the text, and each can be scored."""

from types import SimpleNamespace

from anaphor.data.tokenizer import Byte, Word
from anaphor.tasks.lm.measures import longest_lines


def lines(text, count, limit=None):
    return lines_by(Word.train(text, 100), text.encode(), count, limit)


def lines_by(tokenizer, raw, count, limit=None):
    made = SimpleNamespace(
        source=SimpleNamespace(read=lambda split: raw, where=lambda split: "the text", byte_offset=lambda split: 0),
        tokenizer=tokenizer,
        model=SimpleNamespace(max_positions=limit),
    )
    return longest_lines(made, "valid", count)


def test_a_line_without_tokens_is_none():
    assert lines("the cat\n\n   \nthe other dog\n\nthe cat\n", 5) == ["the other dog", "the cat"]


def test_only_a_newline_ends_a_line():
    assert lines("a b\u2028c d\nthe cat\n", 2) == ["a b\u2028c d", "the cat"]


def test_a_line_that_the_model_cannot_read_whole_is_left_out():
    assert lines("one two three\none two\none\n", 2, limit=2) == ["one two", "one"]


def test_lines_of_bytes_that_are_no_text_are_lines_of_those_bytes():
    longest, other = lines_by(Byte(), b"caf\xe9 au lait\nth\xff\n", 2)
    assert Byte().encode_sentence(longest).tobytes() == Byte().encode_bytes(b"caf\xe9 au lait").tobytes()
    assert len(Byte().encode_sentence(other)) == 3

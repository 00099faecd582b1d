"""WikiText-2 and Shakespeare, where they are on disk."""

import time
from functools import cache

import numpy as np
import pytest

from anaphor.data.batches import Stream
from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.dataset import count_overlap
from anaphor.data.datasets import open_dataset
from anaphor.data.padded_batches import batch_examples
from anaphor.data.text import split_examples
from anaphor.data.tokenizer import Word


def test_wikitext_has_its_published_counts(real_data):
    source = open_dataset("wikitext-2")
    tokenizer = build_tokenizer(source, "word")
    assert len(tokenizer) == 33_278
    counts = {split: len(encode_split(source, split, tokenizer).tokens) for split in source.splits}
    assert counts == {"train": 2_088_628, "valid": 217_646, "test": 245_569}


def test_wikitext_is_numbered_like_the_well_known_script(real_data):
    """First appearance line by line, `<eos>` at each line's end, train first."""
    source = open_dataset("wikitext-2")
    order = {}
    for split in source.splits:
        for line in source.text(split).splitlines(keepends=True):
            for word in [*line.split(), "<eos>"]:
                order.setdefault(word, len(order))
    tokenizer = build_tokenizer(source, "word")
    assert tokenizer.tokens == tuple(order)
    expected = [order[word] for line in source.text("test").splitlines() for word in [*line.split(), "<eos>"]]
    np.testing.assert_array_equal(encode_split(source, "test", tokenizer).tokens, expected)


def test_words_are_fast(real_data):
    source = open_dataset("wikitext-2")
    text = source.text("train")
    start = time.process_time()
    Word.train(text).encode(text)
    assert time.process_time() - start < 4, "two million tokens take about a second on a quiet machine"


def test_wikitext_streams_as_the_script_batches_it(real_data):
    source = open_dataset("wikitext-2")
    corpus = encode_split(source, "test", build_tokenizer(source, "word"))
    stream = Stream(corpus.tensor(), rows=10, bptt=35)
    assert sum(batch.count for batch in stream) == (245_569 // 10 - 1) * 10


def test_lines_in_train_and_test_of_wikitext_are_counted(real_data):
    source = open_dataset("wikitext-2")
    start = time.process_time()
    found = count_overlap(source)
    assert time.process_time() - start < 3, "a few tenths of a second on a quiet machine"
    assert found.total == 2_891
    assert 0 < found.in_train < 1000, "headings, mostly"


def test_shakespeare_has_its_known_size(real_data):
    source = open_dataset("tinyshakespeare")
    sizes = [len(source.read(split)) for split in source.splits]
    assert sum(sizes) == 1_115_394
    assert [size / 1_115_394 for size in sizes] == pytest.approx([0.9, 0.05, 0.05], abs=1e-3)
    tokenizer = build_tokenizer(source, "character")
    assert len(tokenizer) == 65 + 1, "65 characters and <unk>"
    assert all(encode_split(source, split, tokenizer).unknowns == 0 for split in source.splits)


@cache
def words_of_shakespeare():
    """Found once for all tests; `real_data` says where the text is."""
    return build_tokenizer(open_dataset("tinyshakespeare"), "treebank")


@pytest.mark.slow
def test_shakespeare_s_dialogues_pad_little(real_data):
    source, tokenizer = open_dataset("tinyshakespeare"), words_of_shakespeare()
    examples = [tokenizer.encode_example(dialogue) for dialogue in split_examples(source.text("train"))]
    padded = batch_examples(examples, pad=tokenizer.pad, rows=32)
    assert padded.padding_share < 0.1
    assert not any((batch.targets == tokenizer.boundary).any() for batch in padded)
    assert not any((batch.targets == tokenizer.pad).any() for batch in padded)


@pytest.mark.slow
def test_full_stops_in_shakespeare_stand_alone(real_data):
    glued = [token for token in words_of_shakespeare().tokens if token.endswith(".") and token.strip(".")]
    assert len(glued) < 20, "what is left is initials, and stops before a dash or a quotation mark"

"""Columns and segments as drawn in seed 000; padded examples; every token of an evaluation once."""

import string
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.data.batches import IGNORE_INDEX, EvaluationStream, Stream, batchify
from anaphor.data.padded_batches import batch_examples
from anaphor.data.stream_order import StreamOrder
from anaphor.data.text import split_examples
from anaphor.errors import ConfigError, DataError

LETTERS = torch.arange(26)


def spelled(ids):
    return ["".join(string.ascii_lowercase[number] for number in row) for row in ids.T.tolist()]


def test_letters_stand_as_in_the_drawing():
    assert spelled(batchify(LETTERS, 4)) == ["agms", "bhnt", "ciou", "djpv", "ekqw", "flrx"]
    first, second, third = Stream(LETTERS, rows=4, bptt=2)
    assert spelled(first.input_ids) == ["agms", "bhnt"]
    assert spelled(first.targets) == ["bhnt", "ciou"]
    assert spelled(second.input_ids) == ["ciou", "djpv"]
    assert spelled(second.targets) == ["djpv", "ekqw"]
    assert spelled(third.input_ids) == ["ekqw"], "the last batch is shorter"
    assert spelled(third.targets) == ["flrx"]
    assert [batch.restarts for batch in (first, second, third)] == [True, False, False]
    assert first.lengths is None
    assert first.input_mask.all()
    assert first.count == 8


def test_batches_of_a_stream_are_views():
    batch = Stream(LETTERS, rows=4, bptt=2)[1]
    assert batch.input_ids.untyped_storage().data_ptr() == LETTERS.untyped_storage().data_ptr()


class Later(StreamOrder):
    def __init__(self, offset):
        self.tokens = offset

    def offset(self, epoch):
        return self.tokens


streams = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 5), st.integers(0, 60))


@given(streams)
def test_every_transition_within_a_row_appears_once(shape):
    rows, bptt, offset, more = shape
    text = torch.arange(offset + 2 * rows + more)
    stream = Stream(text, rows, bptt, orders=[Later(offset)])
    seen = torch.cat([torch.stack([b.input_ids, b.targets], -1).flatten(0, 1) for b in stream])
    length = (len(text) - offset) // rows
    expected = [
        (offset + row * length + place, offset + row * length + place + 1)
        for row in range(rows)
        for place in range(length - 1)
    ]
    assert sorted(map(tuple, seen.tolist())) == expected
    assert len(list(stream)) == len(stream)
    assert all(batch.input_ids.shape[1] <= bptt for batch in stream)


@pytest.mark.parametrize(
    ("tokens", "rows", "cure"), [(0, 1, "a longer text"), (1, 1, "a longer text"), (7, 4, "at most 3 rows")]
)
def test_a_text_too_short_for_its_rows_is_refused(tokens, rows, cure):
    with pytest.raises(DataError, match=f" {tokens} tokens? is too short for {rows} rows? .* {cure}"):
        Stream(torch.arange(tokens), rows, 2)


@pytest.mark.parametrize(
    ("settings", "name"), [((0, 2), "rows=0"), ((4, 0), "bptt=0"), ((4, 2, [Later(-1)]), "offset=-1")]
)
def test_settings_below_their_least_are_named(settings, name):
    rows, bptt, *orders = settings
    with pytest.raises(ConfigError, match=name):
        Stream(LETTERS, rows, bptt, orders=orders[0] if orders else ())


def test_an_index_out_of_range_ends_the_loop():
    stream = Stream(LETTERS, 4, 2)
    torch.testing.assert_close(stream[-1].targets, stream[2].targets)
    assert len(stream[1:]) == 2
    with pytest.raises(IndexError):
        stream[3]


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 12))
def test_complete_scores_every_token_once_and_the_first_after_the_boundary(count, rows, bptt):
    text = torch.arange(count)
    pairs = []
    for batch in EvaluationStream(text, 99, rows, bptt):
        assert (batch.targets == IGNORE_INDEX).equal(~batch.input_mask)
        pairs += torch.stack([batch.input_ids, batch.targets], -1)[batch.input_mask].tolist()
    assert sorted(pairs, key=lambda pair: pair[1]) == [
        [99 if place == 0 else place - 1, place] for place in range(count)
    ]


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 12))
def test_rows_of_complete_go_on_from_batch_to_batch(count, rows, bptt):
    batches = list(EvaluationStream(torch.arange(count), 99, rows, bptt))
    assert [batch.restarts for batch in batches] == [True] + [False] * (len(batches) - 1)
    for before, after in pairwise(batches):
        goes_on = after.input_mask[:, 0]
        assert before.targets[:, -1][goes_on].equal(after.input_ids[:, 0][goes_on])
        assert before.lengths is None or before is batches[-1]


def examples(sizes):
    """Example n starts with 0 and goes on with numbers that no other has."""
    ends = np.cumsum(sizes)
    rows = [[0, *range(end - size + 1, end + 1)] for end, size in zip(ends, sizes, strict=True)]
    return [np.array(row, np.int32) for row in rows]


sizes = st.lists(st.integers(1, 30), min_size=1, max_size=60)
limits = st.one_of(
    st.fixed_dictionaries({"rows": st.integers(1, 9)}), st.fixed_dictionaries({"max_tokens": st.integers(1, 90)})
)


@given(sizes, limits, st.integers(0, 3), st.integers(0, 3))
def test_each_example_comes_once_an_epoch_and_neither_pad_nor_start_is_a_target(sizes, limit, seed, epoch):
    pad = 10_000
    padded = batch_examples(examples(sizes), pad=pad, seed=seed, epoch=epoch, **limit)
    targets, real = [], 0
    for batch in padded:
        assert batch.restarts
        mask = batch.input_mask
        assert mask.sum(1).equal(batch.lengths)
        assert batch.count == batch.denominator == mask.sum()
        assert mask.any(1).all()
        assert (batch.input_ids[~mask] == pad).all()
        assert (batch.targets[~mask] == IGNORE_INDEX).all()
        assert (batch.input_ids[:, 0] == 0).all(), "every row begins with its start token"
        assert mask[:, -1].any(), "no batch is wider than its longest row"
        # Within a row each input is the target before it.
        inner = mask[:, 1:]
        assert batch.input_ids[:, 1:][inner].equal(batch.targets[:, :-1][inner])
        targets += batch.targets[mask].tolist()
        real += batch.count
        if "rows" in limit:
            assert len(batch.input_ids) <= limit["rows"]
        else:
            assert batch.input_ids.numel() <= limit["max_tokens"] or len(batch.input_ids) == 1
    assert sorted(targets) == list(range(1, sum(sizes) + 1))
    assert padded.tokens == real
    held = sum(batch.input_ids.numel() for batch in padded)
    assert padded.padding_share == pytest.approx(1 - real / held)


def test_the_order_is_a_function_of_seed_and_epoch():
    data = examples([3, 9, 4, 4, 7, 2, 5, 8, 6, 3, 12, 1])

    def order(seed, epoch):
        return [batch.targets.tolist() for batch in batch_examples(data, pad=0, rows=3, seed=seed, epoch=epoch)]

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    torch.manual_seed(5)
    np.random.default_rng(5)
    again = [batch.targets.tolist() for batch in batch_examples(data, pad=0, rows=3, seed=1).at_epoch(2)]
    assert again == order(1, 2)


def test_buckets_keep_padding_small():
    generator = np.random.default_rng(0)
    data = examples(generator.geometric(1 / 30, size=4000).clip(max=300).tolist())
    bucketed = batch_examples(data, pad=0, rows=32)
    order = generator.permutation(len(data))
    longest = [max(len(data[place]) - 1 for place in order[at : at + 32]) for at in range(0, len(data), 32)]
    plain = 1 - sum(len(example) - 1 for example in data) / (32 * sum(longest))
    assert bucketed.padding_share < 0.1
    assert plain > 0.6, "without buckets most of it is padding"


@pytest.mark.parametrize(
    ("data", "settings", "error", "message"),
    [
        ([], {"rows": 2}, DataError, "no examples"),
        ([[0, 1], [0]], {"rows": 2}, DataError, "example 1 has 1 token:"),
        ([[0, 1]], {}, ConfigError, "rows=None and max_tokens=None"),
        ([[0, 1]], {"rows": 2, "max_tokens": 2}, ConfigError, "rows=2 and max_tokens=2"),
        ([[0, 1]], {"rows": 0}, ConfigError, "rows=0: it must be at least 1"),
        ([[0, 1]], {"max_tokens": -1}, ConfigError, "max_tokens=-1: it must be at least 1"),
        ([[0, 1]], {"rows": 1, "seed": -1}, ConfigError, "seed=-1"),
    ],
)
def test_examples_that_teach_nothing_are_refused(data, settings, error, message):
    with pytest.raises(error, match=message):
        batch_examples([np.array(example, np.int32) for example in data], pad=0, **settings)


def test_dialogues_are_separated_by_blank_lines():
    assert split_examples("\n\nA:\nOne.\n\n\nB:\nTwo.\n \t\nC:\nThree.") == ["A:\nOne.", "B:\nTwo.", "C:\nThree."]
    assert split_examples(" \n\n ") == []


def test_orders_are_applied_one_after_the_other_with_the_epoch():
    class Backwards(StreamOrder):
        def arrange(self, rows, epoch):
            return rows.flip(1) + epoch

    stream = Stream(torch.arange(10), 2, 3, orders=[Later(1), Later(1), Backwards()], epoch=100)
    assert stream.rows.tolist() == [[105, 104, 103, 102], [109, 108, 107, 106]]

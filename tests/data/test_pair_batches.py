"""Padded pairs: each once, boundaries where they belong, order by seed and epoch, little padding, few shapes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.data.batches import IGNORE_INDEX
from anaphor.data.datasets import open_dataset
from anaphor.data.padded_batches import PaddedBatches, batch_pairs
from anaphor.data.pairs import PairTokenizers, build_pair_tokenizers, encode_pair_split, encode_pairs
from anaphor.data.tokenizer import Word
from anaphor.data.treebank import PAD, START, Treebank
from anaphor.errors import ConfigError

# Words that say where they stand: source words s0, s1, …; target words t0, t1, … Each occurs once in all pairs.
SOURCE = Word([*(f"s{number}" for number in range(2000)), "<eos>", "<unk>"])
# A tokenizer whose pad is not its boundary, so that the one cannot pass for the other.
TARGET = Treebank([START, PAD, "<unk>", *(f"t{number}" for number in range(2000))])
TOKENIZERS = PairTokenizers(SOURCE, TARGET)


def numbered(sizes):
    """Pairs of those sizes, every word of all of them another one."""
    words = [iter(range(2000)), iter(range(2000))]
    texts = [
        (" ".join(f"s{next(words[0])}" for _ in range(source)), " ".join(f"t{next(words[1])}" for _ in range(target)))
        for source, target in sizes
    ]
    return encode_pairs(texts, TOKENIZERS)


sizes = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 25)), min_size=1, max_size=50)
limits = st.one_of(
    st.fixed_dictionaries({"rows": st.integers(1, 9)}), st.fixed_dictionaries({"max_tokens": st.integers(1, 120)})
)
orders = st.one_of(
    st.integers(0, 3).map(lambda epoch: lambda batches: batches.at_epoch(epoch)),
    st.just(PaddedBatches.by_length),
)


@given(sizes, limits, st.integers(1, 8), orders)
def test_every_pair_comes_once_between_its_boundaries(sizes, limit, multiple, order):
    pairs = numbered(sizes)
    batches = order(batch_pairs(pairs, pad_to=multiple, **limit))
    seen, real, held = [], np.zeros(2, int), np.zeros(2, int)
    for batch in batches:
        rows, width = batch.input_ids.shape
        assert batch.source_ids.shape[1] % multiple == width % multiple == 0
        for row, place in enumerate(batch.indices):
            source, target = pairs.source[place].tolist(), pairs.target[place].tolist()
            spare = batch.source_ids.shape[1] - len(source)
            assert batch.source_ids[row].tolist() == source + [SOURCE.pad] * spare
            spare = width - len(target) - 1
            assert batch.input_ids[row].tolist() == [TARGET.boundary, *target] + [TARGET.pad] * spare
            assert batch.targets[row].tolist() == [*target, TARGET.boundary] + [IGNORE_INDEX] * spare
        assert batch.source_lengths.tolist() == [len(pairs.source[place]) for place in batch.indices]
        assert batch.lengths.tolist() == batch.input_mask.sum(1).tolist()
        assert batch.source_mask.sum(1).tolist() == batch.source_lengths.tolist()
        assert batch.count == int((batch.targets != IGNORE_INDEX).sum())
        assert batch.count == batch.denominator == batch.input_mask.sum()
        widths = np.array([batch.source_ids.shape[1], width])
        if "rows" in limit:
            assert rows <= limit["rows"]
        else:
            assert rows * widths.max() <= limit["max_tokens"] or rows == 1
        seen += batch.indices
        real += [int(batch.source_lengths.sum()), batch.count]
        held += rows * widths
    assert sorted(seen) == list(range(len(sizes)))
    assert batches.padding[:2] == pytest.approx(1 - real / held)
    assert batches.padding.both == pytest.approx(1 - real.sum() / held.sum())


def test_places_are_those_of_the_split_even_where_pairs_were_dropped():
    pairs = numbered([(3, 3), (9, 2), (2, 2), (1, 9), (1, 1)]).drop_longer(5)
    batches = batch_pairs(pairs, rows=2)
    assert sorted(place for batch in batches for place in batch.indices) == [0, 2, 4]
    (batch,) = [batch for batch in batches if 4 in batch.indices]
    row = batch.indices.index(4)
    assert SOURCE.decode(batch.source_ids[row, : batch.source_lengths[row]].tolist()) == "s15"


def test_the_order_is_a_function_of_seed_and_epoch():
    pairs = numbered([(size % 7 + 1, size % 5) for size in range(40)])

    def order(seed, epoch):
        return [batch.indices for batch in batch_pairs(pairs, rows=3, seed=seed, epoch=epoch)]

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    torch.manual_seed(5)
    first = batch_pairs(pairs, rows=3, seed=1)
    again = first.by_length().at_epoch(2)
    assert [batch.indices for batch in again] == order(1, 2)
    assert [batch.indices for batch in first] == order(1, 0), "the first is as it was"
    lengths = [batch.input_ids.shape[1] for batch in first.by_length()]
    assert lengths == sorted(lengths)
    assert [batch.indices for batch in batch_pairs(pairs, rows=3, seed=9).by_length()] == [
        batch.indices for batch in first.by_length()
    ]


def random_pairs(count=4000):
    """Sizes like those of captions: targets follow their sources, more or less."""
    generator = np.random.default_rng(0)
    sources = (generator.gamma(9, 1.5, count) + 3).astype(int)
    targets = np.maximum(1, sources + generator.normal(0, 2, count)).astype(int)
    text = [
        (" ".join(["s1"] * source), " ".join(["t1"] * target)) for source, target in zip(sources, targets, strict=True)
    ]
    return encode_pairs(text, TOKENIZERS)


def test_buckets_keep_padding_small_on_both_sides_and_shapes_few():
    pairs = random_pairs()
    batches = batch_pairs(pairs, rows=32)
    assert batches.padding.target < 0.03
    assert batches.padding.source < 0.12
    widest = [side.sizes[:1024].reshape(-1, 32).max(1) for side in (pairs.source, pairs.target)]
    sizes = [side.sizes[:1024].reshape(-1, 32).mean(1) for side in (pairs.source, pairs.target)]
    assert 1 - np.sum(sizes) / np.sum(widest) > 0.35, "without buckets a third is padding"
    rounded = batch_pairs(pairs, rows=32, pad_to=8)

    def shapes(batches):
        return {(batch.source_ids.shape[1], batch.input_ids.shape[1]) for batch in batches}

    assert len(shapes(rounded)) < len(shapes(batches)) / 4


def test_an_index_out_of_range_ends_the_loop():
    batches = batch_pairs(numbered([(1, 1)] * 5), rows=2)
    assert len(batches) == len(batches[:]) == 3
    assert batches[-1].indices == batches[2].indices
    with pytest.raises(IndexError):
        batches[3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "rows=None and max_tokens=None"),
        ({"rows": 2, "max_tokens": 2}, "rows=2 and max_tokens=2"),
        ({"rows": 0}, "rows=0: it must be at least 1"),
        ({"max_tokens": 0}, "max_tokens=0: it must be at least 1"),
        ({"rows": 1, "pad_to": 0}, "pad_to=0"),
        ({"rows": 1, "seed": -1}, "seed=-1"),
        ({"rows": 1, "epoch": -1}, "epoch=-1"),
    ],
)
def test_settings_below_their_least_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        batch_pairs(numbered([(1, 1)]), **settings)


def test_an_echo_s_targets_are_its_source_and_an_end():
    pairs = open_dataset("echo")
    made = build_pair_tokenizers(pairs, "word", joint=True)
    batches = batch_pairs(encode_pair_split(pairs, "valid", made), rows=16)
    for batch in batches:
        assert batch.lengths.equal(batch.source_lengths + 1)
        targets = batch.targets[:, :-1]
        assert targets[batch.source_mask].equal(batch.source_ids[batch.source_mask])
        assert (batch.targets.gather(1, batch.lengths[:, None] - 1) == made.target.boundary).all()

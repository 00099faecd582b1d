"""BPE-dropout: without dropout it is the library, with it the procedure of its authors, and the text stays the same."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from anaphor.data.bpe import BPE
from anaphor.data.bpe_dropout import MAX_WORD_LENGTH, Merges, SubwordSampler
from anaphor.data.embedded import Reverse
from anaphor.data.pairs import PairSampler, PairTokenizers, build_pair_tokenizers, encode_pairs
from anaphor.errors import ConfigError

TEXT = "the banana of the other bandana\nGrüße an die süße Straße, bananas!\nabab ababab aaaa aaaaa 日本 🙂\n" * 3
SENTENCES = [
    "the banana",
    " two  spaces, and a tab\tin between ",
    "Straße 日本 🙂🙂 e\u0301",
    "aaaaaaaaa ababababab",
    "<eos> x",
    "the banana " + "ban" * MAX_WORD_LENGTH,
    "1234 don't bananas!",
]


@pytest.fixture(scope="module")
def bpe():
    return BPE.train(TEXT, 310)


def generator(seed=0):
    return np.random.default_rng(seed)


def sampled(sampler, seed=0, limit=None):
    tokens, sizes = sampler.sample(generator(seed), limit)
    assert sizes.sum() == len(tokens)
    return [ids.tolist() for ids in np.split(tokens, np.cumsum(sizes)[:-1])]


def draw(bpe, word, dropout, times, seed=0):
    """Segmentations of a word, as often as they were drawn."""
    merges = Merges(bpe)
    letters = np.repeat(merges.spell([word]), times, 0)
    found = Counter()
    rows = 0
    for done, ids in merges.segment(letters, dropout, generator(seed)):
        found.update(map(tuple, ids.tolist()))
        rows += len(done)
    assert rows == times
    return found


def exact(bpe, word, dropout):
    """Probability of each segmentation of a word, by the procedure itself."""
    ranks = {pair: rank for rank, pair in enumerate(bpe.to_pairs())}
    found = Counter()

    def follow(pieces, probability):
        pairs = pairwise(pieces)
        possible = sorted((ranks[pair], place) for place, pair in enumerate(pairs) if pair in ranks)
        for left_out, (_, place) in enumerate(possible):
            merged = (*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :])
            follow(merged, probability * dropout**left_out * (1 - dropout))
        found[pieces] += probability * dropout ** len(possible)

    follow(tuple(word), 1.0)
    return {tuple(n for piece in pieces for n in bpe.encode_word(piece)): p for pieces, p in found.items() if p}


# ---- words


def test_without_dropout_every_word_is_segmented_as_by_the_library(bpe):
    words = {word for text in (*TEXT.splitlines(), *SENTENCES) for word in bpe.split_words(text)}
    assert len(words) > 20
    for word in words:
        assert list(draw(bpe, word, 0.0, 2)) == [tuple(bpe.encode_word(word))]
    for text in SENTENCES:
        tokens = [number for word in bpe.split_words(text) for number in bpe.encode_word(word)]
        assert tokens == bpe.encode_sentence(text).tolist()


@pytest.mark.parametrize("word", ["banana", "Ġthe", "aaaaa"])
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_segmentations_are_as_frequent_as_the_procedure_makes_them(bpe, word, dropout):
    times, expected = 20_000, exact(bpe, word, dropout)
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 2
    found = draw(bpe, word, dropout, times)
    assert found.keys() <= expected.keys()
    for ids, probability in expected.items():
        error = (probability * (1 - probability) / times) ** 0.5
        assert found[ids] / times == pytest.approx(probability, abs=5 * error)


def test_a_tokenizer_without_merges_has_the_bytes_of_a_word_alone():
    bytes_only = BPE.train("ab", 257)
    assert bytes_only.to_pairs() == []
    sampler = SubwordSampler(bytes_only, ["abc ü"], 0.5, generator())
    assert sampled(sampler) == [bytes_only.encode_sentence("abc ü").tolist()]


# ---- sentences


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.95])
def test_every_sampled_segmentation_decodes_to_the_same_text(bpe, dropout):
    sampler = SubwordSampler(bpe, SENTENCES, dropout, generator())
    for seed in range(5):
        assert [bpe.decode(ids) for ids in sampled(sampler, seed)] == SENTENCES


def test_as_dropout_vanishes_the_segmentation_is_the_plain_one(bpe):
    sampler = SubwordSampler(bpe, SENTENCES, 1e-12, generator())
    assert sampled(sampler) == [bpe.encode_sentence(text).tolist() for text in SENTENCES]


def test_the_mean_number_of_tokens_grows_with_dropout(bpe):
    lines = TEXT.splitlines() * 20
    counts = [SubwordSampler(bpe, lines, p, generator()).sample(generator())[1].sum() for p in (0, 0.1, 0.3, 0.6, 0.9)]
    assert counts[0] == sum(len(bpe.encode_sentence(line)) for line in lines)
    assert all(fewer < 0.97 * more for fewer, more in pairwise(counts))
    assert counts[-1] < sum(len(line.encode()) for line in lines)


def test_every_occurrence_of_a_word_chooses_for_itself(bpe):
    found = sampled(SubwordSampler(bpe, ["banana"] * 200, 0.5, generator()))
    assert len(set(map(tuple, found))) > 5


def test_what_is_longer_than_a_word_keeps_its_plain_segmentation(bpe):
    long = "ban" * MAX_WORD_LENGTH
    sampler = SubwordSampler(bpe, [long, "banana"], 0.9, generator())
    drawn = [sampled(sampler, seed) for seed in range(10)]
    assert all(first == bpe.encode_sentence(long).tolist() for first, _ in drawn)
    assert len({tuple(second) for _, second in drawn}) > 1


def test_a_sentence_beyond_the_limit_has_its_plain_segmentation_and_the_others_stay(bpe):
    lines = TEXT.splitlines()
    plain = [bpe.encode_sentence(line).tolist() for line in lines]
    sampler, limit = SubwordSampler(bpe, lines, 0.2, generator()), max(map(len, plain))
    free, bounded = sampled(sampler), sampled(sampler, limit=limit)
    too_long = [len(ids) > limit for ids in free]
    assert any(too_long)
    assert not all(too_long)
    for is_long, any_ids, ids, usual in zip(too_long, free, bounded, plain, strict=True):
        assert ids == (usual if is_long else any_ids)


# ---- pairs


@pytest.fixture(scope="module")
def pairs(bpe):
    lines = TEXT.splitlines()
    return encode_pairs(list(zip(lines, reversed(lines), strict=True)), PairTokenizers(bpe, bpe))


def as_lists(pairs):
    return [(side.tokens.tolist(), side.sizes.tolist()) for side in (pairs.source, pairs.target)]


def test_pairs_depend_on_seed_and_epoch_alone(pairs):
    one, other = PairSampler(pairs, 0.3, seed=4), PairSampler(pairs, 0.3, seed=4)
    forth = [as_lists(one.at_epoch(epoch)) for epoch in range(4)]
    back = [as_lists(other.at_epoch(epoch)) for epoch in reversed(range(4))]
    assert forth == back[::-1]
    assert all(a != b for place, a in enumerate(forth) for b in forth[:place])
    assert as_lists(PairSampler(pairs, 0.3, seed=5).at_epoch(0)) != forth[0]


def test_all_else_of_the_pairs_stays(pairs, bpe):
    few = pairs.select(np.arange(len(pairs)) % 2 == 1)
    found = PairSampler(few, 0.5, seed=0).at_epoch(3)
    for name in ("indices", "lines", "target_bytes"):
        np.testing.assert_array_equal(getattr(found, name), getattr(few, name))
    for side, plain in ((found.source, few.source), (found.target, few.target)):
        assert side.tokens.dtype == plain.tokens.dtype
        assert side.sizes.sum() > plain.sizes.sum()
        assert [bpe.decode(side[n]) for n in range(len(few))] == [bpe.decode(plain[n]) for n in range(len(few))]


def test_a_tokenizer_without_merges_of_its_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path))
    source = Reverse(pairs=3)
    words = encode_pairs(source.rows("train").values, build_pair_tokenizers(source, "word", joint=True))
    with pytest.raises(ConfigError, match=r"^BPE-dropout leaves out merges, and a word tokenizer has none: use bpe$"):
        PairSampler(words, 0.1, seed=0)

"""BLEU: the definition on cases done by hand, the corpus score against it and against sacreBLEU."""

import math
import random

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from anaphor.errors import ConfigError, DataError
from anaphor.metrics.bleu import (
    ORDERS,
    TOKENIZERS,
    bleu,
    brevity_penalty,
    chrf,
    closest_length,
    corpus_bleu,
    ngram_counts,
)

# Few kinds of tokens, or nothing would match; one of them looks like two of another, joined.
TOKENS = st.lists(st.sampled_from(["a", "b", "ab", "c", "ä"]), max_size=9)
PAIRS = st.lists(st.tuples(st.lists(TOKENS, min_size=1, max_size=4), TOKENS), min_size=1, max_size=6)
CAT = ["the", "cat", "is", "on", "the", "mat"]


def by_sacrebleu(hypotheses, references, **options):
    metric = sacrebleu.BLEU(**{"tokenize": "none", "smooth_method": "none", "force": True, **options})
    return metric.corpus_score(hypotheses, references)


def generated(number):
    """Lines of a corpus and of 1 to 4 references, from single short sentences to a few long ones that nearly match."""
    draw = random.Random(number)
    words = [f"w{word}" for word in range(draw.choice((2, 5, 30)))]
    longest = draw.choice((3, 6, 25))

    def sentence():
        return draw.choices(words, k=draw.randint(0, longest))

    def like(tokens):
        mended = [draw.choice(words) if draw.random() < 0.2 else token for token in tokens]
        return mended if draw.random() < 0.7 else sentence()

    sentences = [sentence() for _ in range(draw.randint(1, 8))]
    references = [[" ".join(like(tokens)) for tokens in sentences] for _ in range(draw.randint(1, 4))]
    return [" ".join(tokens) for tokens in sentences], references


def test_an_ngram_matches_as_often_as_one_reference_has_it():
    assert ngram_counts([CAT, ["the", "mat"]], ["the"] * 7, 1) == (2, 7)
    assert ngram_counts([CAT], ["the", "cat", "sat", "on", "the", "mat"], 2) == (3, 5)
    assert ngram_counts([["a", "a"], ["b", "b"]], ["a", "b", "a", "b"], 1) == (4, 4), "the best reference for each"


def test_a_hypothesis_without_ngrams_counts_one_that_does_not_match():
    assert ngram_counts([CAT], ["the", "cat"], 3) == (0, 1)
    assert ngram_counts([CAT], [], 1) == (0, 1)


def test_bleu_by_hand():
    assert bleu([([CAT], [*CAT[:3], "a", "mat"])]) == 0, "no 4-gram matches"
    assert bleu([([CAT], CAT[1:])]) == pytest.approx(math.exp(1 - 6 / 5)), "all match, but one is missing"
    assert bleu([([CAT], [*CAT, "now"])]) == pytest.approx((6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25)


def test_a_corpus_is_scored_from_sums_and_never_as_a_mean_of_sentences():
    bad = ([CAT], ["a", "dog", *CAT[2:]])
    p = [(6 + 4) / 12, (5 + 3) / 10, (4 + 2) / 8, (3 + 1) / 6]
    assert bleu([([CAT], CAT), bad]) == pytest.approx(math.prod(p) ** 0.25)


@pytest.mark.parametrize(("lengths", "closest"), [((3, 9), 3), ((9, 3), 3), ((8, 5, 9), 5), ((2, 9, 6), 6)])
def test_of_two_references_as_close_in_length_the_shorter_counts(lengths, closest):
    assert closest_length(lengths, 6) == closest


def test_the_brevity_penalty():
    assert brevity_penalty(10, 10) == brevity_penalty(11, 10) == brevity_penalty(0, 0) == 1
    assert brevity_penalty(5, 10) == pytest.approx(math.exp(-1))
    assert brevity_penalty(0, 10) == 0


def as_lines(pairs):
    """Hypotheses and references of a corpus whose tokens have no white space, each sentence with as many references."""
    count = min(len(references) for references, _ in pairs)
    references = [[" ".join(references[number]) for references, _ in pairs] for number in range(count)]
    return [" ".join(hypothesis) for _, hypothesis in pairs], references


@given(PAIRS)
def test_the_counts_of_a_corpus_are_those_of_the_definition(pairs):
    hypotheses, references = as_lines(pairs)
    found = corpus_bleu(hypotheses, references)
    for row, (others, hypothesis) in zip(found.rows.tolist(), pairs, strict=True):
        others = others[: len(references)]
        matched, possible, lengths = row[:ORDERS], row[ORDERS:-2], row[-2:]
        defined = [ngram_counts(others, hypothesis, n) for n in range(1, ORDERS + 1)]
        assert [(a, max(1, b)) for a, b in zip(matched, possible, strict=True)] == defined
        assert lengths == [len(hypothesis), closest_length(map(len, others), len(hypothesis))]
        assert possible == [max(0, len(hypothesis) - n) for n in range(ORDERS)]


@given(PAIRS, st.randoms(use_true_random=False))
def test_neither_the_order_of_sentences_nor_that_of_references_matters(pairs, draw):
    turned = [(draw.sample(references, len(references)), hypothesis) for references, hypothesis in pairs]
    draw.shuffle(turned)
    assert bleu(turned) == pytest.approx(bleu(pairs))


@given(PAIRS)
def test_bleu_is_between_0_and_1(pairs):
    assert 0 <= bleu(pairs) <= 1
    long = [([*references, hypothesis], hypothesis) for references, hypothesis in pairs if len(hypothesis) >= ORDERS]
    if long:
        assert bleu(long) == pytest.approx(1), "a reference says the same"


def test_corpora_score_as_sacrebleu_scores_them():
    above_zero = 0
    for number in range(200):
        hypotheses, references = generated(number)
        ours, theirs = corpus_bleu(hypotheses, references), by_sacrebleu(hypotheses, references)
        assert ours.bleu == pytest.approx(theirs.score, abs=1e-9)
        assert ours.precisions == pytest.approx(theirs.precisions, abs=1e-9)
        assert ours.brevity_penalty == pytest.approx(theirs.bp, abs=1e-9)
        assert (ours.tokens, ours.reference_tokens) == (theirs.sys_len, theirs.ref_len)
        above_zero += ours.bleu > 0
    assert 50 < above_zero < 190, "both kinds are among them"


def test_the_definition_differs_from_sacrebleu_only_by_hypotheses_of_fewer_than_four_tokens():
    differed = 0
    for number in range(300):
        hypotheses, references = generated(number)
        pairs = [
            ([line.split() for line in others], hypothesis.split())
            for hypothesis, *others in zip(hypotheses, *references, strict=True)
        ]
        defined, summed = 100 * bleu(pairs), corpus_bleu(hypotheses, references).bleu
        assert defined <= summed + 1e-9
        if all(len(hypothesis) >= ORDERS for _, hypothesis in pairs):
            assert defined == pytest.approx(summed)
        else:
            differed += defined < summed - 1e-9
    assert differed > 20


TEXT = [
    "Ein Hund (braun) läuft, 3.5 km weit.",
    "Zwei Frauen -- ja! -- spielen &quot;Ball&quot;.",
    "我是 a student.",
    "X",
]
OTHER = ["Ein brauner Hund läuft 3,5 km weit.", "Zwei Frauen spielen Ball!", "我不是 a student.", "\u2028 x"]


@pytest.mark.parametrize("tokenize", ["none", "13a", "intl", "zh", "char"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_tokenizers_are_sacrebleus(tokenize, lowercase):
    ours = corpus_bleu(TEXT, [OTHER], tokenize=tokenize, lowercase=lowercase)
    theirs = by_sacrebleu(TEXT, [OTHER], tokenize=tokenize, lowercase=lowercase)
    assert ours.bleu == pytest.approx(theirs.score, abs=1e-9)
    assert (ours.tokens, ours.precisions) == (theirs.sys_len, pytest.approx(theirs.precisions))


def test_every_tokenizer_that_is_offered_is_one_of_sacrebleus():
    assert set(TOKENIZERS) <= set(sacrebleu.BLEU.TOKENIZERS)


def test_the_signature_is_sacrebleus_but_for_who_computed_it():
    hypotheses, references = generated(3)
    metric = sacrebleu.BLEU(tokenize="13a", smooth_method="none")
    metric.corpus_score(hypotheses, references)
    said, _, version = corpus_bleu(hypotheses, references, tokenize="13a").signature.partition("|version:")
    assert f"{said}|version:{sacrebleu.__version__}" == str(metric.get_signature())
    assert version.startswith("anaphor-")
    assert version.endswith(f"+sacrebleu-{sacrebleu.__version__}")
    assert "sacrebleu" not in corpus_bleu(hypotheses, references).signature


def test_the_interval_is_sacrebleus():
    draw = random.Random(1)
    references = [" ".join(draw.choices("abcdef", k=12)) for _ in range(60)]
    hypotheses = [" ".join(draw.choice("abcdef") if draw.random() < 0.2 else t for t in r.split()) for r in references]
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    theirs = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    found = corpus_bleu(hypotheses, [references]).interval()
    assert found.mean == pytest.approx(theirs._mean)
    assert (found.high - found.low) / 2 == pytest.approx(theirs._ci)
    assert found.low < corpus_bleu(hypotheses, [references]).bleu < found.high


def test_chrf_is_sacrebleus():
    found = chrf(TEXT, [OTHER], lowercase=True)
    small = [[line.lower() for line in lines] for lines in (TEXT, OTHER)]
    assert found.chrf == pytest.approx(sacrebleu.corpus_chrf(small[0], small[1:]).score)
    assert found.signature.startswith("nrefs:1|case:lc|")


def test_empty_lines_score_zero_and_divide_nothing():
    assert corpus_bleu([""], [[""]]).to_plain() | {"signature": ""} == {
        "bleu": 0.0, "precisions": [0.0] * 4, "brevity_penalty": 1.0, "sentences": 1, "tokens": 0,
        "reference_tokens": 0, "signature": "",
    }  # fmt: skip
    assert corpus_bleu(["", " "], [["a b", "c"]]).brevity_penalty == 0
    assert bleu([([["a"]], [])]) == bleu([([[]], [])]) == 0


@pytest.mark.parametrize(
    ("action", "kind", "message"),
    [
        (lambda: bleu([]), DataError, "nothing to score"),
        (lambda: bleu([([], ["a"])]), DataError, "hypothesis 1 has no reference"),
        (lambda: bleu([(["the cat"], ["a"])]), ConfigError, "'the cat' is a text"),
        (lambda: bleu([([["a"]], "a")]), ConfigError, "'a' is a text"),
        (lambda: ngram_counts([["a"]], ["a"], 0), ConfigError, "n=0"),
        (lambda: corpus_bleu("a", [["a"]]), ConfigError, "lists of lines"),
        (lambda: corpus_bleu(["a"], ["a"]), ConfigError, "lists of lines"),
        (lambda: corpus_bleu([], [[]]), DataError, "no hypothesis"),
        (lambda: corpus_bleu(["a"], []), DataError, "no reference"),
        (lambda: corpus_bleu(["a"], [["a"], ["a", "b"]]), DataError, "1 hypotheses, but 2 lines in reference 2"),
        (lambda: corpus_bleu(["a"], [["a"]], tokenize="13b"), ConfigError, "did you mean '13a'"),
    ],
)
def test_what_cannot_be_scored_is_refused(action, kind, message):
    with pytest.raises(kind, match=message):
        action()

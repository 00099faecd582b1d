"""Embeddings of character n-grams: which ones count, the sum against an explicit one, folding, one table a step."""

import copy

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.extras.ngram_embedding import NgramSettings
from anaphor.extras.ngram_embedding import embedding as ngram_embedding
from anaphor.extras.ngram_embedding.embedding import NgramEmbedding, NgramIndex, character_ngrams
from anaphor.models import Embedding, LanguageModelSpec, build, preset
from anaphor.models.cross_entropy import cross_entropy, full_cross_entropy

NGRAMS = (NgramSettings(ngram_embedding=True),)
WORDS = ("the", "The", "walk", "walked", "walking", "talked", "talking", "1998", "1999", "1.5", "<unk>", "chalk")


@pytest.fixture(autouse=True)
def _small_vocabulary(monkeypatch):
    monkeypatch.setattr(ngram_embedding, "MIN_WORDS", 2)


def build_model(**options):
    spec = LanguageModelSpec(
        vocabulary=len(WORDS), width=8, mixers=("lstm",), feedforward=0, extras=NGRAMS, words=WORDS, **options
    )
    model = spec.build()
    torch.nn.init.normal_(model.embed.ngrams)
    return model


def explicit_table(embedding):
    """Every word's own vector and those of its n-grams, added one by one."""
    rows = []
    for word, ngrams in enumerate(NgramIndex.build(WORDS).by_word):
        row = embedding.weight[word]
        for ngram in ngrams:
            row = row + embedding.ngrams[ngram] / len(ngrams) ** 0.5
        rows.append(row)
    return torch.stack(rows)


def test_words_have_the_ngrams_of_their_spelling():
    assert character_ngrams("The") == {"=the", "^th", "the", "he$", "^the", "the$", "^the$"}
    assert character_ngrams("1998") == {"#4", "#0000"}
    assert character_ngrams("<unk>") == set()


def test_an_ngram_counts_if_neither_too_few_nor_too_many_words_share_it(monkeypatch):
    index = NgramIndex.build(WORDS)
    assert min(map(len, index.by_ngram)) >= 2
    the, upper, unknown = (index.by_word[WORDS.index(word)] for word in ("the", "The", "<unk>"))
    assert the
    assert the == upper
    assert not unknown
    monkeypatch.setattr(ngram_embedding, "MAX_WORDS", 2)
    assert max(map(len, NgramIndex.build(WORDS[:7]).by_ngram)) == 2


def test_the_two_sides_of_the_index_agree():
    index = NgramIndex.build(WORDS)
    by_word = {(word, ngram) for word, ngrams in enumerate(index.by_word) for ngram in ngrams}
    assert by_word == {(word, ngram) for ngram, words in enumerate(index.by_ngram) for word in words}


def test_the_table_and_its_gradient_against_an_explicit_sum():
    embedding = NgramEmbedding(WORDS, 4)
    torch.nn.init.normal_(embedding.ngrams)
    wanted, weights = torch.randn(len(WORDS), 4), list(embedding.parameters())
    tables = (embedding.table(), explicit_table(embedding))
    torch.testing.assert_close(*tables)
    ours, explicit = (torch.autograd.grad((table * wanted).sum(), weights) for table in tables)
    torch.testing.assert_close(ours, explicit)


@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_against_an_explicit_sum(tied):
    """The embedder reads the sums; the logits of a tied head are made with them, and of another with its own matrix."""
    model, tokens = build_model(tied=tied), torch.randint(len(WORDS), (3, 6))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    weights = list(model.parameters())
    with model.share_embeddings():
        x, _ = model.compute_hidden_states(inputs)
        ours = cross_entropy(x, model.head, targets)
    slow = copy.deepcopy(model)
    slow_weights = list(slow.parameters())
    slow.embed.table = lambda: explicit_table(slow.embed)
    expected = full_cross_entropy(slow.compute_hidden_states(inputs)[0], slow.head, targets)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(torch.autograd.grad(ours, weights), torch.autograd.grad(expected, slow_weights))
    torch.testing.assert_close(model.head.weight, explicit_table(model.embed) if tied else model.head.own)


@pytest.mark.parametrize("tied", [True, False])
def test_a_shared_table_is_computed_once_and_not_kept(tied):
    model, tokens = build_model(tied=tied), torch.randint(len(WORDS), (2, 5))
    with torch.no_grad(), model.share_embeddings():
        first, _ = model(tokens)
        model.embed.ngrams.mul_(2)
        assert torch.equal(model(tokens)[0], first), "the table is computed again"
    assert not torch.allclose(model(tokens)[0], first), "the table of other weights is not used again"


@pytest.mark.parametrize("tied", [True, False])
def test_a_folded_model_computes_the_same(tied):
    model, tokens = build_model(tied=tied).eval(), torch.arange(len(WORDS))[None]
    before, _ = model(tokens)
    model.fold_embeddings()
    after, _ = model(tokens)
    torch.testing.assert_close(before, after)
    assert type(model.embed) is Embedding
    assert not any("ngrams" in name for name in model.state_dict())
    assert (model.head.weight is model.embed.weight) == tied


def test_before_training_it_is_a_plain_model():
    """The n-grams are zero at first and draw no random numbers."""
    spec = LanguageModelSpec(vocabulary=len(WORDS), width=8, mixers=("lstm",), feedforward=0, words=WORDS)
    torch.manual_seed(0)
    plain = spec.build()
    torch.manual_seed(0)
    model = LanguageModelSpec(**{**vars(spec), "extras": NGRAMS}).build()
    tokens = torch.arange(len(WORDS))[None]
    torch.testing.assert_close(model(tokens)[0], plain(tokens)[0], rtol=0, atol=0)


def test_the_values_that_were_used_build_the_same_model():
    values = build_model().spec.used_settings()
    assert values["extras"] == NGRAMS
    assert LanguageModelSpec(**values).used_settings() == values
    plain = LanguageModelSpec(vocabulary=9).used_settings()
    assert plain.keys() & {"extras", "words"} == set()


def test_a_preset_takes_the_option_by_name():
    model = build("lstm", vocabulary=len(WORDS), words=WORDS, width=8, ngram_embedding=True)
    assert isinstance(model.embed, NgramEmbedding)
    assert preset("lstm", vocabulary=len(WORDS), words=WORDS, width=8, extras=NGRAMS) == model.spec
    with pytest.raises(ConfigError, match="has no field 'ngram_embeding'; did you mean"):
        preset("lstm", vocabulary=9, ngram_embeding=True)


def test_what_cannot_have_ngrams_is_refused():
    with pytest.raises(ConfigError, match=r"needs the words of the vocabulary: give words=tokenizer.tokens"):
        LanguageModelSpec(vocabulary=3, extras=NGRAMS).build()
    with pytest.raises(ConfigError, match="there are 2 words, but vocabulary=3"):
        LanguageModelSpec(vocabulary=3, extras=NGRAMS, words=("a", "b"))
    with pytest.raises(ConfigError, match="no character n-gram is shared by 2 to 400 of the 2 tokens"):
        LanguageModelSpec(vocabulary=2, extras=NGRAMS, words=("a", "b")).build()

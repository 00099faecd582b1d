"""Text to numbers and back, for every tokenizer of the table."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anaphor.data
from anaphor.data.bpe import BPE, MAX_WORD
from anaphor.data.tokenizer import TOKENIZERS, Byte, Character, Word, tokenizer_from_plain
from anaphor.data.treebank import Treebank, split_words
from anaphor.errors import AnaphorError, ConfigError, DataError

TEXT = "the cat sat on the mat .\nthe dog sat too .\n\nit is the end .\n"
words = st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=1, max_size=8)
BYTES = BPE.train("a").to_plain()["vocabulary"]
lines = st.lists(st.lists(words.filter(lambda word: word != "<eos>"), max_size=5).map(" ".join), max_size=5)


@pytest.fixture(scope="module")
def bpe():
    return BPE.train(TEXT * 3, 300)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_comes_back_from_json(kind):
    tokenizer = TOKENIZERS[kind].train(TEXT)
    again = tokenizer_from_plain(json.loads(json.dumps(tokenizer.to_plain())))
    assert type(again) is type(tokenizer)
    assert again.tokens == tokenizer.tokens
    assert again == tokenizer
    assert again.digest() == tokenizer.digest()
    np.testing.assert_array_equal(again.encode(TEXT), tokenizer.encode(TEXT))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_numbers_are_int32_and_within_the_vocabulary(kind):
    tokenizer = TOKENIZERS[kind].train(TEXT)
    ids = tokenizer.encode("the zebra sat .\n戦 on\n")
    assert ids.dtype == np.int32
    assert ids.min() >= 0
    assert ids.max() < len(tokenizer) == len(tokenizer.tokens)
    assert len(tokenizer.encode("")) == 0


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_another_text_gives_another_digest(kind):
    one, other = (TOKENIZERS[kind].train(text) for text in (TEXT, TEXT + "zebras sat . zebras sat .\n"))
    assert (one == other) == (kind == "byte")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_sentence_has_no_boundary_round_it(kind):
    tokenizer = TOKENIZERS[kind].train(TEXT)
    ids = tokenizer.encode_sentence("the cat sat")
    assert len(ids)
    assert tokenizer.boundary not in ids
    assert tokenizer.decode(ids) == "the cat sat"


LINES = "the cat sat .\n\nthe dog sat on\nthe cat .\n\n"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_newline_inside_a_text_is_what_training_had_there(kind):
    tokenizer = TOKENIZERS[kind].train(LINES * 3)
    stream = tokenizer.encode(LINES * 2).tolist()
    told = [*([tokenizer.boundary] if kind == "treebank" else []), *tokenizer.encode_sentence(LINES).tolist()]
    assert tokenizer.boundary in told[1:], "the text has a newline at least"
    assert told == stream[: len(told)]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_that_does_not_end_its_line_can_go_on_in_it(kind):
    tokenizer = TOKENIZERS[kind].train(LINES * 3)
    ended, open_ = (tokenizer.encode_sentence(text).tolist() for text in (LINES, LINES.rstrip()))
    assert ended[: len(open_)] == open_
    assert open_[-1] != tokenizer.boundary
    assert set(ended[len(open_) :]) == {tokenizer.boundary}


def test_a_blank_line_before_the_first_dialogue_begins_no_other():
    tokenizer = Treebank.train(LINES)
    assert tokenizer.encode_sentence("\n\n the cat").tolist() == tokenizer.encode_sentence("the cat").tolist()
    assert len(tokenizer.encode_sentence(" \n\n ")) == 0


@pytest.mark.parametrize(
    ("kind", "text", "parts"),
    [
        ("word", "the zebra sat , zebra ä", ["zebra", ",", "ä"]),
        ("treebank", "the zebra. (the cat)", ["zebra", "(", ")"]),
        ("character", "the cät sät ß", ["ä", "ß"]),
        ("byte", "the zebra ß", []),
        ("bpe", "the zebra ß", []),
    ],
)
def test_it_names_what_it_does_not_know_of_a_text(kind, text, parts):
    assert TOKENIZERS[kind].train(LINES).find_unknown(text) == parts


def test_words_are_numbered_by_first_appearance_with_eos_after_each_line():
    tokenizer = Word.train("b a\nc b\n")
    assert tokenizer.tokens == ("b", "a", "<eos>", "c", "<unk>")
    assert tokenizer.encode("b a\nc b\n").tolist() == [0, 1, 2, 3, 0, 2]
    assert tokenizer.encode("b a\nc b").tolist() == [0, 1, 2, 3, 0, 2], (
        "the last line ends even where its newline is missing"
    )


def test_unknown_words_become_unk_and_a_text_that_has_unk_keeps_its_number():
    assert Word.train("a b\n").encode("a z\n").tolist() == [0, 3, 2]
    tokenizer = Word.train("a <unk> b\n")
    assert tokenizer.tokens == ("a", "<unk>", "b", "<eos>")
    assert tokenizer.encode("z <unk>\n").tolist() == [1, 1, 3]


@given(lines)
def test_words_decode_to_the_text_of_single_spaced_lines(rows):
    text = "".join(f"{row}\n" for row in rows)
    tokenizer = Word.train(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_long_text_is_cut_between_words(monkeypatch):
    text = TEXT * 50
    whole = Word.train(text).encode(text)
    monkeypatch.setattr("anaphor.data.text.split_chunks.__defaults__", (7,))
    np.testing.assert_array_equal(Word.train(text).encode(text), whole)


def test_a_vocabulary_of_a_given_size_keeps_the_most_frequent_words():
    tokenizer = Word.train("rare the the a a a b b\n", 5)
    assert tokenizer.tokens == ("the", "a", "b", "<eos>", "<unk>")
    with pytest.raises(ConfigError, match="size 2 has no room"):
        Word.train(TEXT, 2)
    with pytest.raises(ConfigError, match=r"no room for words besides '\\n', '<unk>'$"):
        Character.train(TEXT, 2)
    assert len(Character.train(TEXT, 5)) == 5
    assert len(Treebank.train(TEXT, 6)) == 6


def test_treebank_splits_every_full_stop_that_ends_a_sentence():
    assert list(split_words("Speak, speak. You are resolved. Go.")) == [
        "Speak", ",", "speak", ".", "You", "are", "resolved", ".", "Go", "."
    ]  # fmt: skip
    assert list(split_words('He can\'t. "Go," she said. It is I. Then "no."')) == [
        "He", "ca", "n't", ".", "``", "Go", ",", "''", "she", "said", ".",
        "It", "is", "I", ".", "Then", "``", "no", ".", "''",
    ]  # fmt: skip


def test_treebank_keeps_the_stops_of_abbreviations_initials_and_numbers():
    assert list(split_words("Mr. J. Smith paid 3.5 in the U.S. today ... or not.")) == [
        "Mr.", "J.", "Smith", "paid", "3.5", "in", "the", "U.S.", "today", "...", "or", "not", "."
    ]  # fmt: skip


def test_every_tokenizer_works_after_make_install():
    """`make install` installs the dependencies of the package and none of its extras."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    needed = set()
    for path in Path(anaphor.data.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            needed |= {name.partition(".")[0] for name in names}
    packages = {"PIL": "pillow"}  # where a package is not called what it is installed as
    extra = {"pyarrow"}  # for Parquet files, and the error says so
    assert {packages.get(name, name) for name in needed - sys.stdlib_module_names - extra - {"anaphor"}} <= installed
    assert {"nltk", "tokenizers"} <= needed, "the tokenizers are among these"


def test_treebank_against_nltk_on_single_sentences():
    from nltk.tokenize.destructive import NLTKWordTokenizer

    for sentence in ("Good muffins cost $3.88 (roughly 3,36 euros)", "I'll not; 'tis so!", "We are here."):
        assert list(split_words(sentence)) == NLTKWordTokenizer().tokenize(sentence)


def test_treebank_examples_begin_with_start_and_decode_joins_with_spaces():
    tokenizer = Treebank.train("First Citizen:\nSpeak.\n\nAll:\nSpeak, speak.\n")
    assert tokenizer.tokens[:3] == ("<start>", "<pad>", "<unk>")
    example = tokenizer.encode_example("All: Hear. Speak.")
    assert tokenizer.decode(example) == "<start> All : <unk> . Speak ."
    assert example[0] == tokenizer.boundary
    assert tokenizer.decode(tokenizer.encode("Speak.\n\nAll.\n")) == "<start> Speak . <start> All ."


@given(st.text())
def test_no_word_of_a_text_is_a_special_token_of_treebank(text):
    tokenizer = Treebank.train(f"{text} <start> <pad> <unk>")
    ids = tokenizer.encode_sentence("<start> <pad> <unk>")
    assert not {tokenizer.boundary, tokenizer.pad, tokenizer.unknown} & set(ids.tolist())


@given(st.text())
def test_characters_round_trip(text):
    tokenizer = Character.train(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.unknown not in tokenizer.encode(text)


def test_characters_are_sorted_and_unknown_ones_are_marked():
    tokenizer = Character.train("ba\n")
    assert tokenizer.tokens == ("\n", "a", "b", "<unk>")
    assert tokenizer.decode(tokenizer.encode("abc")) == "ab\ufffd"


@given(st.binary())
def test_every_byte_string_round_trips(raw):
    tokenizer = Byte()
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(raw)) == raw
    assert tokenizer.decode_bytes(tokenizer.encode(raw.decode("utf-8", "surrogateescape"))) == raw


def test_bytes_are_written_for_people():
    assert Byte().tokens[ord("a")] == "a"
    assert Byte().tokens[10] == "<0x0A>"
    assert len(set(Byte().tokens)) == 256
    with pytest.raises(ConfigError, match="256 tokens"):
        Byte.train("a", 100)


@given(st.text())
def test_bpe_decodes_to_exactly_the_text(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text


@given(text=st.text(alphabet="ab <eos>\n\r\t戦é", max_size=60))
def test_bpe_ends_each_line_with_eos_and_is_not_fooled_by_its_spelling(bpe, text):
    ids = bpe.encode(text)
    assert np.count_nonzero(ids == bpe.boundary) == text.count("\n")
    assert bpe.decode(ids) == text


def test_bpe_has_the_size_that_was_asked_for_and_joins_frequent_pairs(bpe):
    assert len(bpe) <= 300
    assert " the" in bpe.tokens
    assert len(bpe.encode(TEXT)) < len(TEXT.encode()) / 2
    with pytest.raises(ConfigError, match=r"^vocabulary=256: a bpe tokenizer has at least 257"):
        BPE.train(TEXT, 256)


def test_bpe_cuts_a_long_line_where_no_token_changes(bpe, monkeypatch):
    text = "the cat sat on the mat . " * 40
    whole = bpe.encode(text)
    monkeypatch.setattr("anaphor.data.bpe.CHUNK", 50)
    np.testing.assert_array_equal(bpe.encode(text), whole)
    unbroken = "the" * 100
    assert bpe.decode(bpe.encode(unbroken)) == unbroken


@pytest.mark.parametrize("letters", ["ab", "12", "_-", " \t"])
def test_bpe_is_trained_on_a_long_word_in_pieces(letters):
    """A word of a million letters took minutes, because each merge reads all of the word."""
    word = "".join(np.random.default_rng(0).choice([*letters], 3 * MAX_WORD))
    pieces = [word[start : start + MAX_WORD] for start in range(0, len(word), MAX_WORD)]
    trained = BPE.train(word, 400)
    assert trained.to_plain() == BPE.train("\n".join(pieces), 400).to_plain()
    assert trained.decode(trained.encode(word)) == word


def test_bpe_training_gives_the_same_tokenizer_in_every_process():
    script = (
        "import random; from anaphor.data.bpe import BPE; generator = random.Random(3);"
        "text = ' '.join(''.join(generator.choices('abcd', k=generator.randint(1, 6))) for _ in range(3000));"
        "print(BPE.train(text, 400).digest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    assert len({done.stdout for done in runs}) == 1
    assert len(runs[0].stdout.strip()) == 64


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "must be a mapping, not a list"),
        ({}, "has no 'kind'"),
        ({"kind": "os.system"}, "unknown tokenizer 'os.system'"),
        ({"kind": "wrd"}, "did you mean 'word'"),
        ({"kind": "word", "tokens": "abc"}, "'tokens' must be a list of strings"),
        ({"kind": "word", "tokens": [1, 2]}, "'tokens' must be a list of strings"),
        ({"kind": "word", "tokens": ["a", "a", "<eos>", "<unk>"]}, "has 'a' twice"),
        ({"kind": "word", "tokens": ["a", "<eos>"]}, "lacks '<unk>'"),
        ({"kind": "character", "tokens": ["ab", "\n", "<unk>"]}, "not one character"),
        ({"kind": "bpe", "vocabulary": ["a"], "merges": []}, "lacks 255 of the 256 bytes"),
        (
            {"kind": "bpe", "vocabulary": [*BYTES, "ab"], "merges": ["a b c"]},
            "not a pair",
        ),
        ({"kind": "bpe", "vocabulary": BYTES, "merges": ["a b"]}, "not both in its"),
        (
            {"kind": "bpe", "vocabulary": [*BYTES, "戦"], "merges": []},
            "is not made of bytes",
        ),
    ],
)
def test_a_description_that_does_not_fit_is_refused_in_one_line(plain, message):
    with pytest.raises(AnaphorError, match=message) as caught:
        tokenizer_from_plain(plain)
    assert "\n" not in str(caught.value)


def test_bpe_refuses_text_that_is_no_utf8(bpe):
    with pytest.raises(DataError, match="not UTF-8 at character 2"):
        bpe.encode("ab\udcff")

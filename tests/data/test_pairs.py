"""Aligned lines: names, folders, two files; what is refused, what is opened when, what tokenizers see."""

import gzip
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anaphor.data.dataset import PAIR_COLUMNS, count_row_overlap
from anaphor.data.datasets import find_dataset, open_dataset
from anaphor.data.pairs import PairTokenizers, build_pair_tokenizers, encode_pair_split, encode_pairs
from anaphor.data.text import split_lines
from anaphor.data.tokenizer import TOKENIZERS
from anaphor.errors import ConfigError, DataError

joint_tokenizers, separate_tokenizers = (partial(build_pair_tokenizers, joint=joint) for joint in (True, False))

# The folder of a test outlives its examples, and each example writes what it reads.
writes_files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def write(path, **texts):
    for name, text in texts.items():
        raw = text if isinstance(text, bytes) else text.encode()
        (path / name.replace("_", ".")).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    return path


def refusal(action, kind=DataError):
    with pytest.raises(kind) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def open_pairs(name, source=None, target=None):
    return open_dataset(name, PAIR_COLUMNS, source=source, target=target)


def little(path, **more):
    write(path, train_en="a dog\na cat\n", train_de="ein Hund\neine Katze\n", **more)
    return open_pairs(str(path), source="en")


@pytest.mark.parametrize("stem", ["valid", "val", "validation", "dev"])
@pytest.mark.parametrize("ending", ["", ".gz", ".txt", ".txt.gz"])
def test_a_folder_has_a_file_for_each_split_and_language(tmp_path, stem, ending):
    for name in ("train", stem, "test"):
        for language in ("en", "de"):
            raw = f"{name} {language}\n".encode()
            (tmp_path / f"{name}.{language}{ending}").write_bytes(gzip.compress(raw) if "gz" in ending else raw)
    for pairs in (open_pairs(str(tmp_path), source="en"), open_pairs(str(tmp_path), target="de")):
        assert pairs.splits == ("train", "valid", "test")
        assert pairs.languages == ("en", "de")
        assert pairs.rows("val").values == pairs.rows("valid").values == [(f"{stem} en", f"{stem} de")]
        assert pairs.read("train", "target") == b"train de\n"
    assert open_pairs(str(tmp_path), "de", "en").rows("test").values == [("test de", "test en")]


def test_the_starter_kit_of_the_course_is_a_folder_of_pairs(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text(f"{name} target\n")
        (tmp_path / f"src-{name}.txt").write_text(f"{name} source\n")
    pairs = open_pairs(str(tmp_path))
    assert (pairs.languages, pairs.splits) == (("source", "target"), ("train", "valid"))
    assert pairs.rows("train").values == [("train source", "train target")]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").rename(tmp_path / f"tgt-{name}.txt")
    assert open_pairs(str(tmp_path)).rows("valid").values == [("valid source", "valid target")]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.en", "train.en.gz", "train.de"], "two files for train, train.en and train.en.gz: keep one"),
        (["train.en", "train.de", "val.en", "valid.en", "val.de"], "two files for valid, val.en and valid.en"),
        (["train.en", "train.de", "test_2016.en", "test_2017.en"], "two files for test, test_2016.en and test_2017.en"),
        (["train.en", "train.de", "val.en"], "has no valid file in de"),
        (["val.en", "val.de"], "has no train file in en or de"),
        (["train.en", "val.en"], "has files in one language only, en"),
        (["train.txt", "valid.txt", "notes.md"], "has no files like train.en"),
        ([], "has no files like train.en"),
    ],
)
def test_a_folder_that_leaves_a_choice_is_refused(tmp_path, names, message):
    for name in names:
        (tmp_path / name).write_bytes(gzip.compress(b"x\n") if name.endswith("gz") else b"x\n")
    assert message in refusal(lambda: open_pairs(str(tmp_path), source="en"))


def test_a_plain_name_of_a_split_goes_before_longer_ones(tmp_path):
    little(tmp_path, test_en="plain\n", test_de="schlicht\n")
    for name in ("test_2016.en", "test_2017.en"):
        (tmp_path / name).write_text("other\n")
    assert open_pairs(str(tmp_path), source="en").rows("test").values == [("plain", "schlicht")]


def test_the_direction_of_a_folder_is_never_guessed(tmp_path):
    little(tmp_path)
    write(tmp_path, train_fr="un chien\nun chat\n")
    for said in ({}, {"source": "fr"}):
        message = refusal(lambda said=said: open_pairs(str(tmp_path), **said), ConfigError)
        assert "has de, en, fr: give both --source and --target" in message
    assert open_pairs(str(tmp_path), "fr", "en").rows("train").values[0] == ("un chien", "a dog")
    (tmp_path / "train.fr").unlink()
    assert "has de, en: give --source or --target" in refusal(lambda: open_pairs(str(tmp_path)), ConfigError)


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        ({"source": "fr"}, "source=fr: multi30k has no such language (it has: en, de)"),
        ({"target": "dee"}, "target=dee: multi30k has no such language; did you mean 'de'?"),
        ({"source": "en", "target": "en"}, "they must be two languages"),
    ],
)
def test_a_language_that_is_not_there_is_named(direction, message):
    assert message in refusal(lambda: open_pairs("multi30k", **direction), ConfigError)


def test_an_unknown_name_gets_the_nearest_guess_and_a_text_is_told_apart():
    assert "unknown data set 'mutli30k'; did you mean 'multi30k'?" in refusal(
        lambda: open_pairs("mutli30k"), ConfigError
    )
    message = refusal(lambda: open_pairs("grammar"), ConfigError)
    assert message.startswith(
        "data set 'grammar' has the columns (text); needed: (source, target); data sets with these: "
    )
    assert "echo" in message


@writes_files
@given(count=st.integers(11, 90))
def test_two_files_are_split_by_line(tmp_path, count):
    sides = [[f"{word} {number}" for number in range(count)] for word in ("one", "eins")]
    for name, side in zip(("book.en", "buch, zwei.de"), sides, strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in side))
    pairs = open_pairs(f"{tmp_path}/book.en,{tmp_path}/buch, zwei.de")
    assert pairs.languages == ("en", "de")
    parts = [pairs.rows(split) for split in pairs.splits]
    assert [pair for part in parts for pair in part.values] == list(zip(*sides, strict=True))
    assert [line for part in parts for line in part.lines] == list(range(1, count + 1))
    assert abs(len(parts[0].values) - 0.9 * count) < 1
    assert abs(len(parts[1].values) - 0.05 * count) < 1


def test_two_files_are_compared_whole_and_must_be_long_enough(tmp_path):
    name = f"{write(tmp_path, a_txt='x' * 3, b_txt='y')}/a.txt,{tmp_path}/b.txt"
    assert open_pairs(name).languages == ("source", "target")
    assert "has 1 line, too few to be split" in refusal(lambda: open_pairs(name).rows("train").values)
    write(tmp_path, a_txt="x\n" * 100, b_txt="x\n" * 101)
    message = refusal(lambda: open_pairs(name).read("train", "source"))
    assert f"{tmp_path}/a.txt has 100 lines and {tmp_path}/b.txt has 101" in message
    (tmp_path / "b.txt").write_bytes(b"x\n" * 96 + b"\xff\n" + b"x\n" * 3)
    assert "b.txt is not UTF-8: byte 0xff at byte offset 192" in refusal(lambda: open_pairs(name).rows("test").values)
    (tmp_path / "b.txt").write_bytes(b"x\n" * 96 + b"\n" + b"x\n" * 3)
    assert f"line 97 of {tmp_path}/b.txt is empty" in refusal(lambda: open_pairs(name).rows("test").values)
    assert len(open_pairs(name).rows("train").values) == 90
    assert f"{tmp_path}/b.txt is one file: " in refusal(lambda: open_pairs(f"{tmp_path}/b.txt"))
    (tmp_path / "b.txt").unlink()
    assert f"means two files, but there is no file {tmp_path}/b.txt" in refusal(lambda: open_pairs(name))


# Signs that other programs take for the end of a line are ordinary ones here.
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"), min_size=1, max_size=12)
sentences = words.filter(str.strip)


@writes_files
@given(
    st.lists(st.tuples(sentences, sentences), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans()
)
def test_what_is_written_line_by_line_is_read_pair_by_pair(tmp_path, pairs, end, ended):
    for place, language in enumerate(("en", "de")):
        text = end.join(pair[place] for pair in pairs) + end * ended
        (tmp_path / f"train.{language}").write_bytes(text.encode())
    found = open_pairs(str(tmp_path), source="en")
    assert found.rows("train").values == [(source.strip(), target.strip()) for source, target in pairs]
    assert found.swap().rows("train").values == [pair[::-1] for pair in found.rows("train").values]
    assert found.swap().swap().languages == ("en", "de")
    assert found.rows("train").digest == found.digest("train")


def test_unequal_line_counts_name_both_files_and_both_counts(tmp_path):
    pairs = little(tmp_path, val_en="a\nb\nc\n", val_de="a\nb\n")
    assert len(pairs.rows("train").values) == 2
    message = refusal(lambda: pairs.rows("valid").values)
    assert f"{tmp_path}/val.en has 3 lines and {tmp_path}/val.de has 2: they must correspond line by line" in message


def test_an_empty_line_is_refused_on_one_side_and_counted_on_both(tmp_path):
    pairs = little(tmp_path, val_en="a\n\n \nd\n", val_de="A\n\n\t\nD\n", test_en="a\nb\n", test_de="A\n \n")
    found = pairs.rows("valid")
    assert (found.values, found.lines, found.blank) == ([("a", "A"), ("d", "D")], [1, 4], 2)
    message = refusal(lambda: pairs.rows("test").values)
    assert message == f"line 2 of {tmp_path}/test.de is empty, but line 2 of {tmp_path}/test.en is not"
    message = refusal(lambda: pairs.swap().rows("test").values)
    assert message.startswith(f"line 2 of {tmp_path}/test.de is empty")


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), *[(t, "hold no sentences") for t in ("\n", " \n\n")]])
def test_files_without_sentences_are_refused(tmp_path, text, message):
    pairs = little(tmp_path, test_en=text, test_de=text)
    assert message in refusal(lambda: pairs.rows("test").values)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"ab\n\xe4\n", "val.de is not UTF-8: byte 0xe4 at byte offset 3; convert it to UTF-8"),
        (b"ab\n\0\n", "NUL byte at byte offset 3"),
        ("ab\nc\n".encode("utf-16"), "val.de is UTF-16: convert it to UTF-8"),
    ],
)
def test_what_is_no_text_is_named_by_its_byte(tmp_path, raw, message):
    said = refusal(lambda: little(tmp_path, val_en="a\nb\n", val_de=raw).rows("valid").values)
    assert message in said
    assert "byte tokenizer" not in said, "it would not help"


def test_a_mark_at_the_beginning_is_dropped(tmp_path):
    pairs = little(tmp_path, val_en="\ufeffa\n", val_de="A\n")
    assert pairs.rows("valid").values == [("a", "A")]


def test_a_split_or_side_that_is_not_there_is_named(tmp_path):
    pairs = little(tmp_path)
    assert "has no test split (it has: train)" in refusal(lambda: pairs.rows("test").values)
    assert "unknown split 'tset'" in refusal(lambda: pairs.read("tset", "source"), ConfigError)
    assert "unknown column 'en' (known: source, target)" in refusal(lambda: pairs.read("train", "en"), ConfigError)


def test_the_digest_knows_content_and_direction_but_not_compression(tmp_path):
    first = little(tmp_path).digest("train")
    assert little(tmp_path).swap().digest("train") != first
    write(tmp_path, train_de_gz="ein Hund\neine Katze\n")
    (tmp_path / "train.de").unlink()
    assert open_pairs(str(tmp_path), source="en").digest("train") == first
    write(tmp_path, train_de_gz="ein Hund\nein Kater\n")
    assert open_pairs(str(tmp_path), source="en").digest("train") != first


def test_nothing_but_the_split_that_is_asked_for_is_opened(tmp_path):
    """With a system-level witness: the other files cannot even be read."""
    pairs = little(tmp_path, val_en="a\n", val_de="A\n", test_en="b\n", test_de="B\n")
    others = [tmp_path / f"{split}.{language}" for split in ("val", "test") for language in ("en", "de")]
    contents = [path.read_text() for path in others]
    for path in others:
        path.unlink()
        path.mkdir()
    tokenizers = joint_tokenizers(pairs, "word"), separate_tokenizers(pairs, "bpe", 300)
    for path, content in zip(others[:2], contents, strict=False):
        path.rmdir()
        path.write_text(content)
    for both in tokenizers:
        assert encode_pair_split(pairs, "valid", both)
    assert pairs.digest("valid")
    with pytest.raises(DataError, match="test"):
        count_row_overlap(pairs, pairs.rows("train").values)


def test_pairs_of_test_that_stand_in_train_are_counted(tmp_path):
    test = {"test_en": "a dog\na dog\na cat\n", "test_de": "ein Hund\neine Hündin\neine Katze\n"}
    pairs = little(tmp_path, **test)
    found = count_row_overlap(pairs, pairs.rows("train").values)
    assert (found.total, found.in_train) == (3, 2)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_sentences_come_as_each_tokenizer_reads_them_alone(tmp_path, kind):
    english = ["Mr. Smith isn't here.", "He said etc.", "«Why?» — She left", "a\u2028b  c", "No end"]
    german = ["Herr Schmidt ist fort.", "Er sagte usw.", "Warum?", "ß", "Kein Ende."]
    write(tmp_path, train_en="\n".join(english), train_de="\n".join(german))
    pairs = open_pairs(str(tmp_path), source="en")
    size = 300 if kind == "bpe" else None
    for make in (joint_tokenizers, separate_tokenizers):
        made = make(pairs, kind, size)
        assert made == PairTokenizers.from_plain(made.to_plain())
        for _ in range(2):  # the second time from disk
            found = encode_pair_split(pairs, "train", made)
            at_hand = encode_pairs(pairs.rows("train").values, made)
            for side, again, tokenizer, texts in (
                (found.source, at_hand.source, made.source, english),
                (found.target, at_hand.target, made.target, german),
            ):
                assert tokenizer.unknown is None or tokenizer.unknown not in side.tokens
                np.testing.assert_array_equal(side.tokens, again.tokens)
                np.testing.assert_array_equal(side.sizes, again.sizes)
                for place, text in enumerate(texts):
                    np.testing.assert_array_equal(side[place], tokenizer.encode_sentence(text))
                    assert tokenizer.boundary not in side[place]
            assert found.bytes == at_hand.bytes == sum(len(text.encode()) + 1 for text in german)
            assert found.digest == pairs.digest("train")


def test_joint_numbers_mean_the_same_on_both_sides(tmp_path):
    pairs = little(tmp_path)
    joint, separate = joint_tokenizers(pairs, "word"), separate_tokenizers(pairs, "word")
    assert joint.is_joint
    assert not separate.is_joint
    assert set(joint.source.tokens) == {*separate.source.tokens, *separate.target.tokens}
    assert "Hund" not in separate.source.tokens
    assert "target" not in joint.to_plain()
    with pytest.raises(DataError, match="a mapping with 'source'"):
        PairTokenizers.from_plain({"kind": "word"})


@pytest.fixture(scope="module")
def bpe():
    """Learnt from dates: most of what it is given later is new to it."""
    return joint_tokenizers(open_pairs("dates"), "bpe", 400)


# A newline ends a sentence and white space round it is dropped; all else must come back, for BLEU compares texts.
@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=1), min_size=1).map(" ".join))
def test_bpe_gives_back_every_text(bpe, text):
    found = encode_pairs([(text, text)], bpe)
    assert bpe.target.decode(found.target.tokens) == text


def test_words_that_mark_an_end_are_refused(tmp_path):
    pairs = little(tmp_path, val_en="\na\nb <eos> c\n<eos>\n", val_de="\nA\nB\nC\n")
    made = joint_tokenizers(pairs, "word")
    message = refusal(lambda: encode_pair_split(pairs, "valid", made))
    assert message == f"line 3 of {tmp_path}/val.en contains '<eos>', which marks the end of a sentence"
    assert "line 1 of the sentences contains '<eos>'" in refusal(lambda: encode_pairs([("a <eos>", "")], made))


@pytest.mark.parametrize("kind", ["word", "treebank"])
def test_a_line_of_which_nothing_is_left_is_named(tmp_path, kind):
    pairs = little(tmp_path, val_en=" \ufeff\na\nb\n", val_de="A\nB\nC\n")
    made = joint_tokenizers(pairs, kind)
    message = refusal(lambda: encode_pair_split(pairs, "valid", made))
    assert message == f"line 1 of {tmp_path}/val.en holds no token"


def test_sentences_at_hand_need_no_target_but_a_source(tmp_path):
    made = joint_tokenizers(little(tmp_path), "word")
    found = encode_pairs([("a dog", ""), ("a cat", "eine")], made)
    assert found.target.sizes.tolist() == [0, 1]
    assert "sentence 2 is empty" in refusal(lambda: encode_pairs([("a", "b"), (" ", "c")], made))
    assert "there are no sentences" in refusal(lambda: encode_pairs([], made))


def lengths(path):
    """Five pairs, the second blank; sizes 1/1, 3/2, 2/4, 5/1."""
    write(path, train_en="a\n\na b c\na b\na b c d e\n", train_de="x\n\nx y\nx y z w\nx\n")
    pairs = open_pairs(str(path), source="en")
    return encode_pair_split(pairs, "train", joint_tokenizers(pairs, "word"))


def test_a_pair_over_the_limit_is_an_error_that_names_line_and_limit(tmp_path):
    pairs = lengths(tmp_path)
    pairs.check_lengths(), pairs.check_lengths(source=5, target=5)
    message = refusal(lambda: pairs.check_lengths(source=2))
    assert message == (f"line 3 of {tmp_path}/train.en is too long, as are 1 more: it has 3 tokens, and the limit is 2")
    message = refusal(lambda: pairs.check_lengths(source=9, target=4))
    assert message == f"line 4 of {tmp_path}/train.de is too long: it has 5 tokens with its end, and the limit is 4"


def test_pairs_over_a_length_are_dropped_and_counted_where_that_is_asked_for(tmp_path):
    pairs = lengths(tmp_path)
    short = pairs.drop_longer(3)
    assert (len(short), short.dropped, short.blank) == (2, 2, 1)
    assert (short.indices.tolist(), short.lines.tolist()) == ([0, 1], [1, 3])
    np.testing.assert_array_equal(short.target[1], pairs.target[1])
    assert short.bytes == len("x\nx y\n")
    assert short.drop_longer(1).dropped == 3
    assert pairs.first(3).indices.tolist() == [0, 1, 2]
    assert len(pairs.first(99)) == 4
    assert "max_length=0" in refusal(lambda: pairs.drop_longer(0), ConfigError)
    only_long = pairs.source.sizes.argmax()
    kept = pairs.select(np.arange(len(pairs)) == only_long)
    assert "max_length=2: every pair of" in refusal(lambda: kept.drop_longer(2))


def sentences(side):
    return [side[index].tolist() for index in range(len(side.sizes))]


def test_swapped_pairs_are_exchanged_whole_and_all_others_stay(tmp_path):
    pairs = lengths(tmp_path)
    plain = list(zip(sentences(pairs.source), sentences(pairs.target), strict=True))
    seen = set()
    for epoch in range(40):
        found = pairs.swap_half(3, epoch)
        both = list(zip(sentences(found.source), sentences(found.target), strict=True))
        turned = tuple(pair != before for pair, before in zip(both, plain, strict=True))
        assert both == [pair[::-1] if turn else pair for pair, turn in zip(plain, turned, strict=True)]
        assert found.source.tokens.dtype == pairs.source.tokens.dtype
        assert found.indices is pairs.indices
        seen.add(turned)
    assert {(False,) * 4, (True,) * 4} <= seen, "all of them and none of them, too"
    assert len(seen) > 10


def test_pairs_over_a_limit_the_other_way_round_are_not_swapped(tmp_path):
    pairs = lengths(tmp_path)

    def swapped(**limits):
        found = [pairs.swap_half(0, epoch, **limits).source.sizes != pairs.source.sizes for epoch in range(40)]
        return np.logical_or.reduce(found).tolist()

    # The first has one token on both sides.
    assert swapped() == [False, True, True, True]
    assert swapped(source=3) == [False, True, False, True]
    assert swapped(target=3) == [False, True, True, False]
    assert swapped(source=4, target=5) == [False, True, True, True]


def test_only_a_newline_ends_a_line():
    assert split_lines("a\x0b\u2028\x85b\nc") == ["a\x0b\u2028\x85b", "c"]
    assert split_lines("") == []
    assert split_lines("\n") == [""]
    assert split_lines("a\n\n") == ["a", ""]


def test_multi30k_has_its_published_counts(real_data):
    if not (real_data / "multi30k").is_dir():
        pytest.skip("multi30k is not on disk")
    pairs = open_pairs("multi30k")
    assert pairs.languages == ("en", "de")
    assert {split: len(pairs.rows(split).values) for split in pairs.splits} == {
        "train": 29_000,
        "valid": 1014,
        "test": 1000,
    }
    counts = [sum(len(pair[side].split()) for pair in pairs.rows("test").values) for side in (0, 1)]
    assert counts == [11_877, 10_905]
    backwards = open_pairs("multi30k", source="de", target="en")
    assert backwards.rows("test").values[0] == pairs.rows("test").values[0][::-1]
    folder = open_pairs(str(real_data / "multi30k"), target="de")
    assert [folder.digest(split) for split in folder.splits] == [pairs.digest(split) for split in pairs.splits]
    for file in find_dataset("multi30k").files:
        raw = file.find().read_bytes()
        assert len(raw) == file.upstream.gzip.bytes, "what is on disk is what upstream sends"
        assert gzip.decompress(raw) == file.read()


def test_every_named_file_has_a_pinned_address_and_checksums():
    for name in ("wikitext-2", "tinyshakespeare", "multi30k"):
        for file in find_dataset(name).files:
            assert file.upstream.url.startswith("https://raw.githubusercontent.com/")
            assert len(file.upstream.url.split("/")[5]) == 40, "a commit, not a branch"
            assert len(bytes.fromhex(file.upstream.sha256)) == len(bytes.fromhex(file.upstream.transfer.sha256)) == 32
            assert file.cache_path.name == file.upstream.file + (".gz" if file.upstream.gzip else "")

"""Synthetic tasks: every answer is that of a slow oracle; options follow the name of a data set."""

import re

import numpy as np
import pytest

from anaphor.data import open_dataset
from anaphor.data.synthetic.base import NO_ANSWER, SyntheticDataset
from anaphor.errors import ConfigError
from anaphor.registry import DATASETS

TASKS = (
    "recall:sequences=40",
    "recall:sequences=40,pairs=3,vocabulary=64,length=30",
    "copy:sequences=40,length=5",
    "selective-copy:sequences=40,items=3,length=9",
    "induction:sequences=40,length=9",
    "flip-flop:sequences=40,length=9,ignore=0.5",
    "parity:sequences=40,length=7",
    "modular:sequences=40,length=6",
    "modular:sequences=40,length=6,modulus=7,brackets=true",
    "dyck:sequences=40,length=8,depth=3",
    "permutations:sequences=40,length=6",
    "permutations:sequences=40,length=6,group=A5",
    "permutations:sequences=40,length=6,group=S5,swaps=true",
)


def answer_recall(words):
    known, answers, place = {}, [None] * len(words), 0
    while place + 1 < len(words):
        if words[place] == ".":
            place += 1
            continue
        key, value = words[place : place + 2]
        answers[place] = known.get(key)
        known.setdefault(key, value)
        place += 2
    return answers


def answer_copy(words):
    row = [word for word in words[: words.index("|")] if word != "."]
    return [None] * words.index("|") + row + [None]


def answer_induction(words):
    return [None] * (len(words) - 2) + [words[words.index("!") + 1], None]


def answer_flip_flop(words):
    bit, answers = None, []
    for instruction, following in zip(words, [*words[1:], None], strict=True):
        answers.append(bit if instruction == "r" else None)
        bit = following if instruction == "w" else bit
    return answers


def answer_parity(words):
    return [("even", "odd")[words[: place + 1].count("1") % 2] for place in range(len(words))]


def answer_modular(words):
    """Python's own arithmetic, of what was read so far."""
    return [str(eval(" ".join(words[: place + 1])) % 5) if word.isdigit() else None for place, word in enumerate(words)]


def answer_brackets(words):
    """Python's own arithmetic, of each bracket when it closes."""
    starts, answers = [], []
    for place, word in enumerate(words):
        if word == "(":
            starts.append(place)
        value = str(eval(" ".join(words[starts.pop() : place + 1])) % 7) if word == ")" else None
        answers.append(value)
    return answers


def answer_dyck(words):
    stack, answers = [], []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in "([{<":
            stack.append(word)
        else:
            assert "([{<"[")]}>".index(word)] == stack.pop()
        assert len(stack) <= 3
        answers.append(following if following and following in ")]}>" else None)
    assert not stack
    return answers


def answer_permutations(words):
    state, answers = None, []
    for word in words:
        state = word if state is None else "".join(word[int(image) - 1] for image in state)
        answers.append(state)
    return answers


ORACLES = {
    "recall": answer_recall,
    "copy": answer_copy,
    "selective-copy": answer_copy,
    "induction": answer_induction,
    "flip-flop": answer_flip_flop,
    "parity": answer_parity,
    "modular": answer_modular,
    "dyck": answer_dyck,
    "permutations": answer_permutations,
}


def test_every_synthetic_task_has_an_oracle():
    made = [name for name in DATASETS if isinstance(open_dataset(name), SyntheticDataset)]
    assert sorted(made) == sorted(ORACLES)


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("name", TASKS)
def test_every_answer_is_that_of_an_oracle(name, times):
    dataset = open_dataset(name)
    oracle = answer_brackets if "brackets" in name else ORACLES[dataset.name]
    found = dataset.make_sequences("train", times)
    assert found.tokens.shape == found.answers.shape == (40, dataset.count_tokens(times))
    for tokens, answers in zip(found.tokens.tolist(), found.answers.tolist(), strict=True):
        shown = [None if answer == NO_ANSWER else dataset.words[answer] for answer in answers]
        words = [dataset.words[token] for token in tokens]
        assert shown == oracle(words)
        assert any(shown)


def test_a_word_of_a_group_is_what_its_permutations_do_one_after_the_other():
    found = open_dataset("permutations:group=S5,length=9,sequences=5").make_sequences("train")
    names = open_dataset("permutations:group=S5").words
    assert len(names) == 120
    for tokens, answers in zip(found.tokens, found.answers, strict=True):
        places = list("12345")
        for token in tokens:
            places = [names[token][int(place) - 1] for place in places]
        assert "".join(places) == names[answers[-1]]


def test_swaps_are_permutations_of_two_elements_or_none_and_reach_the_whole_group():
    found = open_dataset("permutations:group=S5,swaps=true,length=20,sequences=500").make_sequences("train")
    names = open_dataset("permutations:group=S5").words
    moved = [sum(a != b for a, b in zip(names[token], "12345", strict=True)) for token in np.unique(found.tokens)]
    assert sorted(moved) == [0] + 10 * [2]
    assert len(np.unique(found.answers)) == 120


@pytest.mark.parametrize("name", TASKS)
def test_the_text_has_the_sequences_and_splits_differ(name):
    dataset = open_dataset(name)
    lines = dataset.text("train").splitlines()
    assert len(lines) == 40
    assert lines[0].split() == [dataset.words[token] for token in dataset.make_sequences("train").tokens[0]]
    assert len(dataset.text("valid").splitlines()) == 4
    assert dataset.text("valid") != dataset.text("test")
    assert dataset.digest("train") == open_dataset(name).digest("train")
    assert dataset.digest("train") != open_dataset(f"{name},seed=1").digest("train")


def test_recall_has_the_settings_of_papers():
    dataset = open_dataset("recall:pairs=256,vocabulary=8192,length=1024,sequences=20")
    found = dataset.make_sequences("valid")
    assert found.tokens.shape == (2, 1024)
    assert ((found.answers != NO_ANSWER).sum(1) == 256).all()
    assert len(np.unique(found.tokens[0, :512:2])) == 256


def test_a_read_bit_is_far_from_its_write_where_much_is_ignored():
    text = open_dataset("flip-flop:ignore=0.9,length=400,sequences=10").text("train")
    assert max(map(len, re.findall(r"(?:i [01] )+", text))) > 4 * 20


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("recall:pair=3", "unknown option of recall 'pair'; did you mean 'pairs'?"),
        ("recall:pairs=x", "pairs='x' must be a whole number"),
        ("recall:pairs", "pairs='' must be a whole number"),
        ("recall:", "unknown option of recall ''"),
        ("modular:brackets=2", "brackets='2' must be true or false"),
        ("grammar:tokens=3", "grammar has no options"),
        ("recall:pairs=40", "need 160 keys, and vocabulary=128 has 64: give a vocabulary of at least 320"),
        ("recall:length=9", "8 pairs and as many questions take 32"),
        ("selective-copy:items=40", "length=32 must have room for them"),
        ("permutations:group=S4", "unknown group 'S4'"),
        ("permutations:group=A5,swaps=true", "no permutation of A5 exchanges two elements alone"),
        ("flip-flop:ignore=1.0", "it must be at least 0 and below 1"),
        ("parity:length=10000000", "length=10000000"),
        ("parity:sequences=1000000,length=16000", "at most 268,435,456 tokens"),
        ("recal:pairs=3", "unknown data set"),
    ],
)
def test_wrong_options_are_refused_in_one_line(name, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        open_dataset(name, ("text",))
